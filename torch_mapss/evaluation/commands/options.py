"""What the commands share: texts, options, exit codes, progress, and the scorer they ask for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import console, files
from torch_mapss.evaluation.processes import local_device

if TYPE_CHECKING:
    from torch_mapss.distortions import DistortionBank
    from torch_mapss.evaluation.request import Request
    from torch_mapss.pipeline.mapss import MAPSS


OK, SOME_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


MEASURES = """\
Two measures of separated sources, per frame and per file, higher is better:
  PS  Perceptual Separation, 0 to 1: how free an estimate is of the other sources (1: no leakage)
  PM  Perceptual Match, 0 to 1: how undistorted it is (1: as its reference)
A reference is the true source, as it was before mixing; an estimate is what a separator made of
the mixture. Both must be aligned sample by sample: a delay counts as distortion.
"""


FILES = """\
Files may be anything libsndfile reads (WAV, FLAC, OGG, MP3), at any rate: channels are mixed down
to their mean and the rate is brought to the encoder's, which the result says.
"""


CODES = "Exit codes: 0 all scored; 1 some mixtures failed; 2 bad usage or input; 130 interrupted."


#: Of the bounds: what their options leave open, so that those can tell whether they are given.
DEFAULTS: dict[str, Any] = {"confidence": 0.95, "tail": "concentration"}


class _Parser(argparse.ArgumentParser):
    """Prints as all of the program does; the parsers of commands are of the same class."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is None or file is sys.stderr:
            with suppress(OSError):
                super()._print_message(message, file)
        else:
            console.say(message.removesuffix("\n"))


def make_parser(
    commands: Any, name: str, description: str, epilog: str = "", help: str = ""
) -> Any:
    """The parser of a command, or of all of them if ``commands`` is None."""
    options: dict[str, Any] = {
        "description": description,
        "epilog": epilog,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    if commands is None:
        return _Parser(prog=name, **options)
    return commands.add_parser(name, help=help, **options)


def add_scoring_options(parser: Any) -> None:
    """The options of every command that scores, in groups."""
    _add_encoder(parser.add_argument_group("encoder"))
    _add_signals(parser.add_argument_group("what is scored"))
    _add_bounds(parser.add_argument_group("errors of the scores"))
    _add_bank(parser.add_argument_group("distortions"))
    _add_map(parser.add_argument_group("measures"))
    _add_machine(parser.add_argument_group("machine"))


def _add_encoder(group: Any) -> None:
    group.add_argument(
        "--encoder",
        default="wav2vec2-large",
        metavar="NAME",
        help="`torch-mapss encoders` lists them; or a local folder or hub id (default: "
        "%(default)s, fetched on first use; mel needs no download)",
    )
    group.add_argument("--layer", type=int, help="of the encoder (default: its own)")
    group.add_argument(
        "--match-encoder",
        metavar="NAME",
        help="another encoder for PM, on the same rate and hop (default: that of PS)",
    )
    group.add_argument(
        "--dtype", help="of the encoder's weights: float32, float16, bfloat16 (default: float32)"
    )
    group.add_argument("--local-files-only", action="store_true", help="never fetch a checkpoint")
    group.add_argument("--cache-dir", metavar="DIR", help="where fetched checkpoints are kept")


def _add_signals(group: Any) -> None:
    group.add_argument(
        "--permute",
        action="store_true",
        help="find out which reference each estimate belongs to, by SI-SDR",
    )
    group.add_argument(
        "--trim",
        action="store_true",
        help="cut all files to the shortest instead of refusing different lengths",
    )
    group.add_argument(
        "--align",
        action="store_const",
        const="shift",
        help="move every estimate by one constant lag, of at most 500 ms, onto its reference; the "
        "tables say by how much (default: nothing is moved, and delay counts as distortion)",
    )
    group.add_argument(
        "--align-polarity",
        action="store_true",
        help="flip an estimate whose correlation with its reference is negative",
    )
    group.add_argument(
        "--sample-frames",
        type=int,
        metavar="N",
        help="score at most N frames of a mixture, drawn at random: quicker, means stay unbiased",
    )
    group.add_argument(
        "--activity",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="a source is active where its RMS exceeds this share of its RMS over the whole file, "
        "at least 0 and below 1 (default: %(default)s)",
    )


def _add_bounds(group: Any) -> None:
    group.add_argument(
        "--bounds",
        action="store_true",
        help="a bound of the error of every frame score: radius and half-width. It tells how well "
        "frames are estimated, not how scores vary over files",
    )
    group.add_argument(
        "--confidence",
        type=float,
        metavar="P",
        help=f"of the half-widths (default: {DEFAULTS['confidence']})",
    )
    group.add_argument(
        "--bounds-convention",
        choices=("paper", "reference", "derived"),
        help="of the bounds (default: that of the scores); derived: the paper's argument with its "
        "units, unions and constants put right",
    )
    group.add_argument(
        "--tail",
        choices=("concentration", "bootstrap"),
        help="of the bounds: the paper's inequalities, or the distortions drawn again, which is "
        f"narrow and holds for PS, and takes longer (default: {DEFAULTS['tail']})",
    )


def _add_bank(group: Any) -> None:
    group.add_argument(
        "--bank-size",
        type=int,
        metavar="N",
        help="use N of the distortions of each measure (70 for PS, up to 83 for PM): quicker, "
        "coarser, not comparable with full banks",
    )
    group.add_argument(
        "--only",
        nargs="+",
        metavar="FAMILY",
        help="keep these families or members of the distortions alone; `torch-mapss distortions` "
        "lists them",
    )
    group.add_argument(
        "--without",
        nargs="+",
        default=[],
        metavar="FAMILY",
        help="leave these families or members of the distortions out",
    )
    group.add_argument(
        "--seed", type=int, default=0, help="of the noise in the distortions (default: %(default)s)"
    )


def _add_map(group: Any) -> None:
    group.add_argument(
        "--convention",
        choices=("paper", "reference", "conformal"),
        default="paper",
        help="the paper's equations, those of the released implementation, or the paper's with the "
        "output counted among its distortions: PM is far less saturated, and has a rank beside it, "
        "at least 1/(N_p + 1) with N_p distortions, that is valid under exchangeability (default: "
        "%(default)s)",
    )
    group.add_argument(
        "--alpha",
        type=float,
        default=1.0,
        metavar="A",
        help="of the diffusion map: how far the density of the points is taken out, 0 to 1 "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--energy",
        type=float,
        default=0.99,
        metavar="TAU",
        help="of the diffusion map: the share of the spectrum that is kept, above 0 to 1 (default: "
        "%(default)s)",
    )
    group.add_argument(
        "--max-dimension",
        type=int,
        metavar="D",
        help="keep at most D coordinates of each map (default: as many as hold 99 %% of it)",
    )
    group.add_argument(
        "--eigh",
        choices=("float64", "float32"),
        default="float64",
        help="precision of the eigendecomposition alone. float32 is for graphics cards with slow "
        "float64 and for means: a frame's PS moves by 1e-6 (3e-4 at most), its log PM by 4e-5 of "
        "itself (2e-4 on average, 20 %% at most). Not for single frames, nor to compare with "
        "published numbers (default: %(default)s)",
    )


def _add_machine(group: Any) -> None:
    group.add_argument(
        "--segment",
        type=float,
        metavar="S",
        help="score longer files in segments of at most S seconds, in memory that grows "
        "with them by copies of the waveforms alone; 0: all whole (default: 60, or what the "
        "encoder can hear at once). mel and waveform give the scores of the whole; for "
        "transformers the segment is all they hear",
    )
    group.add_argument(
        "--memory",
        default="auto",
        metavar="SIZE",
        help="to work in, e.g. 2GiB: less is slower and changes no score (default: %(default)s, 1 "
        "GiB on a CPU, a quarter of what is free on a GPU)",
    )
    add_device_option(group)
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="of the CPU. 1 is best where other work shares it: threads that wait for each other "
        "are slow (default: torch's own choice)",
    )


def add_device_option(parser: Any) -> None:
    """``--device``, of every command that computes."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="cpu, cuda, cuda:1, mps, ... (default: auto, which is cuda where there is one, else "
        "mps, else cpu; the summary says which)",
    )


def add_manners(parser: Any, quiet: bool = True) -> None:
    group = parser.add_argument_group("output")
    if quiet:
        group.add_argument("--quiet", action="store_true", help="no progress bar, no table")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def say_written(paths: Sequence[str], quiet: bool) -> None:
    """Tell where the results are."""
    if paths and not quiet:
        console.say(f"\nWritten to {', '.join(files.shown(path) for path in paths)}")


def bar(args: argparse.Namespace) -> Any:
    """Progress over an iterable, unless it is not wanted."""
    return lambda items, **options: console.progress(items, quiet=args.quiet, **options)


def scorer_of(args: argparse.Namespace) -> MAPSS:
    """The scorer that the options ask for."""
    from torch_mapss.pipeline.mapss import MAPSS

    banks = [bank_of(args, kind) for kind in ("separation", "match")]
    segment = "auto" if args.segment is None else (args.segment or None)
    return MAPSS(
        args.encoder,
        args.layer,
        match_encoder=args.match_encoder,
        segment=segment,
        memory=args.memory,
        separation_bank=banks[0],
        match_bank=banks[1],
        align_polarity=args.align_polarity,
        alpha=args.alpha,
        energy=args.energy,
        activity=args.activity,
        convention=args.convention,
        max_dimension=args.max_dimension,
        eigh=args.eigh,
        dtype=args.dtype,
        device=args.device,
        local_files_only=args.local_files_only,
        cache_dir=args.cache_dir,
    )


def bank_of(args: argparse.Namespace, kind: str) -> DistortionBank:
    """The bank of ``kind`` that the options ask for.

    Families are in both banks, members in one: a name that one of them has will do.

    Raises:
        ValueError: a name that neither has, or nothing is left.
    """
    from torch_mapss.distortions import DistortionBank

    banks = {name: DistortionBank(name) for name in ("separation", "match")}
    names = {name: {*bank.families, *bank.names()} for name, bank in banks.items()}
    for option, given in (("--only", args.only or []), ("--without", args.without)):
        unknown = [name for name in given if not any(name in known for known in names.values())]
        if unknown:
            raise ValueError(
                f"{option} names {', '.join(map(repr, unknown))}, which neither bank has. Families "
                f"are {', '.join(banks['match'].families)}; `torch-mapss distortions` lists their "
                "members."
            )
    only = None if args.only is None else [name for name in args.only if name in names[kind]]
    without = [name for name in args.without if name in names[kind]]
    return DistortionBank(
        kind,
        only=only,
        without=without,
        seed=args.seed,
        size=args.bank_size,
    )


def request_of(args: argparse.Namespace) -> Request:
    """What the options want computed.

    Raises:
        ValueError: a setting that is none, or one of bounds where no bounds are asked for.
    """
    from torch_mapss.evaluation.request import Request

    if not args.bounds:
        for name in ("confidence", "bounds_convention", "tail"):
            if getattr(args, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} says how bounds are made, and none are: add --bounds.")
    return Request(
        permute=args.permute,
        trim=args.trim,
        bounds=args.bounds,
        confidence=DEFAULTS["confidence"] if args.confidence is None else args.confidence,
        sample_frames=args.sample_frames,
        align=args.align,
        bounds_convention=args.bounds_convention,
        tail=DEFAULTS["tail"] if args.tail is None else args.tail,
    ).checked()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let torch use ``count`` threads of the CPU for a while; its own choice if None.

    Raises:
        ValueError: ``count`` is below 1.
    """
    if count is None:
        yield
        return
    if count < 1:
        raise ValueError(f"--threads must be at least 1, got {count}.")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_of_options(name: str) -> str:
    """The device that ``--device`` means, in this process: "auto" takes the fastest that is there.

    Raises:
        ValueError: no such device.
    """
    import torch

    from torch_mapss.core.devices import best_device

    device = local_device(str(best_device()) if name == "auto" else name)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        reason = (str(error).splitlines() or ["unknown"])[0]
        raise ValueError(
            f"--device {device} cannot be used here ({reason}). Leave it out for what is there."
        ) from None
    return device

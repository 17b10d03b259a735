"""The command ``torch-mapss``: score, evaluate, demo, encoders.

Only the standard library is imported here, so that ``--help`` is quick; each command imports what
it needs.

Exit codes: 0 all scored, 1 some mixtures of a manifest failed, 2 wrong usage or input that cannot
be scored, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch_mapss import _files

if TYPE_CHECKING:
    from torch_mapss.pipeline import MAPSS
    from torch_mapss.report import Request

OK, SOME_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

MEASURES = """\
Two measures of separated sources, per frame and per file, higher is better:
  PS  Perceptual Separation, 0 to 1: how free an estimate is of the other sources (1: no leakage)
  PM  Perceptual Match, 0 to 1: how undistorted it is (1: as its reference)
A reference is the true source, as it was before mixing; an estimate is what a separator made of
the mixture. Both must be aligned sample by sample: a delay counts as distortion.
"""
_FILES = """\
Files may be anything libsndfile reads (WAV, FLAC, OGG, MP3), at any rate: channels are mixed down
to their mean and the rate is brought to the encoder's, which the result says.
"""
_CODES = "Exit codes: 0 all scored; 1 some mixtures failed; 2 bad usage or input; 130 interrupted."


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _parser(None, "torch-mapss", MEASURES, _CODES)
    parser.add_argument("--version", action="version", version=f"torch_mapss {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_score(commands)
    _add_evaluate(commands)
    _add_demo(commands)
    _add_encoders(commands)
    return parser


def _parser(commands: Any, name: str, description: str, epilog: str = "", help: str = "") -> Any:
    options: dict[str, Any] = {
        "description": description,
        "epilog": epilog,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    if commands is None:
        return argparse.ArgumentParser(prog=name, **options)
    return commands.add_parser(name, help=help, **options)


def _version() -> str:
    from torch_mapss import __version__

    return __version__


def _add_score(commands: Any) -> None:
    score = _parser(
        commands,
        "score",
        f"Score the estimates of one mixture.\n\n{MEASURES}\n{_FILES}",
        "Example:\n  torch-mapss score --references a.wav b.wav --estimates ea.wav eb.wav "
        f"--encoder mel --plot --out results\n\n{_CODES}",
        "score the estimates of one mixture",
    )
    score.set_defaults(run=run_score)
    score.add_argument(
        "--references",
        nargs="+",
        required=True,
        metavar="FILE",
        help="the true sources, one file each, at least two",
    )
    score.add_argument(
        "--estimates",
        nargs="+",
        required=True,
        metavar="FILE",
        help="the separator's outputs, in the order of the references (or see --permute and "
        "--attributed)",
    )
    score.add_argument("--mixture", metavar="FILE", help="the mixture, shown in the plot")
    score.add_argument(
        "--names", nargs="+", metavar="NAME", help="one name per reference, for tables and plots"
    )
    score.add_argument(
        "--attributed",
        nargs="+",
        type=int,
        metavar="INDEX",
        help="which reference each estimate belongs to, from 0: `--attributed 0` scores the "
        "first source alone",
    )
    score.add_argument(
        "--plot",
        nargs="?",
        const="",
        metavar="FILE",
        help="draw PS and PM over time, to FILE (PNG, PDF or SVG), else to scores.png in --out or "
        "here",
    )
    score.add_argument(
        "--out",
        metavar="DIR",
        help="write scores.csv, ps.csv, pm.csv (per frame) and report.json to this folder",
    )
    _add_scoring_options(score)
    _add_manners(score)


def _add_evaluate(commands: Any) -> None:
    evaluate = _parser(
        commands,
        "evaluate",
        f"""\
Score whole test sets of one or more systems, listed in a manifest.

{MEASURES}
MANIFEST is a JSON list, one entry per mixture, paths relative to the manifest:
  [{{"mixture_id": "song1",
    "references": ["song1/vocals.wav", "song1/drums.wav"],
    "systems": {{"A": ["A/song1/vocals.wav", "A/song1/drums.wav"],
                "B": ["B/song1/vocals.wav", null]}}}}]
null stands for a source that a system does not estimate. {_FILES}
DIR gets scores.csv (one row per estimate), items.csv (per mixture and system: means over its
estimates), summary.csv (per system: means over mixtures), settings.json and, while it runs, the
finished rows: started again with the same settings, it goes on where it stopped. A mixture that
fails is listed with its reason, and tried again the next time.
Under torchrun the mixtures are shared out over the processes.
""",
        f"Example:\n  torch-mapss evaluate manifest.json --encoder mel --out results\n\n{_CODES}",
        "score the systems of a manifest, with resuming",
    )
    evaluate.set_defaults(run=run_evaluate)
    evaluate.add_argument("manifest", metavar="MANIFEST", help="JSON file, see above")
    evaluate.add_argument("--out", required=True, metavar="DIR", help="folder of the results")
    evaluate.add_argument(
        "--save-frames",
        action="store_true",
        help="write the frame scores of every mixture and system as well, to DIR/frames",
    )
    _add_scoring_options(evaluate)
    _add_manners(evaluate)


def _add_demo(commands: Any) -> None:
    demo = _parser(
        commands,
        "demo",
        "Score three made-up separations of two voices that come with the package: rising "
        f"leakage and distortion.\nNeeds no download; takes seconds.\n\n{MEASURES}",
        "",
        "score a made-up separation, offline",
    )
    demo.set_defaults(run=run_demo)
    demo.add_argument(
        "--out",
        default="torch_mapss_demo",
        metavar="DIR",
        help="folder for tables, audio and plot (default: %(default)s)",
    )
    demo.add_argument("--encoder", default="mel", help="default: %(default)s, needs no download")
    demo.add_argument("--device", default=None, help="default: cpu")
    _add_manners(demo)


def _add_encoders(commands: Any) -> None:
    encoders = _parser(
        commands,
        "encoders",
        "The encoders that --encoder knows by name. A local folder or hub id (owner/name) of a "
        "wav2vec2,\nHuBERT or WavLM checkpoint works as well.",
        "",
        "list the encoders",
    )
    encoders.set_defaults(run=run_encoders)
    _add_manners(encoders, quiet=False)


def _add_scoring_options(parser: Any) -> None:
    group = parser.add_argument_group("what is computed")
    group.add_argument(
        "--encoder",
        default="wav2vec2-large",
        metavar="NAME",
        help="`torch-mapss encoders` lists them; or a local folder or hub id (default: "
        "%(default)s, fetched on first use; mel needs no download)",
    )
    group.add_argument("--layer", type=int, help="of the encoder (default: its own)")
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
        "--bounds", action="store_true", help="error radius and half-width of every frame score"
    )
    group.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        metavar="P",
        help="of the half-widths (default: %(default)s)",
    )
    group.add_argument(
        "--sample-frames",
        type=int,
        metavar="N",
        help="score at most N frames of a mixture, drawn at random: quicker, means stay unbiased",
    )
    group.add_argument(
        "--bank-size",
        type=int,
        metavar="N",
        help="use N of the distortions of each measure (70 for PS, up to 83 for PM): quicker, "
        "coarser, not comparable with full banks",
    )
    group.add_argument(
        "--convention",
        choices=("paper", "reference"),
        default="paper",
        help="the paper's equations, or those of the released implementation (default: "
        "%(default)s)",
    )
    group.add_argument(
        "--align-polarity",
        action="store_true",
        help="flip an estimate whose correlation with its reference is negative",
    )
    group.add_argument(
        "--seed", type=int, default=0, help="of the noise in the distortions (default: %(default)s)"
    )
    group.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cpu)")
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="of the CPU. 1 is best where other work shares it: threads that wait for each other "
        "are slow (default: torch's own choice)",
    )
    group.add_argument(
        "--dtype", help="of the encoder's weights: float32, float16, bfloat16 (default: float32)"
    )
    group.add_argument("--local-files-only", action="store_true", help="never fetch a checkpoint")
    group.add_argument("--cache-dir", metavar="DIR", help="where fetched checkpoints are kept")


def _add_manners(parser: Any, quiet: bool = True) -> None:
    group = parser.add_argument_group("output")
    if quiet:
        group.add_argument("--quiet", action="store_true", help="no progress bar, no table")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


# ------------------------------------------------------------------------------------------------
# Commands
# ------------------------------------------------------------------------------------------------


def run_score(args: argparse.Namespace) -> int:
    """``torch-mapss score``."""
    _check_outputs(args)
    from torch_mapss.report import evaluate

    with threads(args.threads), _stages(3, args.quiet) as stage:
        report = evaluate(
            estimates=args.estimates,
            references=args.references,
            mixture=args.mixture,
            names=args.names,
            attributed=args.attributed,
            device=args.device,
            mapss=scorer_of(args),
            on_stage=stage,
            **request_of(args)._asdict(),
        )
    if not args.quiet:
        print(report.summary())
    written = []
    if args.out is not None:
        written.append(report.save(args.out))
    if args.plot is not None:
        from torch_mapss import plots

        written.append(plots.save_figure(report.plot(), _plot_target(args)))
    _say_written(written, args.quiet)
    return OK


def _check_outputs(args: argparse.Namespace) -> None:
    """What would fail at the end fails at the start."""
    if args.plot is not None:
        from torch_mapss import plots

        plots.check_available(_plot_target(args))
    if args.out is not None:
        _files.make_folder(args.out)


def _plot_target(args: argparse.Namespace) -> str:
    return args.plot or os.path.join(args.out or ".", "scores.png")


def run_evaluate(args: argparse.Namespace) -> int:
    """``torch-mapss evaluate``."""
    from torch_mapss import manifest

    args.device = manifest.local_device(args.device)
    mixtures = manifest.load_manifest(args.manifest)
    with threads(args.threads):
        outcome = manifest.run(
            mixtures,
            args.out,
            lambda: scorer_of(args),
            request_of(args),
            device=args.device,
            save_frames=args.save_frames,
            progress=_bar(args),
        )
    if outcome.rank == 0:
        if not args.quiet:
            print(outcome.summary())
        for line in outcome.failures:
            print(f"torch-mapss: failed: {line}", file=sys.stderr)
        _say_written([args.out], args.quiet)
    # One process is enough to say so: others would be reported as crashed.
    return SOME_FAILED if outcome.failures and outcome.rank == 0 else OK


def run_demo(args: argparse.Namespace) -> int:
    """``torch-mapss demo``."""
    folder = _files.make_folder(args.out)
    from torch_mapss import demo

    check_device(args.device)
    with threads(1):  # quick enough, and quick on a busy machine, too
        result = demo.run(folder, encoder=args.encoder, device=args.device, progress=_bar(args))
    if not args.quiet:
        print(result.text)
    _say_written([folder], args.quiet)
    return OK


def run_encoders(args: argparse.Namespace) -> int:
    """``torch-mapss encoders``."""
    del args
    from torch_mapss.encoders import encoder_table

    columns = ["name", "checkpoint", "rate (Hz)", "frames/s", "layer"]
    rows = [
        [
            row.name,
            row.checkpoint or "none needed",
            str(row.sample_rate),
            f"{row.frames_per_second:g}",
            "-" if row.layer is None else str(row.layer),
        ]
        for row in encoder_table()
    ]
    print(_files.text_table(columns, rows, left=2))
    print(
        "\nlayer: the default of --layer; 0 is what enters the first block. mert: layer 1 suits "
        "drums better.\nA local folder or hub id (owner/name) works as well."
    )
    return OK


def _say_written(paths: Sequence[str], quiet: bool) -> None:
    if paths and not quiet:
        print(f"\nWritten to {', '.join(_files.shown(path) for path in paths)}")


def _bar(args: argparse.Namespace) -> Any:
    """A progress bar over an iterable, unless it is not wanted."""
    return lambda items, **options: progress(items, quiet=args.quiet, **options)


@contextmanager
def _stages(count: int, quiet: bool) -> Iterator[Any]:
    """A bar of ``count`` stages, moved on by naming the next one."""
    bar = progress(range(count), quiet=quiet, bar_format="{desc} [{n_fmt}/{total_fmt}, {elapsed}]")
    if isinstance(bar, range):
        yield None
        return

    def stage(name: str) -> None:
        bar.set_description_str(name, refresh=False)
        bar.update()

    with bar:
        yield stage


def progress(items: Any, *, quiet: bool = False, **options: Any) -> Any:
    """``items`` under a progress bar on the terminal's error stream.

    Raises:
        ImportError: tqdm is missing and a bar is wanted.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():  # None: closed
        return items
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError(
            "the progress bar needs tqdm: pip install tqdm (or pass --quiet)"
        ) from error
    return tqdm(items, file=sys.stderr, dynamic_ncols=True, **options)


def scorer_of(args: argparse.Namespace) -> MAPSS:
    """The scorer that the options ask for."""
    from torch_mapss.distortions import DistortionBank
    from torch_mapss.pipeline import MAPSS

    check_device(args.device)
    banks = [
        DistortionBank(kind, seed=args.seed, size=args.bank_size)
        for kind in ("separation", "match")
    ]
    return MAPSS(
        args.encoder,
        args.layer,
        separation_bank=banks[0],
        match_bank=banks[1],
        align_polarity=args.align_polarity,
        convention=args.convention,
        dtype=args.dtype,
        device=args.device,
        local_files_only=args.local_files_only,
        cache_dir=args.cache_dir,
    )


def request_of(args: argparse.Namespace) -> Request:
    """What the options want computed."""
    from torch_mapss.bounds import check_confidence
    from torch_mapss.report import Request

    check_confidence(args.confidence)
    return Request(
        permute=args.permute,
        trim=args.trim,
        bounds=args.bounds,
        confidence=args.confidence,
        sample_frames=args.sample_frames,
    )


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


def check_device(device: str | None) -> None:
    """Refuse a device that is not there, in one sentence.

    Raises:
        ValueError: no such device.
    """
    if device is None:
        return
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        reason = (str(error).splitlines() or ["unknown"])[0]
        raise ValueError(
            f"--device {device} cannot be used here ({reason}). Leave it out for the CPU."
        ) from None


# ------------------------------------------------------------------------------------------------
# Around every command
# ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: of the command line, ``sys.argv[1:]`` by default.

    Returns:
        The exit code. Wrong usage exits with 2 at once, as argparse does.
    """
    _make_output_safe()
    args = build_parser().parse_args(arguments)
    with _short_warnings(getattr(args, "quiet", False)):
        try:
            return int(args.run(args))
        except KeyboardInterrupt:
            print("torch-mapss: interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:  # the reader of a pipe has left, e.g. `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        except Exception as error:
            _print_error(error, args.debug)
            return BAD_INPUT


def _make_output_safe() -> None:
    """No name may stop the output, whatever the terminal's encoding."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _print_error(error: Exception, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    text = str(error) or type(error).__name__
    expected = (ValueError, TypeError, OSError, ImportError, RuntimeError)
    if not isinstance(error, expected):
        text = f"unexpected {type(error).__name__}: {text}. Run with --debug for the traceback"
    lines = [line for line in text.splitlines() if line.strip()]
    if getattr(error, "problems", None) is None:  # a list of problems keeps its lines
        lines = [" ".join(line.strip() for line in lines)]
    # Under torchrun what all processes find is said by each, and what one alone finds is not lost.
    rank = f" in process {os.environ['RANK']}" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    print(f"torch-mapss: error{rank}: " + "\n".join(lines), file=sys.stderr)


@contextmanager
def _short_warnings(quiet: bool) -> Iterator[None]:
    """Warnings as one line each, without file names; none if quiet."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")

        def show(message: Any, category: Any, *rest: Any, **options: Any) -> None:
            del category, rest, options
            print(f"torch-mapss: warning: {message}", file=sys.stderr)

        warnings.showwarning = show
        yield

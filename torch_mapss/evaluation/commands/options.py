"""What the commands share: texts, exit codes, and the options of scoring."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch_mapss.evaluation import console, io

OK, SOME_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

MEASURES = """\
Scores of separated sources, per frame and per file:
  clearance  0 to 1, 1: no leakage from the other sources (--measures decomposition)
  fidelity   0 to 1, 1: undistorted (--measures decomposition)
  PS         Perceptual Separation, 0 to 1, 1: no leakage (--measures separation)
  PM         Perceptual Match, 0 to 1, 1: undistorted; log PM where PM is 0 (--measures match)
  bleed      dB, lower is better: level where only other sources are active (--measures bleed)
A reference is the true source, as it was before mixing; an estimate is what a separator made of
the mixture. Both must be aligned sample by sample: a delay counts as distortion.
"""

FILES = """\
Files may be anything libsndfile reads (WAV, FLAC, OGG, MP3), at any rate: channels are averaged
and the rate is brought to the encoder's, which the result says.
"""

CONFIG = """\
--config FILE holds further options, `name: value` a line (YAML or JSON), or is the settings.json of
results, to score in the same way again: match_encoder, decomposition_encoder, seed, only, without,
convention, alpha, energy, max_dimension, eigh, dtype, activity, loudness, align_polarity, trim,
channels (each), layer, segment, excerpts, excerpt_seconds, confidence, bounds_convention, tail,
memory, cache_dir, local_files_only and all others that torch_mapss.evaluate takes. Options on the
command line come first.
"""

CODES = "Exit codes: 0 all scored; 1 some mixtures failed; 2 bad usage or input; 130 interrupted."

_SCORING = "scoring."  # before the names of options that are passed on as they are


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


def add_scoring_options(parser: Any, left_out: Sequence[str], hidden: Sequence[str] = ()) -> None:
    """The options of scoring, ``--config`` and ``--quiet``; those hidden are not in ``--help``."""

    def add(name: str, metavar: str | None, text: str, **more: Any) -> None:
        """An option by its name in Python, without a default: what is not given is not passed."""
        if name not in left_out:
            shown = argparse.SUPPRESS if name in hidden else text
            more |= {"help": shown, "default": argparse.SUPPRESS, "dest": f"{_SCORING}{name}"}
            more |= {} if metavar is None else {"metavar": metavar}
            parser.add_argument(f"--{name.replace('_', '-')}", **more)

    add(
        "measures",
        "NAME",
        "of decomposition, separation, match, bleed (default: all; decomposition is the quickest)",
        nargs="+",
    )
    add(
        "encoder",
        "NAME",
        "of PS and PM: a name that `torch-mapss encoders` lists, a local folder or a hub id "
        "(default: wav2vec2-large, fetched on first use; mel needs no download)",
    )
    add("layer", "N", "of the encoder (default: its own)", type=int)
    add(
        "bank_size",
        "N",
        "use N of the distortions of each measure (70 for PS, up to 83 for PM): quicker, coarser, "
        "not comparable with full banks",
        type=int,
    )
    add("sample_frames", "N", "score at most N frames of a mixture, drawn at random", type=int)
    add(
        "excerpts",
        "N",
        "score N excerpts of every mixture instead of all of it, drawn before anything is "
        "computed where at least two sources are active, the same for all systems; tables then "
        "have standard errors",
        type=int,
    )
    add("excerpt_seconds", "S", "length of an excerpt (default: 6)", type=float)
    add("bounds", None, "error bounds of the frame scores as well", action="store_true")
    add(
        "align",
        None,
        "move every estimate by one constant lag, of at most 500 ms, onto its reference (default: "
        "delay counts as distortion)",
        action="store_const",
        const="shift",
    )
    add("permute", None, "find the reference of each estimate by SI-SDR", action="store_true")
    add(
        "segment",
        "S",
        "score long files in S-second segments, 0: off (default: 60, or what the encoder accepts)",
        type=float,
    )
    add_device_option(parser)
    text = argparse.SUPPRESS if "threads" in hidden else "CPU threads (default: torch's choice)"
    parser.add_argument("--threads", type=int, metavar="N", help=text)
    parser.add_argument("--config", metavar="FILE", help="further options, see below")
    add_quiet(parser)


def add_device_option(parser: Any) -> None:
    """``--device``, of every command that computes."""
    parser.add_argument(
        "--device", metavar="NAME", help="cpu, cuda, cuda:1, mps or auto (default: auto)"
    )


def add_quiet(parser: Any) -> None:
    """``--quiet``."""
    parser.add_argument("--quiet", action="store_true", help="no progress, no table")


def scoring_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of :mod:`torch_mapss.evaluation.options` that the command line asks for.

    Raises:
        ValueError: ``--config`` cannot be read.
    """
    from torch_mapss.evaluation.options import read_config

    found = {} if args.config is None else read_config(args.config)
    given = {k.removeprefix(_SCORING): v for k, v in vars(args).items() if k.startswith(_SCORING)}
    return found | given


def say_written(paths: Sequence[str], quiet: bool = False) -> None:
    """Tell where the results are."""
    if paths and not quiet:
        console.say(f"\nWritten to {', '.join(io.shown(path) for path in paths)}")


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


def device_of_options(name: str | None) -> str:
    """The device that ``--device`` means, in this process: "auto" takes the fastest that is there.

    Raises:
        ValueError: no such device.
    """
    import torch

    from torch_mapss.core.devices import best_device
    from torch_mapss.evaluation.shards import local_device

    device = local_device(str(best_device()) if name in (None, "auto") else str(name))
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        reason = (str(error).splitlines() or ["unknown"])[0]
        raise ValueError(
            f"--device {device} cannot be used here ({reason}). Leave it out for what is there."
        ) from None
    return device

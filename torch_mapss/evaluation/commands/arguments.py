"""Shared parts of the commands: exit codes, help texts, and the options of scoring."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch_mapss.evaluation import console, io
from torch_mapss.score_table import SCORES, scores_in, scores_of

OK, SOME_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

#: Measures computed if no encoder is named; they need no download.
WITHOUT_ENCODER = ("decomposition", "bleed")


def _meanings(measure: str) -> str:
    """Lines that explain the ranked scores of a measure, wrapped for a terminal."""
    lines = []
    for name in scores_in(scores_of([measure]), ranked=True):
        meaning = SCORES[name].meaning
        lines += textwrap.wrap(meaning, 98, initial_indent="  ", subsequent_indent=" " * 4)
    return "\n".join(lines)


SCORE_HELP = f"""\
Scores of separated sources, per frame and per file, by measure:
decomposition (by default):
{_meanings("decomposition")}
bleed (by default):
{_meanings("bleed")}
si_sdr (always):
{_meanings("si_sdr")}
separation and match (with --encoder: wav2vec2-large is the paper's, mel needs no download):
{_meanings("separation")}
{_meanings("match")}
bss (on request; pip install torch_mapss[bss]):
{_meanings("bss")}

A reference is the true source before mixing; an estimate is what a separator made of the mixture.
Both must be aligned sample by sample: a delay counts as distortion.
"""

CODES = "Exit codes: 0 all scored; 1 some mixtures failed; 2 bad usage or input; 130 interrupted."

SCORING = f"""\
{SCORE_HELP}
Files may have any format that libsndfile reads (WAV, FLAC, OGG, MP3) and any rate: channels are
averaged and files are resampled to the encoder's rate, and the result says so.

--config FILE holds further options, `name: value` a line (YAML or JSON), or is the settings.json of
results, to repeat their settings: match_encoder, seed, only, without, convention, alpha,
energy, max_dimension, eigh, dtype, activity, loudness, align_polarity, trim, layer, segment,
excerpts, excerpt_seconds, confidence, bounds_convention, tail, memory, cache_dir, local_files_only
and all others that torch_mapss.evaluate takes. Command-line options take precedence.

{CODES}"""


def add_scoring_options(parser: Any, left_out: Sequence[str] = ()) -> None:
    """Add the options of scoring, with their help."""
    parser.epilog = SCORING

    def add(name: str, text: str, **keywords: Any) -> None:  # absent options are not passed on
        if name not in left_out:
            option, absent = f"--{name.replace('_', '-')}", argparse.SUPPRESS
            parser.add_argument(option, default=absent, help=text, **keywords)

    number: dict[str, Any] = {"type": int, "metavar": "N"}
    text = (
        "names of measures (decomposition, separation, match, bleed, bss) or of scores (clearance, "
        "sdr, …); default: decomposition and bleed, with an encoder separation and match as well"
    )
    add("measures", text, nargs="+", metavar="NAME")
    text = (
        "compute PS and PM as well, with this encoder: a name that `torch-mapss encoders` lists "
        "(wav2vec2-large, the paper's, is fetched on first use; mel needs no download), a local "
        "folder or a hub id"
    )
    add("encoder", text, metavar="NAME")
    add("layer", "layer of the encoder (default: the encoder's own)", **number)
    text = "encoder of clearance and fidelity (default: mel)"
    add("pair_encoder", text, metavar="NAME", dest="decomposition_encoder")
    text = "layer of the encoder of clearance and fidelity (default: its own)"
    add("pair_layer", text, dest="decomposition_layer", **number)
    text = (
        "use N of the distortions of PS and PM (70 and up to 83): faster, coarser, not comparable "
        "with full banks"
    )
    add("bank_size", text, **number)
    add("sample_frames", "score at most N frames of a mixture, drawn at random", **number)
    text = (
        "score N excerpts of 6 s (excerpt_seconds in --config) of every mixture instead of all of "
        "it, drawn where at least two sources are active, the same for all systems; tables then "
        "have standard errors"
    )
    add("excerpts", text, **number)
    add("bounds", "also compute error bounds of the frame scores", action="store_true")
    text = (
        "shift every estimate by a constant lag of at most 500 ms onto its reference (default: "
        "delay counts as distortion)"
    )
    add("align", text, action="store_const", const="shift")
    text = "mean: score the mean of the channels (default); each: each of them, scores averaged"
    add("channels", text, choices=("mean", "each"), metavar="HOW")
    add("permute", "find the reference of each estimate by SI-SDR", action="store_true")
    text = "score long files in segments of S seconds, 0: off (default: 60, or the encoder's limit)"
    add("segment", text, type=float, metavar="S")
    add("device", "cpu, cuda, cuda:1, mps or auto (default: auto)", metavar="NAME")
    add("threads", "CPU threads per process (default: torch's choice)", **number)
    add("config", "further options, see below", metavar="FILE")
    parser.set_defaults(device=None, threads=None, config=None)
    add_quiet(parser)


def add_quiet(parser: Any) -> None:
    """``--quiet``."""
    parser.add_argument("--quiet", action="store_true", help="no progress, no table")


def scoring_options(args: argparse.Namespace) -> dict[str, Any]:
    """Settings from the command line, see :mod:`torch_mapss.evaluation.settings`.

    Raises:
        ValueError: ``--config`` cannot be read, or PS and PM are asked for without an encoder.
    """
    from torch_mapss.evaluation import settings

    options = {} if args.config is None else settings.read_config(args.config)
    names = settings.setting_names().keys() - {"device"}  # see device_of_options
    options |= {name: value for name, value in vars(args).items() if name in names}
    if "encoder" in options:
        return options
    options["encoder"] = "mel"  # overrides the default, so nothing is fetched
    measures = settings.checked_measures(options.setdefault("measures", WITHOUT_ENCODER))
    if needing := [name for name in measures if name in settings.ENCODER_MEASURES]:
        raise ValueError(
            f"--measures {' '.join(needing)} needs an encoder: --encoder wav2vec2-large (the "
            "paper's, fetched on first use) or --encoder mel (no download)."
        )
    return options


def say_written(paths: Sequence[str], quiet: bool = False) -> None:
    """Print the paths of the results."""
    if paths and not quiet:
        console.say(f"\nWritten to {', '.join(io.shown(path) for path in paths)}")


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let torch use ``count`` CPU threads within the context; its own choice if None.

    Raises:
        ValueError: ``count`` is below 1.
    """
    import torch

    usual = torch.get_num_threads()
    if count is not None and count < 1:
        raise ValueError(f"--threads must be at least 1, got {count}.")
    # None sets nothing: with some releases of MKL, torch's LU fails after any call that sets it.
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count is not None:
            torch.set_num_threads(usual)


def device_of_options(name: str | None) -> str:
    """Device of this process that ``--device`` names; "auto" is the fastest available.

    Raises:
        ValueError: the device does not exist.
    """
    import torch

    from torch_mapss.core.devices import best_device
    from torch_mapss.evaluation.shard import local_device

    device = local_device(str(best_device()) if name in (None, "auto") else str(name))
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        reason = (str(error).splitlines() or ["unknown"])[0]
        raise ValueError(
            f"--device {device} cannot be used here ({reason}). Leave --device out to use "
            "what is available."
        ) from None
    return device

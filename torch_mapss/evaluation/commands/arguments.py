"""What the commands share: exit codes, texts of their help, and the options of scoring."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch_mapss.evaluation import console, io

OK, SOME_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

MEASURES = """\
Scores of separated sources, per frame and per file:
  clearance  0 to 1, 1: as far from the other sources as the true source is
  fidelity   0 to 1, 1: undistorted (--measures decomposition)
  bleed      dB, lower is better: level where only other sources are active (--measures bleed)
  SI-SDR     dB, of the waveforms; always there
with an encoder of your choice (--encoder wav2vec2-large is the paper's, --encoder mel needs no
download):
  PS         Perceptual Separation, 0 to 1, 1: no leakage (--measures separation)
  PM         Perceptual Match, 0 to 1, 1: undistorted; log PM where PM is 0 (--measures match)
and on request:
  SDR, SIR, SAR  dB, of BSS Eval (--measures bss; pip install torch_mapss[bss])
A reference is the true source, as it was before mixing; an estimate is what a separator made of
the mixture. Both must be aligned sample by sample: a delay counts as distortion.
"""

CODES = "Exit codes: 0 all scored; 1 some mixtures failed; 2 bad usage or input; 130 interrupted."

SCORING = f"""\
{MEASURES}
Files may be anything libsndfile reads (WAV, FLAC, OGG, MP3), at any rate: channels are averaged
and the rate is brought to the encoder's, which the result says.

--config FILE holds further options, `name: value` a line (YAML or JSON), or is the settings.json of
results, to score in the same way again: match_encoder, seed, only, without, convention, alpha,
energy, max_dimension, eigh, dtype, activity, loudness, align_polarity, trim, layer, segment,
excerpts, excerpt_seconds, confidence, bounds_convention, tail, memory, cache_dir, local_files_only
and all others that torch_mapss.evaluate takes. Options on the command line come first.

{CODES}"""

#: What is computed where no encoder is named: nothing is downloaded for it.
WITHOUT_ENCODER = ("decomposition", "bleed")


def add_scoring_options(parser: Any, left_out: Sequence[str] = ()) -> None:
    """The options of scoring, and what they mean."""
    parser.epilog = SCORING

    def add(name: str, text: str, **keywords: Any) -> None:  # what is not there is not passed on
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
    add("layer", "of the encoder (default: its own)", **number)
    text = "encoder of clearance and fidelity (default: mel)"
    add("pair_encoder", text, metavar="NAME", dest="decomposition_encoder")
    text = "of the encoder of clearance and fidelity (default: its own)"
    add("pair_layer", text, dest="decomposition_layer", **number)
    text = (
        "use N of the distortions of PS and PM (70 and up to 83): quicker, coarser, not comparable "
        "with full banks"
    )
    add("bank_size", text, **number)
    add("sample_frames", "score at most N frames of a mixture, drawn at random", **number)
    text = (
        "score N excerpts of 6 s (excerpt_seconds in --config) of every mixture instead of all of "
        "it, drawn before anything is computed where at least two sources are active, the same for "
        "all systems; tables then have standard errors"
    )
    add("excerpts", text, **number)
    add("bounds", "error bounds of the frame scores as well", action="store_true")
    text = (
        "move every estimate by one constant lag, of at most 500 ms, onto its reference (default: "
        "delay counts as distortion)"
    )
    add("align", text, action="store_const", const="shift")
    text = "mean: score the mean of the channels (default); each: every channel, scores averaged"
    add("channels", text, choices=("mean", "each"), metavar="HOW")
    add("permute", "find the reference of each estimate by SI-SDR", action="store_true")
    text = (
        "score long files in S-second segments, 0: off (default: 60, or what the encoder accepts)"
    )
    add("segment", text, type=float, metavar="S")
    add("device", "cpu, cuda, cuda:1, mps or auto (default: auto)", metavar="NAME")
    add("threads", "CPU threads of a process (default: torch's choice)", **number)
    add("config", "further options, see below", metavar="FILE")
    parser.set_defaults(device=None, threads=None, config=None)
    add_quiet(parser)


def add_quiet(parser: Any) -> None:
    """``--quiet``."""
    parser.add_argument("--quiet", action="store_true", help="no progress, no table")


def scoring_options(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line asks for, see :mod:`torch_mapss.evaluation.settings`.

    Raises:
        ValueError: ``--config`` cannot be read, or PS and PM are asked for without an encoder.
    """
    from torch_mapss.evaluation import settings

    options = {} if args.config is None else settings.read_config(args.config)
    names = settings.setting_names().keys() - {"device"}  # see device_of_options
    options |= {name: value for name, value in vars(args).items() if name in names}
    if "encoder" in options:
        return options
    options["encoder"] = "mel"  # its own, so that nothing is fetched
    measures = settings.checked_measures(options.setdefault("measures", WITHOUT_ENCODER))
    if needing := [name for name in measures if name in settings.ENCODER_MEASURES]:
        raise ValueError(
            f"--measures {' '.join(needing)} needs an encoder: --encoder wav2vec2-large (the "
            "paper's, fetched on first use) or --encoder mel (no download)."
        )
    return options


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
    import torch

    usual = torch.get_num_threads()
    if count is not None and count < 1:
        raise ValueError(f"--threads must be at least 1, got {count}.")
    torch.set_num_threads(count or usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def device_of_options(name: str | None) -> str:
    """The device that ``--device`` means, in this process: "auto" takes the fastest that is there.

    Raises:
        ValueError: no such device.
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
            f"--device {device} cannot be used here ({reason}). Leave it out for what is there."
        ) from None
    return device

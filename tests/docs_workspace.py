"""The files that the commands of README and guide speak of: a tiny set, made anew."""

from __future__ import annotations

import json
from pathlib import Path

from checkpoints import write_checkpoint, write_whisper
from recipe_scripts import recipe
from separations import write, write_all
from torch import Tensor
from waveforms import leaky, tones

from torch_mapss.evaluation import demo

SECONDS = 0.6
MIXTURES = ("m0", "m1", "m2")


def make_workspace(folder: Path) -> Path:
    """A folder with all that the commands read; scored results are in ``results`` and ``baseline``.

    One mixture lies in ``s1``, ``s2``, ``est1``, ``est2``; a set of three in ``refs``, with the
    systems ``outA`` and ``outB``, and in ``manifest.json``; enhancement in ``clean`` and ``noisy``;
    two voices with leakage on the right in ``stereo``.
    """
    entries, ratings = [], ["track,system,source,question,mean_rating"]
    for index, mixture in enumerate(MIXTURES):
        references = tones(2, SECONDS, seed=index)
        better, worse = leaky(references, 0.05), leaky(references, 0.3)
        truth = write_all(folder / "refs" / mixture, references)
        write_all(folder / "outA", better, (f"{mixture}_a", f"{mixture}_b"))
        write_all(folder / "outB" / mixture, worse, ("a_estimate", "b_estimate"))
        write_enhancement(folder, mixture, references)
        systems = {
            "A": [f"outA/{mixture}_{source}.wav" for source in "ab"],
            "B": [f"outB/{mixture}/{source}_estimate.wav" for source in "ab"],
        }
        paths = [str(Path(path).relative_to(folder)) for path in truth]
        entries.append({"mixture_id": mixture, "references": paths, "systems": systems})
        for source in "ab":
            ratings.append(f"{mixture},A,{source},quality,{80 - index}")
            ratings.append(f"{mixture},B,{source},quality,{40 + index}")
    for name, waves in (("s", tones(2, SECONDS)), ("est", leaky(tones(2, SECONDS), 0.2))):
        for position, wave in enumerate(waves, 1):
            write(folder / f"{name}{position}" / "x.wav", wave)
    (folder / "manifest.json").write_text(json.dumps(entries))
    (folder / "ratings.csv").write_text("\n".join(ratings) + "\n")
    (folder / "settings.yaml").write_text("seed: 1\n")
    write_checkpoint(folder / "checkpoints" / "my-hubert", "hubert")
    write_whisper(folder / "checkpoints" / "whisper-tiny.en")
    write_stereo(folder / "stereo")
    score(folder, "results")
    score(folder, "baseline")
    return folder


def write_enhancement(folder: Path, mixture: str, references: Tensor) -> None:
    """A clean voice, the same with noise, and what a system made of it."""
    write(folder / "clean" / f"{mixture}.wav", references[0])
    write(folder / "noisy" / f"{mixture}.wav", references.sum(0))
    write(folder / "enhanced" / f"{mixture}.wav", references[0] + 0.1 * references[1])


def write_stereo(folder: Path) -> None:
    """The demo's voices, panned to the left and to the right, and estimates with leakage."""
    stereo = recipe("stereo")
    voices, rate = demo.voices()
    truth = stereo.images(voices)
    waves = {"references": truth, "estimates": stereo.leakage_on_the_right(truth, rate)}
    for kind, pair in waves.items():
        for name, wave in zip(("low", "high"), pair):
            write(folder / kind / f"{name}.wav", wave, rate)


def score(folder: Path, out: str) -> None:
    """The set of the manifest, for the pages that begin with results."""
    from torch_mapss.evaluation import cli

    arguments = ["evaluate", str(folder / "manifest.json"), "--out", str(folder / out), "--quiet"]
    assert cli.main(arguments) == 0

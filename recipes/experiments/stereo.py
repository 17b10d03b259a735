"""Scores of stereo outputs with spatial errors, and the multichannel ratios of BSS Eval.

    python recipes/experiments/stereo.py --out runs/stereo

The two voices of `torch-mapss demo`, panned to the left and to the right, are the references. The
estimates are these images with one fault each. They are scored with `--channels mean` (the mean of
the channels is scored), with `--channels each` (every channel is scored), and by BSS Eval v4 of
museval, whose ISR measures spatial errors. Without museval (`pip install museval`) its columns are
left out.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import soundfile
import toolkit
import torch
from torch import Tensor

from torch_mapss import Report, evaluate
from torch_mapss.audio import shift
from torch_mapss.evaluation import demo
from torch_mapss.pipeline.mapss import MAPSS

PAN = 0.6  # of the voices: 0 is the middle, 1 one channel alone
LEAKAGE = 0.25  # -12 dB
SHAKE = 0.45  # largest random change of a phase, in half turns
RATIOS = ("SDR", "ISR", "SIR", "SAR")
RIGHT = 1  # index of the right channel
SIDES = ("left", "right")
SCORES = ("clearance", "fidelity")


def images(voices: Tensor) -> Tensor:
    """Stereo images (S, C, T) of voices (S, T), the first on the left, at constant power."""
    angle = (1.0 - PAN) * math.pi / 4.0
    gains = torch.tensor([[math.cos(angle), math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return gains[:, :, None] * voices[:, None]


def leakage(truth: Tensor, rate: int) -> Tensor:
    return truth + LEAKAGE * truth.flip(0)


def leakage_on_the_right(truth: Tensor, rate: int) -> Tensor:
    estimates = truth.clone()
    estimates[:, RIGHT] += LEAKAGE * truth.flip(0)[:, RIGHT]
    return estimates


def shaken_phases(truth: Tensor, rate: int) -> Tensor:
    return torch.stack([demo.shaken(channel, SHAKE) for channel in truth.unbind(1)], 1)


def sides_swapped(truth: Tensor, rate: int) -> Tensor:
    return truth.flip(1)


def in_the_middle(truth: Tensor, rate: int) -> Tensor:
    return truth.mean(1, keepdim=True).expand_as(truth)


def right_quieter(truth: Tensor, rate: int) -> Tensor:
    estimates = truth.clone()
    estimates[:, RIGHT] *= 0.5
    return estimates


def right_dead(truth: Tensor, rate: int) -> Tensor:
    estimates = truth.clone()
    estimates[:, RIGHT] = 0.0
    return estimates


def right_inverted(truth: Tensor, rate: int) -> Tensor:
    estimates = truth.clone()
    estimates[:, RIGHT] *= -1.0
    return estimates


def right_late(truth: Tensor, rate: int) -> Tensor:
    estimates = truth.clone()
    estimates[:, RIGHT] = shift(truth[:, RIGHT], -round(0.010 * rate))
    return estimates


FAULTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "leakage at -12 dB": leakage,
    "the same in the right channel alone": leakage_on_the_right,
    "phases shaken, alike in both channels": shaken_phases,
    "sides swapped": sides_swapped,
    "panned to the middle": in_the_middle,
    "right channel 6 dB quieter": right_quieter,
    "right channel dead": right_dead,
    "right channel inverted": right_inverted,
    "right channel 10 ms late": right_late,
}


def museval_metrics() -> ModuleType | None:
    """The module of museval's ratios; None without museval.

    It is loaded by its path, because importing the package itself needs ffmpeg.
    """
    package = importlib.util.find_spec("museval")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).with_name("metrics.py")
    spec = importlib.util.spec_from_file_location("museval_metrics", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def energy_ratios(metrics: ModuleType, truth: Tensor, estimates: Tensor) -> list[float]:
    """SDR, ISR, SIR and SAR in dB of the whole clips (S, C, T), averaged over sources."""
    arrays = [waves.transpose(1, 2).double().numpy() for waves in (truth, estimates)]
    *ratios, _ = metrics.bss_eval(*arrays, window=math.inf, hop=math.inf)
    return [float(ratio.mean()) for ratio in ratios]


def write_waves(folder: Path, waves: Tensor, rate: int) -> list[str]:
    """Stereo files of (S, C, T), one for each source."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / f"{name.replace(' ', '_')}.wav") for name in demo.VOICES]
    for path, wave in zip(paths, waves):
        soundfile.write(path, wave.T.numpy(), rate, subtype="FLOAT")
    return paths


def scored(mapss: MAPSS, references: list[str], estimates: list[str], channels: str) -> Report:
    """The report of one fault. It lists the warnings, so they are not printed as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return evaluate(references=references, estimates=estimates, mapss=mapss, channels=channels)


def decibels(value: float) -> str:
    """A ratio in a table; above 100 dB the digits are rounding errors and are not shown."""
    return "> 100" if value > 100.0 else f"{value:.1f}"


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Score every fault; write the audio, a table and a page."""
    parser = toolkit.parser(__doc__, manifest=False, scoring=False)
    options = parser.parse_args(arguments)
    voices, rate = demo.voices()
    truth = images(voices)
    references = write_waves(options.out / "audio" / "references", truth, rate)
    mapss = MAPSS("mel", measures="decomposition")
    metrics = museval_metrics()
    rows: list[dict[str, Any]] = []
    for name, make in FAULTS.items():
        estimates = make(truth, rate)
        paths = write_waves(options.out / "audio" / make.__name__, estimates, rate)
        of_mean = scored(mapss, references, paths, "mean")
        row: dict[str, Any] = {"fault": name}
        row |= {f"{score}, mean": of_mean.means()[score] for score in SCORES}
        channels = scored(mapss, references, paths, "each").channels
        assert channels is not None
        means_by_channel = channels.groupby("channel")[[*SCORES]].mean()
        for number, side in enumerate(SIDES, 1):
            row |= {f"{score}, {side}": means_by_channel.loc[number, score] for score in SCORES}
        kinds = dict.fromkeys(finding.kind for finding in of_mean.findings)
        row["warning"] = ", ".join(kinds)
        if metrics is not None:
            row |= dict(zip(RATIOS, energy_ratios(metrics, truth, estimates)))
        rows.append(row)
    toolkit.write_csv(options.out / "rows.csv", rows)
    cells = []
    for row in rows:
        scores = [toolkit.number(value) for key, value in row.items() if ", " in key]
        ratios = [decibels(row[name]) for name in RATIOS if name in row]
        cells.append([row["fault"], *scores, row["warning"], *ratios])
    about = (
        "Two voices panned to the left and to the right, every estimate with one fault, means over "
        "both. Mean: the mean of the channels is scored (the default); left, right: every channel "
        "is scored (`--channels each`, which gives their mean as well). Warning: what the default "
        "says of the files. SDR, ISR, SIR, SAR in dB: museval, one window."
    )
    head = toolkit.page_head("Stereo", __file__, arguments, about)
    toolkit.finish(options, "stereo", [*head, "", toolkit.markdown([*rows[0]], cells)])
    return rows


if __name__ == "__main__":
    main()

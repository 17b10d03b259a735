"""Follow the gradient of PS and PM from a mixture, with nothing but the waveform to change.

    python recipes/ascend_waveform.py --references a.wav b.wav --out runs/ascent

Both estimates start as the mixture. Steps down the gradient of ``MAPSSLoss`` (no SI-SDR in it),
with momentum, 200 of them, of the length ``--rate`` at first and shorter along a cosine: PM is the
narrowest of the three and wants the last, small steps. If the measures and their gradients are
sound, the estimates must turn into the sources: PS and PM must rise also where the loss did not
look, and SI-SDR with them.

The loss sees frames on three grids in turn (0, ¼ and ¾ of a hop), a few random ones at a time, and
small banks. *Held-out frames* lie on the grid between, half a hop on, and are scored with whole
banks of another seed. With one grid alone the samples that few frames weigh stay as they were; and
Adam, which moves every sample by the same amount whatever its gradient, fills them with noise: PS
then rises and SI-SDR falls.

Writes ``ascent.csv``, ``ascent.png`` and the estimates as WAV files.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, MAPSSLoss, ReferenceBank, audio

RATE = 16000
SHOWN = {"ps": "PS, held-out frames", "pm": "PM, held-out frames"}
SHOWN |= {"log_pm": "log PM, held-out frames", "si_sdr": "SI-SDR [dB]"}


def load(paths: Sequence[str], start: float, seconds: float) -> Tensor:
    """(S, T): the same span of each file, mono, 16 kHz, at equal RMS."""
    span = slice(round(start * RATE), round((start + seconds) * RATE))
    waves = []
    for path in paths:
        wave, rate = audio.load_audio(path)
        waves.append(audio.resample(audio.to_mono(wave), rate, RATE)[span])
    shortest = min(wave.shape[-1] for wave in waves)
    stacked = torch.stack([wave[:shortest] for wave in waves])
    return 0.05 * stacked / stacked.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-8)


class Judge(NamedTuple):
    """Scores frames that the loss does not see."""

    mapss: MAPSS
    bank: ReferenceBank
    references: Tensor
    offset: int

    @staticmethod
    def beside(references: Tensor, encoder: str, device: str) -> Judge:
        """Of the frames half a hop beside, with whole banks of another seed."""
        mapss = MAPSS(encoder, seed=1, device=device)
        offset = mapss.sample_rate * mapss.grid.hop // mapss.grid.sample_rate // 2
        return Judge(mapss, mapss.prepare(references[None, :, offset:]), references, offset)

    @torch.no_grad()
    def __call__(self, estimates: Tensor) -> dict[str, float]:
        pooled = self.mapss(estimates[None, :, self.offset :], self.bank).utterance()
        found = {name: float(getattr(pooled, name).nanmean()) for name in ("ps", "pm", "log_pm")}
        return found | {"si_sdr": float(audio.si_sdr(estimates, self.references).mean())}


def prepared_grids(mapss: MAPSS, references: Tensor) -> list[tuple[int, ReferenceBank]]:
    """Start in samples, and bank, of each grid that the loss sees."""
    hop = mapss.sample_rate * mapss.grid.hop // mapss.grid.sample_rate
    starts = (0, hop // 4, 3 * hop // 4)
    return [(start, mapss.prepare(references[None, :, start:])) for start in starts]


def ascend(
    references: Tensor, options: argparse.Namespace
) -> tuple[Tensor, list[dict[str, float]]]:
    """The estimates after the last step, and held-out results on the way."""
    banks = {
        f"{kind}_bank": DistortionBank(kind, size=options.bank_size)
        for kind in ("separation", "match")
    }
    mapss = MAPSS(options.encoder, device=options.device, **banks)
    loss = MAPSSLoss(mapss, frames=options.frames)
    grids = prepared_grids(mapss, references)
    judge = Judge.beside(references, options.encoder, options.device)
    estimates = references.sum(0).expand_as(references).clone().requires_grad_()
    velocity = torch.zeros_like(references)
    rows = [{"step": 0, **judge(estimates)}]
    for step in range(1, options.steps + 1):
        start, bank = grids[step % len(grids)]
        (slope,) = torch.autograd.grad(loss(estimates[None, :, start:], bank), estimates)
        size = slope.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-12)
        velocity = 0.9 * velocity + 0.1 * slope / size
        length = options.rate * 0.5 * (1.0 + math.cos(math.pi * step / options.steps))
        estimates = (estimates - length * velocity).detach().requires_grad_()
        if step % options.test_every == 0 or step == options.steps:
            rows.append({"step": step, **judge(estimates)})
            print(", ".join(f"{name} {value:.3f}" for name, value in rows[-1].items()), flush=True)
    return estimates.detach(), rows


def save(rows: Sequence[dict[str, float]], estimates: Tensor, folder: Path) -> None:
    """Table, plot and sound."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "ascent.csv", "w", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    plot(rows, folder / "ascent.png")
    import soundfile

    for place, wave in enumerate(estimates.cpu()):
        level = wave / wave.abs().max().clamp(min=1e-8)
        soundfile.write(folder / f"estimate_{place}.wav", level.numpy(), RATE)


def plot(rows: Sequence[dict[str, float]], path: Path) -> None:
    """The held-out results over steps."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: pip install matplotlib")
        return
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, (name, title) in zip(figure.subplots(1, len(SHOWN)), SHOWN.items()):
        axis.plot([row["step"] for row in rows], [row[name] for row in rows], marker=".")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        if name in ("ps", "pm"):
            axis.set_ylim(0, 1)
    figure.savefig(path, dpi=90)


def main(argv: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Run; returns the held-out results, from the mixture to the last step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--references", nargs="+", required=True, help="the sources, one file each")
    add("--out", required=True)
    add("--steps", type=int, default=200)
    add(
        "--rate",
        type=float,
        default=4e-3,
        help="RMS of a first step, in sample values (sources: 0.05)",
    )
    add("--start", type=float, default=1.0, help="seconds into the files")
    add("--seconds", type=float, default=2.0)
    add("--frames", type=int, default=60, help="random frames per step")
    add("--bank-size", type=int, default=24)
    add("--test-every", type=int, default=20)
    add("--encoder", default="mel")
    add("--device", default="cpu")
    options = parser.parse_args(argv)
    references = load(options.references, options.start, options.seconds).to(options.device)
    estimates, rows = ascend(references, options)
    save(rows, estimates, Path(options.out))
    return rows


if __name__ == "__main__":
    main()

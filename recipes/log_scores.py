"""Log scores, loss curves and the worst moments with sound while a small separator trains.

    python recipes/log_scores.py --out runs/log                  # TensorBoard
    tensorboard --logdir runs/log
    python recipes/log_scores.py --out runs/log --to wandb       # Weights & Biases, offline
    wandb sync runs/log/wandb/offline-run-*                      # from where there is a network

Both log the same names: ``train/loss`` and its terms (``train/clearance_loss``,
``train/fidelity_loss``, ``train/si_sdr_loss``), the mean of every score over the validation set
(``val/clearance``, ``val/fidelity``, ``val/bleed_db``, ``val/si_sdr``, from one metric), and the
half second with the lowest fidelity: estimate and reference as sound, the frame scores as a curve.
A loss term is not the score itself (it falls when the score rises), so their names differ.

The two voices come with the package. To log your own training, copy ``TensorBoardLog`` or
``WandbLog`` and ``validate``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from command_line import Help


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the log")
    add("--to", choices=("tensorboard", "wandb"), default="tensorboard", help="kind of log")
    add("--steps", type=int, default=200, help="training steps")
    add("--every", type=int, default=50, help="steps between validations")
    add("--batch", type=int, default=4, help="mixtures per step")
    add("--validate", type=int, default=8, help="number of validation mixtures")
    add("--seconds", type=float, default=2.0, help="length of a mixture")
    add("--seed", type=int, default=0, help="of data and weights")
    return parser.parse_args(argv)


if __name__ == "__main__":
    arguments()  # --help answers here, without the seconds that torch takes to load

import torch
from torch import Tensor, nn

from torch_mapss import MAPSS, DecompositionLoss, Scores, SourceScores
from torch_mapss.evaluation.demo import voices

SECONDS_OF_A_MOMENT = 0.5


# ------------------------------------------------------------------------------------------------
# Logs
# ------------------------------------------------------------------------------------------------


class Log(Protocol):
    """The interface of a log."""

    def numbers(self, values: Mapping[str, Any], step: int) -> None: ...

    def sound(self, name: str, wave: Tensor, rate: int, step: int) -> None: ...

    def figure(self, name: str, figure: Any, step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoardLog:
    """Event files for TensorBoard."""

    def __init__(self, out: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(out))

    def numbers(self, values: Mapping[str, Any], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, float(value), step)

    def sound(self, name: str, wave: Tensor, rate: int, step: int) -> None:
        self.writer.add_audio(name, wave, step, sample_rate=rate)

    def figure(self, name: str, figure: Any, step: int) -> None:
        self.writer.add_figure(name, figure, step)

    def close(self) -> None:
        self.writer.close()


class WandbLog:
    """A run of Weights & Biases, written to disk without a network."""

    def __init__(self, out: Path) -> None:
        import wandb

        self.wandb = wandb
        self.run = wandb.init(project="separation", dir=str(out), mode="offline")

    def numbers(self, values: Mapping[str, Any], step: int) -> None:
        self.run.log({name: float(value) for name, value in values.items()}, step=step)

    def sound(self, name: str, wave: Tensor, rate: int, step: int) -> None:
        self.run.log({name: self.wandb.Audio(wave.numpy(), sample_rate=rate)}, step=step)

    def figure(self, name: str, figure: Any, step: int) -> None:
        self.run.log({name: self.wandb.Image(figure)}, step=step)

    def close(self) -> None:
        self.run.finish()


LOGS = {"tensorboard": TensorBoardLog, "wandb": WandbLog}


# ------------------------------------------------------------------------------------------------
# Worst moments
# ------------------------------------------------------------------------------------------------


class Moment(NamedTuple):
    """A span of one estimate."""

    item: int
    source: int
    start_seconds: float
    mean: float  # of the score


def worst_moment(scores: Scores, name: str, seconds: float = SECONDS_OF_A_MOMENT) -> Moment | None:
    """The span with the lowest mean of a score, at least half of its frames defined.

    Returns:
        None where no span has enough defined frames.
    """
    step = float(scores.times[1] - scores.times[0])
    frames = max(1, min(round(seconds / step), scores.times.numel()))
    defined = scores.defined(name)
    values = torch.where(defined, scores.of(name), 0.0)
    count = defined.unfold(-1, frames, 1).sum(-1)
    mean = values.unfold(-1, frames, 1).sum(-1) / count.clamp(min=1)
    mean = torch.where(2 * count >= frames, mean, torch.inf)
    if not bool(mean.isfinite().any()):
        return None
    item, source, first_frame = (int(i) for i in (mean == mean.min()).nonzero()[0])
    start_seconds = max(0.0, float(scores.times[first_frame]) - step / 2)
    return Moment(item, source, start_seconds, float(mean[item, source, first_frame]))


def curve(scores: Scores, moment: Moment, name: str) -> Any:
    """The frame scores of an estimate over seconds, with the moment marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.5), layout="constrained")
    axes = figure.subplots()
    defined = scores.defined(name)[moment.item, moment.source]
    values = scores.of(name)[moment.item, moment.source]
    axes.plot(scores.times.numpy(), torch.where(defined, values, torch.nan).numpy())
    end_seconds = moment.start_seconds + SECONDS_OF_A_MOMENT
    axes.axvspan(moment.start_seconds, end_seconds, alpha=0.3, color="tab:red")
    axes.set(xlabel="time (s)", ylabel=name, ylim=(0, 1))
    return figure


@torch.no_grad()
def validate(
    log: Log, metric: SourceScores, estimates: Tensor, references: Tensor, step: int
) -> dict[str, float]:
    """Log the scores of a validation set of one batch, and its worst moment; returns the scores.

    With several batches, call ``update`` for each, and log the worst of their moments.
    """
    mapss, name = metric.mapss, "fidelity"
    bank = mapss.prepare(references)
    metric.reset()
    metric.update(estimates, bank)
    means = metric.compute()
    log.numbers({f"val/{score}": mean for score, mean in means.items()}, step)
    scores = mapss(estimates, bank)
    moment = worst_moment(scores, name)
    if moment is not None:
        rate = mapss.sample_rate
        begin = int(moment.start_seconds * rate)
        span = slice(begin, begin + int(SECONDS_OF_A_MOMENT * rate))
        for kind, waves in (("estimate", estimates), ("reference", references)):
            wave = waves[moment.item, moment.source, span]
            log.sound(f"worst {name}/{kind}", wave / wave.abs().max().clamp(min=1e-9), rate, step)
        log.numbers({f"worst {name}/mean": moment.mean}, step)
        log.figure(f"worst {name}/curve", curve(scores, moment, name), step)
    return {score: float(mean) for score, mean in means.items()}


# ------------------------------------------------------------------------------------------------
# A training to log
# ------------------------------------------------------------------------------------------------


class MaskNet(nn.Module):
    """One mask per source on the spectrogram of the mixture: (B, T) -> (B, 2, T)."""

    def __init__(self, size: int = 512, hop: int = 128, width: int = 64) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        bins = size // 2 + 1
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.layers = nn.Sequential(
            nn.Conv1d(bins, width, 5, padding=2), nn.ReLU(), nn.Conv1d(width, 2 * bins, 1)
        )

    def forward(self, mixture: Tensor) -> Tensor:
        stft = {"n_fft": self.size, "hop_length": self.hop, "window": self.window}
        spectrum = torch.stft(mixture, **stft, return_complex=True)
        masks = self.layers((spectrum.abs() + 1e-3).log()).sigmoid().unflatten(1, (2, -1))
        waves = torch.istft(
            (masks * spectrum.unsqueeze(1)).flatten(0, 1), **stft, length=mixture.shape[-1]
        )
        return waves.unflatten(0, (-1, 2))


def crops(waves: Tensor, count: int, samples: int, generator: torch.Generator) -> Tensor:
    """Random segments of two voices (2, T), drawn independently: (count, 2, samples)."""
    offsets = torch.randint(waves.shape[-1] - samples + 1, (count, 2), generator=generator)
    segments = waves.unfold(-1, samples, 1)  # (2, offsets, samples), a view
    return torch.stack([segments[0, offsets[:, 0]], segments[1, offsets[:, 1]]], 1)


def train(options: argparse.Namespace, log: Log) -> list[dict[str, float]]:
    """Train on segments of two voices; returns the scores of each validation."""
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    waves, rate = voices()
    samples = int(options.seconds * rate)
    mapss = MAPSS("mel", measures=("decomposition", "bleed"), sample_rate=rate)
    loss, metric = DecompositionLoss(mapss, si_sdr=0.1), SourceScores(mapss)
    separator = MaskNet()
    optimizer = torch.optim.Adam(separator.parameters(), lr=2e-3)
    held_out = crops(waves, options.validate, samples, generator)
    history = []
    for step in range(options.steps + 1):
        if step % options.every == 0 or step == options.steps:
            with torch.no_grad():
                estimates = separator(held_out.sum(1))
            history.append(validate(log, metric, estimates, held_out, step))
            print(f"step {step}: fidelity {history[-1]['fidelity']:.3f}")
        if step == options.steps:
            break
        references = crops(waves, options.batch, samples, generator)
        optimizer.zero_grad()
        value = loss(separator(references.sum(1)), references)
        value.backward()
        optimizer.step()
        log.numbers({"train/loss": value.detach()}, step)
        log.numbers({f"train/{name}": term for name, term in loss.last.terms.items()}, step)
    return history


def main(argv: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Train and log; returns the scores of each validation."""
    options = arguments(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    log: Log = LOGS[options.to](options.out)
    try:
        return train(options, log)
    finally:
        log.close()


if __name__ == "__main__":
    main()

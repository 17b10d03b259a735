"""Train a small separator in Lightning: scores as loss, as metrics and as a curriculum.

    python recipes/lightning_separation.py    # a few minutes on a CPU
    python recipes/lightning_separation.py --epochs 20 --resume runs/lightning/last.ckpt
    python recipes/lightning_separation.py --encoder wav2vec2-large --accelerator gpu --epochs 50

Two synthetic voices are mixed, the lower one first. The loss is SI-SDR with clearance and fidelity,
which cost little. The curriculum moves the voices closer together in pitch whenever at most a
quarter of the validation frames is still below a PS of ``--level``; its stage is restored when a
training is resumed. With ``--strategy ddp`` all processes change stages together. Everything is
logged to ``OUT/log/version_N/metrics.csv``: ``val/clearance``, ``val/fidelity``, ``val/ps``, ...

To train on your own data, replace ``Voices`` and ``MaskNet``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from command_line import Help


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    parser.add_argument("--out", default="runs/lightning", help="folder for logs and checkpoints")
    parser.add_argument("--resume", help="checkpoint to resume from")
    parser.add_argument("--encoder", default="mel", help="name, folder or hub id")
    parser.add_argument("--frames", type=int, help="random frames scored in a step; all if not set")
    parser.add_argument(
        "--epochs", type=int, default=10, help="total number, resumed ones included"
    )
    parser.add_argument("--items", type=int, default=32, help="training mixtures per epoch")
    parser.add_argument("--batch", type=int, default=4, help="mixtures per step")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a mixture")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument(
        "--level", type=float, default=0.6, help="PS that raises the stage of the curriculum"
    )
    parser.add_argument("--patience", type=int, default=1, help="epochs in a row above the level")
    parser.add_argument("--accelerator", default="cpu", help="of Lightning")
    parser.add_argument("--devices", type=int, default=1, help="number of them")
    parser.add_argument("--strategy", default="auto", help="e.g. ddp, ddp_spawn")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    parse()  # --help answers here, without the seconds that torch takes to load

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection

from torch_mapss import (
    MAPSS,
    Clearance,
    DecompositionLoss,
    Fidelity,
    FrameTrigger,
    PerceptualMatch,
    PerceptualSeparation,
    ReferenceBank,
)
from torch_mapss.curriculum import Quantile
from torch_mapss.lightning import CurriculumCallback

RATE = 16000


class Voices(Dataset):
    """References (2, T) of two hummed voices, the lower one first; equal seeds, equal sets.

    ``stage`` sets how far apart they are: an octave and a half at stage 0, less at each stage.
    """

    def __init__(self, count: int, seconds: float, seed: int) -> None:
        self.count, self.seed, self.stage = count, seed, 0
        self.time = torch.arange(int(seconds * RATE)) / RATE

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + index)
        low = 90.0 + 60.0 * float(torch.rand((), generator=generator))
        octaves = max(1.5 - 0.25 * self.stage, 0.25)
        pitches = (low, low * 2.0**octaves)
        return torch.stack([self._voice(pitch, generator) for pitch in pitches])

    def _voice(self, pitch: float, generator: torch.Generator) -> Tensor:
        """Twelve harmonics with vibrato, breath, and syllables at about four a second."""
        draw = torch.rand(15, generator=generator)
        vibrato = 0.5 * torch.sin(2 * torch.pi * (4 + 2 * draw[12]) * self.time)
        phase = 2 * torch.pi * pitch * self.time + vibrato
        tone = sum(draw[k] / (k + 1) * torch.sin((k + 1) * phase) for k in range(12))
        breath = 0.02 * torch.randn(len(self.time), generator=generator)
        syllables = torch.sin(torch.pi * (3 + 2 * draw[13]) * self.time + 6 * draw[14]).abs()
        return 0.2 * syllables * (tone + breath)


class MaskNet(nn.Module):
    """One sigmoid mask per source on the short-time spectrum of the mixture."""

    def __init__(self, sources: int = 2, width: int = 96, size: int = 512, hop: int = 128) -> None:
        super().__init__()
        self.sources, self.size, self.hop = sources, size, hop
        bins = size // 2 + 1
        self.register_buffer("window", torch.hann_window(size))
        self.layers = nn.Sequential(
            nn.Conv1d(bins, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, sources * bins, 1),
        )

    def forward(self, mixture: Tensor) -> Tensor:
        """(B, T) -> (B, S, T)."""
        spectrum = torch.stft(mixture, self.size, self.hop, window=self.window, return_complex=True)
        masks = self.layers((spectrum.abs() + 1e-3).log()).sigmoid()
        masked = masks.unflatten(1, (self.sources, -1)) * spectrum.unsqueeze(1)
        waves = torch.istft(
            masked.flatten(0, 1), self.size, self.hop, window=self.window, length=mixture.shape[-1]
        )
        return waves.unflatten(0, (-1, self.sources))


class Separation(pl.LightningModule):
    """Loss, metrics and curriculum share one MAPSS."""

    def __init__(self, mapss: MAPSS, train_set: Voices, **options: Any) -> None:
        super().__init__()
        self.mapss, self.train_set = mapss, train_set  # the callback looks for ``mapss``
        self.rate = options["rate"]
        self.network = MaskNet()
        self.loss = DecompositionLoss(mapss, si_sdr=0.1, frames=options["frames"])
        metrics = {"clearance": Clearance(mapss), "fidelity": Fidelity(mapss)}
        metrics |= {"ps": PerceptualSeparation(mapss), "pm": PerceptualMatch(mapss)}
        metrics["log_pm"] = PerceptualMatch(mapss, log=True)
        self.val_metrics = MetricCollection(metrics, prefix="val/")
        # The validation set stays the same: its references are prepared once. Score against the
        # waveforms instead where their banks (``bank.nbytes``) do not fit into memory.
        self.val_banks: dict[int, ReferenceBank] = {}

    def training_step(self, target: Tensor, index: int) -> Tensor:
        """One step on a batch of references (B, 2, T)."""
        loss = self.loss(self.network(target.sum(1)), target)
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, target: Tensor, index: int) -> dict[str, Any]:
        """Update and log metric objects; what is returned goes to the curriculum."""
        preds = self.network(target.sum(1))
        if index not in self.val_banks:
            self.val_banks[index] = self.mapss.prepare(target)  # all measures
        bank = self.val_banks[index]
        self.val_metrics.update(preds, bank)
        self.log_dict(self.val_metrics)
        return {"preds": preds, "target": bank}

    def on_curriculum_stage(self, stage: int) -> None:
        """Called at the beginning, after resuming, and whenever the trigger fires."""
        self.train_set.stage = stage

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), lr=self.rate)


def main(arguments: Sequence[str] | None = None) -> pl.Trainer:
    """Train; returns the trainer."""
    options = parse(arguments)
    pl.seed_everything(0)
    mapss = MAPSS(options.encoder)
    train_set = Voices(options.items, options.seconds, seed=1)
    val_set = Voices(max(options.items // 4, 2), options.seconds, seed=2)
    module = Separation(mapss, train_set, frames=options.frames, rate=options.rate)
    trigger = FrameTrigger(Quantile("ps", 0.25, above=options.level), patience=options.patience)
    trainer = make_trainer(options, trigger)
    trainer.fit(
        module,
        DataLoader(train_set, options.batch, shuffle=True),
        DataLoader(val_set, options.batch),
        ckpt_path=options.resume,
    )
    return trainer


def make_trainer(options: argparse.Namespace, trigger: FrameTrigger) -> pl.Trainer:
    """A trainer that logs to a CSV file, keeps all checkpoints, and runs the curriculum."""
    out = Path(options.out)
    settings: dict[str, Any] = {"accelerator": options.accelerator, "devices": options.devices}
    return pl.Trainer(
        **settings,
        strategy=options.strategy,
        max_epochs=options.epochs,
        logger=CSVLogger(out, name="log"),
        callbacks=[
            CurriculumCallback(trigger),
            ModelCheckpoint(out, filename="{epoch}", save_top_k=-1, save_last=True),
        ],
        log_every_n_steps=1,
        enable_model_summary=False,
    )


if __name__ == "__main__":
    main()

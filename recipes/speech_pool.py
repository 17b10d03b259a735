"""Speech for the training recipes: talkers of a folder, and pools of prepared pairs of them.

Sources are distorted and normalised one by one. So in a pool of prepared pairs every first source
can be mixed with every second one, at any level, without preparing it again (``bank.recombined``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torch_mapss import ReferenceBank, audio

RATE = 16000
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aiff")
Voices = dict[str, list[Tensor]]


def load_voices(folder: str) -> Voices:
    """Talker -> utterances (T,) at 16 kHz, mono."""
    root, voices = Path(folder), Voices()
    for path in sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES):
        subfolder = path.relative_to(root).parts[:-1]
        talker = subfolder[0] if subfolder else path.stem.split("_")[0]
        wave, rate = audio.load_audio(path)
        voices.setdefault(talker, []).append(audio.resample(audio.to_mono(wave), rate, RATE))
    if len(voices) < 2:
        raise SystemExit(
            f"--speech must hold at least two talkers, found {sorted(voices)} in {folder}. Put "
            "each talker's files in a subfolder, or name them talker_1.wav, talker_2.wav, …"
        )
    return voices


def split(voices: Voices, validate: bool = False) -> tuple[Voices, Voices]:
    """Training voices, and held-out ones: the last quarter of each talker's files, at least one.

    With ``validate`` that quarter is left out, and the quarter before it is held out.
    """
    train, held_out = dict(voices), Voices()
    for _ in range(1 + validate):
        for name, waves in train.items():
            count = max(1, len(voices[name]) // 4)
            train[name], held_out[name] = waves[:-count], waves[-count:]
    too_few = sorted(name for name, waves in train.items() if not waves)
    if too_few:
        raise SystemExit(f"{too_few} have too few utterances: at least {2 + validate} are needed.")
    return train, held_out


class Pair(NamedTuple):
    """Segments of two different talkers, the target first if there is one."""

    talkers: tuple[str, str]
    waves: Tensor  # (2, T)


def draw_pair(
    voices: Voices, samples: int, generator: torch.Generator, target: str | None = None
) -> Pair:
    """Two segments at RMS 0.05, each the loudest of three draws, so that it is not a pause."""

    def integer(high: int) -> int:
        return int(torch.randint(max(high, 1), (1,), generator=generator))

    def segment(waves: Sequence[Tensor]) -> Tensor:
        draws = []
        for _ in range(3):
            wave = waves[integer(len(waves))]
            begin = integer(len(wave) - samples)
            piece = wave[begin : begin + samples]
            draws.append(nn.functional.pad(piece, (0, samples - len(piece))))
        best = max(draws, key=lambda piece: float(piece.square().mean()))
        return 0.05 * best / best.square().mean().sqrt().clamp(min=1e-8)

    names = sorted(voices)
    talker = target or names[integer(len(names))]
    names.remove(talker)
    interferer = names[integer(len(names))]
    waves = torch.stack([segment(voices[talker]), segment(voices[interferer])])
    return Pair((talker, interferer), waves)


def at_levels(pairs: Tensor, decibels: Tensor) -> Tensor:
    """(B, 2, T) with each pair's second source raised by its decibels (B,)."""
    gains = 10.0 ** (decibels.to(pairs) / 20.0)
    return pairs * torch.stack([torch.ones_like(gains), gains], -1).unsqueeze(-1)


def fixed_references(
    voices: Voices, count: int, seconds: float, seed: int, target: str | None = None
) -> Tensor:
    """References (count, 2, T) of mixtures to test on; the second source is at -6 to 0 dB."""
    generator = torch.Generator("cpu").manual_seed(seed)
    samples = round(seconds * RATE)
    pairs = [draw_pair(voices, samples, generator, target).waves for _ in range(count)]
    return at_levels(torch.stack(pairs), torch.linspace(-6.0, 0.0, count))


class Pool:
    """Prepared pairs whose sources are mixed at random; a batch is renewed every few steps.

    Equal seeds give equal mixtures, whatever ``prepare`` does.
    """

    def __init__(
        self,
        voices: Voices,
        options: argparse.Namespace,
        seed: int,
        prepare: Callable[[Tensor], ReferenceBank] | None,
    ) -> None:
        self.voices, self.options, self.prepare = voices, options, prepare
        self.generator = torch.Generator("cpu").manual_seed(seed)
        self.pairs: list[Pair] = []
        self.banks: list[ReferenceBank] = []
        self.steps = 0
        for pair_index in range(options.pool):
            self._renew(pair_index)

    def _renew(self, pair_index: int) -> None:
        samples = round(self.options.seconds * RATE)
        pair = draw_pair(self.voices, samples, self.generator, self.options.target)
        pair = pair._replace(waves=pair.waves.to(self.options.device))
        self.pairs[pair_index : pair_index + 1] = [pair]
        if self.prepare is not None:
            self.banks[pair_index : pair_index + 1] = [self.prepare(pair.waves.unsqueeze(0))]

    def draw(self, lowest: float, highest: float) -> tuple[Tensor, ReferenceBank | None]:
        """References (B, 2, T), the second between two levels (dB) of the first, and their bank."""
        options = self.options
        self.steps += 1
        if options.refresh and self.steps % options.refresh == 0:
            oldest = self.steps // options.refresh * options.batch
            for pair_index in range(oldest, oldest + options.batch):
                self._renew(pair_index % len(self.pairs))
        index = [self._mixture() for _ in range(options.batch)]
        levels = lowest + (highest - lowest) * torch.rand(len(index), generator=self.generator)
        pairs = [torch.stack([self.pairs[i].waves[0], self.pairs[j].waves[1]]) for i, j in index]
        bank = ReferenceBank.join(self.banks).recombined(index) if self.banks else None
        return at_levels(torch.stack(pairs), levels), bank

    def _mixture(self) -> tuple[int, int]:
        """Indices of the pairs that a first and a second source come from, of different talkers."""
        while True:
            i, j = torch.randint(len(self.pairs), (2,), generator=self.generator).tolist()
            if self.pairs[i].talkers[0] != self.pairs[j].talkers[1]:
                return i, j


def matched(estimates: Tensor, references: Tensor, target: str | None = None) -> Tensor:
    """Estimates in the order of their references; with a target they are in that order already."""
    if target is not None:
        return estimates
    back = audio.match_sources(estimates, references).argsort(-1)
    return estimates[torch.arange(len(back), device=back.device).unsqueeze(-1), back]

"""Long clips: their distortions are made and encoded span by span, whenever they are scored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from torch_mapss.audio.frames import active_frames
from torch_mapss.audio.loudness import Meter, gain_to
from torch_mapss.core import devices
from torch_mapss.core.points import Points
from torch_mapss.distortions import DistortionBank, Measured
from torch_mapss.encoders import Encoder
from torch_mapss.pipeline.bank import Deferred, Encoded, Group, scored_frames
from torch_mapss.pipeline.config import CONTEXT, Config
from torch_mapss.pipeline.copies import (
    Copies,
    EmbeddingBuffer,
    Encoding,
    Rows,
    as_index,
    planned_copies,
    plans,
    sums_of_others,
)
from torch_mapss.pipeline.inputs import Clips
from torch_mapss.pipeline.measures import MEASURES
from torch_mapss.pipeline.memory import Budget

SHORTEST_BLOCK = 5.0  # seconds; shorter ones would spend their time on what the distortions reach

# Pieces of copies made at a time that the budget holds, less what the distortions reach. A row made
# alone takes half as long again: Fourier transforms of several rows cost less for each.
PIECES = 4


# ------------------------------------------------------------------------------------------------
# Preparing
# ------------------------------------------------------------------------------------------------


def deferred_group(config: Config, clips: Clips, measures: Sequence[str]) -> Group:
    """What it takes to score a clip (1, S, T) in segments; nothing is encoded yet."""
    grid, budget = config.grid, config.budget(clips.waves.device)
    waves = clips.waves * _gains(config, clips.waves[0], budget)
    parts = [
        active_frames(wave.unsqueeze(0), grid.receptive_field, grid.hop, config.activity)
        for wave in waves[0]
    ]
    active = torch.cat(parts).unsqueeze(0)
    deferred: dict[str, Encoded | Deferred] = {}
    for copies in planned_copies(config, measures, waves, active, clips.items, pieces=True):
        gains = copy_gains(copies, waves, budget)
        for name, places in copies.plan.users.items():
            own = torch.from_numpy(copies.present[name]).to(waves.device)
            deferred[name] = Deferred(own, of_members(copies.measured, places), gains[..., places])
    others = None
    if waves.shape[1] > 2 and any(MEASURES[name].others for name in deferred):
        others = sums_of_others(clips.waves)
        others = others * _gains(config, others[0], budget)
    where = scored_frames(active)
    return Group(clips.items, clips.samples, waves, active, where, deferred, others, deferred=True)


def of_members(measured: Measured, places: Sequence[int]) -> Measured:
    """What a bank measured, of some of its members."""
    index = torch.tensor(places, device=measured.mask.device)
    values = tuple(measured.values[place] for place in places)
    return measured._replace(mask=measured.mask[..., index], values=values)


def _gains(config: Config, waves: Tensor, budget: Budget) -> Tensor:
    """(n, 1) what brings waveforms (n, T) to the loudness asked for."""
    return gain_to(waves, config.grid.sample_rate, config.loudness, budget.samples).unsqueeze(-1)


def copy_gains(copies: Copies, waves: Tensor, budget: Budget) -> Tensor:
    """What brings every copy of references (1, S, T) to a level, (1, S, P); 0 if there is none."""
    rate, samples = copies.config.grid.sample_rate, waves.shape[-1]
    meter = Meter(tuple(copies.wanted.shape), samples, rate, waves)
    least = max(1, round(SHORTEST_BLOCK * rate) // meter.hop)
    step = max(least, budget.samples // PIECES // meter.hop) * meter.hop
    for start in range(0, samples, step):
        stop = min(start + step, samples)
        lead = meter.lead if start else 0
        piece, left = _piece(waves, copies.plan.bank, rate, start - lead, stop)
        for rows, made in copies.made(piece, left):
            own = made[:, start - lead - left : stop - left]
            meter.add(as_index(rows, waves.device), own, start)
    return meter.gain(copies.config.loudness) * copies.measured.mask


def _piece(
    waves: Tensor, bank: DistortionBank, sample_rate: int, start: int, stop: int
) -> tuple[Tensor, int]:
    """Samples whose distortions from ``start`` to ``stop`` are those of the whole; its place."""
    before, after = (round(reach * sample_rate) for reach in bank.reach(sample_rate))
    left = max(0, start - before)
    return waves[..., left : stop + after], left


# ------------------------------------------------------------------------------------------------
# Scoring
# ------------------------------------------------------------------------------------------------


Levelled = tuple[Tensor, Tensor]
"""Estimates (S', T) as they came in, and the gains (S', 1) to the level of their references."""


def estimates_of(
    config: Config, waves: Tensor, group: Group, attributed: tuple[int, ...]
) -> Levelled:
    """Estimates (S', T), and what brings them to the level and, if asked for, the sign."""
    gains = _gains(config, waves, config.budget(waves.device))
    if config.align_polarity:
        same = [(w * group.waveforms[0, i]).sum() for w, i in zip(waves, attributed)]
        gains = gains * torch.where(torch.stack(same).unsqueeze(-1) < 0.0, -1.0, 1.0)
    return waves, gains


class Span:
    """Neighbouring frames of a long clip that are encoded at once, and which of them are scored.

    Args:
        config: of the scorer.
        group: the clip.
        first: frames [first, last) are encoded.
        last: see there.
        frames: (n,) those of them that are scored.
    """

    def __init__(self, config: Config, group: Group, first: int, last: int, frames: Tensor) -> None:
        self.config, self.group = config, group
        self.item, self.frame = torch.zeros_like(frames), frames
        self.places = frames - first
        grid = config.grid
        self.start = first * grid.hop
        self.stop = (last - 1) * grid.hop + grid.receptive_field
        self._encoding = Encoding(config, frames.device)
        self._encoded: dict[tuple[int, int], Tensor] = {}  # by encoder and system

    def outputs(self, name: str, estimates: Levelled) -> Tensor:
        """(n, S', M) of one system for one measure."""
        encoder = self.config.encoder_of(name)
        key = id(encoder), id(estimates)
        if key not in self._encoded:
            waves, gains = estimates
            piece = waves[:, self.start : self.stop] * gains
            self._encoded[key] = self._embed(encoder, piece).transpose(0, 1)
        return self._encoded[key]

    def bank(self, measures: Sequence[str]) -> Iterator[tuple[str, Points, Tensor]]:
        """What the frames hold of the bank, and which have finite numbers, measure by measure."""
        rate = self.config.grid.sample_rate
        for plan in plans(self.config, measures):
            parts = {name: self.group.encoded[name] for name in plan.users}
            present = {n: x.mask.cpu().numpy() for n, x in parts.items() if x.mask is not None}
            part = parts[plan.name]
            assert isinstance(part, Deferred)
            wanted = part.measured.mask.cpu().numpy()
            copies = Copies(self.config, plan, part.measured, wanted, present)
            piece, left = _piece(self.group.waveforms, plan.bank, rate, self.start, self.stop)
            own, gains = slice(self.start - left, self.stop - left), part.gains

            def level(rows: Rows, made: Tensor, own: slice = own, gains: Tensor = gains) -> Tensor:
                return made[:, own] * gains[as_index(rows, made.device)].unsqueeze(-1)

            buffers = copies.encode(piece, level, self._embed, left)
            for name in plan.users:
                yield name, *self._frames_of(buffers.pop(name), name)

    def _embed(self, encoder: Encoder, waves: Tensor) -> Tensor:
        """Waveforms (n, T) of the span -> the frames (n, F, M) that are scored."""
        found = self._encoding(encoder, waves)[:, self.places]
        self._encoding.check()
        return found

    def _frames_of(self, buffer: EmbeddingBuffer, name: str) -> tuple[Points, Tensor]:
        waves, sums = self.group.waveforms, self.group.others
        own, mask, others = slice(self.start, self.stop), buffer.mask, None
        references = self._embed(buffer.encoder, waves[0, :, own]).transpose(0, 1)
        if MEASURES[name].others and sums is not None:
            others = self._embed(buffer.encoder, sums[0, :, own]).transpose(0, 1)
        if mask is not None:
            mask = mask.expand(len(self.frame), *mask.shape[1:])
        sources = tuple(range(waves.shape[1]))
        distortions = buffer.values[0].permute(2, 0, 1, 3)
        return cleaned(
            Points(references, references, distortions, sources, mask=mask, others=others)
        )


def cleaned(points: Points) -> tuple[Points, Tensor]:
    """Frames with bad numbers as zeros; and which (n,) have none."""
    parts = points.embeddings()
    usable = torch.stack([x.sum(-1).isfinite().flatten(1).all(-1) for x in parts]).all(0)
    if devices.is_accelerator(usable.device) or not bool(usable.all()):
        zeroed = (torch.where(usable.reshape(-1, *(1,) * (x.ndim - 1)), x, 0.0) for x in parts)
        points = points.batch(slice(None), tuple(zeroed))
    return points, usable


def spans(
    config: Config,
    group: Group,
    frames: Tensor,
    measures: Sequence[str],
    on_segment: Callable[[int, int], object] | None,
) -> Iterator[Span]:
    """Spans that hold the ``frames`` (n,) of a long clip to be scored, segment by segment."""
    assert not math.isinf(config.segment_frames)
    edges = list(segments(group.frames, int(config.segment_frames)))
    grid, budget, device = config.grid, config.budget(frames.device), frames.device
    frames = frames.cpu()
    local = all(config.encoder_of(name).local for name in measures)
    most = max(1, budget.embeddings // _frame_bytes(config, group, measures))
    if local:  # as long as making its copies allows, too
        seconds = max(SHORTEST_BLOCK, budget.samples / PIECES / grid.sample_rate)
        most = min(most, max(1, round(seconds * grid.sample_rate / grid.hop)))
    context = 0 if local else round(CONTEXT * grid.sample_rate / grid.hop)
    tell = on_segment or (lambda done, count: None)
    tell(0, len(edges))
    for done, (first, last) in enumerate(edges):
        for some in frames[(frames >= first) & (frames < last)].split(most):
            if len(some):
                ends = int(some[0]), int(some[-1]) + 1
                if not local:
                    ends = max(0, first - context), min(group.frames, last + context)
                yield Span(config, group, *ends, some.to(device))
        tell(done + 1, len(edges))


def segments(frames: int, most: int) -> Iterator[tuple[int, int]]:
    """Frames [first, last) of segments of at most ``most``, as even as possible."""
    count = -(-frames // most)
    edges = [frames * k // count for k in range(count + 1)]
    return itertools.pairwise(edges)


def _frame_bytes(config: Config, group: Group, measures: Sequence[str]) -> int:
    """Bytes of one frame's embeddings, for the largest measure."""
    sizes = [1]
    for name in measures:
        encoder = config.encoder_of(name)
        points = len(config.bank_of(name).names(config.grid.sample_rate)) + 1
        sizes.append(points * (encoder.feature_size or encoder.receptive_field))
    return max(sizes) * group.waveforms.shape[1] * group.waveforms.element_size()

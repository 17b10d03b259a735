"""Long clips, whose distortions are made and encoded span by span, whenever they are scored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from torch_mapss.audio.frames import active_frames
from torch_mapss.audio.loudness import Meter, k_weighted_energy, metered
from torch_mapss.core import devices
from torch_mapss.core.points import Points
from torch_mapss.distortions import DistortionBank, Measured
from torch_mapss.pipeline.activity import active_sources, frames_to_score
from torch_mapss.pipeline.bank import Clusters, LongClip
from torch_mapss.pipeline.config import CONTEXT, Config, Grid
from torch_mapss.pipeline.copies import (
    CopyPlan,
    as_index,
    copy_plan,
    copy_plans,
    shared_banks,
    sums_of_others,
)
from torch_mapss.pipeline.embedder import Embedder
from torch_mapss.pipeline.frames import Block
from torch_mapss.pipeline.measures import MEASURES
from torch_mapss.pipeline.memory import Budget

# Progress callback (done, total) for the segments of a long clip, called from 0 on.
OnSegment = Callable[[int, int], object]
# Estimates (1, S', T) at the level for encoding, each with the measures that encode it.
LevelledWaves = Sequence[tuple[Tensor, Sequence[str]]]

SHORTEST_BLOCK = 5.0  # seconds; in shorter blocks most work would go into the distortions' margins

# Number of pieces of copies, margins not counted, that must fit the budget at once. A single row
# takes half as long again as one of several, whose Fourier transforms are cheaper per row.
PIECES = 4


# ------------------------------------------------------------------------------------------------
# Preparing
# ------------------------------------------------------------------------------------------------


def measure_long_clip(
    config: Config,
    items: tuple[int, ...],
    samples: int,
    waves: Tensor,
    valid_sources: Tensor,
    measures: Sequence[str],
    budget: Budget,
    excerpts: Sequence[tuple[int, int]] | None = None,
) -> LongClip:
    """Measure a clip for scoring it in segments; nothing is encoded yet.

    Args:
        config: settings of the scorer.
        items: index of the mixture in the batch.
        samples: its length before resampling.
        waves: (1, S, T) at the encoder's rate, finite.
        valid_sources: (1, S) bool; False: zeroed, because it had a NaN or infinite sample.
        measures: measures to prepare.
        budget: working memory.
        excerpts: see :func:`torch_mapss.pipeline.prepare.prepare`.
    """
    grid = config.grid
    scaled_excerpts = None
    if excerpts is not None:  # at the encoder's rate
        scale = waves.shape[-1] / samples
        scaled_excerpts = [(round(begin * scale), round(end * scale)) for begin, end in excerpts]
    unscaled = waves
    meter = metered(unscaled[0], grid.sample_rate, budget.samples)
    waves = unscaled * meter.gain(config.loudness).unsqueeze(-1)
    audible_by_source = [
        active_frames(wave, grid.receptive_field, grid.hop, config.activity)
        for wave in waves.split(1, 1)
    ]
    audible = torch.cat(audible_by_source, 1)
    measured_by_measure: dict[str, Measured] = {}
    gains_by_measure: dict[str, Tensor] = {}
    for plan in copy_plans(config, budget, measures, waves, audible, items, in_segments=True):
        if scaled_excerpts is None:
            gains = copy_gains(plan, waves)
        else:
            gains = gains_in(plan, waves, scaled_excerpts)
        for name, members in plan.members_by_measure.items():
            mask = torch.from_numpy(plan.present[name][..., members]).to(waves.device)
            values = tuple(plan.measured.values[member] for member in members)
            measured_by_measure[name] = plan.measured._replace(mask=mask, values=values)
            gains_by_measure[name] = gains[..., members]
    others = None
    if waves.shape[1] > 2 and any(MEASURES[name].others for name in gains_by_measure):
        sums = sums_of_others(unscaled)
        sum_meter = metered(sums[0], grid.sample_rate, budget.samples)
        others = sums * sum_meter.gain(config.loudness).unsqueeze(-1)
    valid = valid_sources.unsqueeze(-1).expand(audible.shape)
    scored, pauses = frames_to_score(active_sources(audible, valid))
    ranges = None
    if scaled_excerpts is not None:
        ranges = frames_inside(grid, scaled_excerpts, audible.shape[-1]).to(waves.device)
        scored, pauses = within(scored, ranges), within(pauses, ranges)
    return LongClip(
        items=items,
        samples=samples,
        waves=waves,
        audible=audible,
        valid=valid,
        scored=scored,
        pauses=pauses,
        gates=meter.passing_blocks(config.loudness).unsqueeze(0),
        measured=measured_by_measure,
        gains=gains_by_measure,
        others=others,
        excerpts=ranges,
    )


def frames_inside(grid: Grid, excerpts: Sequence[tuple[int, int]], frames: int) -> Tensor:
    """(n, 2) int64: range [first, end) of the frames that lie entirely in each part of a clip."""
    ranges = []
    for begin, end in excerpts:
        first_frame = -(-begin // grid.hop)
        last_frame = min((end - grid.receptive_field) // grid.hop, frames - 1)
        ranges.append((first_frame, max(first_frame, last_frame + 1)))
    return torch.tensor(ranges, dtype=torch.int64, device="cpu")


def within(frames: Tensor, ranges: Tensor) -> Tensor:
    """Select the frames (n, 2) of a single clip that lie in any of the ranges."""
    index = frames[:, 1:]
    return frames[((index >= ranges[:, 0]) & (index < ranges[:, 1])).any(-1)]


def gains_in(plan: CopyPlan, waves: Tensor, excerpts: Sequence[tuple[int, int]]) -> Tensor:
    """(1, S, P) gains that bring copies to the level of their references (1, S, T) in the parts.

    Like :func:`copy_gains`, but measured only in the parts: each copy gets the K-weighted power
    that the normalised reference has there, and a peak of at most 1.
    """
    rate = plan.config.grid.sample_rate
    shape = tuple(plan.measured.mask.shape)
    power = waves.new_zeros(shape, dtype=torch.float64)
    peak = waves.new_zeros(shape)
    reference_power = waves.new_zeros(*shape[:2], 1, dtype=torch.float64)
    for begin, end in excerpts:
        reference_power[..., 0] += k_weighted_energy(waves[..., begin:end], rate)
        piece, piece_begin = piece_around(waves, plan.bank, rate, begin, end)
        for rows, copy in plan.made(piece, piece_begin):
            index = as_index(rows, waves.device)
            heard = copy[:, begin - piece_begin : end - piece_begin]
            power[index] += k_weighted_energy(heard, rate)
            peak[index] = torch.maximum(peak[index], heard.abs().amax(-1))
    audible = (power > 0.0) & plan.measured.mask
    gains = (reference_power / torch.where(audible, power, 1.0)).sqrt().to(waves.dtype)
    gains = torch.minimum(gains, 1.0 / peak.clamp(min=torch.finfo(peak.dtype).tiny))
    return torch.where(audible, gains, 0.0)


def copy_gains(plan: CopyPlan, waves: Tensor) -> Tensor:
    """(1, S, P) gains that bring copies of references (1, S, T) to their level; 0 where absent."""
    rate, samples = plan.config.grid.sample_rate, waves.shape[-1]
    meter = Meter(tuple(plan.measured.mask.shape), samples, rate, waves)
    smallest_step = max(1, round(SHORTEST_BLOCK * rate) // meter.hop)
    step = max(smallest_step, plan.budget.samples // PIECES // meter.hop) * meter.hop
    for begin in range(0, samples, step):
        end = min(begin + step, samples)
        lead = meter.lead if begin else 0
        piece, piece_begin = piece_around(waves, plan.bank, rate, begin - lead, end)
        for rows, copy in plan.made(piece, piece_begin):
            metered = copy[:, begin - lead - piece_begin : end - piece_begin]
            meter.add(as_index(rows, waves.device), metered, begin)
    return meter.gain(plan.config.loudness) * plan.measured.mask


def piece_around(
    waves: Tensor, bank: DistortionBank, sample_rate: int, begin: int, end: int
) -> tuple[Tensor, int]:
    """Piece whose copies equal those of the whole from ``begin`` to ``end``; and its position."""
    before, after = (round(reach * sample_rate) for reach in bank.reach(sample_rate))
    piece_begin = max(0, begin - before)
    return waves[..., piece_begin : end + after], piece_begin


# ------------------------------------------------------------------------------------------------
# Scoring
# ------------------------------------------------------------------------------------------------


def segment_blocks(
    clip: LongClip,
    estimates: Sequence[LevelledWaves],
    measures: Sequence[str],
    embedder: Embedder,
    on_segment: OnSegment | None,
    scored: Tensor,
    pauses: Tensor,
) -> Iterator[SegmentBlock]:
    """Yield the frames of a long clip in order, as many at a time as can be embedded at once.

    Args:
        clip: clip of the bank.
        estimates: waveforms (1, S', T) at the level for encoding, each with the measures that
            encode it; one list per call.
        measures: measures to compute.
        embedder: embeds the blocks, and is checked after each.
        on_segment: progress callback ``(done, total)``.
        scored, pauses: as in :func:`~torch_mapss.pipeline.frames.stored_blocks`.
    """
    config, grid = embedder.config, embedder.config.grid
    frames = clip.audible.shape[-1]
    ranges = [[0, frames]]
    if clip.excerpts is not None:
        ranges = clip.excerpts.tolist()
    longest = min(config.segment_frames, config.encodable_frames)
    edges = [edge for begin, end in ranges for edge in segments(begin, end, longest)]
    encoders = [config.encoders[MEASURES[name].encoder].load() for name in measures]
    # Frames of local encoders need only their receptive field and overhang. Other encoders receive
    # the entire segment with some context.
    is_local = all(encoder.local for encoder in encoders)
    overhang = max((encoder.overhang for encoder in encoders), default=0)
    margin = -(-overhang // grid.hop)  # frames
    context = round(CONTEXT * grid.sample_rate / grid.hop)
    frames_at_once = _frames_at_once(clip, measures, embedder, is_local)
    is_pause = torch.zeros(frames, dtype=torch.bool, device="cpu")
    is_scored = is_pause.clone()
    is_pause[pauses[:, 1].cpu()] = True
    is_scored[scored[:, 1].cpu()] = True
    indices = (is_scored | is_pause).nonzero().squeeze(-1)
    if on_segment is not None:
        on_segment(0, len(edges))
    for done, (begin, end) in enumerate(edges):
        in_segment = indices[(indices >= begin) & (indices < end)]
        for frame in in_segment.split(frames_at_once):
            if len(frame) == 0:
                continue
            surrounding = int(frame[0]) - margin, int(frame[-1]) + 1 + margin
            if not is_local:
                surrounding = begin - context, end + context
            encoded = range(max(0, surrounding[0]), min(frames, surrounding[1]))
            yield SegmentBlock(clip, estimates, measures, embedder, frame, is_pause[frame], encoded)
            embedder.check()
        if on_segment is not None:
            on_segment(done + 1, len(edges))


def _frames_at_once(
    clip: LongClip, measures: Sequence[str], embedder: Embedder, is_local: bool
) -> int:
    """Largest number of frames of a clip whose copies and embeddings fit the budget."""
    config, budget, grid = embedder.config, embedder.budget, embedder.config.grid
    numbers = [1]  # of the embeddings of a source in one frame, by measure
    for name in measures:
        measure = MEASURES[name]
        encoder = config.encoders[measure.encoder].load()
        points = len(config.banks[measure.bank].names(grid.sample_rate)) + 1
        numbers.append(points * (encoder.feature_size or encoder.receptive_field))
    frame_bytes = max(numbers) * clip.waves.shape[1] * clip.waves.element_size()
    count = max(1, budget.embeddings // frame_bytes)
    if is_local:  # also limited by the memory for making copies
        seconds = max(SHORTEST_BLOCK, budget.samples / PIECES / grid.sample_rate)
        count = min(count, max(1, round(seconds * grid.sample_rate / grid.hop)))
    return count


class SegmentBlock(Block):
    """Consecutive frames of a long clip, whose copies are made when a measure asks for them.

    Args:
        clip, estimates, embedder: as in :func:`segment_blocks`.
        measures: all measures to compute.
        frame: (n,) indices in the clip, on the CPU.
        is_pause: (n,) bool, on the CPU: frames in which only measures that score pauses are
            computed.
        encoded: range of frames whose samples the encoder receives.
    """

    def __init__(
        self,
        clip: LongClip,
        estimates: Sequence[LevelledWaves],
        measures: Sequence[str],
        embedder: Embedder,
        frame: Tensor,
        is_pause: Tensor,
        encoded: range,
    ) -> None:
        device = clip.waves.device
        self.frame = frame.to(device)
        self.item = torch.zeros_like(self.frame)
        self.measures = measures
        if bool(is_pause.all()):
            self.measures = [name for name in measures if MEASURES[name].in_pauses]
        self.has_pauses = bool(is_pause.any())
        self._clip, self._embedder = clip, embedder
        self._scored_rows = (~is_pause).nonzero().squeeze(-1).to(device)
        grid, samples = embedder.config.grid, clip.waves.shape[-1]
        first_sample, last_sample = encoded.start * grid.hop, (encoded.stop - 1) * grid.hop
        # Number of samples that are encoded.
        self._length = last_sample - first_sample + grid.receptive_field
        # Samples after the last frame are for encoders whose window exceeds the receptive field.
        stop = samples if encoded.stop == clip.audible.shape[-1] else first_sample + self._length
        self._samples = slice(first_sample, stop)
        self._frames = self.frame - encoded.start  # among the encoded frames
        self._outputs: list[dict[str, Tensor]] = []  # (S', n, M) by measure, for each call
        for levelled in estimates:
            self._outputs.append({})
            for waves, names in levelled:
                computed = [name for name in names if name in self.measures]
                self._outputs[-1] |= self._embedded(waves[0], computed)
        self._references = self._embedded(clip.waves, self.measures)
        self._others: dict[str, Tensor] = {}
        if clip.others is not None:
            with_sums = [name for name in self.measures if MEASURES[name].others]
            self._others = self._embedded(clip.others, with_sums)
        self._waiting: dict[str, Clusters] = {}  # made together with another measure's

    def _embedded(self, waves: Tensor, measures: Sequence[str]) -> dict[str, Tensor]:
        samples = waves[..., self._samples]
        return self._embedder.by_measure(measures, samples, self._frames, self._length)

    def read(self, measure: str) -> tuple[Tensor | slice, Points, Tensor, list[Tensor]]:
        """See :class:`Block`."""
        if measure not in self._waiting:
            self._make(measure)
        clusters, usable = cleaned(self._waiting.pop(measure))  # held no longer than needed
        everywhere = MEASURES[measure].in_pauses or not self.has_pauses
        rows = slice(None) if everywhere else self._scored_rows
        outputs = [by_measure[measure].transpose(0, 1)[rows] for by_measure in self._outputs]
        return rows, clusters.points(0, rows), usable[rows], outputs

    def _make(self, measure: str) -> None:
        """Make and embed the copies for a measure, and for all measures that share them."""
        config, clip = self._embedder.config, self._clip
        shared = shared_banks(config, self.measures)
        (bank, members_by_measure), *_ = [entry for entry in shared if measure in entry[1]]
        budget = self._embedder.budget
        plan = copy_plan(config, budget, bank, members_by_measure, clip.measured)
        begin, end = self._samples.start, self._samples.stop
        piece, piece_begin = piece_around(clip.waves, bank, config.grid.sample_rate, begin, end)
        self._waiting |= plan.embed(
            self._embedder,
            piece,
            self._references,
            self._others,
            gains=clip.gains[next(iter(members_by_measure))],
            start=piece_begin,
            samples=slice(begin - piece_begin, end - piece_begin),
            frames=self._frames,
            length=self._length,
        )


def cleaned(clusters: Clusters) -> tuple[Clusters, Tensor]:
    """Zero the frames with non-finite embeddings; also returns (F,) bool, the finite frames."""
    usable = clusters.usable().all(1)[0]
    if devices.is_accelerator(usable.device) or not bool(usable.all()):
        embeddings = clusters._replace(mask=None)
        zeroed = tree_map_only(
            Tensor, lambda x: torch.where(usable.unsqueeze(-1), x, 0.0), embeddings
        )
        clusters = zeroed._replace(mask=clusters.mask)
    return clusters, usable


def segments(begin: int, end: int, longest: float) -> Iterator[tuple[int, int]]:
    """Frame ranges [begin, end) of segments of at most ``longest`` frames, as even as possible."""
    frames = end - begin
    count = max(1, math.ceil(frames / longest)) if frames else 0
    edges = [begin + frames * k // max(1, count) for k in range(count + 1)]
    return itertools.pairwise(edges)

"""Long clips, whose distortions are made and encoded span by span, whenever they are scored."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from torch_mapss.audio.frames import active_frames
from torch_mapss.audio.loudness import Meter, k_weighted_energy, metered
from torch_mapss.core import devices
from torch_mapss.core.points import Points
from torch_mapss.distortions import DistortionBank, Measured
from torch_mapss.pipeline.activity import active_sources, frames_of_pauses, frames_to_score
from torch_mapss.pipeline.bank import Encoded, LongClip
from torch_mapss.pipeline.config import CONTEXT, Config, Grid
from torch_mapss.pipeline.copies import (
    Copies,
    Encoding,
    Rows,
    as_index,
    by_level,
    copies_of,
    planned_copies,
    shared_banks,
    sums_of_others,
)
from torch_mapss.pipeline.frames import Block, ClipFrames, Embeddings
from torch_mapss.pipeline.inputs import Clips
from torch_mapss.pipeline.measures import MEASURES
from torch_mapss.pipeline.memory import Budget

# Progress callback (done, total) for the segments of a long clip, called from 0 on.
OnSegment = Callable[[int, int], object]

SHORTEST_BLOCK = 5.0  # seconds; in shorter blocks most work would go into the distortions' margins

# Number of pieces of copies, margins not counted, that must fit the budget at once. A single row
# takes half as long again as one of several, whose Fourier transforms are cheaper per row.
PIECES = 4


# ------------------------------------------------------------------------------------------------
# Preparing
# ------------------------------------------------------------------------------------------------


def measure_long_clip(
    config: Config,
    clips: Clips,
    measures: Sequence[str],
    budget: Budget,
    excerpts: Sequence[tuple[int, int]] | None = None,
) -> LongClip:
    """Measure a clip (1, S, T) for scoring it in segments; nothing is encoded yet.

    Args:
        config: settings of the scorer.
        clips: waveforms of one mixture.
        measures: measures to prepare.
        budget: working memory.
        excerpts: see :func:`torch_mapss.pipeline.prepare.prepare`.
    """
    grid = config.grid
    scaled_excerpts = None
    if excerpts is not None:  # at the encoder's rate
        scale = clips.waves.shape[-1] / clips.samples
        scaled_excerpts = [(round(begin * scale), round(end * scale)) for begin, end in excerpts]
    meter = metered(clips.waves[0], grid.sample_rate, budget.samples)
    waves = clips.waves * meter.gain(config.loudness).unsqueeze(-1)
    audible_by_source = [
        active_frames(wave, grid.receptive_field, grid.hop, config.activity)
        for wave in waves.split(1, 1)
    ]
    audible = torch.cat(audible_by_source, 1)
    measured_by_measure: dict[str, Measured] = {}
    gains_by_measure: dict[str, Tensor] = {}
    for copies in planned_copies(
        config, budget, measures, waves, audible, clips.items, in_segments=True
    ):
        gains = (
            copy_gains(copies, waves)
            if scaled_excerpts is None
            else gains_in(copies, waves, scaled_excerpts)
        )
        for name, members in copies.users.items():
            mask = torch.from_numpy(copies.present[name][..., members]).to(waves.device)
            values = tuple(copies.measured.values[member] for member in members)
            measured_by_measure[name] = copies.measured._replace(mask=mask, values=values)
            gains_by_measure[name] = gains[..., members]
    others = None
    if waves.shape[1] > 2 and any(MEASURES[name].others for name in gains_by_measure):
        sums = sums_of_others(clips.waves)
        sum_meter = metered(sums[0], grid.sample_rate, budget.samples)
        others = sums * sum_meter.gain(config.loudness).unsqueeze(-1)
    valid = clips.valid.unsqueeze(-1).expand(audible.shape)
    active = active_sources(audible, valid)
    scored, pauses = frames_to_score(active), frames_of_pauses(active)
    ranges = None
    if scaled_excerpts is not None:
        ranges = frames_inside(grid, scaled_excerpts, audible.shape[-1]).to(waves.device)
        scored, pauses = (within(frames, ranges) for frames in (scored, pauses))
    return LongClip(
        items=clips.items,
        samples=clips.samples,
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


def gains_in(copies: Copies, waves: Tensor, excerpts: Sequence[tuple[int, int]]) -> Tensor:
    """(1, S, P) gains that bring copies to the level of their references (1, S, T) in the parts.

    Like :func:`copy_gains`, but measured only in the parts: each copy gets the K-weighted power
    that the normalised reference has there, and a peak of at most 1.
    """
    rate = copies.config.grid.sample_rate
    shape = tuple(copies.measured.mask.shape)
    power = waves.new_zeros(shape, dtype=torch.float64)
    peak = waves.new_zeros(shape)
    reference_power = waves.new_zeros(*shape[:2], 1, dtype=torch.float64)
    for begin, end in excerpts:
        reference_power[..., 0] += k_weighted_energy(waves[..., begin:end], rate)
        piece, left = piece_around(waves, copies.bank, rate, begin, end)
        for rows, copy in copies.made(piece, left):
            index = as_index(rows, waves.device)
            heard = copy[:, begin - left : end - left]
            power[index] += k_weighted_energy(heard, rate)
            peak[index] = torch.maximum(peak[index], heard.abs().amax(-1))
    audible = (power > 0.0) & copies.measured.mask
    gains = (reference_power / torch.where(audible, power, 1.0)).sqrt().to(waves.dtype)
    gains = torch.minimum(gains, 1.0 / peak.clamp(min=torch.finfo(peak.dtype).tiny))
    return torch.where(audible, gains, 0.0)


def copy_gains(copies: Copies, waves: Tensor) -> Tensor:
    """(1, S, P) gains that bring copies of references (1, S, T) to their level; 0 where absent."""
    rate, samples = copies.config.grid.sample_rate, waves.shape[-1]
    meter = Meter(tuple(copies.measured.mask.shape), samples, rate, waves)
    smallest_step = max(1, round(SHORTEST_BLOCK * rate) // meter.hop)
    step = max(smallest_step, copies.budget.samples // PIECES // meter.hop) * meter.hop
    for begin in range(0, samples, step):
        end = min(begin + step, samples)
        lead = meter.lead if begin else 0
        piece, left = piece_around(waves, copies.bank, rate, begin - lead, end)
        for rows, copy in copies.made(piece, left):
            metered = copy[:, begin - lead - left : end - left]
            meter.add(as_index(rows, waves.device), metered, begin)
    return meter.gain(copies.config.loudness) * copies.measured.mask


def piece_around(
    waves: Tensor, bank: DistortionBank, sample_rate: int, begin: int, end: int
) -> tuple[Tensor, int]:
    """Piece whose copies equal those of the whole from ``begin`` to ``end``; and its position."""
    before, after = (round(reach * sample_rate) for reach in bank.reach(sample_rate))
    left = max(0, begin - before)
    return waves[..., left : end + after], left


# ------------------------------------------------------------------------------------------------
# Scoring
# ------------------------------------------------------------------------------------------------


class LongClipFrames(ClipFrames):
    """Frames of a long clip, in spans of as many frames as can be encoded at once.

    Args:
        clip: clip of the bank.
        estimates: waveforms (1, S', T) by measure, at the level for encoding; one mapping per call.
        measures: measures to compute.
        encoding: encodes the spans, and is checked after each.
        on_segment: progress callback ``(done, total)``.
    """

    def __init__(
        self,
        clip: LongClip,
        estimates: Sequence[Mapping[str, Tensor]],
        measures: Sequence[str],
        encoding: Encoding,
        on_segment: OnSegment | None,
    ) -> None:
        self.clip = clip
        self.estimates = estimates
        self.measures = measures
        self.encoding = encoding
        self.on_segment = on_segment or (lambda done, count: None)

    def blocks(self, scored: Tensor, pauses: Tensor) -> Iterator[Block]:
        """See :class:`ClipFrames`; the frames of a segment come in order."""
        config = self.encoding.config
        ranges = [[0, self.clip.frames]]
        if self.clip.excerpts is not None:
            ranges = self.clip.excerpts.tolist()
        longest = min(config.segment_frames, config.encodable_frames)
        edges = [edge for begin, end in ranges for edge in segments(begin, end, longest)]
        encoders = [config.encoder_of(name) for name in self.measures]
        # Frames of local encoders need only their receptive field and overhang. Other encoders
        # receive the entire segment with some context.
        is_local = all(encoder.local for encoder in encoders)
        overhang = max((encoder.overhang for encoder in encoders), default=0)
        margin = -(-overhang // config.grid.hop)  # frames
        context = round(CONTEXT * config.grid.sample_rate / config.grid.hop)
        frames_at_once = self._frames_at_once(is_local)
        is_pause = torch.zeros(self.clip.frames, dtype=torch.bool, device="cpu")
        is_scored = is_pause.clone()
        is_pause[pauses[:, 1].cpu()] = True
        is_scored[scored[:, 1].cpu()] = True
        indices = (is_scored | is_pause).nonzero().squeeze(-1)
        self.on_segment(0, len(edges))
        for done, (begin, end) in enumerate(edges):
            in_segment = indices[(indices >= begin) & (indices < end)]
            for frame in in_segment.split(frames_at_once):
                if len(frame) == 0:
                    continue
                surrounding = int(frame[0]) - margin, int(frame[-1]) + 1 + margin
                if not is_local:
                    surrounding = begin - context, end + context
                encoded = range(max(0, surrounding[0]), min(self.clip.frames, surrounding[1]))
                yield Span(self, frame, is_pause[frame], encoded)
                self.encoding.check()
            self.on_segment(done + 1, len(edges))

    def _frames_at_once(self, is_local: bool) -> int:
        config, budget = self.encoding.config, self.encoding.budget
        count = max(1, budget.embeddings // self._frame_bytes())
        if is_local:  # also limited by the memory for making copies
            rate, hop = config.grid.sample_rate, config.grid.hop
            seconds = max(SHORTEST_BLOCK, budget.samples / PIECES / rate)
            count = min(count, max(1, round(seconds * rate / hop)))
        return count

    def _frame_bytes(self) -> int:
        """Bytes of one frame's embeddings, for the largest measure."""
        config = self.encoding.config
        numbers = [1]
        for name in self.measures:
            encoder = config.encoder_of(name)
            points = len(config.bank_of(name).names(config.grid.sample_rate)) + 1
            numbers.append(points * (encoder.feature_size or encoder.receptive_field))
        _, sources, _ = self.clip.waves.shape
        return max(numbers) * sources * self.clip.waves.element_size()


class Span(Block):
    """Consecutive frames of a long clip, whose copies are made when a measure asks for them.

    Args:
        clip_frames: all frames of the clip.
        frame: (n,) indices in the clip, on the CPU.
        is_pause: (n,) bool, on the CPU: frames in which only measures that score pauses are
            computed.
        encoded: range of frames whose samples the encoder receives.
    """

    def __init__(
        self, clip_frames: LongClipFrames, frame: Tensor, is_pause: Tensor, encoded: range
    ) -> None:
        device = clip_frames.clip.waves.device
        in_pauses = [name for name in clip_frames.measures if MEASURES[name].in_pauses]
        measures = in_pauses if bool(is_pause.all()) else clip_frames.measures
        frame = frame.to(device)
        super().__init__(torch.zeros_like(frame), frame, measures, bool(is_pause.any()))
        self._clip, self._encoding = clip_frames.clip, clip_frames.encoding
        self._scored_rows = (~is_pause).nonzero().squeeze(-1).to(device)
        grid, samples = self._encoding.config.grid, self._clip.waves.shape[-1]
        first_sample, last_sample = encoded.start * grid.hop, (encoded.stop - 1) * grid.hop
        # Number of samples that are encoded.
        self._length = last_sample - first_sample + grid.receptive_field
        # Samples after the last frame are for encoders whose window exceeds the receptive field.
        stop = samples if encoded.stop == self._clip.frames else first_sample + self._length
        self._samples = slice(first_sample, stop)
        self._frames = frame - encoded.start  # among the encoded frames
        self._outputs = [
            self._embedded_levels(waves_by_measure) for waves_by_measure in clip_frames.estimates
        ]
        self._references = self._embedded(self._clip.waves, measures)
        self._others: dict[str, Tensor] = {}
        if self._clip.others is not None:
            of_sums = [name for name in measures if MEASURES[name].others]
            self._others = self._embedded(self._clip.others, of_sums)
        self._waiting: dict[str, Encoded] = {}  # made together with another measure's

    def _embedded_levels(self, waves_by_measure: Mapping[str, Tensor]) -> Embeddings:
        embedded: dict[str, Tensor] = {}
        for waves, names in by_level(waves_by_measure, self.measures):
            embedded |= self._embedded(waves[0], names)
        return embedded

    def _embedded(self, waves: Tensor, measures: Sequence[str]) -> dict[str, Tensor]:
        samples = waves[..., self._samples]
        return self._encoding.by_measure(measures, samples, self._frames, self._length)

    def rows(self, measure: str) -> Tensor | slice:
        """See :class:`Block`."""
        everywhere = MEASURES[measure].in_pauses or not self.has_pauses
        return slice(None) if everywhere else self._scored_rows

    def outputs(self, measure: str, call: int) -> Tensor:
        """See :class:`Block`."""
        return self._outputs[call][measure].transpose(0, 1)[self.rows(measure)]

    def clusters(self, measure: str) -> tuple[Points, Tensor]:
        """See :class:`Block`."""
        if measure not in self._waiting:
            self._make(measure)
        encoded, usable = cleaned(self._waiting.pop(measure))  # held no longer than needed
        rows = self.rows(measure)
        return encoded.points(0, rows), usable[rows]

    def _make(self, measure: str) -> None:
        """Make and encode the copies for a measure, and for all measures that share them."""
        config, clip = self._encoding.config, self._clip
        shared = shared_banks(config, self.measures)
        bank, users = next((bank, users) for bank, users in shared if measure in users)
        copies = copies_of(config, self._encoding.budget, bank, users, clip.measured)
        begin, end = self._samples.start, self._samples.stop
        rate = config.grid.sample_rate
        piece, left = piece_around(clip.waves, bank, rate, begin, end)
        inside = slice(begin - left, end - left)
        self._waiting |= copies.encode(
            piece,
            functools.partial(levelled, inside, clip.gains[next(iter(users))]),
            functools.partial(self._encoding, frames=self._frames, length=self._length),
            self._references,
            self._others,
            left,
        )


def levelled(inside: slice, gains: Tensor, rows: Rows, copies: Tensor) -> Tensor:
    """Part ``inside`` of copies (n, T), brought to their level by ``gains`` (1, S, P)."""
    return copies[:, inside] * gains[as_index(rows, copies.device)].unsqueeze(-1)


def cleaned(encoded: Encoded) -> tuple[Encoded, Tensor]:
    """Zero the frames with non-finite embeddings; also returns (F,) bool, the finite frames."""
    usable = encoded.usable().all(1)[0]
    if devices.is_accelerator(usable.device) or not bool(usable.all()):
        embeddings = encoded._replace(mask=None)
        zeroed = tree_map_only(
            Tensor, lambda x: torch.where(usable.unsqueeze(-1), x, 0.0), embeddings
        )
        encoded = zeroed._replace(mask=encoded.mask)
    return encoded, usable


def segments(begin: int, end: int, longest: float) -> Iterator[tuple[int, int]]:
    """Frame ranges [begin, end) of segments of at most ``longest`` frames, as even as possible."""
    frames = end - begin
    count = max(1, math.ceil(frames / longest)) if frames else 0
    edges = [begin + frames * k // max(1, count) for k in range(count + 1)]
    return itertools.pairwise(edges)

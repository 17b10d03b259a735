"""Clips of any length in bounded memory: distorted, encoded and scored one segment at a time.

What belongs to the whole clip stays whole. Preparing measures it: levels and activity of the
references, what the distortions are made of (spectral peaks, energy quantiles, noise levels, the
vocoder's phases), and the level of every distorted copy, which a first pass makes and drops again.
Scoring makes the copies a second time, a segment with as much on both sides as the distortions
reach, brings them to that level, encodes them, and keeps the frames of the segment alone.

An encoder whose frames see their receptive field and nothing else gives the frames of the whole
clip, up to rounding. One that looks further (attention, norms over the clip) hears each segment,
with a second more on each side, as a clip of its own: for it the segment is the context.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torch_mapss.audio.frames import active_frames
from torch_mapss.audio.loudness import Meter, gain_to
from torch_mapss.core import devices
from torch_mapss.core.frame_batches import Score, run
from torch_mapss.core.points import Points
from torch_mapss.core.settings import Settings
from torch_mapss.distortions import DistortionBank, Measured
from torch_mapss.encoders import Encoder
from torch_mapss.pipeline.clusters import Checks, check_members, copies
from torch_mapss.pipeline.frames import Canvas
from torch_mapss.pipeline.inputs import MEASURES, Clips
from torch_mapss.pipeline.memory import Allowance, Budget, lowered
from torch_mapss.pipeline.records import Deferred, Group

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

CONTEXT = 1.0
"""Seconds on each side of a segment that an encoder which looks further hears as well."""

SHORTEST_BLOCK = 5.0  # seconds; shorter ones would spend their time on what the distortions reach

# Pieces of copies made at a time that the budget holds, less what the distortions reach. A row made
# alone takes half as long again: Fourier transforms of several rows cost less for each.
PIECES = 4


# ------------------------------------------------------------------------------------------------
# Preparing
# ------------------------------------------------------------------------------------------------


def defer(mapss: MAPSS, clips: Clips, measures: str) -> Group:
    """What it takes to score a clip (1, S, T) in segments."""
    grid, here = mapss.grid, mapss.budget(clips.waves.device)
    gain = gain_to(clips.waves[0], grid.sample_rate, mapss.loudness, here.samples)
    waves = clips.waves * gain.unsqueeze(-1)
    parts = [
        active_frames(wave.unsqueeze(0), grid.receptive_field, grid.hop, mapss.activity)
        for wave in waves[0]
    ]
    active = torch.cat(parts).unsqueeze(0)
    found: list[Deferred | None] = []
    for kind, bank in mapss.banks.items():
        if measures not in ("both", kind):
            found.append(None)
            continue
        measured = bank.measure(waves, grid.sample_rate)
        present = measured.mask.cpu().numpy()
        check_members(present.sum(-1), active, clips.items, kind)
        measure = partial(copy_gains, waves, bank, measured, grid.sample_rate, mapss.loudness)
        gains = lowered(measure, here)
        found.append(Deferred(measured, gains))
    scored = (active.sum(1) >= 2).nonzero()
    return Group(clips.items, clips.samples, waves, active, scored, *found)


def copy_gains(
    waves: Tensor,
    bank: DistortionBank,
    measured: Measured,
    sample_rate: int,
    loudness: float,
    budget: Budget,
) -> Tensor:
    """What brings every copy of references (1, S, T) to a level, (1, S, P); 0 if there is none."""
    present = measured.mask.cpu().numpy()
    samples = waves.shape[-1]
    meter = Meter(tuple(present.shape), samples, sample_rate, waves)
    least = max(1, round(SHORTEST_BLOCK * sample_rate) // meter.hop)
    step = max(least, budget.samples // PIECES // meter.hop) * meter.hop
    for start in range(0, samples, step):
        stop = min(start + step, samples)
        lead = meter.lead if start else 0
        piece, left = _piece(waves, bank, sample_rate, start - lead, stop)
        for rows, made in copies(piece, bank, sample_rate, measured, present, budget, left):
            own = made[:, start - lead - left : stop - left]
            meter.add((rows.item, rows.source, rows.member), own, start)
    return meter.gain(loudness) * measured.mask


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


class Job(NamedTuple):
    """The estimates of one system, to be scored against a deferred clip."""

    waves: Tensor  # (S', T) as they came in
    gains: Tensor  # (S',) what brings them to the level, and the sign, of their references
    attributed: tuple[int, ...]  # source of each
    frames: Tensor  # (n,) which frames are scored
    canvas: Canvas


class Work(NamedTuple):
    """What is computed of every frame."""

    kinds: tuple[bool, bool]  # PS, PM
    scores: tuple[Score, Score]  # score functions
    settings: Settings


class Stretch(NamedTuple):
    """Frames [first, last) that are encoded at once, of which [keep_first, keep_last) are kept."""

    first: int
    last: int
    keep_first: int
    keep_last: int


def estimate_gains(mapss: MAPSS, waves: Tensor, group: Group, index: tuple[int, ...]) -> Tensor:
    """(S',) what brings estimates (S', T) to the level and, if asked for, the sign of theirs."""
    budget = mapss.budget(waves.device)
    gains = gain_to(waves, mapss.grid.sample_rate, mapss.loudness, budget.samples)
    if mapss.align_polarity:
        same = [torch.dot(w, group.waveforms[0, i]) for w, i in zip(waves, index)]
        gains = torch.where(torch.stack(same) < 0.0, -gains, gains)
    return gains


def score_segments(
    mapss: MAPSS,
    group: Group,
    jobs: Sequence[Job],
    work: Work,
    on_segment: Callable[[int, int], object] | None = None,
) -> None:
    """Score all jobs in one pass over the segments of a deferred clip, onto their canvases."""
    spans = list(segments(group.frames, mapss.segment_frames))
    wanted = torch.zeros(group.frames, dtype=torch.bool)
    for job in jobs:
        wanted[job.frames.cpu()] = True
    budget = mapss.budget(group.waveforms.device)
    allowed = Allowance(budget)
    tell = on_segment or (lambda done, count: None)
    tell(0, len(spans))
    for done, (first, last) in enumerate(spans):
        for stretch in _stretches(mapss, group, first, last, wanted, budget):
            frames = wanted[stretch.keep_first : stretch.keep_last].nonzero().squeeze(-1)
            if len(frames):
                kept = frames + stretch.keep_first
                allowed.spend(partial(_score_block, mapss, group, jobs, work, stretch, kept))
        tell(done + 1, len(spans))


def segments(frames: int, most: int) -> Iterator[tuple[int, int]]:
    """Frames [first, last) of segments of at most ``most``, as even as can be."""
    count = -(-frames // most)
    edges = [frames * k // count for k in range(count + 1)]
    return itertools.pairwise(edges)


def _stretches(
    mapss: MAPSS, group: Group, first: int, last: int, wanted: Tensor, budget: Budget
) -> Iterator[Stretch]:
    """What is encoded at once of a segment, so that the frames kept fit the budget."""
    grid = mapss.grid
    most = max(1, budget.embeddings // max(1, _frame_bytes(mapss, group)))
    local = all(encoder.local for encoder in mapss.encoders)
    if local:  # as long as making its copies allows, too
        seconds = max(SHORTEST_BLOCK, budget.samples / PIECES / grid.sample_rate)
        most = min(most, max(1, round(seconds * grid.sample_rate / grid.hop)))
    context = 0 if local else round(CONTEXT * grid.sample_rate / grid.hop)
    places = wanted[first:last].nonzero().squeeze(-1)
    for some in places.split(most) if len(places) else ():
        start, stop = first + int(some[0]), first + int(some[-1]) + 1
        if local:
            yield Stretch(start, stop, start, stop)
        else:
            ends = max(0, first - context), min(group.frames, last + context)
            yield Stretch(*ends, start, stop)


def _frame_bytes(mapss: MAPSS, group: Group) -> int:
    """Bytes of one frame's embeddings, for the larger of both measures."""
    sizes = []
    for place, part in enumerate((group.separation, group.match)):
        if isinstance(part, Deferred):
            _, sources, members = part.gains.shape
            features = mapss.encoders[place].feature_size or mapss.encoders[place].receptive_field
            sizes.append(sources * (members + 1) * features * group.waveforms.element_size())
    return max(sizes)


def _score_block(
    mapss: MAPSS,
    group: Group,
    jobs: Sequence[Job],
    work: Work,
    stretch: Stretch,
    frames: Tensor,
    budget: Budget,
) -> None:
    """Score some frames of a stretch, for all jobs that want them."""
    # Whole, because every line needs what the block holds, and frees it at once.
    frames = frames.to(group.waveforms.device)
    shares = [frames[torch.isin(frames, job.frames)] for job in jobs]
    results: list[dict[str, Tensor]] = [{} for _ in jobs]
    fine = [torch.ones(len(share), dtype=torch.bool, device=frames.device) for share in shares]
    for place in (0, 1):
        if not work.kinds[place]:
            continue
        encode = _Encoding(mapss, place, stretch, frames, budget)
        references, distortions, mask = encode.clusters(group)
        for k, (job, share) in enumerate(zip(jobs, shares)):
            if len(share) == 0:
                continue
            outputs = encode.estimates(job)
            points, usable = _points(
                group, job, share, frames, outputs, references, distortions, mask
            )
            fine[k] &= usable
            values = run(points, work.settings, work.scores[place], chunk_bytes=budget.frames)
            del points
            for name, value in values.items():
                whole = value.new_zeros(len(share), *value.shape[1:])
                whole[usable.nonzero().squeeze(-1)] = value
                results[k][name] = whole
        del references, distortions  # before those of the other measure are made
    for job, share, found, usable in zip(jobs, shares, results, fine):
        if len(share):
            _put(group, job, share, found, usable)


def _put(group: Group, job: Job, share: Tensor, found: dict[str, Tensor], usable: Tensor) -> None:
    where = torch.stack([torch.zeros_like(share), share], -1)
    active = group.active[0, :, share].T
    enough = usable.unsqueeze(-1) & (active.sum(-1, keepdim=True) >= 2)
    ok = devices.picked(active, 1, job.attributed) & enough
    job.canvas.put("active", group, where, ok)
    for name, value in found.items():
        job.canvas.put(name, group, where, torch.where(ok, value, 0.0))


def _points(
    group: Group,
    job: Job,
    share: Tensor,
    frames: Tensor,
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    mask: Tensor | None,
) -> tuple[Points, Tensor]:
    """The points of the frames a job wants, and which of these frames are free of bad numbers.

    Args:
        outputs: (n, S', M) of the frames of the block.
        references: (n, S, M).
        distortions: (n, S, P, M).
        mask: (S, P).
    """
    chosen = torch.searchsorted(frames, share)
    parts = [outputs, references, distortions]
    if len(chosen) < len(frames):
        parts = [x[chosen] for x in parts]
    usable = torch.stack([x.sum(-1).isfinite().flatten(1).all(-1) for x in parts]).all(0)
    if not bool(usable.all()):
        kept = usable.nonzero().squeeze(-1)
        parts, share = [x[kept] for x in parts], share[kept]
    active = group.active[0, :, share].T
    count = len(share)
    return Points(
        outputs=parts[0],
        references=parts[1],
        distortions=parts[2],
        attributed=job.attributed,
        active=None if bool(active.all()) else active,
        mask=None if mask is None else mask.expand(count, *mask.shape),
    ), usable


class _Encoding:
    """Encodes stretches for one measure, and keeps the frames of a block."""

    def __init__(
        self, mapss: MAPSS, place: int, stretch: Stretch, frames: Tensor, budget: Budget
    ) -> None:
        grid = mapss.grid
        self.encoder: Encoder = mapss.encoders[place]
        self.kind, self.bank = MEASURES[1 + place], list(mapss.banks.values())[place]
        self.rate, self.budget = grid.sample_rate, budget
        self.kept = frames - stretch.first
        first, last = stretch.first + grid.skip[place], stretch.last + grid.skip[place]
        self.start = first * grid.hop
        self.stop = (last - 1) * grid.hop + self.encoder.receptive_field
        self.checks = Checks(self.encoder)

    def frames(self, waves: Tensor) -> Tensor:
        """(n, length of the stretch) waveforms -> (n, kept frames, M)."""
        with self.encoder.within(self.budget.encoder):
            return self.checks.note(self.encoder(waves))[:, self.kept]

    def estimates(self, job: Job) -> Tensor:
        """(n, S', M)."""
        found = self.frames(job.waves[:, self.start : self.stop] * job.gains.unsqueeze(-1))
        self.checks.read()
        return found.transpose(0, 1)

    def clusters(self, group: Group) -> tuple[Tensor, Tensor, Tensor | None]:
        """References (n, S, M), distortions (n, S, P, M) and the mask (S, P) of those there are."""
        part = getattr(group, self.kind)
        present = part.measured.mask.cpu().numpy()
        count = present.sum(-1)
        references = self.frames(group.waveforms[0, :, self.start : self.stop]).transpose(0, 1)
        n, sources, features = references.shape
        kept = references.new_zeros(n, sources, int(count.max()), features)
        piece, left = _piece(group.waveforms, self.bank, self.rate, self.start, self.stop)
        own = slice(self.start - left, self.stop - left)
        made = copies(piece, self.bank, self.rate, part.measured, present, self.budget, left)
        for rows, waves in made:
            waves = waves[:, own] * part.gains[0, rows.source, rows.member].unsqueeze(-1)
            kept[:, rows.source, rows.slot] = self.frames(waves).transpose(0, 1)
        self.checks.read()
        slots = torch.arange(kept.shape[2]) < torch.from_numpy(count[0]).unsqueeze(-1)
        return references, kept, None if bool(slots.all()) else slots.to(kept.device)

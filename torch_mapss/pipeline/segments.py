"""Long clips: their distortions are made and encoded span by span, whenever they are scored."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from torch_mapss.audio.frames import active_frames
from torch_mapss.audio.loudness import Meter, gain_to
from torch_mapss.core import devices
from torch_mapss.core.points import Points
from torch_mapss.distortions import DistortionBank
from torch_mapss.pipeline.bank import Deferred, Encoded, Group, scored_frames
from torch_mapss.pipeline.config import CONTEXT, Config
from torch_mapss.pipeline.copies import (
    Copies,
    Encoding,
    Rows,
    as_index,
    copies_of,
    planned_copies,
    plans,
    sums_of_others,
)
from torch_mapss.pipeline.inputs import Call, Clips
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
    waves = clips.waves * _gains(config, clips.waves[0])
    parts = [
        active_frames(wave, grid.receptive_field, grid.hop, config.activity)
        for wave in waves.split(1, 1)
    ]
    audible = torch.cat(parts, 1)
    deferred: dict[str, Deferred] = {}
    for copies in planned_copies(config, measures, waves, audible, clips.items, pieces=True):
        gains, measured = copy_gains(copies, waves, budget), copies.measured
        for name, places in copies.plan.users.items():
            mask = torch.from_numpy(copies.present[name][..., places]).to(waves.device)
            values = tuple(measured.values[place] for place in places)
            own = measured._replace(mask=mask, values=values)
            deferred[name] = Deferred(own, gains[..., places])
    others = None
    if waves.shape[1] > 2 and any(MEASURES[name].others for name in deferred):
        others = sums_of_others(clips.waves)
        others = others * _gains(config, others[0])
    valid = clips.valid.unsqueeze(-1).expand(audible.shape)
    scored = scored_frames(audible, valid)
    return Group(clips.items, clips.samples, waves, audible, valid, scored, {}, deferred, others)


def _gains(config: Config, waves: Tensor) -> Tensor:
    """(n, 1) what brings waveforms (n, T) to the loudness asked for."""
    at_once = config.budget(waves.device).samples
    return gain_to(waves, config.grid.sample_rate, config.loudness, at_once).unsqueeze(-1)


def copy_gains(copies: Copies, waves: Tensor, budget: Budget) -> Tensor:
    """What brings every copy of references (1, S, T) to a level, (1, S, P); 0 if there is none."""
    rate, samples = copies.config.grid.sample_rate, waves.shape[-1]
    meter = Meter(tuple(copies.measured.mask.shape), samples, rate, waves)
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


class Block(NamedTuple):
    """Frames of the mixtures of one length, and what is compared in them."""

    number: int  # of the group
    item: Tensor  # (n,) of the group
    frame: Tensor  # (n,)
    outputs: list[dict[str, Tensor]]  # of each call by measure, (n, S', M)
    # By measure: what the bank holds of the frames, and which (n,) of them have finite numbers.
    bank: Iterable[tuple[str, Points, Tensor]]


def spans(
    config: Config,
    calls: Sequence[Call],
    number: int,
    frames: Tensor,
    measures: Sequence[str],
    on_segment: Callable[[int, int], object] | None,
) -> Iterator[Block]:
    """Neighbouring frames of a long clip, as many as can be encoded at once, segment by segment.

    Args:
        config: of the scorer.
        calls: that share a bank.
        number: of the clip's group in it.
        frames: (n,) that are to be scored.
        measures: to be computed.
        on_segment: called with how many segments are scored, and how many there are.
    """
    group, grid = calls[0].prepared.groups[number], config.grid
    encoding = Encoding(config, frames.device)
    given = [call.estimates.clips[number].waves[0].detach() for call in calls]
    gains = [_gains(config, waves) for waves in given]
    if config.align_polarity:
        gains = [gain * call.signs(number)[0] for gain, call in zip(gains, calls)]
    edges = list(segments(group.frames, int(config.segment_frames)))
    budget = config.budget(frames.device)
    local = all(config.encoder_of(name).local for name in measures)
    most = max(1, budget.embeddings // _frame_bytes(config, group, measures))
    if local:  # as long as making its copies allows, too
        seconds = max(SHORTEST_BLOCK, budget.samples / PIECES / grid.sample_rate)
        most = min(most, max(1, round(seconds * grid.sample_rate / grid.hop)))
    context = 0 if local else round(CONTEXT * grid.sample_rate / grid.hop)
    tell = on_segment or (lambda done, count: None)
    tell(0, len(edges))
    host = frames.cpu()
    for done, (first, last) in enumerate(edges):
        for some in host[(host >= first) & (host < last)].split(most):
            if len(some) == 0:
                continue
            start, stop = int(some[0]), int(some[-1]) + 1
            if not local:
                start, stop = max(0, first - context), min(group.frames, last + context)
            own = slice(start * grid.hop, (stop - 1) * grid.hop + grid.receptive_field)
            frame = some.to(frames.device)
            encode = functools.partial(encoding.by_measure, frames=frame - start)
            outputs = [
                {n: x.transpose(0, 1) for n, x in encode(measures, wave[:, own] * gain).items()}
                for wave, gain in zip(given, gains)
            ]
            bank = encoded_span(config, group, own, frame - start, measures, encoding)
            yield Block(number, torch.zeros_like(frame), frame, outputs, bank)
            encoding.check()
        tell(done + 1, len(edges))


def encoded_span(
    config: Config,
    group: Group,
    own: slice,
    frames: Tensor,
    measures: Sequence[str],
    encoding: Encoding,
) -> Iterator[tuple[str, Points, Tensor]]:
    """What some ``frames`` of the samples ``own`` of a long clip hold, see :class:`Block`."""
    deferred, rate = group.deferred or {}, config.grid.sample_rate
    references = encoding.by_measure(measures, group.waves[..., own], frames)
    others: dict[str, Tensor] = {}
    if group.others is not None:
        summed = [name for name in measures if MEASURES[name].others]
        others = encoding.by_measure(summed, group.others[..., own], frames)
    for plan in plans(config, measures):
        copies = copies_of(config, plan, {name: deferred[name].measured for name in plan.users})
        piece, left = _piece(group.waves, plan.bank, rate, own.start, own.stop)
        inside = slice(own.start - left, own.stop - left)
        level = functools.partial(levelled, inside, deferred[plan.name].gains)
        encode = functools.partial(encoding, frames=frames)
        parts = copies.encode(piece, level, encode, references, others, left)
        for name in plan.users:  # none is held longer than it is needed
            clean, usable = cleaned(parts.pop(name))
            yield name, clean.at(0, slice(None)), usable
            del clean


def levelled(inside: slice, gains: Tensor, rows: Rows, made: Tensor) -> Tensor:
    return made[:, inside] * gains[as_index(rows, made.device)].unsqueeze(-1)


def cleaned(part: Encoded) -> tuple[Encoded, Tensor]:
    """Embeddings of one clip with frames that hold bad numbers as zeros; which (F,) hold none."""
    usable = part.usable().all(1)[0]
    if devices.is_accelerator(usable.device) or not bool(usable.all()):
        zeroed = tree_map_only(
            Tensor, lambda x: torch.where(usable.unsqueeze(-1), x, 0.0), part._replace(mask=None)
        )
        part = zeroed._replace(mask=part.mask)
    return part, usable


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
    return max(sizes) * group.waves.shape[1] * group.waves.element_size()

"""Admitted calls -> scores or bounds: normalise, encode, choose frames, score, place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torch_mapss.audio.loudness import at_loudness
from torch_mapss.core import devices
from torch_mapss.core.devices import back
from torch_mapss.core.frame_batches import Score, Started, finish, start
from torch_mapss.core.match import match_scores
from torch_mapss.core.separation import separation_scores
from torch_mapss.core.settings import Settings
from torch_mapss.pipeline.frames import (
    BankFrames,
    Canvas,
    Part,
    activity,
    bank_frames,
    choose,
    chunks,
    gather,
)
from torch_mapss.pipeline.inputs import Call, Clips
from torch_mapss.pipeline.memory import Allowance, Budget
from torch_mapss.pipeline.prepare import prepare_bank, silenced
from torch_mapss.pipeline.records import FrameBounds, Group, ReferenceBank, ScoreBounds, Scores
from torch_mapss.pipeline.segments import Job, Work, estimate_gains, score_segments

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

# So many calls at a time share what they need of their bank: the embeddings of their estimates are
# then a small part of the bank's own.
TOGETHER = 8

# Told how many segments of a long clip are scored, from 0 on, and how many there are.
OnSegment = Callable[[int, int], object]


class Take(NamedTuple):
    """The encoded estimates of one call, and where their scores go."""

    call: Call
    parts: list[Part]  # of clips that are no longer than a segment
    canvas: Canvas


def prepared(mapss: MAPSS, call: Call) -> Call:
    """The call with a bank: references that came as waveforms are distorted and encoded."""
    if call.references is None:
        return call
    return replace(call, bank=prepare_bank(mapss, call.references, call.measures))


def score(
    mapss: MAPSS, call: Call, frames: int | None = None, generator: torch.Generator | None = None
) -> Scores:
    """Frame scores of a prepared call; see :meth:`torch_mapss.MAPSS.forward`."""
    return score_together(mapss, [call], frames, generator)[0]


def score_together(
    mapss: MAPSS,
    calls: Sequence[Call],
    frames: int | None = None,
    generator: torch.Generator | None = None,
    on_segment: OnSegment | None = None,
) -> list[Scores]:
    """Frame scores of calls that share a bank and a measure: long clips are made once for all."""
    graph = any(call.estimates.waves.requires_grad for call in calls) and torch.is_grad_enabled()
    work = Work(calls[0].kinds, (separation_scores, match_scores), mapss.settings)
    canvases = _placed(mapss, calls, frames, generator, graph, work, on_segment)
    return [
        canvas.scores(_times(mapss, call), call.measures) for call, canvas in zip(calls, canvases)
    ]


def bound(
    mapss: MAPSS,
    calls: Sequence[Call],
    scores: tuple[Score, Score],
    settings: Settings,
    frames: int | None,
    generator: torch.Generator | None,
    confidence: float,
    on_segment: OnSegment | None = None,
) -> list[ScoreBounds]:
    """Error bounds of calls that share a bank; see :meth:`torch_mapss.MAPSS.bounds`."""
    work = Work((True, True), scores, settings)
    canvases = _placed(mapss, calls, frames, generator, False, work, on_segment)
    found = []
    for call, canvas in zip(calls, canvases):
        ps, pm = (
            FrameBounds(canvas[radius], canvas[tail], canvas[radius] + canvas[tail])
            for radius, tail in (("ps_radius", "ps_tail"), ("pm_radius", "pm_tail"))
        )
        read = canvas.scores(_times(mapss, call)) if settings == mapss.settings else None
        found.append(ScoreBounds(ps, pm, canvas["active"], confidence, read))
    return found


def _placed(
    mapss: MAPSS,
    calls: Sequence[Call],
    frames: int | None,
    generator: torch.Generator | None,
    graph: bool,
    work: Work,
    on_segment: OnSegment | None,
) -> list[Canvas]:
    """What the kernels return of the chosen frames of every call, on canvases of all frames."""
    bank = bank_of(calls[0])
    canvases, long = [], []
    state = None if generator is None else generator.get_state()
    for first in range(0, len(calls), TOGETHER):
        takes = []
        for call in calls[first : first + TOGETHER]:
            canvas = Canvas((bank.batch, len(call.attributed), bank.frames), call.estimates.waves)
            if generator is not None and state is not None:
                generator.set_state(state)  # every call draws the frames that it would draw alone
            parts = choose(encoded_estimates(mapss, call), frames, generator)
            long.append([part for part in parts if part.group.deferred])
            takes.append(Take(call, [part for part in parts if not part.group.deferred], canvas))
            canvases.append(canvas)
        place_parts(mapss, takes, work, graph)
    if graph and any(long):
        raise ValueError(
            "scores of clips longer than a segment have no gradient, and the estimates require "
            "one. Cut the clips, score under torch.no_grad(), or use a MAPSS with segment=None."
        )
    for shared in zip(*long):
        jobs = [_job(mapss, c, part, canvas) for c, part, canvas in zip(calls, shared, canvases)]
        score_segments(mapss, shared[0].group, jobs, work, on_segment)
    return canvases


def place_parts(mapss: MAPSS, takes: Sequence[Take], work: Work, graph: bool) -> None:
    """What the kernels return of encoded estimates, on their canvases.

    All calls go through the same frames together: what these hold of the bank is gathered once.
    Where the device runs out of memory, a piece of frames is begun anew in smaller ones.
    """
    allowed = Allowance(mapss.budget(takes[0].call.estimates.waves.device))
    pieces = list(zip(*(chunks(take.parts, graph, allowed.now.gathered) for take in takes)))
    # A graph keeps them all anyway: an accelerator is then asked once, however many lengths.
    for some in [pieces] if graph else [[piece] for piece in pieces]:
        found = allowed.spend(partial(_of_pieces, takes, some, work, graph))
        for take, part, values in found:
            for name, value in values.items():
                take.canvas.put(name, part.group, part.where, value)


class _Begun(NamedTuple):
    """Frames of one call on their way through the kernels."""

    take: Take
    part: Part
    scored: Tensor  # (n, S') bool
    works: dict[int, Started]  # of PS (0) and PM (1)


def _of_pieces(
    takes: Sequence[Take],
    pieces: Sequence[Sequence[Part]],
    work: Work,
    graph: bool,
    budget: Budget,
) -> list[tuple[Take, Part, dict[str, Tensor]]]:
    """What is to be put on the canvases: of each piece, the same frames of several calls."""
    found: list[tuple[Take, Part, dict[str, Tensor]]] = []
    begun: list[_Begun] = []
    places = [place for place, wanted in enumerate(work.kinds) if wanted]
    # Not the groups of a call, in which mixtures that its estimates spoil are active nowhere.
    own = {group.items: group for group in bank_of(takes[0].call).groups}
    for parts in pieces:
        for same in zip(*(chunks([part], graph, budget.gathered) for part in parts)):
            of_bank = same[0]._replace(group=own[same[0].group.items])
            bank = {place: bank_frames(of_bank, place) for place in places}
            for take, part in zip(takes, same):
                begun.append(_begin(take, part, bank, work, budget))
                if not graph:
                    found += _end(begun, work)
                    begun = []
    return found + _end(begun, work)


def _begin(
    take: Take, part: Part, bank: dict[int, BankFrames], work: Work, budget: Budget
) -> _Begun:
    """Send one call's estimates in some frames through the kernels."""
    index = take.call.attributed
    active, scored = activity(part, index)
    works = {
        place: start(
            gather(part, place, index, active, frames),
            work.settings,
            work.scores[place],
            chunk_bytes=budget.frames,
        )
        for place, frames in bank.items()
    }
    return _Begun(take, part, scored, works)


def _end(begun: Sequence[_Begun], work: Work) -> list[tuple[Take, Part, dict[str, Tensor]]]:
    """What the kernels return, by name; an accelerator is asked once for all."""
    results = iter(finish([one for some in begun for one in some.works.values()]))
    found = []
    for take, part, scored, works in begun:
        values = {"active": scored}
        for _ in works:
            for name, value in next(results).items():
                values[name] = torch.where(scored, value, 0.0)
        found.append((take, part, values))
    return found


def _job(mapss: MAPSS, call: Call, part: Part, canvas: Canvas) -> Job:
    """The estimates of a call against the deferred clip of a part."""
    (item,) = part.group.items
    (waves,) = (clips.waves[0] for clips in call.estimates.clips if clips.items == (item,))
    waves = waves.detach()
    gains = estimate_gains(mapss, waves, part.group, call.attributed)
    whole = call.estimates.whole
    frames = part.where[:, 1]
    if whole is not None:  # a mixture with a bad sample is active nowhere
        frames = frames[whole[item].expand(len(frames))]
    return Job(waves, gains, call.attributed, frames, canvas)


def encoded_estimates(mapss: MAPSS, call: Call) -> list[Part]:
    """Normalised and encoded estimates of every length, with all scored frames."""
    pairs = list(zip(call.estimates.clips, bank_of(call).groups))
    whole = [(clips, group) for clips, group in pairs if not group.deferred]
    waves = [normalised(mapss, clips, group, call.attributed) for clips, group in whole]
    outputs = iter(_encoded(mapss, call, waves))
    parts = []
    for _, group in pairs:
        if group.deferred:  # encoded segment by segment
            parts.append(Part(group, group.scored, (None, None)))
        else:
            group = silenced(group, call.estimates.whole)
            parts.append(Part(group, group.scored, next(outputs)))
    return parts


def normalised(mapss: MAPSS, clips: Clips, group: Group, index: tuple[int, ...]) -> Tensor:
    """Estimates (b, S', T) at the level, and if asked for with the sign, of their references."""
    waves = at_loudness(clips.waves, mapss.grid.sample_rate, mapss.loudness)
    if mapss.align_polarity:
        same = (waves.detach() * devices.picked(group.waveforms, 1, index)).sum(-1, keepdim=True)
        waves = torch.where(same < 0.0, -waves, waves)
    return waves


def _encoded(
    mapss: MAPSS, call: Call, waves: Sequence[Tensor]
) -> list[tuple[Tensor | None, Tensor | None]]:
    """Embeddings of normalised estimates of every length, for PS and for PM if they are wanted."""
    encoded: dict[int, list[Tensor]] = {}
    for place, wanted in enumerate(call.kinds):
        encoder = mapss.encoders[place]
        if wanted and waves and id(encoder) not in encoded:
            encoded[id(encoder)] = mapss.embeddings(encoder, waves)
    separation, match = (
        [mapss.grid.shared(x, place) for x in encoded[id(mapss.encoders[place])]]
        if wanted and waves
        else [None] * len(waves)
        for place, wanted in enumerate(call.kinds)
    )
    return list(zip(separation, match))


def bank_of(call: Call) -> ReferenceBank:
    """The bank of a prepared call."""
    assert call.bank is not None, "prepare the call first"
    return call.bank


def _times(mapss: MAPSS, call: Call) -> Tensor:
    return back(mapss.times(bank_of(call).frames), call.estimates.waves.device)

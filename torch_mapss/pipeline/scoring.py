"""Admitted calls -> scores or bounds: normalise, encode, choose frames, score, place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torch_mapss.audio.loudness import at_loudness
from torch_mapss.core import devices
from torch_mapss.core.chunks import Kernel, finished, pending
from torch_mapss.core.devices import back
from torch_mapss.core.scores import (
    MATCH_SCORES,
    SEPARATION_SCORES,
    match_scores,
    separation_scores,
)
from torch_mapss.core.settings import Settings
from torch_mapss.pipeline.admit import Call, Clips
from torch_mapss.pipeline.frames import Canvas, Part, activity, choose, chunks, gather
from torch_mapss.pipeline.prepare import prepare_bank, silenced
from torch_mapss.pipeline.records import FrameBounds, Group, ReferenceBank, ScoreBounds, Scores

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

# What the kernels return, for PS and for PM.
_SCORES = (SEPARATION_SCORES, MATCH_SCORES)
# The same for the kernels of :func:`torch_mapss.bounds.frames.kernels_with_scores`.
_BOUNDS = (("ps_radius", "ps_tail", *SEPARATION_SCORES), ("pm_radius", "pm_tail", *MATCH_SCORES))

# Scores a chunk of frames: its gathered clouds, and which measure (0 for PS, 1 for PM).
ScoreChunk = Callable[..., tuple[Tensor, ...]]


def prepared(mapss: MAPSS, call: Call) -> Call:
    """The call with a bank: references that came as waveforms are distorted and encoded."""
    if call.references is None:
        return call
    return replace(call, bank=prepare_bank(mapss, call.references, call.measures))


def score(
    mapss: MAPSS, call: Call, frames: int | None = None, generator: torch.Generator | None = None
) -> Scores:
    """Frame scores of a prepared call; see :meth:`torch_mapss.MAPSS.forward`."""
    graph = call.estimates.waves.requires_grad and torch.is_grad_enabled()
    canvas = _placed(
        mapss, call, frames, generator, graph, (separation_scores, match_scores), _SCORES
    )
    return canvas.scores(_times(mapss, call), call.measures)


def bound(
    mapss: MAPSS,
    call: Call,
    kernels: tuple[Kernel, Kernel],
    settings: Settings,
    frames: int | None,
    generator: torch.Generator | None,
    confidence: float,
) -> ScoreBounds:
    """Error bounds of a prepared call; see :meth:`torch_mapss.MAPSS.bounds`."""
    canvas = _placed(mapss, call, frames, generator, False, kernels, _BOUNDS, settings)
    ps, pm = (
        FrameBounds(canvas[radius], canvas[tail], canvas[radius] + canvas[tail])
        for radius, tail, *_ in _BOUNDS
    )
    scores = canvas.scores(_times(mapss, call)) if settings == mapss.settings else None
    return ScoreBounds(ps, pm, canvas["active"], confidence, scores)


def _placed(
    mapss: MAPSS,
    call: Call,
    frames: int | None,
    generator: torch.Generator | None,
    graph: bool,
    kernels: tuple[Kernel, Kernel],
    names: tuple[tuple[str, ...], tuple[str, ...]],
    settings: Settings | None = None,
) -> Canvas:
    """What the kernels return of the chosen frames, on a canvas of all frames."""
    bank, index = bank_of(call), call.attributed
    parts = encoded_estimates(mapss, call)
    canvas = Canvas((bank.batch, len(index), bank.frames), call.estimates.waves)
    rest = settings is not None  # bounds read the discarded coordinates as well
    chosen = settings or mapss.settings
    for part in chunks(choose(parts, frames, generator), graph):
        active, ok = activity(part, index)
        canvas.put("active", part.group, part.where, ok)
        works = {
            place: pending(gather(part, place, index, active), chosen, kernels[place], rest=rest)
            for place, wanted in enumerate(call.kinds)
            if wanted
        }
        for place, values in zip(works, finished(list(works.values()))):
            for name, value in zip(names[place], values):
                canvas.put(name, part.group, part.where, torch.where(ok, value, 0.0))
    return canvas


def encoded_estimates(mapss: MAPSS, call: Call) -> list[Part]:
    """Normalised and encoded estimates of every length, with all scored frames."""
    return [
        _encoded(mapss, call, normalised(mapss, clips, group, call.attributed), group)
        for clips, group in zip(call.estimates.clips, bank_of(call).groups)
    ]


def normalised(mapss: MAPSS, clips: Clips, group: Group, index: tuple[int, ...]) -> Tensor:
    """Estimates (b, S', T) at the level, and if asked for with the sign, of their references."""
    waves = at_loudness(clips.waves, mapss.grid.sample_rate, mapss.loudness)
    if mapss.align_polarity:
        same = (waves.detach() * devices.picked(group.waveforms, 1, index)).sum(-1, keepdim=True)
        waves = torch.where(same < 0.0, -waves, waves)
    return waves


def _encoded(mapss: MAPSS, call: Call, waves: Tensor, group: Group) -> Part:
    """Encoded estimates of one length, with all its scored frames."""
    encoded: dict[int, Tensor] = {}
    outputs: list[Tensor | None] = [None, None]
    for place, wanted in enumerate(call.kinds):
        encoder = mapss.encoders[place]
        if wanted:
            if id(encoder) not in encoded:
                encoded[id(encoder)] = mapss.embeddings(encoder, waves)
            outputs[place] = mapss.grid.shared(encoded[id(encoder)], place)
    group = silenced(group, call.estimates.whole)
    return Part(group, group.scored, (outputs[0], outputs[1]))


def bank_of(call: Call) -> ReferenceBank:
    """The bank of a prepared call."""
    assert call.bank is not None, "prepare the call first"
    return call.bank


def _times(mapss: MAPSS, call: Call) -> Tensor:
    return back(mapss.times(bank_of(call).frames), call.estimates.waves.device)

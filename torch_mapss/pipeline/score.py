"""Validated calls with a bank -> scores of their frames, block by block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

from torch_mapss.audio.loudness import at_loudness
from torch_mapss.core import devices
from torch_mapss.core.frame_batches import Bounds, Score, Started, finish, start
from torch_mapss.core.lengths import frame_count
from torch_mapss.core.points import Points
from torch_mapss.core.settings import Settings
from torch_mapss.pipeline.bank import Group, ReferenceBank
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.copies import Encoding
from torch_mapss.pipeline.inputs import Call, Clips
from torch_mapss.pipeline.measures import MEASURES, with_encoder
from torch_mapss.pipeline.memory import explained
from torch_mapss.pipeline.scores import ScoreBounds, Scores
from torch_mapss.pipeline.segments import Block, spans

# Called with how many segments of a long clip are scored, from 0 on, and how many there are.
OnSegment = Callable[[int, int], object]
Record = TypeVar("Record")
FLOOR_DB = -100.0
"""Least bleed: that of silence. Most is 100."""


@dataclass(frozen=True)
class Task(Generic[Record]):
    """What is computed of every frame, and the record that is made of it."""

    functions: Mapping[str, Score]  # by measure
    settings: Settings  # of the diffusion map
    record: Callable[[FrameScores], Record]


def scoring(config: Config) -> Task[Scores]:
    """Scores; see :meth:`torch_mapss.MAPSS.forward`."""
    functions = {m.name: m.score for m in with_encoder(MEASURES) if m.score is not None}
    return Task(functions, config.settings, functools.partial(scores_of, config))


def bounding(
    config: Config, confidence: float, convention: str | None, options: dict[str, Any]
) -> Task[ScoreBounds]:
    """Bounds, and scores read off the same maps; see :meth:`torch_mapss.MAPSS.bounds`."""
    from torch_mapss.bounds import frames as bounds
    from torch_mapss.bounds.settings import named_settings

    convention = config.settings.convention if convention is None else convention
    checked = named_settings(confidence, convention, options)
    functions = {
        measure.name: getattr(bounds, f"{measure.name}_errors")(checked, scores=True)
        for measure in with_encoder(MEASURES)
    }
    graph = "reference" if convention == "reference" else "paper"
    settings = config.settings._replace(convention=graph)

    def record(written: FrameScores) -> ScoreBounds:
        fields = (f for measure in with_encoder(written.call.measures) for f in measure.fields)
        found = {
            field: Bounds.of(written.of(f"{field}_radius"), written.of(f"{field}_tail"))
            for field in fields
            if field in ScoreBounds._fields
        }
        same = settings == config.settings  # else the maps are not those of the scores
        scores = scores_of(config, written) if same else None
        return ScoreBounds(written.active, confidence, **found, scores=scores)

    return Task(functions, settings, record)


def score(
    config: Config,
    calls: Sequence[Call],
    task: Task[Record],
    frames: int | None = None,
    generator: torch.Generator | None = None,
    on_segment: OnSegment | None = None,
) -> list[Record]:
    """What a task computes of the frames of prepared calls that share a bank.

    The one loop over blocks of frames: what a block holds of the bank comes from memory or is made
    on demand, once for all calls. Without a graph the work of a block is dropped at once; with one
    all blocks are kept anyway, and an accelerator is read once, after the last.
    """
    bank, total = calls[0].prepared, calls[0].prepared.frames
    measures = [measure.name for measure in with_encoder(calls[0].measures)]
    written = [FrameScores(call) for call in calls]
    with explained():
        graph = any(call.wants_gradient for call in calls)
        chosen = choose(bank, frames, generator)
        memory = config.budget(bank.device)
        started: list[tuple[FrameScores, Tensor, Started]] = []
        for block in blocks(config, calls, chosen, measures, graph, on_segment):
            group = bank.groups[block.number]
            place = devices.placed(group.items, bank.device)[block.item] * total + block.frame
            active = group.active[block.item, :, block.frame]  # (n, S)
            scored = [scored_estimates(call, block, active) for call in calls]
            for name, held, usable in block.bank:
                for k, call in enumerate(calls):
                    outputs = block.outputs[k][name]
                    points, finite = points_of(held, active, outputs, call.attributed)
                    scored[k] = scored[k] & (finite & usable).unsqueeze(-1)
                    work = start(points, task.settings, task.functions[name], memory.frames)
                    started.append((written[k], place, work))
                if not graph:
                    write(started)
                    started = []
                    del held, points, work  # before the bank makes those of the next measure
            for scores, which in zip(written, scored):
                scores.write("active", place, which)
        write(started)
    return [task.record(each) for each in written]


# ------------------------------------------------------------------------------------------------
# Blocks of frames
# ------------------------------------------------------------------------------------------------


def choose(
    bank: ReferenceBank, frames: int | None, generator: torch.Generator | None
) -> list[Tensor]:
    """(n, 2) item and frame of each group: at most ``frames`` of all, without replacement."""
    parts = [group.scored for group in bank.groups]
    total = sum(len(part) for part in parts)
    if frames is None or frames >= total:
        return parts
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    drawn = torch.zeros(total, dtype=torch.bool)
    drawn[torch.randperm(total, generator=generator)[: int(frames)]] = True
    mine = (some.nonzero().squeeze(-1) for some in drawn.split([len(part) for part in parts]))
    return [part[index.to(part.device)] for part, index in zip(parts, mine)]


def blocks(
    config: Config,
    calls: Sequence[Call],
    chosen: Sequence[Tensor],
    measures: Sequence[str],
    graph: bool,
    on_segment: OnSegment | None,
) -> Iterator[Block]:
    """The chosen frames, as many at a time as memory allows."""
    groups, device = calls[0].prepared.groups, calls[0].prepared.device
    encoding, most = Encoding(config, device), config.budget(device).gathered
    embedded = [
        [embedded_estimates(call, number, measures, encoding) for call in calls]
        if group.deferred is None
        else []
        for number, group in enumerate(groups)
    ]
    encoding.check()  # of all lengths at once
    for number, (group, where, estimates) in enumerate(zip(groups, chosen, embedded)):
        if group.deferred is not None:
            yield from spans(config, calls, number, where[:, 1], measures, on_segment)
            continue
        each = max((group.encoded[name].frame_bytes for name in measures), default=1)
        for some in where.split(max(1, len(where) if graph else most // each)):
            if len(some):
                yield whole_block(number, group, some, estimates)


def whole_block(
    number: int, group: Group, frames: Tensor, estimates: Sequence[Mapping[str, Tensor]]
) -> Block:
    """Frames (n, 2) of clips that are encoded, as are the estimates (b, S', F, M) of each call."""
    item, frame = frames.unbind(-1)
    outputs = [
        {name: x.transpose(1, 2)[item, frame] for name, x in each.items()} for each in estimates
    ]
    usable = torch.ones_like(frame, dtype=torch.bool)  # others are not scored
    bank = ((name, group.encoded[name].at(item, frame), usable) for name in estimates[0])
    return Block(number, item, frame, outputs, bank)


def embedded_estimates(
    call: Call, number: int, measures: Sequence[str], encoding: Encoding
) -> dict[str, Tensor]:
    """Estimates of a call that have the length of a group, embedded: by measure (b, S', F, M)."""
    config, waves = encoding.config, call.estimates.clips[number].waves
    waves = at_loudness(waves, config.grid.sample_rate, config.loudness)
    if config.align_polarity:
        waves = waves * call.signs(number)
    return encoding.by_measure(measures, waves)


def scored_estimates(call: Call, block: Block, active: Tensor) -> Tensor:
    """(n, S') bool: which estimates are scored in the frames of a block, of active sources."""
    scored = devices.picked(active, 1, call.attributed) & (active.sum(-1, keepdim=True) >= 2)
    complete = call.estimates.clips[block.number].valid.all(-1)  # without a bad sample
    return scored & complete[block.item].unsqueeze(-1)


def points_of(
    held: Points, active: Tensor, outputs: Tensor, attributed: tuple[int, ...]
) -> tuple[Points, Tensor]:
    """The points of frames that a bank holds, with outputs; and which (n,) have finite outputs.

    A non-finite output would spoil its frame's graph. It is not scored, so any point serves.
    """
    finite = outputs.detach().isfinite().all(-1, keepdim=True)
    outputs = torch.where(finite, outputs, devices.picked(held.references, 1, attributed))
    # With two sources, both are active in scored frames. Otherwise values would have to be read.
    every = active.shape[-1] == 2
    if not every and not devices.is_accelerator(active.device):
        every = bool(active.all())
    points = held._replace(outputs=outputs, attributed=attributed, active=None if every else active)
    return points, finite.squeeze(-1).all(-1)


# ------------------------------------------------------------------------------------------------
# What was computed, frame by frame
# ------------------------------------------------------------------------------------------------


class FrameScores:
    """Values of the estimates of a call (B, S', F), written frame by frame."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._parts: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def write(self, name: str, place: Tensor, values: Tensor) -> None:
        """Values (n, S') at places (n,) of the flattened (B, F)."""
        self._parts.setdefault(name, []).append((place, values))

    @functools.cached_property
    def active(self) -> Tensor:
        """(B, S', F) bool: estimates that are scored."""
        return self._joined("active", torch.bool)

    def of(self, name: str) -> Tensor:
        """(B, S', F), 0 or False where an estimate is not scored."""
        if name.endswith("_defined"):
            return self._joined(name, torch.bool) & self.active
        double = self.call.estimates.waves.dtype == torch.float64
        values = self._joined(name, torch.float64 if double else torch.float32)
        return torch.where(self.active, values, 0.0)

    def _joined(self, name: str, dtype: torch.dtype) -> Tensor:
        bank, outputs = self.call.prepared, len(self.call.attributed)
        device = self.call.estimates.waves.device
        found = torch.zeros(bank.batch * bank.frames, outputs, dtype=dtype, device=device)
        if name in self._parts:
            places, values = map(torch.cat, zip(*self._parts[name]))
            found = found.index_put((places,), values.to(dtype))
        return found.unflatten(0, (bank.batch, bank.frames)).transpose(1, 2)


def write(started: Sequence[tuple[FrameScores, Tensor, Started]]) -> None:
    """Write what was started to where it belongs; an accelerator is read once for all."""
    results = finish([work for *_, work in started])
    for (scores, place, _), values in zip(started, results):
        for name, value in values.items():
            scores.write(name, place, value)


def scores_of(config: Config, written: FrameScores) -> Scores:
    """The record of what was written of a call."""
    call = written.call
    found: dict[str, Tensor] = {}
    if "bleed" in call.measures:
        found["bleed_db"] = bleed(config, call)
        found["bleed_defined"] = ~found["bleed_db"].isnan()
    for measure in with_encoder(call.measures):
        found |= {field: written.of(field) for field in measure.fields}
        if measure.spectrum:  # the same for all estimates of a frame
            name = f"{measure.name}_dimension"
            found[name] = written.of(name).detach().amax(1).round().long()
    times = devices.back(config.times(call.prepared.frames), call.estimates.waves.device)
    return Scores(written.active, times, call.measures, **found)


# ------------------------------------------------------------------------------------------------
# Bleed
# ------------------------------------------------------------------------------------------------


def bleed(config: Config, call: Call) -> Tensor:
    """(B, S', F) in dB; NaN where it is not defined.

    The level of the estimate in frames where its own reference is inactive and another one active,
    relative to the estimate's mean power where its own reference is active. That stands for the
    level of the reference: a separator's gain is free, and changes no bleed. The level of a frame
    is its variance, so a constant offset does not count. Silence has ``FLOOR_DB``; nothing has less
    than that, or more than -``FLOOR_DB``. Undefined where the own reference is silent throughout.
    """
    bank, waves = call.prepared, call.estimates.waves
    items = [item for group in bank.groups for item in group.items]
    parts = [
        pad(
            _bleed_of_group(config, clips, group, call.attributed),
            (0, bank.frames - group.frames),
            value=torch.nan,
        )
        for clips, group in zip(call.estimates.clips, bank.groups)
    ]
    found = devices.picked(torch.cat(parts), 0, [items.index(item) for item in range(bank.batch)])
    return found.to(torch.promote_types(waves.dtype, torch.float32))


def _bleed_of_group(config: Config, clips: Clips, group: Group, index: tuple[int, ...]) -> Tensor:
    own = devices.picked(group.active, 1, index)
    power = _frame_power(config, clips.waves)
    count = own.sum(-1, keepdim=True)
    level = torch.where(own, power, 0.0).sum(-1, keepdim=True) / count.clamp(min=1)
    complete = clips.valid.all(-1)[:, None, None]
    defined = ~own & group.active.any(1, keepdim=True) & (count > 0) & complete
    most = 10.0 ** (-FLOOR_DB / 10.0)
    # Both are masked before they are divided, and silence has no slope.
    loud = defined & (power > level / most)
    small = loud & (power < level * most)
    ratio = torch.where(small, power, 1.0) / torch.where(small, level, 1.0)
    capped = torch.where(loud, -FLOOR_DB, FLOOR_DB)
    return torch.where(defined, torch.where(small, 10.0 * ratio.log10(), capped), torch.nan)


def _frame_power(config: Config, waves: Tensor) -> Tensor:
    """(b, S', F) variance within every frame, float64: a constant offset is not loud."""
    field, hop = config.grid.receptive_field, config.grid.hop
    frames = frame_count(waves.shape[-1], field, hop)
    step = max(1, config.budget(waves.device).samples // hop)
    parts = []
    for first in range(0, frames, step):  # in float64 a few at a time
        last = min(first + step, frames)
        piece = devices.wide(waves[..., first * hop : (last - 1) * hop + field]).flatten(0, 1)
        mean, square = (
            avg_pool1d(x.unsqueeze(1), field, hop).squeeze(1) for x in (piece, piece.square())
        )
        power = (square - mean.square()).clamp(min=0.0)
        parts.append(power.unflatten(0, waves.shape[:2]))
    return devices.back(torch.cat(parts, -1), waves.device)

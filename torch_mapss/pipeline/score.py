"""Checked calls with a bank -> scores of their frames, block by block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_mapss.core import devices
from torch_mapss.core.frame_batches import Bounds, Score, Started, finish, start
from torch_mapss.core.points import Points
from torch_mapss.core.settings import Settings
from torch_mapss.pipeline.activity import exposed_estimates, scored_estimates, sources_in_graph
from torch_mapss.pipeline.bank import EncodedClips, LongClip, ReferenceBank
from torch_mapss.pipeline.bleed import bleed
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.copies import Encoding, by_level
from torch_mapss.pipeline.estimates import levelled_estimates
from torch_mapss.pipeline.frames import Chosen, ClipFrames, EncodedFrames
from torch_mapss.pipeline.measures import MEASURES, Measure, with_encoder
from torch_mapss.pipeline.memory import explained
from torch_mapss.pipeline.scores import BOUNDED, ScoreBounds, Scores
from torch_mapss.pipeline.segments import LongClipFrames, OnSegment

Record = TypeVar("Record")


@dataclass(frozen=True)
class Task(Generic[Record]):
    """What is computed of every frame, and the record that is made of it."""

    functions: Mapping[str, Score]  # by measure
    settings: Settings  # of the diffusion map
    record: Callable[[FrameValues], Record]


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
        "decomposition": bounds.decomposition_errors(checked, scores=True, left_out=True),
        "separation": bounds.separation_errors(checked, scores=True),
        "match": bounds.match_errors(checked, scores=True),
    }
    of_map = "reference" if convention == "reference" else "paper"
    settings = config.settings._replace(convention=of_map)
    has_scores = settings == config.settings  # else the maps are not those of the scores
    return Task(functions, settings, functools.partial(bounds_of, config, confidence, has_scores))


def score(
    config: Config,
    calls: Sequence[Call],
    task: Task[Record],
    frames: int | None = None,
    generator: torch.Generator | None = None,
    on_segment: OnSegment | None = None,
) -> list[Record]:
    """What a task computes of the frames of calls that share a bank.

    The one loop over blocks of frames: what a block holds of the bank comes from memory or is made
    on demand, once for all calls. Without a graph the work of a block is dropped at once; with one
    all blocks are kept anyway, and an accelerator is read once, after the last.

    Args:
        config: of the scorer.
        calls: with one bank and the same measures.
        task: what to compute.
        frames: how many to score at most; None: all.
        generator: to draw them with, see :func:`choose`.
        on_segment: called with how many segments of a long clip are scored, and of how many.

    Returns:
        The record of each call.
    """
    bank, budget = calls[0].bank, calls[0].budget
    measures = [measure.name for measure in with_encoder(calls[0].measures)]
    has_graph = any(call.wants_gradient for call in calls)
    values = [FrameValues(call) for call in calls]
    waiting: list[Waiting] = []
    with explained():
        chosen = choose(bank, measures, frames, generator)
        encoding = Encoding(config, budget)
        readers = [
            frames_of_group(calls, group, measures, encoding, has_graph, on_segment)
            for group in range(len(bank.groups))
        ]
        encoding.check()  # of all lengths at once
        for group, (clips, reader) in enumerate(zip(bank.groups, readers)):
            for block in reader.blocks(chosen[group]):
                active = clips.active[block.item, :, block.frame]  # (n, S)
                plays = clips.active.any(-1)[block.item]
                items = devices.upload(clips.items, bank.device)
                position = items[block.item] * bank.frames + block.frame
                is_usable = [call.clips[group].valid.all(-1)[block.item] for call in calls]  # (n,)
                for measure in block.measures:
                    rows = block.rows(measure)
                    clusters, usable = block.clusters(measure)
                    present = sources_in_graph(active, block.has_pauses)
                    present = None if present is None else present[rows]
                    for k, call in enumerate(calls):
                        outputs = block.outputs(measure, k)
                        points, finite = with_outputs(clusters, outputs, call.attributed, present)
                        is_usable[k] = is_usable[k].clone()
                        is_usable[k][rows] &= finite & usable
                        function = task.functions[measure]
                        work = start(points, task.settings, function, budget.frames)
                        waiting.append(Waiting(values[k], position[rows], is_usable[k][rows], work))
                    if not has_graph:
                        write(waiting)
                        waiting = []
                        del clusters, points, work  # before the bank makes those of the next
                for k, call in enumerate(calls):
                    usable = is_usable[k].unsqueeze(-1)
                    scored = scored_estimates(active, call.attributed)
                    exposed = exposed_estimates(active, plays, call.attributed)
                    values[k].write("active", position, scored & usable)
                    values[k].write("exposed", position, exposed & usable)
        write(waiting)
    return [task.record(values_of_call) for values_of_call in values]


def choose(
    bank: ReferenceBank,
    measures: Sequence[str],
    frames: int | None,
    generator: torch.Generator | None,
) -> list[Chosen]:
    """The frames of each group: at most ``frames`` of all that are scored, without replacement.

    Frames of pauses are among them if any of the measures scores those. Without a generator every
    call draws the same frames, so that equal calls give equal scores.
    """
    has_pauses = any(MEASURES[name].in_pauses for name in measures)
    lists = []
    for clips in bank.groups:
        lists += [clips.scored, clips.pauses if has_pauses else clips.pauses[:0]]
    counts = [len(pairs) for pairs in lists]
    if frames is not None and frames < sum(counts):
        if generator is None:
            generator = torch.Generator("cpu").manual_seed(0)
        order = torch.randperm(sum(counts), generator=generator, device="cpu")
        is_drawn = torch.zeros(sum(counts), dtype=torch.bool, device="cpu")
        is_drawn[order[: int(frames)]] = True
        for k, is_drawn_here in enumerate(is_drawn.split(counts)):
            index = is_drawn_here.nonzero().squeeze(-1)
            lists[k] = lists[k][index.to(lists[k].device)]
    return [Chosen(*lists[k : k + 2]) for k in range(0, len(lists), 2)]


def frames_of_group(
    calls: Sequence[Call],
    group: int,
    measures: Sequence[str],
    encoding: Encoding,
    has_graph: bool,
    on_segment: OnSegment | None,
) -> ClipFrames:
    """Frames of the mixtures of one length: estimates are encoded, or will be on demand."""
    clips = calls[0].bank.groups[group]
    estimates = [levelled_estimates(encoding.config, call, group, measures) for call in calls]
    if isinstance(clips, LongClip):
        return LongClipFrames(clips, estimates, measures, encoding, on_segment)
    assert isinstance(clips, EncodedClips)
    embedded: list[dict[str, Tensor]] = []
    for waves_by_measure in estimates:
        embedded.append({})
        for waves, names in by_level(waves_by_measure, measures):
            embedded[-1] |= encoding.by_measure(names, waves)
    frame_bytes = max((clips.encoded[name].frame_bytes for name in measures), default=1)
    frames_at_once = None if has_graph else max(1, encoding.budget.gathered // frame_bytes)
    return EncodedFrames(clips, embedded, frames_at_once)


def with_outputs(
    clusters: Points, outputs: Tensor, attributed: tuple[int, ...], present: Tensor | None
) -> tuple[Points, Tensor]:
    """The graphs of n frames, and which of them have finite outputs, (n,).

    A non-finite output would spoil its frame's graph. It is not scored, so any point serves.

    Args:
        clusters: without outputs.
        outputs: (n, S', M).
        attributed: (S',) source of each.
        present: (n, S) bool, see :func:`sources_in_graph`.
    """
    finite = outputs.detach().isfinite().all(-1, keepdim=True)
    references = devices.select(clusters.references, attributed, 1)
    outputs = torch.where(finite, outputs, references)
    points = clusters._replace(outputs=outputs, attributed=attributed, active=present)
    return points, finite.squeeze(-1).all(-1)


# ------------------------------------------------------------------------------------------------
# What was computed, frame by frame
# ------------------------------------------------------------------------------------------------


class FrameValues:
    """Values of the estimates of a call (B, S', F), written frame by frame."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._written: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.sums: dict[str, Tensor] = {}  # (B, S', S, P) over frames

    def write(self, name: str, position: Tensor, values: Tensor) -> None:
        """Values (n, S') at positions (n,) of the flattened (B, F)."""
        self._written.setdefault(name, []).append((position, values))

    def add(self, name: str, position: Tensor, is_usable: Tensor, values: Tensor) -> None:
        """Add values (n, S', S, P) of usable frames to the sums over frames."""
        bank = self.call.bank
        usable = torch.where(is_usable[:, None, None, None], values.double(), 0.0)
        total = self.sums.get(name, usable.new_zeros(bank.batch, *usable.shape[1:]))
        # Mixtures of another length may have lost other members.
        missing = usable.shape[-1] - total.shape[-1]
        total, usable = pad(total, (0, max(0, missing))), pad(usable, (0, max(0, -missing)))
        self.sums[name] = total.index_add(0, position // bank.frames, usable)

    @functools.cached_property
    def active(self) -> Tensor:
        """(B, S', F) bool: own source and another one are active."""
        return self._joined("active", torch.bool)

    @functools.cached_property
    def exposed(self) -> Tensor:
        """(B, S', F) bool: another source is active, and the own one plays at some time."""
        return self._joined("exposed", torch.bool)

    def of(self, measure: Measure, name: str) -> Tensor:
        """(B, S', F) a field of a measure, 0 or False where it does not score an estimate."""
        is_scored = self.exposed if measure.in_pauses else self.active
        if name.endswith("_defined"):
            return self._joined(name, torch.bool) & is_scored
        is_double = self.call.estimates.dtype == torch.float64
        values = self._joined(name, torch.float64 if is_double else torch.float32)
        return torch.where(is_scored, values, 0.0)

    def _joined(self, name: str, dtype: torch.dtype) -> Tensor:
        bank, outputs = self.call.bank, len(self.call.attributed)
        shape = bank.batch * bank.frames, outputs
        joined = torch.zeros(shape, dtype=dtype, device=self.call.estimates.device)
        if name in self._written:
            positions, values = zip(*self._written[name])
            joined = joined.index_put((torch.cat(positions),), torch.cat(values).to(dtype))
        return joined.unflatten(0, (bank.batch, bank.frames)).transpose(1, 2)


class Waiting(NamedTuple):
    """Work on a block's frames that was started, and where its results belong."""

    values: FrameValues
    position: Tensor  # (n,) of the flattened (B, F)
    is_usable: Tensor  # (n,) bool: all embeddings are finite
    work: Started


def write(waiting: Sequence[Waiting]) -> None:
    """Write the results where they belong; an accelerator is read once for all."""
    results = finish([entry.work for entry in waiting])
    for entry, result in zip(waiting, results):
        for name, tensor in result.items():
            if name.endswith("_left_out"):
                entry.values.add(name, entry.position, entry.is_usable, tensor)
            else:
                entry.values.write(name, entry.position, tensor)


def scores_of(config: Config, values: FrameValues) -> Scores:
    """The record of what was written of a call."""
    call = values.call
    fields: dict[str, Tensor] = {}
    if "bleed" in call.measures:
        fields["bleed_db"] = bleed(config, call)
        fields["bleed_defined"] = ~fields["bleed_db"].isnan()
    for measure in with_encoder(call.measures):
        fields |= {field: values.of(measure, field) for field in measure.fields}
        if measure.spectrum:  # the same for all estimates of a frame
            name = f"{measure.name}_dimension"
            fields[name] = values.of(measure, name).detach().amax(1).round().long()
    times = devices.back(config.times(call.bank.frames), call.estimates.device)
    return Scores(values.active, times, call.measures, **fields)


def bounds_of(
    config: Config, confidence: float, has_scores: bool, values: FrameValues
) -> ScoreBounds:
    """The bounds of what was written of a call."""
    bounds = {}
    for measure in with_encoder(values.call.measures):
        for field in measure.fields:
            if field in BOUNDED:
                errors = (values.of(measure, f"{field}_{part}") for part in ("radius", "tail"))
                bounds[field] = Bounds.of(*errors)
    if "clearance" in bounds:
        bounds |= utterance_bounds(confidence, values)
    scores = scores_of(config, values) if has_scores else None
    return ScoreBounds(values.active, confidence, **bounds, scores=scores)


def utterance_bounds(confidence: float, values: FrameValues) -> dict[str, Bounds]:
    """Half-widths (B, S') of pooled clearance and fidelity, by jackknife of the pooled scores."""
    from torch_mapss.bounds.decomposition import LeftOut, utterance_half_widths

    measure = MEASURES["decomposition"]
    names = "clearance", "fidelity"
    counts = [values.of(measure, f"{name}_defined").sum(-1) for name in names]
    if values.sums:
        sums = LeftOut(*(values.sums[name].to(counts[0].device) for name in LeftOut._fields))
        tails = utterance_half_widths(sums, *counts, confidence)
    else:  # no frame is scored
        nothing = torch.full(counts[0].shape, torch.nan, device=counts[0].device)
        tails = nothing, nothing
    dtype = torch.promote_types(values.call.estimates.dtype, torch.float32)
    return {
        f"utterance_{name}": Bounds.of(torch.zeros_like(tail, dtype=dtype), tail.to(dtype))
        for name, tail in zip(names, tails)
    }

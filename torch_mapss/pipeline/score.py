"""Scoring of checked calls with a bank, block by block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from torch_mapss.core import devices
from torch_mapss.core.frame_batches import ScoreFunction, Started, finish, start
from torch_mapss.core.points import Points
from torch_mapss.core.settings import Settings
from torch_mapss.pipeline.activity import exposed_estimates, scored_estimates, sources_in_graph
from torch_mapss.pipeline.bank import EncodedClips, LongClip, ReferenceBank
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.copies import Encoding, by_level
from torch_mapss.pipeline.estimates import levelled_estimates
from torch_mapss.pipeline.frame_values import FrameValues, bounds_of, scores_of
from torch_mapss.pipeline.frames import Block, ClipFrames, EncodedFrames
from torch_mapss.pipeline.measures import MEASURES, with_encoder
from torch_mapss.pipeline.memory import explained
from torch_mapss.pipeline.scores import ScoreBounds, Scores
from torch_mapss.pipeline.segments import LongClipFrames, OnSegment

Record = TypeVar("Record")


@dataclass(frozen=True)
class Task(Generic[Record]):
    """The score functions to run on every frame, and the record to make from their results."""

    functions: Mapping[str, ScoreFunction]  # by measure
    settings: Settings  # of the diffusion map
    record: Callable[[FrameValues], Record]


def scoring(config: Config) -> Task[Scores]:
    """Scores; see :meth:`torch_mapss.MAPSS.forward`."""
    functions = {m.name: m.score for m in with_encoder(MEASURES) if m.score is not None}
    return Task(functions, config.settings, functools.partial(scores_of, config))


def bounding(
    config: Config, confidence: float, convention: str | None, options: dict[str, Any]
) -> Task[ScoreBounds]:
    """Bounds, and scores from the same maps; see :meth:`torch_mapss.MAPSS.bounds`."""
    from torch_mapss.bounds import frames as bounds
    from torch_mapss.bounds.settings import named_settings

    convention = config.settings.convention if convention is None else convention
    checked = named_settings(confidence, convention, options)
    functions = {
        "decomposition": bounds.decomposition_errors(checked, scores=True, left_out=True),
        "separation": bounds.separation_errors(checked, scores=True),
        "match": bounds.match_errors(checked, scores=True),
    }
    of_map = "reference" if convention == "reference" else "paper"  # "derived": the paper's map
    settings = config.settings._replace(convention=of_map)
    has_scores = settings == config.settings  # else these are other maps than the scores'
    return Task(functions, settings, functools.partial(bounds_of, config, confidence, has_scores))


def score(
    config: Config,
    calls: Sequence[Call],
    task: Task[Record],
    frames: int | None = None,
    generator: torch.Generator | None = None,
    on_segment: OnSegment | None = None,
) -> list[Record]:
    """Run a task on the frames of calls that share a bank.

    This is the one loop over blocks of frames. A block's points come from memory or are made on
    demand, once for all calls. Without a graph, the memory of a block is freed at once; with one,
    all blocks are kept anyway, and an accelerator is read once, after the last. The measures
    without embeddings (bleed) are computed at the end, by ``task.record``.

    Args:
        config: settings of the scorer.
        calls: calls with the same bank and measures.
        task: the score functions and the record.
        frames: largest number of frames to score; None: all.
        generator: generator for drawing them, see :func:`choose`.
        on_segment: progress callback ``(done, total)`` for the segments of a long clip.

    Returns:
        The record of each call.
    """
    bank, budget = calls[0].bank, calls[0].budget
    measures = [measure.name for measure in with_encoder(calls[0].measures)]
    scorer = BlockScorer(calls, task)
    with explained():
        chosen = choose(bank, measures, frames, generator)
        encoding = Encoding(config, budget)
        readers = [
            frames_of_group(calls, group, measures, encoding, scorer.has_graph, on_segment)
            for group in range(len(bank.groups))
        ]
        encoding.check()  # of all lengths at once
        for group, reader in enumerate(readers):
            for block in reader.blocks(*chosen[group]):
                scorer.add(group, block)
        scorer.write()
    return [task.record(values) for values in scorer.values]


class BlockScorer:
    """Starts the work on blocks of frames, and writes the results to the values of each call.

    Args:
        calls: calls that share a bank.
        task: the score functions.
    """

    def __init__(self, calls: Sequence[Call], task: Task[Any]) -> None:
        self.calls = calls
        self.task = task
        self.values = [FrameValues(call) for call in calls]
        self.has_graph = any(call.wants_gradient for call in calls)
        # Work that was started on frames of blocks; and of each where its results belong: the
        # call's values, (n,) the position in its flattened (B, F), (n,) whether it is usable.
        self._started: list[Started] = []
        self._destinations: list[tuple[FrameValues, Tensor, Tensor]] = []
        groups = calls[0].bank.groups
        self._active = [clips.active for clips in groups]  # (b, S, F) per length
        self._plays = [active.any(-1) for active in self._active]  # (b, S) per length

    def add(self, group: int, block: Block) -> None:
        """Score a block of the mixtures of one length, by their index in ``bank.groups``."""
        bank = self.calls[0].bank
        clips = bank.groups[group]
        active = self._active[group][block.item, :, block.frame]  # (n, S)
        plays = self._plays[group][block.item]  # (n, S)
        present = sources_in_graph(active, block.has_pauses)
        items = devices.upload(clips.items, bank.device)
        position = items[block.item] * bank.frames + block.frame  # in the flattened (B, F)
        is_usable = [call.clips[group].valid.all(-1)[block.item] for call in self.calls]  # (n,)
        for measure in block.measures:
            is_usable = self._start(block, measure, present, position, is_usable)
            if not self.has_graph:
                self.write()  # free this measure's work before the next one's copies are made
        for call, values, usable in zip(self.calls, self.values, is_usable):
            scored = scored_estimates(active, call.attributed)
            exposed = exposed_estimates(active, plays, call.attributed)
            values.write("active", position, scored & usable.unsqueeze(-1))
            values.write("exposed", position, exposed & usable.unsqueeze(-1))

    def _start(
        self,
        block: Block,
        measure: str,
        present: Tensor | None,
        position: Tensor,
        is_usable: Sequence[Tensor],
    ) -> list[Tensor]:
        """Start one measure; returns, per call, which of the n frames are still usable."""
        rows = block.rows(measure)
        clusters, finite_clusters = block.clusters(measure)
        present = None if present is None else present[rows]
        still_usable = []
        for k, call in enumerate(self.calls):
            outputs = block.outputs(measure, k)
            points, finite_outputs = with_outputs(clusters, outputs, call.attributed, present)
            usable = is_usable[k].clone()
            usable[rows] &= finite_outputs & finite_clusters
            function, budget = self.task.functions[measure], call.budget.frames
            self._started.append(start(points, self.task.settings, function, budget))
            self._destinations.append((self.values[k], position[rows], usable[rows]))
            still_usable.append(usable)
        return still_usable

    def write(self) -> None:
        """Write the results of all started work; an accelerator is read once for all."""
        results = finish(self._started)
        for (values, position, is_usable), result in zip(self._destinations, results):
            for name, tensor in result.items():
                if name.endswith("_left_out"):
                    values.add(name, position, is_usable, tensor)
                else:
                    values.write(name, position, tensor)
        self._started, self._destinations = [], []


def choose(
    bank: ReferenceBank,
    measures: Sequence[str],
    frames: int | None,
    generator: torch.Generator | None,
) -> list[tuple[Tensor, Tensor]]:
    """Choose the frames of each group and those of its pauses: at most ``frames`` in all.

    They are drawn without replacement. Frames of pauses are included if any of the measures scores
    them. Without a generator every call draws the same frames, so that equal calls give equal
    scores.
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
    return list(zip(lists[::2], lists[1::2]))


def frames_of_group(
    calls: Sequence[Call],
    group: int,
    measures: Sequence[str],
    encoding: Encoding,
    has_graph: bool,
    on_segment: OnSegment | None,
) -> ClipFrames:
    """Frames of the mixtures of one length, with estimates encoded now or on demand."""
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
    """Add outputs to the points of n frames; also returns (n,) bool where outputs are finite.

    A non-finite output would spoil its frame's graph. Since it is not scored, its reference takes
    its place.

    Args:
        clusters: points without outputs.
        outputs: (n, S', M) embeddings.
        attributed: (S',) source of each output.
        present: (n, S) bool, see :func:`sources_in_graph`.
    """
    finite = outputs.detach().isfinite().all(-1, keepdim=True)
    references = devices.select(clusters.references, attributed, 1)
    outputs = torch.where(finite, outputs, references)
    points = clusters._replace(outputs=outputs, attributed=attributed, active=present)
    return points, finite.squeeze(-1).all(-1)

"""Scoring of checked calls with a reference bank, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_mapss.core import devices
from torch_mapss.core.frame_batches import ScoreFunction, Started, finish, start
from torch_mapss.core.points import LEAST_ACTIVE
from torch_mapss.core.settings import MapSettings
from torch_mapss.pipeline.bank import LongClip, ReferenceBank
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.embedder import Embedder
from torch_mapss.pipeline.estimates import levelled_estimates
from torch_mapss.pipeline.frame_values import FrameValues
from torch_mapss.pipeline.frames import Block, stored_blocks
from torch_mapss.pipeline.measures import MEASURES, with_encoder
from torch_mapss.pipeline.memory import explained
from torch_mapss.pipeline.segments import OnSegment, segment_blocks


def bound_functions(
    config: Config, confidence: float, convention: str | None, options: dict[str, Any]
) -> tuple[dict[str, ScoreFunction], MapSettings]:
    """Functions for :func:`score` that bound the scores, see :meth:`torch_mapss.MAPSS.bounds`.

    Returns:
        The functions by measure, which also return the scores from the same maps; and the settings
        of these maps.
    """
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
    return functions, config.settings._replace(convention=of_map)


def score(
    config: Config,
    calls: Sequence[Call],
    frames: int | None = None,
    generator: torch.Generator | None = None,
    on_segment: OnSegment | None = None,
    functions: Mapping[str, ScoreFunction] | None = None,
    settings: MapSettings | None = None,
) -> list[FrameValues]:
    """Score the frames of calls that share a reference bank.

    This is the one loop over blocks of frames. A block's points come from memory or are made on
    demand, once for all calls. Without a graph, the memory of a block is freed at once; with one,
    all blocks are kept anyway, and an accelerator is read once, after the last.

    Args:
        config: settings of the scorer.
        calls: calls with the same bank and measures.
        frames: largest number of frames to score; None: all.
        generator: generator for drawing them, see :func:`choose`.
        on_segment: progress callback ``(done, total)`` for the segments of a long clip.
        functions: score functions by measure; None: those of :data:`MEASURES`.
        settings: settings of the diffusion maps; None: those of the scorer.

    Returns:
        The values of each call.
    """
    bank, budget = calls[0].bank, calls[0].budget
    measures = [measure.name for measure in with_encoder(calls[0].measures)]
    settings = config.settings if settings is None else settings
    values = [FrameValues(config, call, settings) for call in calls]
    scorer = BlockScorer(values, functions)
    with explained():
        chosen = choose(bank, measures, frames, generator)
        embedder = Embedder(config, budget)
        groups = [
            blocks_of_group(calls, group, measures, embedder, scorer.has_graph, chosen, on_segment)
            for group in range(len(bank.groups))
        ]
        embedder.check()  # of all lengths at once
        for group, blocks in enumerate(groups):
            for block in blocks:
                scorer.add(group, block)
        scorer.write()
    return values


class BlockScorer:
    """Starts the work on blocks of frames, and writes the results to the values of each call.

    Args:
        values: values of calls that share a reference bank.
        functions: see :func:`score`.
    """

    def __init__(
        self, values: Sequence[FrameValues], functions: Mapping[str, ScoreFunction] | None
    ) -> None:
        self.values = values
        self.functions = functions
        self.has_graph = torch.is_grad_enabled() and any(
            entry.call.estimates.requires_grad for entry in values
        )
        # Work that was started on frames of blocks; and of each where its results belong: the
        # call's values, (n,) the position in its flattened (B, F), (n,) whether it is usable.
        self._started: list[Started] = []
        self._destinations: list[tuple[FrameValues, Tensor, Tensor]] = []
        self.bank = values[0].call.bank
        self._active = [clips.active for clips in self.bank.groups]  # (b, S, F) per length
        self._plays = [active.any(-1) for active in self._active]  # (b, S) per length

    def add(self, group: int, block: Block) -> None:
        """Score a block of the mixtures of one length, by their index in ``bank.groups``.

        The masks are explained in :mod:`torch_mapss.pipeline`: ``active`` (n, S), ``plays`` (n, S),
        ``present`` (n, S) or None, ``usable`` (n,) per call, ``exposed`` (n, S') per call.
        """
        active = self._active[group][block.item, :, block.frame]  # (n, S)
        plays = self._plays[group][block.item]  # (n, S)
        count = active.sum(-1, keepdim=True)
        items = devices.upload(self.bank.groups[group].items, self.bank.device)[block.item]
        position = items * self.bank.frames + block.frame  # in the flattened (B, F)
        # Sources in the graph of each frame. None, for all of them, leads to batches without a
        # mask, which are cheaper. With two sources both are active in every frame without a pause;
        # with more, finding out would read an accelerator.
        two_sources = active.shape[-1] == 2
        both_active = two_sources and not block.has_pauses
        may_read = not devices.is_accelerator(active.device)
        all_active = both_active or (may_read and bool(active.all()))
        present = None if all_active else active
        # A frame without finite samples and embeddings is not scored.
        is_usable = [entry.call.valid.all(-1)[items] for entry in self.values]  # (n,) per call
        for name in block.measures:
            rows, clusters, finite_clusters, outputs = block.read(name)
            function = MEASURES[name].score if self.functions is None else self.functions[name]
            assert function is not None
            for entry, usable, embedded in zip(self.values, is_usable, outputs):
                call = entry.call
                # A non-finite output would spoil its frame's graph: its reference takes its place.
                finite = embedded.detach().isfinite().all(-1, keepdim=True)
                references = devices.select(clusters.references, call.attributed, 1)
                points = clusters._replace(
                    outputs=torch.where(finite, embedded, references),
                    attributed=call.attributed,
                    active=None if present is None else present[rows],
                )
                usable[rows] &= finite.squeeze(-1).all(-1) & finite_clusters
                self._started.append(start(points, entry.settings, function, call.budget.frames))
                self._destinations.append((entry, position[rows], usable[rows].clone()))
            if not self.has_graph:
                self.write()
            del clusters, outputs, embedded, references, points  # before the next copies are made
        for entry, usable in zip(self.values, is_usable):
            own_active = devices.select(active, entry.call.attributed, 1)
            own_plays = devices.select(plays, entry.call.attributed, 1)
            usable = usable.unsqueeze(-1)
            entry.active[position] = own_active & (count >= LEAST_ACTIVE) & usable
            entry.exposed[position] = own_plays & (count > own_active) & usable

    def write(self) -> None:
        """Write the results of all started work; an accelerator is read once for all."""
        results = finish(self._started)
        for (values, position, is_usable), result in zip(self._destinations, results):
            for name, tensor in result.items():
                values.write(name, position, is_usable, tensor)
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


def blocks_of_group(
    calls: Sequence[Call],
    group: int,
    measures: Sequence[str],
    embedder: Embedder,
    has_graph: bool,
    chosen: Sequence[tuple[Tensor, Tensor]],
    on_segment: OnSegment | None,
) -> Iterator[Block]:
    """Blocks of the mixtures of one length, whose estimates are embedded now or on demand.

    Args:
        calls: calls that share a reference bank.
        group: index of the length in ``bank.groups``.
        measures: measures to compute.
        embedder: embeds the estimates.
        has_graph: whether autograd records a graph.
        chosen: result of :func:`choose`.
        on_segment: see :func:`score`.
    """
    clips = calls[0].bank.groups[group]
    scored, pauses = chosen[group]
    estimates = [levelled_estimates(embedder.config, call, group, measures) for call in calls]
    if isinstance(clips, LongClip):
        return segment_blocks(clips, estimates, measures, embedder, on_segment, scored, pauses)
    embedded: list[dict[str, Tensor]] = []
    for levelled in estimates:
        embedded.append({})
        for waves, names in levelled:
            embedded[-1] |= embedder.by_measure(names, waves)
    frames_at_once = None  # with a graph, all frames are kept anyway
    if not has_graph:
        frame_bytes = 1
        for name in measures:
            distortions = clips.encoded[name].distortions
            _, sources, members, _, features = distortions.shape
            numbers = sources * (members + 1) * features
            frame_bytes = max(frame_bytes, numbers * distortions.element_size())
        frames_at_once = max(1, embedder.budget.gathered // frame_bytes)
    return stored_blocks(clips, embedded, frames_at_once, scored, pauses)

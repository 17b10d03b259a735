"""Files or arrays of one mixture in, scores of its estimates out.

:func:`evaluate` is the public call; a run over a test set takes the parts of :class:`Scorer`.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.core.devices import best_device, device_name
from torch_mapss.evaluation import audio_input, input_checks, io, options, pooled
from torch_mapss.evaluation.audio_input import Clip
from torch_mapss.evaluation.input_checks import Inspection, Signals
from torch_mapss.evaluation.options import Request
from torch_mapss.evaluation.report import Report
from torch_mapss.pipeline.scores import ScoreBounds, Scores

if TYPE_CHECKING:
    from pandas import DataFrame

    from torch_mapss.pipeline.mapss import MAPSS

OnSegment = Callable[[int, int], object]
_LEAST_BANK = 10  # distortions from which a distribution can be fitted
_BLOCK_S = 0.1  # of activity, for excerpts


def evaluate(
    *,
    estimates: Any,
    references: Any,
    mixture: Any = None,
    names: Sequence[str] | None = None,
    sample_rate: int | None = None,
    attributed: Sequence[int] | None = None,
    mixture_id: str = "",
    device: torch.device | str | None = None,
    mapss: MAPSS | None = None,
    on_segment: OnSegment | None = None,
    **settings: Any,
) -> Report:
    """Score the separated sources of one mixture against their references.

    Files may differ in rate and channels: each is averaged over its channels and resampled to the
    encoder's rate, and the report says so. For a test set see
    :func:`torch_mapss.evaluate_set`.

    Args:
        estimates: what a separator made: a list of paths (any format libsndfile reads), or an
            (S', T) array or tensor, or a list of (T,) ones. In the order of the references. None
            in a list: the source was not estimated.
        references: the true sources, S of them, at least two; as ``estimates``, without None.
        mixture: path or (T,) signal, for the plot, and to tell an estimate that is the mixture.
        names: one name per reference, for tables and plots; made of the file names otherwise.
        sample_rate: of arrays, in Hz; the encoder's by default. Files know theirs.
        attributed: which reference each estimate belongs to, e.g. ``(0,)`` to score the first
            source alone; all in order by default.
        mixture_id: decides which excerpts are drawn, if any are.
        device: to compute on. None: where a given ``mapss`` is, else as ``"auto"``, which is CUDA
            where there is one, else MPS, else the CPU; the summary says which.
        mapss: a :class:`~torch_mapss.MAPSS` to use, shared by many calls.
        on_segment: called with the number of segments done and in total, of clips longer than a
            segment.
        settings: what is scored and how,

            * ``measures``: a name or several of ``decomposition``, ``separation``, ``match``,
              ``bleed``; all by default. ``"decomposition"`` (clearance and fidelity) is quickest;
            * ``permute``: find the reference of each estimate by SI-SDR;
            * ``trim``: cut all signals to the shortest instead of refusing different lengths. The
              cut is at the end: nothing is aligned;
            * ``align="shift"``: move every estimate by one constant lag onto its reference, if its
              cross-correlation tells one of at most 500 ms, in whole samples; frames that it no
              longer reaches into are not scored;
            * ``channels="each"``: score every channel and average the scores, instead of scoring
              the mean of the channels; arrays are then (S, C, T);
            * ``sample_frames``: score at most so many frames, drawn with a fixed seed;
            * ``excerpts``, ``excerpt_seconds``: score so many excerpts instead of the whole, drawn
              before anything is prepared; the rows then have standard errors;
            * ``bounds``, ``confidence``, ``bounds_convention``, ``tail``: error bounds of frame
              scores, see :mod:`torch_mapss.bounds`;

            and all arguments of :class:`~torch_mapss.MAPSS` (``encoder="wav2vec2-large"`` by
            default; ``"mel"`` needs no download), ``bank_size``, ``only`` and ``without`` of its
            banks. ``segment`` is ``"auto"`` here.

    Returns:
        A :class:`Report`.

    Raises:
        TypeError, ValueError: input that cannot be scored; the message says what to do.
        FileNotFoundError: no such file.
        ImportError: a package needed for it is missing; the message names it.

    Warns:
        UserWarning: what makes the scores mean something else than a reader expects, as a silent
            estimate or a delay, see :attr:`Report.findings`.
    """
    if sample_rate is not None:
        sample_rate = checks.check_whole(sample_rate, "sample_rate", 1)
    scorer = Scorer.of(settings, device, mapss)
    if scorer.request.permute and attributed is not None:
        raise ValueError("permute finds what attributed states: pass one of them.")
    true = scorer.references(references, names, sample_rate)
    found = scorer.read(estimates, "estimates", sample_rate)
    mixed = None if mixture is None else scorer.read([mixture], "mixture", sample_rate)[0]
    if sample_rate is not None and all(c is None or c.path for c in (*found, *true, mixed)):
        raise ValueError(
            f"sample_rate={sample_rate} was passed, but all input are files, which state their "
            "own rate. Leave sample_rate out; it is for arrays."
        )
    signals = scorer.signals(found, true, attributed, mixed)
    (report,) = scorer.reports([signals], mixture_id, on_segment)
    for finding in report.findings:
        checks.warn_user(f"{finding.text}.")
    return report


class Scorer(NamedTuple):
    """What computes scores, of what, and where."""

    mapss: MAPSS
    request: Request
    device: torch.device  # of the waveforms

    @staticmethod
    def of(
        settings: Mapping[str, Any],
        device: torch.device | str | None = None,
        mapss: MAPSS | None = None,
    ) -> Scorer:
        """The scorer that options ask for; arguments and errors as :func:`evaluate`."""
        given = options.checked_options(settings)
        request = options.request_of(given)
        named = mapss is None and isinstance(given.get("encoder", ""), str | os.PathLike)
        if device == "auto" or (device is None and named):
            device = best_device()
        scorer = options.scorer_of(given, device, mapss)
        size = given.get("bank_size") or _LEAST_BANK
        if size < _LEAST_BANK and (request.measures is None or "match" in request.measures):
            checks.warn_user(
                f"bank_size={size} makes PM and log PM meaningless: they come from the spread of "
                f"that many distances. Take at least {_LEAST_BANK}, or leave PM out (measures)."
            )
        at = scorer.config.encoders["encoder"].device if device is None else torch.device(device)
        return Scorer(scorer, request, at)

    def read(
        self, signals: Any, kind: str, sample_rate: int | None = None
    ) -> tuple[Clip | None, ...]:
        """Files or arrays as clips, see :func:`torch_mapss.evaluation.audio_input.read_set`."""
        each = self.request.channels == "each"
        return audio_input.read_set(signals, kind, self.mapss.sample_rate, sample_rate, each)

    def references(
        self, given: Any, names: Sequence[str] | None = None, sample_rate: int | None = None
    ) -> tuple[Clip, ...]:
        """References, all of them there, under names of the caller's own if there are any."""
        clips = self.read(given, "references", sample_rate)
        found = tuple(clip for clip in clips if clip is not None)
        if len(found) < len(clips):
            raise ValueError(
                "references must all be there, got None for one of them: an estimate is compared "
                "with every source of the mixture."
            )
        if names is None:
            return found
        listed = [names] if isinstance(names, str) else [*map(str, names)]
        if len(listed) != len(found) or not all(map(str.strip, listed)):
            raise ValueError(
                f"names must be one name for each of the {len(found)} references, got {listed!r}."
            )
        return tuple(clip._replace(name=name) for clip, name in zip(found, io.numbered(listed)))

    def signals(
        self,
        estimates: Sequence[Clip | None],
        references: Sequence[Clip],
        attributed: Sequence[int] | None = None,
        mixture: Clip | None = None,
    ) -> Signals:
        """One system's estimates of a mixture, to be scored; ValueError if they do not fit."""
        given = tuple(clip for clip in estimates if clip is not None)
        if len(given) < len(estimates):
            if attributed is not None or len(estimates) != len(references):
                raise ValueError(
                    f"estimates hold None: pass one entry for each of the {len(references)} "
                    f"references, got {len(estimates)}, and no attributed."
                )
            attributed = [index for index, clip in enumerate(estimates) if clip is not None]
        if len(references) < 2:
            raise ValueError(
                f"at least two references are needed, got {len(references)}: an estimate is "
                "compared with the other sources of the mixture."
            )
        samples = audio_input.common_length(given, references, self.request.trim)
        both = audio_input.stack([*given, *references], samples, self.device)
        outputs, truth = both[:, : len(given)], both[:, len(given) :]
        # Samples that are not finite are refused by the scorer, unless it was told not to look.
        mono_out, mono_true = (x.mean(0).nan_to_num(0.0, 0.0, 0.0) for x in (outputs, truth))
        if self.request.permute:
            attributed = audio.match_sources(mono_out, mono_true).tolist()
        attributed = checks.check_attributed(attributed, len(given), len(references))
        own, align = mono_true[list(attributed)], self.request.align is not None
        rate = self.mapss.sample_rate
        lags, removed = input_checks.measure_lags(mono_out, own, rate, align)
        shifted = [audio.shift(wave, lag) for wave, lag in zip(outputs.unbind(-2), removed)]
        return Signals(
            estimates=given,
            references=references,
            outputs=mono_out,
            truth=mono_true,
            attributed=attributed,
            mixture=mixture,
            rate=rate,
            grid=self.mapss.grid,
            lags=lags,
            removed=removed,
            moved=torch.stack(shifted, -2) if any(removed) else outputs,
            channels=truth,
        )

    def spans(self, signals: Signals, key: str) -> list[tuple[int, int]]:
        """First and last sample (exclusive) of what is scored: of all, or of each excerpt.

        The time in which at least two sources are active is cut into as many equal parts as there
        are excerpts, and one moment is drawn in each, which the excerpt has in its middle. What is
        drawn depends on the references and the mixture's id, ``key``, alone: it is the same for all
        systems. There are fewer excerpts where the signal is too seldom active for so many.
        """
        truth, rate, count = signals.truth, self.mapss.sample_rate, self.request.excerpts or 1
        samples, length = truth.shape[-1], round(self.request.excerpt_seconds * rate)
        block = round(_BLOCK_S * rate)
        if self.request.excerpts is None or count * length >= samples:
            return [(0, samples)]
        active = audio.source_activity(truth, block, block, self.mapss.config.activity)
        blocks = (active.sum(-2) >= 2).nonzero().squeeze(-1).tolist()
        seed = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
        chance = random.Random(int(seed, 16))
        found: list[int] = []
        for part in range(count):
            own = blocks[len(blocks) * part // count : len(blocks) * (part + 1) // count]
            if own:
                middle = (chance.choice(own) + 0.5) * block
                last = samples - length * (count - part)  # room for those that follow
                start = min(
                    max(round(middle - length / 2), found[-1] + length if found else 0), last
                )
                found.append(start)
        return [(start, start + length) for start in found] or [(0, samples)]

    def reports(
        self, systems: Sequence[Signals], key: str = "", on_segment: OnSegment | None = None
    ) -> list[Report]:
        """Reports of several systems on the same references, of one length, in one pass.

        ``on_segment`` is called with the number of parts (excerpts, channels, segments) done and in
        total; ``key`` decides which excerpts are drawn.
        """
        spans, channels = self.spans(systems[0], key), range(len(systems[0].channels))
        indices = [signals.attributed for signals in systems]
        made: list[Any] = []  # of every part and system
        for start, stop in spans:
            for channel in channels:

                def tell(now: int, of: int, done: int = len(made)) -> None:
                    if on_segment is not None:
                        on_segment(done * of + now, len(spans) * len(channels) * of)

                waves = (systems[0].channels, *(signals.moved for signals in systems))
                truth, *outputs = (wave[channel, :, start:stop] for wave in waves)
                made.append(self._scored(outputs, truth, indices, tell))
                tell(1, 1)
        return [self._report(*each, spans) for each in zip(systems, zip(*made))]

    def _scored(
        self,
        outputs: Sequence[Tensor],
        truth: Tensor,
        indices: Sequence[Sequence[int]],
        on_segment: OnSegment,
    ) -> list[tuple[Scores, ScoreBounds | None]]:
        mapss, request = self.mapss, self.request
        bank = mapss.prepare(truth, measures=request.measures)
        shared: dict[str, Any] = {"measures": request.measures, "frames": request.sample_frames}
        shared["on_segment"] = on_segment
        if not request.bounds:
            scores = mapss.score_systems(outputs, bank, indices, **shared)
            return [(one, None) for one in scores]
        kind: dict[str, Any] = {"convention": request.bounds_convention, "tail": request.tail}
        bounds = mapss.bound_systems(outputs, bank, request.confidence, indices, **kind, **shared)
        # Read off the same maps, unless the bounds take those of another convention.
        read = [one.scores for one in bounds if one.scores is not None]
        return list(zip(read or mapss.score_systems(outputs, bank, indices, **shared), bounds))

    def _report(
        self,
        signals: Signals,
        scored: Sequence[tuple[Scores, ScoreBounds | None]],
        spans: Sequence[tuple[int, int]],
    ) -> Report:
        request, rate, channels = self.request, signals.rate, len(signals.channels)
        every, bounds = [scores for scores, _ in scored], scored[-1][1]
        parts = [pooled.averaged(every[k : k + channels]) for k in range(0, len(every), channels)]
        scores = pooled.joined(parts, [start / rate for start, _ in spans])
        if any(signals.removed):
            covered = input_checks.covered_frames(signals, scores.times)
            scores = replace(scores, active=scores.active & covered)
        columns = pooled.columns(scores, bounds)
        errors: dict[str, float] = {}
        if request.excerpts is not None:
            sampled, errors = pooled.sampling(parts)
            columns = columns.join(sampled)
        looked = Inspection(signals)
        return Report(
            estimates=tuple(signals.estimates),
            references=tuple(signals.references),
            attributed=tuple(signals.attributed),
            times=scores.times.cpu(),
            active=scores.active[0].cpu(),
            frames=pooled.frames(scores),
            bounds={} if bounds is None else pooled.frame_bounds(scores, bounds),
            scores=_table(signals, looked, scores, columns),
            errors=errors,
            sample_rate=rate,
            settings={**self.mapss.describe(), **request._asdict()},
            notes=_notes(signals, request, spans),
            findings=looked.findings,
            device=device_name(signals.outputs.device),
            mixture=signals.mixture,
        )


def _table(signals: Signals, looked: Inspection, scores: Scores, columns: DataFrame) -> DataFrame:
    """A row per estimate: what it is, its scores, and what was measured of its signals."""
    import pandas

    active, estimates = scores.active[0], signals.estimates
    muted = input_checks.muted_frames(signals, scores.times)
    references = [signals.references[source] for source in signals.attributed]
    lags = [math.nan if lag is None else lag for lag in signals.lags]
    table: dict[str, Any] = {
        "source": [clip.name for clip in references],
        "source_index": signals.attributed,
        "estimate": [clip.path or clip.name for clip in estimates],
        "reference": [clip.path or clip.name for clip in references],
        **{str(name): values for name, values in columns.items()},
        "frames": active.sum(-1).tolist(),
        "total_frames": active.shape[-1],
        "muted_frames": (muted & active).sum(-1).tolist(),
        "silent": looked.silent,
        "lag_ms": [1000.0 * lag / signals.rate for lag in lags],
        "shift_ms": [1000.0 * lag / signals.rate for lag in signals.removed],
        "estimate_rate": [clip.rate for clip in estimates],
        "reference_rate": [clip.rate for clip in references],
        "estimate_bandwidth": looked.estimate_bands,
        "reference_bandwidth": [looked.reference_bands[source] for source in signals.attributed],
    }
    return pandas.DataFrame(table)


def _notes(signals: Signals, request: Request, spans: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """What was done to the input."""
    clips, rate = (*signals.references, *signals.estimates), signals.rate
    notes = audio_input.remarks(clips, rate, signals.outputs.shape[-1])
    heard = signals.grid.sample_rate
    if high := sorted({clip.rate for clip in clips if clip.rate > heard}):
        notes.append(
            f"{', '.join(map(str, high))} Hz: what lies above {heard / 2000:g} kHz is discarded "
            "before scoring"
        )
    if request.permute:
        found = [signals.references[source].name for source in signals.attributed]
        pairs = (f"{clip.name} -> {name}" for clip, name in zip(signals.estimates, found))
        notes.append(f"attributed by SI-SDR: {', '.join(pairs)}")
    notes += [
        f"{clip.path or clip.name}: a lag of {1000 * lag / rate:.2f} ms was removed"
        for clip, lag in zip(signals.estimates, signals.removed)
        if lag
    ]
    if request.excerpts is not None:
        drawn = ", ".join(f"{start / rate:.2f}-{stop / rate:.2f}" for start, stop in spans)
        notes.append(f"excerpts scored (s): {drawn}")
    return tuple(notes)

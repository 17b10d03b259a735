"""The steps in which the estimates of a mixture are read, inspected and scored.

Both :func:`torch_mapss.evaluate` and runs over a test set go through them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.core.devices import best_device, with_index
from torch_mapss.evaluation import audio_input, io
from torch_mapss.evaluation.audio_input import Clip, ReferenceSignals
from torch_mapss.evaluation.energy_ratios import energy_ratios
from torch_mapss.evaluation.excerpts import excerpt_spans, seed_of
from torch_mapss.evaluation.input_checks import Inspection
from torch_mapss.evaluation.protocol import settings_of
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.report_rows import make_report
from torch_mapss.evaluation.settings import (
    ScoringSettings,
    checked_names,
    mapss_of,
    scoring_settings,
)
from torch_mapss.evaluation.system_signals import SystemSignals, system_signals
from torch_mapss.pipeline.energy_ratios import bss_package
from torch_mapss.pipeline.scores import ScoreBounds, Scores
from torch_mapss.pipeline.segments import OnSegment

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

_LEAST_BANK = 10  # fewest distortions that a distribution can be fitted to
_BLOCK_S = 0.1  # seconds per block of activity, for excerpts


@dataclass(frozen=True)
class Scorer:
    """A MAPSS with the evaluation settings, and the device to score on."""

    mapss: MAPSS
    settings: ScoringSettings
    device: torch.device  # of the waveforms

    @staticmethod
    def of(
        settings: Mapping[str, Any],
        device: torch.device | str | None = None,
        mapss: MAPSS | None = None,
    ) -> Scorer:
        """Make a scorer from settings; arguments and errors as in :func:`torch_mapss.evaluate`."""
        settings = checked_names(settings)
        scoring = scoring_settings(settings)
        if scoring.measures is not None and "bss" in scoring.measures:
            bss_package()  # fail now rather than for every mixture
        by_name = mapss is None and isinstance(settings.get("encoder", ""), str)
        if device == "auto" or (device is None and by_name):
            device = best_device()
        mapss = mapss_of(settings, device, mapss)
        size = settings.get("bank_size") or _LEAST_BANK
        computes_pm = "match" in (scoring.pipeline_measures or mapss.measures)
        if size < _LEAST_BANK and computes_pm:
            checks.warn_user(
                f"bank_size={size} makes PM and log PM meaningless: they come from the spread of "
                f"that many distances. Take at least {_LEAST_BANK}, or leave PM out (measures)."
            )
        encoder_device = mapss.config.encoders["encoder"].device
        waveform_device = encoder_device if device is None else torch.device(device)
        return Scorer(mapss, scoring, with_index(waveform_device))

    @cached_property
    def description(self) -> dict[str, Any]:
        """Everything that the scores depend on, as plain values."""
        return settings_of(self.mapss, self.settings)

    def read(
        self, signals: Any, kind: str, sample_rate: int | None = None
    ) -> tuple[Clip | None, ...]:
        """Read files or arrays as clips, see ``audio_input.read_set``."""
        every_channel = self.settings.channels == "each"
        rate = self.mapss.sample_rate
        return audio_input.read_set(signals, kind, rate, sample_rate, every_channel)

    def references(
        self, signals: Any, names: Sequence[str] | None = None, sample_rate: int | None = None
    ) -> ReferenceSignals:
        """Read references, none of which may be missing, with the caller's names if given."""
        read = self.read(signals, "references", sample_rate)
        clips = tuple(clip for clip in read if clip is not None)
        if len(clips) < len(read):
            raise ValueError(
                "references must not contain None: an estimate is compared with every source of "
                "the mixture."
            )
        if names is None:
            return audio_input.reference_signals(clips, self.device)
        stated = [names] if isinstance(names, str) else [*map(str, names)]
        if len(stated) != len(clips) or not all(map(str.strip, stated)):
            raise ValueError(
                f"names must be one name for each of the {len(clips)} references, got {stated!r}."
            )
        by_name = zip(clips, io.numbered(stated))
        named = [clip._replace(name=name) for clip, name in by_name]
        return audio_input.reference_signals(named, self.device)

    def inspect(
        self,
        estimates: Sequence[Clip | None],
        references: ReferenceSignals,
        attributed: Sequence[int] | None = None,
        mixture: Clip | None = None,
    ) -> Inspection:
        """Combine one system's estimates with the references, and inspect the signals.

        This runs no encoder, so it can be done while another mixture is being scored.

        Raises:
            ValueError: the estimates do not fit the references.
        """
        signals = system_signals(
            self.mapss, self.settings, self.device, estimates, references, attributed, mixture
        )
        measures = self.settings.measures
        ratios = energy_ratios(
            signals.estimates,
            signals.references,
            signals.attributed,
            signals.removed,
            signals.rate,
            bss=measures is not None and "bss" in measures,
        )
        has_log_pm = "match" in (self.settings.pipeline_measures or self.mapss.measures)
        inspected = Inspection(signals, has_log_pm, ratios)
        inspected.release()
        return inspected

    def spans(self, signals: SystemSignals, key: str) -> list[tuple[int, int]]:
        """Ranges in samples that are scored: the whole, or each excerpt."""
        samples = signals.mono_references.shape[-1]
        if self.settings.excerpts is None:
            return [(0, samples)]
        rate = self.mapss.sample_rate
        return excerpt_spans(
            # References at full length, also beyond the end of a shorter estimate.
            audio_input.reference_signals(signals.references, self.device).mono,
            count=self.settings.excerpts,
            length=round(self.settings.excerpt_seconds * rate),
            samples=samples,
            block=round(_BLOCK_S * rate),
            activity=self.mapss.config.activity,
            seed=seed_of(key),
        )

    def reports(
        self, systems: Sequence[Inspection], key: str = "", on_segment: OnSegment | None = None
    ) -> list[Report]:
        """Score several systems on the same references, of one length, in one pass.

        ``on_segment`` is called with the number of pieces (channels, excerpts, segments) done and
        in total; ``key`` decides which excerpts are drawn.
        """
        signals = [inspected.signals for inspected in systems]
        spans, channels = self.spans(signals[0], key), range(len(signals[0].references_by_channel))
        attributed = [system.attributed for system in signals]
        scored: list[Any] = []  # by channel, then by system
        for channel in channels:
            progress = _channel_progress(on_segment, len(scored), len(channels))
            truth = signals[0].references_by_channel[channel]
            outputs = [system.estimates_by_channel[channel] for system in signals]
            scored.append(self._scored(outputs, truth, attributed, spans, seed_of(key), progress))
            progress(1, 1)
        by_system = zip(systems, zip(*scored))
        return [
            make_report(inspected, of_channels, spans, key, self.settings, self.description)
            for inspected, of_channels in by_system
        ]

    def _scored(
        self,
        outputs: Sequence[Tensor],
        truth: Tensor,
        attributed: Sequence[Sequence[int]],
        spans: Sequence[tuple[int, int]],
        seed: int,
        on_segment: OnSegment,
    ) -> list[tuple[Scores, ScoreBounds | None]]:
        """Frame scores of each system; ``seed`` is for drawing frames."""
        mapss, settings = self.mapss, self.settings
        measures = settings.pipeline_measures
        is_whole = list(spans) == [(0, truth.shape[-1])]
        bank = mapss.prepare(truth, measures=measures, excerpts=None if is_whole else spans)
        shared: dict[str, Any] = {"measures": measures, "frames": settings.sample_frames}
        shared["on_segment"] = on_segment
        if settings.sample_frames is not None:
            shared["generator"] = torch.Generator("cpu").manual_seed(seed)
        if not settings.bounds:
            scores = mapss.score_systems(outputs, bank, attributed, **shared)
            return [(of_system, None) for of_system in scores]
        bound_options: dict[str, Any] = {
            "convention": settings.bounds_convention,
            "tail": settings.tail,
        }
        bounds = mapss.bound_systems(
            outputs, bank, settings.confidence, attributed, **bound_options, **shared
        )
        # The bounds include scores from the same maps, unless they use another convention.
        scores = [of_system.scores for of_system in bounds if of_system.scores is not None]
        if not scores:
            if settings.sample_frames is not None:  # to draw the same frames
                shared["generator"].manual_seed(seed)
            scores = mapss.score_systems(outputs, bank, attributed, **shared)
        return list(zip(scores, bounds))


def _channel_progress(on_segment: OnSegment | None, done: int, channels: int) -> OnSegment:
    """Convert the progress of one channel to that of all; ``done`` channels come before it."""

    def progress(segment: int, segments: int) -> None:
        if on_segment is not None:
            on_segment(done * segments + segment, channels * segments)

    return progress

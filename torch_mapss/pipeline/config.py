"""Settings of a scorer as one record for the functions of the pipeline."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from torch_mapss import audio
from torch_mapss.core.decomposition import checked_steps
from torch_mapss.core.settings import MapSettings
from torch_mapss.distortions import DistortionBank
from torch_mapss.distortions.bank_members import evenly
from torch_mapss.encoders.base import too_long
from torch_mapss.pipeline.lazy_encoders import LazyEncoder
from torch_mapss.pipeline.measures import MEASURES, with_encoder

CONTEXT = 1.0
"""Seconds of context on each side of a segment, for encoders with attention."""
SEGMENT = 60.0  # seconds; segment="auto"
DECOMPOSITION_MEMBERS = 20  # distortions per source in the default bank


class Grid(NamedTuple):
    """A grid of frames that encoders share."""

    sample_rate: int
    hop: int
    receptive_field: int  # largest of these encoders

    def shared(self, embeddings: Tensor, encoder: Any) -> Tensor:
        """Select the shared frames of an encoder's embeddings (..., F, M)."""
        skip = (self.receptive_field - encoder.receptive_field) // (2 * self.hop)
        return embeddings[..., skip : embeddings.shape[-2] - skip, :]

    def times(self, frames: int) -> Tensor:
        """(F,) times in seconds: the centre of each frame's receptive field."""
        return audio.frame_times(frames, self.receptive_field, self.hop, self.sample_rate)


def shared_grid(encoders: Iterable[LazyEncoder]) -> Grid | None:
    """The grid of encoders whose frames have one rate, hop and centres; None if they differ."""
    frames = [encoder.frames for encoder in encoders]
    rates_and_hops = {(encoder.sample_rate, encoder.hop) for encoder in frames}
    rate, hop = next(iter(rates_and_hops))
    fields = [encoder.receptive_field for encoder in frames]
    has_same_centres = all((max(fields) - field) % (2 * hop) == 0 for field in fields)
    if len(rates_and_hops) > 1 or not has_same_centres:
        return None
    return Grid(rate, hop, max(fields))


# ------------------------------------------------------------------------------------------------
# Distortions
# ------------------------------------------------------------------------------------------------


def distortion_banks(
    separation: DistortionBank | None,
    match: DistortionBank | None,
    decomposition: DistortionBank | None,
    seed: int,
) -> dict[str, DistortionBank]:
    """Distortion banks by argument of :class:`~torch_mapss.MAPSS`: checked, or the default.

    Raises:
        TypeError: an argument is not a distortion bank.
        ValueError: a distortion bank is of another kind.
    """
    separation = DistortionBank("separation", seed=seed) if separation is None else separation
    match = DistortionBank("match", seed=seed) if match is None else match
    for name, kind, bank in (
        ("separation_bank", "separation", separation),
        ("match_bank", "match", match),
        ("decomposition_bank", "separation", decomposition),
    ):
        if bank is None:  # the default is cut from the one for PS
            continue
        if not isinstance(bank, DistortionBank):
            raise TypeError(f"{name} must be a torch_mapss.DistortionBank, got {bank!r}.")
        if bank.kind != kind:
            raise ValueError(
                f"{name} is a DistortionBank({bank.kind!r}), made for another measure: its members "
                f'differ. Make a DistortionBank("{kind}", ...).'
            )
    if decomposition is None:  # evenly spaced; random members keep their noise
        decomposition = copy.copy(separation)
        size = min(DECOMPOSITION_MEMBERS, len(separation))
        indices = evenly(len(separation), size)
        decomposition.members = tuple(separation.members[index] for index in indices)
    return {
        "separation_bank": separation,
        "match_bank": match,
        "decomposition_bank": decomposition,
    }


# ------------------------------------------------------------------------------------------------
# All settings
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Config:
    """Checked settings of a scorer; :class:`~torch_mapss.MAPSS` explains each.

    Raises:
        ValueError: a measure needs a whole diffusion time; or, as far as this is known without
            loading an encoder, the encoders' frames do not line up, the segment is longer than one
            accepts, or a distortion bank has too few members at their rate.
    """

    encoders: Mapping[str, LazyEncoder]  # by argument of MAPSS
    banks: Mapping[str, DistortionBank]  # by argument of MAPSS
    measures: tuple[str, ...]  # computed unless a call asks for others
    settings: MapSettings  # of the diffusion map
    rate: int | None  # of the user's waveforms; None: the encoders'
    trim: bool
    align_polarity: bool
    gain: str  # level of estimates for PS and PM, see torch_mapss.pipeline.estimates
    loudness: float
    activity: float
    check_finite: bool
    segment_setting: float | str | None
    memory: int | None  # bytes; None: chosen by device

    def __post_init__(self) -> None:
        if "decomposition" in self.measures:
            checked_steps(self.settings.time, sources=2)  # needs no encoder
        if all(encoder.is_known for encoder in self.encoders.values()):
            _ = self.segment_frames  # refuses encoders and a segment that do not fit
            self.check(self.measures)

    def check(self, measures: Sequence[str], sources: int = 2, samples: int = 0) -> None:
        """Raise ValueError unless these settings can compute the measures.

        Args:
            measures: names of the measures.
            sources: number of sources in a mixture.
            samples: length of the longest clip, before resampling.
        """
        if "decomposition" in measures:
            checked_steps(self.settings.time, sources)
        # Decomposition's default distortion bank is cut from PS's, so PS's is checked first.
        for measure in reversed(with_encoder(measures)):
            if measure.encoder not in self.grid_encoders:
                raise ValueError(
                    f"{measure.name} reads {measure.encoder} "
                    f"{self.encoders[measure.encoder].name!r}, which has other frames than the "
                    f"measures that this MAPSS was made for ({', '.join(self.measures)}). Make "
                    f"one for it: MAPSS(..., measures={measure.name!r})."
                )
            count = len(self.banks[measure.bank].available(self.grid.sample_rate))
            if count < measure.least_members:
                raise ValueError(
                    f"{measure.bank} has {count} distortions at {self.grid.sample_rate} Hz, but a "
                    f"cluster needs at least {measure.least_members}. Take a larger size, or keep "
                    "more families."
                )
            encoder, seconds = self.encoders[measure.encoder], samples / self.sample_rate
            if seconds > encoder.seconds and not self.is_long(samples):
                raise ValueError(too_long("a clip", seconds, encoder.name, encoder.seconds))

    @cached_property
    def grid_encoders(self) -> Mapping[str, LazyEncoder]:
        """The encoders on the grid, by argument of MAPSS.

        All of them if they share one, so that a call may ask for any measure. Otherwise those that
        ``measures`` read; where these read none, ``encoder`` alone.
        """
        if shared_grid(self.encoders.values()) is not None:
            return self.encoders
        read = {measure.encoder for measure in with_encoder(self.measures)} or {"encoder"}
        return {name: encoder for name, encoder in self.encoders.items() if name in read}

    @cached_property
    def grid(self) -> Grid:
        """The grid of frames of all measures; ValueError if their encoders do not share one."""
        grid = shared_grid(self.grid_encoders.values())
        if grid is None:
            listed = []
            for name, encoder in self.grid_encoders.items():
                frames = encoder.frames
                listed.append(
                    f"{name} {encoder.name!r} ({frames.sample_rate} Hz, hop {frames.hop}, "
                    f"receptive field {frames.receptive_field})"
                )
            raise ValueError(
                "the encoders of all measures must share rate, hop and frame centres, got "
                f"{', '.join(listed)}. Score the measures of each encoder separately: in Python "
                "with a MAPSS(..., measures=...) for each, on the command line with a run for "
                "each, which has its own --measures and --out."
            )
        return grid

    @cached_property
    def sample_rate(self) -> int:
        """Sample rate of the user's waveforms in Hz."""
        return self.rate or self.grid.sample_rate

    @cached_property
    def segment(self) -> float:
        """Longest clip, in seconds, that is scored whole; inf if segments are off.

        Raises:
            ValueError: an encoder does not accept clips of this length.
        """
        if self.segment_setting is None:
            return math.inf
        strictest = min(self.grid_encoders.values(), key=lambda encoder: encoder.seconds)
        longest = strictest.seconds - 2 * CONTEXT
        if isinstance(self.segment_setting, str):
            return min(SEGMENT, longest) if self.encodable_frames >= 1 else math.inf
        if self.segment_setting > longest:
            limit = f"segment must be at most {longest:g} s"
            if longest < 1.0:  # the shortest segment that MAPSS takes
                limit = "segment must be None"
            raise ValueError(
                f"{limit} for encoder {strictest.name!r}, got {self.segment_setting!r}: it accepts "
                f"at most {strictest.seconds:g} s, {CONTEXT:g} s on each side of a segment "
                "included."
            )
        return self.segment_setting

    @property
    def encodable_frames(self) -> float:
        """Largest number of frames that every encoder accepts with context on both sides."""
        limits = [encoder.frames.maximum_samples for encoder in self.grid_encoders.values()]
        samples = min((limit for limit in limits if limit), default=math.inf)
        if math.isinf(samples):
            return samples
        # Beyond its last frame, an encoder may receive what is left of a hop.
        surplus = self.grid.receptive_field + self.grid.hop - 1
        frames = (int(samples) - surplus) // self.grid.hop + 1
        return frames - 2 * round(CONTEXT * self.grid.sample_rate / self.grid.hop)

    @cached_property
    def segment_frames(self) -> float:
        """Largest number of frames in a segment."""
        frames = self.segment * self.grid.sample_rate / self.grid.hop
        return frames if math.isinf(frames) else max(1, round(frames))

    def is_long(self, samples: int) -> bool:
        """Whether a clip of ``samples`` samples, before resampling, is scored in segments."""
        grid = self.grid
        samples = -(-samples * grid.sample_rate // self.sample_rate)
        return audio.frame_count(samples, grid.receptive_field, grid.hop) > self.segment_frames

    def describe(self) -> dict[str, Any]:
        """All settings that a score depends on, as plain values."""
        return {
            **{name: encoder.describe() for name, encoder in self.encoders.items()},
            **{
                name: {"kind": b.kind, "size": len(b), "seed": b.seed, "families": b.families}
                for name, b in self.banks.items()
            },
            **self.settings._asdict(),
            "sample_rate": self.sample_rate,
            "encoder_rate": self.grid.sample_rate,
            "receptive_field": self.grid.receptive_field,
            "gain": self.gain,
            "loudness": self.loudness,
            "activity": self.activity,
            "align_polarity": self.align_polarity,
            "trim": self.trim,
            "segment": None if math.isinf(self.segment) else self.segment,
        }

    @cached_property
    def key(self) -> str:
        """Short hash of all settings that scores depend on."""
        return digest([self.describe(), self.bank_settings(MEASURES)])

    def bank_settings(self, measures: Iterable[str]) -> dict[str, Any]:
        """Settings that a :class:`ReferenceBank` for some measures depends on, as plain values."""
        by_measure: dict[str, dict[str, str]] = {name: {} for name in measures}
        for measure in with_encoder(by_measure):
            encoder = self.encoders[measure.encoder]
            members = [member.description for member in self.banks[measure.bank].members]
            by_measure[measure.name] = {
                "encoder": f"{encoder.name} ({digest(encoder.describe())})",
                "distortions": f"{len(members)} ({digest(members)})",
            }
        return {
            "sample_rate": self.sample_rate,
            "loudness": self.loudness,
            "activity": self.activity,
            "segment": None if math.isinf(self.segment) else self.segment,
            "frames": f"{self.grid.hop} of {self.grid.receptive_field} at {self.grid.sample_rate}",
            "measures": by_measure,
        }


def digest(values: Any) -> str:
    """Short hash of plain values."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

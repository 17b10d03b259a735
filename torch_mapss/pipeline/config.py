"""Settings of a scorer as one record, which the functions of the pipeline take; its encoders."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.core.settings import Settings
from torch_mapss.distortions import DistortionBank
from torch_mapss.encoders import Encoder, as_encoder, encoder_table, mel_on_grid
from torch_mapss.encoders.registry import as_dtype, checkpoint_of
from torch_mapss.pipeline.measures import MEASURES, encoded
from torch_mapss.pipeline.memory import Budget, budget

EncoderChoice = str | os.PathLike[str] | Encoder | Callable[[Tensor], Tensor]

CONTEXT = 1.0
"""Seconds on each side of a segment that an encoder with attention receives as well."""
SEGMENT = 60.0  # seconds, of segment="auto"


# ------------------------------------------------------------------------------------------------
# Encoders
# ------------------------------------------------------------------------------------------------


class EncoderSlot:
    """An encoder that is loaded when it is first used.

    Rate and frames of a name in the table are known without loading.

    Args:
        given: as a user passes it.
        options: of :func:`torch_mapss.load_encoder`, if it is a name; None: not given.
        like: log-mel spectra on the frames of this one, for the name "mel".

    Raises:
        TypeError, ValueError: no encoder, or no name of one.
    """

    def __init__(
        self, given: EncoderChoice, options: Mapping[str, Any], like: EncoderSlot | None = None
    ) -> None:
        self.given, self.like = given, like
        self.options = {name: value for name, value in options.items() if value is not None}
        pretrained = isinstance(given, str | os.PathLike) and not _is_embedded(given)
        rows = (
            row for row in encoder_table() if pretrained and given in (row.name, row.checkpoint)
        )
        self._row = next(rows, None)
        self._encoder: Encoder | None = None
        if pretrained:
            checkpoint_of(os.fspath(given))  # type: ignore[arg-type]
        elif like is None or like.is_known:
            self._encoder = self._made()

    def _made(self) -> Encoder:
        if self.like is None:
            return as_encoder(self.given, **self.options)
        known = self.like.known
        return mel_on_grid(known.sample_rate, known.hop, known.receptive_field)

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded at the first use."""
        if self._encoder is None:
            self._encoder = self._made()
        return self._encoder

    @property
    def is_known(self) -> bool:
        """Whether its frames are known without loading it."""
        return self._row is not None or self._encoder is not None

    @property
    def known(self) -> Any:
        """What has ``sample_rate``, ``hop``, ``receptive_field``: the table's row, or the encoder.

        The same before and after loading.
        """
        return self._row or self.encoder

    @property
    def name(self) -> str:
        """For tables and messages."""
        given = isinstance(self.given, str | os.PathLike)
        return os.fspath(self.given) if given else self.encoder.name  # type: ignore[arg-type]

    @property
    def pretrained(self) -> bool:
        """Whether its features are those of a transformer."""
        if isinstance(self.given, str | os.PathLike):
            return not _is_embedded(self.given)
        return hasattr(self.encoder, "checkpoint")

    @property
    def device(self) -> torch.device:
        """Where its weights are, or will be loaded to; the CPU if it has none."""
        if self._encoder is None:
            return torch.device(self.options.get("device", "cpu"))
        tensors = (*self._encoder.parameters(), *self._encoder.buffers())
        return tensors[0].device if tensors else torch.device("cpu")

    def move(self, change: Callable[[Tensor], Tensor]) -> None:
        """What ``nn.Module.to`` and its like do; an encoder not yet loaded will be loaded there."""
        if self._encoder is not None:
            self._encoder._apply(change)
            return
        here = torch.empty(0, device=self.options.get("device", "cpu"))
        self.options["device"] = change(here).device

    def describe(self) -> dict[str, Any]:
        """What its embeddings depend on, as plain values."""
        frames = {name: getattr(self.known, name) for name in Grid._fields[:3]}
        if self._row is not None:
            layer = self.options.get("layer", self._row.layer)
            dtype = as_dtype(self.options.get("dtype")) or torch.float32
            place = {"name": self.name, "checkpoint": self._row.checkpoint}
            return place | {"layer": layer, "dtype": str(dtype)} | frames
        names = ["name", "checkpoint", "layer", "dtype"]
        if not self.pretrained:
            names += ["feature_size", "bands", "floor", "context"]
        values = {name: getattr(self.encoder, name, None) for name in names}
        return frames | {
            name: str(value) if isinstance(value, torch.dtype) else value
            for name, value in values.items()
            if isinstance(value, str | int | float | bool | torch.dtype)
        }


def _is_embedded(name: str | os.PathLike[str]) -> bool:
    """Whether a name of the table needs no weights."""
    return any(row.name == name and not row.needs_download for row in encoder_table())


class Grid(NamedTuple):
    """The frames that all encoders share."""

    sample_rate: int
    hop: int
    receptive_field: int  # of the widest encoder

    def skip(self, encoder: Any) -> int:
        """Frames that an encoder has before the first shared one."""
        return (self.receptive_field - encoder.receptive_field) // (2 * self.hop)

    def shared(self, embeddings: Tensor, encoder: Any) -> Tensor:
        """The shared frames of an encoder's (..., F, M)."""
        skip = self.skip(encoder)
        return embeddings[..., skip : embeddings.shape[-2] - skip, :]


def shared_grid(slots: Mapping[str, EncoderSlot]) -> Grid:
    """The frames of several encoders whose centres coincide.

    Raises:
        ValueError: there are none.
    """
    all_known = [slot.known for slot in slots.values()]
    first = all_known[0]
    wide = max(known.receptive_field for known in all_known)
    for known in all_known[1:]:
        same = known.sample_rate == first.sample_rate and known.hop == first.hop
        skips = [(wide - each.receptive_field) % (2 * first.hop) for each in (first, known)]
        if not same or any(skips):
            frames = ", ".join(
                f"{name} {slot.name!r} ({slot.known.sample_rate} Hz, hop {slot.known.hop}, "
                f"receptive field {slot.known.receptive_field})"
                for name, slot in slots.items()
            )
            raise ValueError(
                f"all encoders must share rate, hop and frame centres, got {frames}. Score them in "
                "separate MAPSS."
            )
    return Grid(first.sample_rate, first.hop, wide)


# ------------------------------------------------------------------------------------------------
# All settings
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Config:
    """Settings of a scorer, checked; see :class:`~torch_mapss.MAPSS` for the meaning of each."""

    encoders: Mapping[str, EncoderSlot]  # by argument of MAPSS
    banks: Mapping[str, DistortionBank]  # by argument of MAPSS
    measures: tuple[str, ...]  # computed unless a call asks for others
    settings: Settings  # of the diffusion map
    given_rate: int | None  # of the waveforms handed in; None: the encoders'
    trim: bool
    align_polarity: bool
    loudness: float
    activity: float
    check_finite: bool
    given_segment: float | str | None
    memory: int | None  # bytes; None: what suits the device

    @cached_property
    def grid(self) -> Grid:
        """The frames of all measures."""
        return shared_grid(self.encoders)

    def validate(self) -> None:
        """What depends on the encoders' frames.

        Raises:
            ValueError: encoders on different frames, a segment that one does not accept, or a bank
                with too few members at their rate.
        """
        _ = self.grid, self.segment
        for measure in encoded(MEASURES):
            bank = self.bank_of(measure.name)
            count = len(bank.names(self.grid.sample_rate))
            if count < measure.least_members:
                raise ValueError(
                    f"{measure.bank} has {count} distortions at {self.grid.sample_rate} Hz, but a "
                    f"cluster needs at least {measure.least_members}. Take a larger size, or keep "
                    "more families."
                )

    @property
    def sample_rate(self) -> int:
        """Of the waveforms handed in."""
        return self.given_rate or self.grid.sample_rate

    @cached_property
    def segment(self) -> float | None:
        """Seconds; longer clips are scored in segments. None: none are."""
        return _within_limits(self.given_segment, self.encoders)

    @property
    def segment_frames(self) -> float:
        """Frames of a segment, at most."""
        if self.segment is None:
            return math.inf
        return max(1, round(self.segment * self.grid.sample_rate / self.grid.hop))

    @property
    def shortest(self) -> int:
        """Samples, at the rate of the input, that give one frame."""
        return -(-self.grid.receptive_field * self.sample_rate // self.grid.sample_rate)

    def encoder_of(self, measure: str) -> Encoder:
        """The encoder of a measure, loaded."""
        return self.encoders[str(MEASURES[measure].encoder)].encoder

    def bank_of(self, measure: str) -> DistortionBank:
        """The distortions of a measure."""
        return self.banks[str(MEASURES[measure].bank)]

    def is_long(self, samples: int) -> bool:
        """Whether a clip of so many samples at the encoder's rate is scored in segments."""
        if self.segment is None:
            return False
        grid = self.grid
        return audio.frame_count(samples, grid.receptive_field, grid.hop) > self.segment_frames

    def budget(self, device: torch.device) -> Budget:
        """What ``memory`` allows on a device."""
        return budget(self.memory, device)

    def times(self, frames: int) -> Tensor:
        """(F,) seconds, the centre of each frame's receptive field."""
        grid = self.grid
        return audio.frame_times(frames, grid.receptive_field, grid.hop, grid.sample_rate)

    def describe(self) -> dict[str, Any]:
        """All settings that a score depends on, as plain values."""
        banks = {
            name: {
                "kind": bank.kind,
                "size": len(bank),
                "seed": bank.seed,
                "families": bank.families,
            }
            for name, bank in self.banks.items()
        }
        return {
            **{name: slot.describe() for name, slot in self.encoders.items()},
            **banks,
            **self.settings._asdict(),
            "sample_rate": self.sample_rate,
            "encoder_rate": self.grid.sample_rate,
            "loudness": self.loudness,
            "activity": self.activity,
            "align_polarity": self.align_polarity,
            "trim": self.trim,
            "segment": self.segment,
        }

    def brief(self) -> dict[str, Any]:
        """The settings for ``print``."""
        names = {name: slot.name for name, slot in self.encoders.items()}
        sizes = {name: len(bank) for name, bank in self.banks.items()}
        rest = ("measures", "given_rate", "trim", "align_polarity", "loudness", "activity")
        plain = {name: getattr(self, name) for name in (*rest, "given_segment", "memory")}
        return names | sizes | self.settings._asdict() | plain

    @cached_property
    def key(self) -> str:
        """A short name of everything that a :class:`ReferenceBank` depends on."""
        unlike = (*self.settings._fields, "align_polarity", "trim")
        settings = {name: value for name, value in self.describe().items() if name not in unlike}
        members = [member.description for bank in self.banks.values() for member in bank.members]
        text = json.dumps([settings, members], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def checked_segment(segment: Any) -> float | str | None:
    """Seconds of a segment, "auto", or None.

    Raises:
        TypeError: something else.
        ValueError: too short.
    """
    if segment is None or segment == "auto":
        return segment  # type: ignore[no-any-return]
    seconds = checks.check_real(segment, "segment", "(0, inf)")
    if seconds < 1.0:
        raise ValueError(
            f"segment must be at least 1 s, got {segment!r}: every segment is distorted with "
            "several seconds before and after it. 60 is the default of the command line."
        )
    return seconds


def _within_limits(
    segment: float | str | None, encoders: Mapping[str, EncoderSlot]
) -> float | None:
    """Seconds of a segment; ValueError if an encoder does not accept so much."""
    if segment is None:
        return None
    limits = {slot.name: _longest(slot) for slot in encoders.values()}
    name = min(limits, key=limits.__getitem__)
    most = limits[name] - 2 * CONTEXT
    if isinstance(segment, str):
        return min(SEGMENT, most)
    if segment > most:
        raise ValueError(
            f"segment must be at most {most:g} s for encoder {name!r}, got {segment!r}: it accepts "
            f"at most {limits[name]:g} s, {CONTEXT:g} s on each side of a segment included."
        )
    return segment


def _longest(slot: EncoderSlot) -> float:
    """Seconds of the longest clip that an encoder accepts."""
    samples = getattr(slot.known, "maximum_samples", None)
    return samples / slot.known.sample_rate if samples else math.inf

"""What is asked of a scoring, and the scorer that does it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss.bounds.frames import CONVENTIONS, TAILS, check_confidence
from torch_mapss.core import checks
from torch_mapss.core.devices import best_device
from torch_mapss.pipeline.bank import ReferenceBank

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS


class Request(NamedTuple):
    """What is asked of a scoring, beside the scorer's own settings."""

    permute: bool = False
    trim: bool = False
    bounds: bool = False
    confidence: float = 0.95
    sample_frames: int | None = None
    align: str | None = None
    bounds_convention: str | None = None  # None: that of the scores
    tail: str = "concentration"

    def checked(self) -> Request:
        """Itself.

        Raises:
            TypeError, ValueError: a setting that is none.
        """
        check_confidence(self.confidence)
        check_align(self.align)
        if self.bounds_convention is not None:
            checks.check_choice(self.bounds_convention, "bounds_convention", CONVENTIONS)
        checks.check_choice(self.tail, "tail", TAILS)
        if self.sample_frames is not None:
            checks.check_whole(self.sample_frames, "sample_frames", 1)
        return self


def check_align(align: str | None) -> None:
    """Refuse another way to align than those there are.

    Raises:
        ValueError: it is none of them.
    """
    if align not in (None, "shift"):
        raise ValueError(
            f"align must be None or 'shift', which removes one constant lag, got {align!r}."
        )


def make_scorer(
    mapss: MAPSS | None, device: torch.device | str | None, options: Mapping[str, Any]
) -> MAPSS:
    """The MAPSS given, or one of the options.

    Raises:
        ValueError: both are given.
    """
    if mapss is not None:
        if options:
            raise ValueError(
                f"{', '.join(sorted(options))} cannot be applied to a MAPSS that is already made. "
                "Set it there, or leave mapss out."
            )
        return mapss if device is None else mapss.to(device)
    from torch_mapss.pipeline.mapss import MAPSS as Scorer

    if isinstance(options.get("encoder", ""), str | os.PathLike):
        return Scorer(device=device, **options)
    made = Scorer(**options)  # of an encoder that is there already, and moves
    return made if device is None else made.to(device)


def chosen_device(
    device: torch.device | str | None, mapss: MAPSS | None, options: Mapping[str, Any]
) -> torch.device | None:
    """The device that is meant; None: where the scorer or encoder that was given is.

    "auto", and None where neither was given, take the fastest there is.
    """
    named = mapss is None and isinstance(options.get("encoder", ""), str | os.PathLike)
    if device == "auto" or (device is None and named):
        return best_device()
    return None if device is None else torch.device(device)


def device_of(scorer: MAPSS, device: torch.device | str | None) -> torch.device:
    """Where the waveforms belong: ``device``, or where the encoder's weights are."""
    if device is not None:
        return torch.device(device)
    weights = [*scorer.encoder.parameters(), *scorer.encoder.buffers()]
    return weights[0].device if weights else torch.device("cpu")


class PreparedOnce:
    """Remembers the last references and their bank.

    Args:
        mapss: prepares the banks.
    """

    def __init__(self, mapss: MAPSS) -> None:
        self.mapss = mapss
        self._last: tuple[Tensor, ReferenceBank] | None = None

    def __call__(self, references: Tensor) -> ReferenceBank:
        """The bank of (S, T) references, prepared only if they are not the last ones."""
        if self._last is not None:
            known, bank = self._last
            if known.device == references.device and torch.equal(known, references):
                return bank
        self._last = None  # frees the old bank before the new one is made
        bank = self.mapss.prepare(references)
        self._last = references, bank
        return bank

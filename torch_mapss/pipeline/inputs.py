"""The gate: a call is admitted once, and behind it no stage checks a waveform again.

:func:`admit` takes what a user hands to :class:`~torch_mapss.MAPSS` (types, shapes, devices,
lengths, finite samples, rates, attribution) and returns one :class:`Call` of plain floats at the
encoder's rate. Each refusal says what was expected, what came and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks, devices
from torch_mapss.pipeline.records import ReferenceBank

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

MEASURES = ("both", "separation", "match")
_LIKE_SAMPLES = 100  # an axis of so many, longer than the last, is time and not sources
ACCEPTED = "(B, S, T) or (S, T): batch, sources, samples"


class Clips(NamedTuple):
    """The mixtures of one length, ready for an encoder."""

    items: tuple[int, ...]  # their places in the batch
    samples: int  # length as handed in
    waves: Tensor  # (b, sources, T) at the encoder's rate


@dataclass(frozen=True)
class Signals:
    """Waveforms behind the gate: floating point, without padding, finite."""

    waves: Tensor  # (B, sources, T) at the rate they came in; padding may hold anything finite
    lengths: tuple[int, ...]  # true length of each mixture
    clips: tuple[Clips, ...]  # the same by length, at the encoder's rate
    sound: Tensor | None  # (B, sources) bool: False had a bad sample, and is silenced; None: all

    @property
    def whole(self) -> Tensor | None:
        """(B,) bool: mixtures without a bad sample; None: all."""
        return None if self.sound is None else self.sound.all(-1)


@dataclass(frozen=True)
class Call:
    """One admitted call of :class:`~torch_mapss.MAPSS`."""

    estimates: Signals
    references: Signals | None  # None: they came as a bank
    bank: ReferenceBank | None  # None: still to be prepared
    attributed: tuple[int, ...]  # source of each estimate
    measures: str

    @property
    def kinds(self) -> tuple[bool, bool]:
        """Whether PS is wanted, and PM."""
        separation, match = (self.measures in ("both", kind) for kind in MEASURES[1:])
        return separation, match

    def ordered(self, order: Tensor) -> Call:
        """The call with estimates in another order: (B, S') the estimate that takes each place."""

        def taken(x: Tensor, order: Tensor) -> Tensor:
            return x[torch.arange(len(order), device=order.device).unsqueeze(-1), order]

        now = self.estimates
        clips = tuple(c._replace(waves=taken(c.waves, order[list(c.items)])) for c in now.clips)
        sound = None if now.sound is None else taken(now.sound, order)
        estimates = replace(now, waves=taken(now.waves, order), clips=clips, sound=sound)
        return replace(self, estimates=estimates)


def admit(
    mapss: MAPSS,
    estimates: Tensor,
    references: Tensor | ReferenceBank,
    attributed: object = None,
    lengths: Tensor | Sequence[int] | None = None,
    measures: str = "both",
) -> Call:
    """The gate of :class:`~torch_mapss.MAPSS`: everything about a call that can be refused.

    Args:
        mapss: whose rate, frames, ``trim`` and ``check_finite`` apply.
        estimates: (B, S', T) or (S', T) waveforms.
        references: (B, S, T) or (S, T) waveforms, or a bank made of them.
        attributed: (S',) which reference each estimate belongs to; None: all in order.
        lengths: (B,) true lengths in samples; None: T.
        measures: "both", "separation" or "match".

    Raises:
        TypeError: not tensors of a type that holds audio.
        ValueError: shapes, lengths, devices or samples that do not fit, see the message;
            ``attributed`` missing or wrong; a bank of other settings.
    """
    checks.check_choice(measures, "measures", MEASURES)
    waves = as_batch(estimates, "estimates")
    if isinstance(references, ReferenceBank):
        bank = references
        _check_bank(mapss, bank, waves, lengths, measures)
        index = checks.check_attributed(attributed, waves.shape[1], bank.sources)
        heard = _signals(mapss, waves[..., : bank.samples], "estimates", bank.lengths)
        return Call(heard, None, bank, index, measures)
    other = as_batch(references, "references")
    checks.check_devices(estimates=waves, references=other)
    check_batches(estimates, references)
    check_sources(other, references.ndim)
    index = checks.check_attributed(attributed, waves.shape[1], other.shape[1])
    waves, other = same_length(waves, other, lengths, mapss.trim)
    true = _true_lengths(mapss, lengths, other)
    with torch.no_grad():
        truth = _signals(mapss, other, "references", true)
    return Call(_signals(mapss, waves, "estimates", true), truth, None, index, measures)


@torch.inference_mode(False)  # a bank made in validation serves in training too
@torch.no_grad()
def admit_references(
    mapss: MAPSS, references: Tensor, lengths: Tensor | Sequence[int] | None, measures: str
) -> Signals:
    """The gate of ``prepare``. Arguments and errors as :func:`admit`."""
    checks.check_choice(measures, "measures", MEASURES)
    waves = as_batch(references, "references")
    check_sources(waves, references.ndim)
    return _signals(mapss, waves, "references", _true_lengths(mapss, lengths, waves))


def _signals(mapss: MAPSS, waves: Tensor, name: str, lengths: tuple[int, ...]) -> Signals:
    waves, sound = sound_waveforms(waves, name, lengths, mapss.check_finite)
    given, wanted = mapss.sample_rate, mapss.grid.sample_rate
    long = {n for n in lengths if mapss.is_long(-(-n * wanted // given))}
    clips = tuple(
        Clips(items, samples, audio.resample(_picked(waves, items, samples), given, wanted))
        for items, samples in by_length(lengths, long)
    )
    return Signals(waves, lengths, clips, sound)


def _picked(waves: Tensor, items: tuple[int, ...], samples: int) -> Tensor:
    if items == tuple(range(items[0], items[-1] + 1)):  # neighbours need no copy
        return waves[items[0] : items[-1] + 1, :, :samples]
    return devices.picked(waves, 0, items)[..., :samples]


def by_length(
    lengths: Sequence[int], long: Set[int] = frozenset()
) -> list[tuple[tuple[int, ...], int]]:
    """The items of every length, and the length: each is scored as if it were alone.

    Those of ``long`` lengths, which are scored in segments, are each on their own.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for item, length in enumerate(lengths):
        found.setdefault((length, item) if length in long else (length,), []).append(item)
    return [(tuple(items), key[0]) for key, items in found.items()]


def _true_lengths(
    mapss: MAPSS, lengths: Tensor | Sequence[int] | None, waves: Tensor
) -> tuple[int, ...]:
    return true_lengths(
        lengths,
        waves.shape[0],
        waves.shape[2],
        shortest(mapss),
        mapss.sample_rate,
        mapss.encoder.name,
    )


def shortest(mapss: MAPSS) -> int:
    """Samples, at the rate of the input, that give one frame."""
    return -(-mapss.grid.receptive_field * mapss.sample_rate // mapss.grid.sample_rate)


def _check_bank(
    mapss: MAPSS,
    bank: ReferenceBank,
    waves: Tensor,
    lengths: Tensor | Sequence[int] | None,
    measures: str,
) -> None:
    if bank.key != mapss.key:
        raise ValueError(
            "the bank was prepared by a MAPSS of other settings (encoder, layer, distortions, "
            "rate or loudness). Prepare it again with this one."
        )
    needed = MEASURES[1:] if measures == "both" else (measures,)
    if any(getattr(group, kind) is None for group in bank.groups for kind in needed):
        raise ValueError(
            f"the bank was not prepared for {measures!r}. Call prepare(references, "
            f"measures={measures!r}) or prepare both."
        )
    if waves.shape[0] != bank.batch:
        raise ValueError(
            f"estimates hold {waves.shape[0]} mixtures and the bank {bank.batch}. Pass the "
            "estimates of exactly the mixtures that were prepared, in their order."
        )
    if lengths is not None:
        checks_of = (bank.batch, bank.samples, shortest(mapss), mapss.sample_rate)
        given = true_lengths(lengths, *checks_of, mapss.encoder.name)
        if given != bank.lengths:
            raise ValueError(
                f"lengths {given} differ from those the bank was prepared with, "
                f"{bank.lengths}. Leave lengths out: the bank knows them."
            )
    longer_is_fine = mapss.trim and waves.shape[-1] >= bank.samples
    if waves.shape[-1] != bank.samples and not longer_is_fine:
        raise ValueError(unequal(waves.shape[-1], bank.samples))
    checks.check_devices(estimates=waves, bank=bank.groups[0].waveforms)


def as_batch(x: object, name: str) -> Tensor:
    """``x`` as (B, sources, T) floating point.

    Raises:
        TypeError: not a tensor, or of a type that holds no audio.
        ValueError: another rank, or empty.
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name} must be a tensor of shape {ACCEPTED}, got {type(x).__name__}. Convert it "
            "with torch.as_tensor, or use torch_mapss.evaluate for arrays and files."
        )
    checks.check_plain(x, name)
    if x.ndim not in (2, 3):
        hint = (
            " Channels are not sources: mix them down first, e.g. "
            f"{name}.mean(dim) over the channel axis."
        )
        raise ValueError(
            f"{name} must have shape {ACCEPTED}, got {tuple(x.shape)}.{hint if x.ndim == 4 else ''}"
        )
    if 0 in x.shape:
        raise ValueError(f"{name} must not be empty, got shape {tuple(x.shape)}.")
    if x.shape[-2] > x.shape[-1] and x.shape[-2] >= _LIKE_SAMPLES:
        axes = "(samples, sources)" if x.ndim == 2 else "(batch, samples, sources)"
        raise ValueError(
            f"{name} must have shape {ACCEPTED}, got {tuple(x.shape)}, which looks like {axes}. "
            f"Turn it over: {name}.mT."
        )
    waves = audio.as_waveform(x, name)
    return waves if waves.ndim == 3 else waves.unsqueeze(0)


def check_sources(references: Tensor, rank: int) -> None:
    """Raise ValueError for fewer than two references (B, S, T), given with ``rank`` axes."""
    if references.shape[1] < 2:
        raise ValueError(
            f"at least two references are needed, got {references.shape[1]}: axis {rank - 2} of "
            f"references holds the sources (shape {tuple(references.shape[3 - rank :])}). PS "
            "compares an estimate with the other sources of the mixture."
        )


def check_batches(estimates: Tensor, references: Tensor) -> None:
    """Raise ValueError unless both, as handed in, hold the same mixtures."""
    ranks = estimates.ndim == references.ndim
    if not ranks or (estimates.ndim == 3 and estimates.shape[0] != references.shape[0]):
        raise ValueError(
            "estimates (B, S', T) and references (B, S, T) must hold the same B mixtures, got "
            f"{tuple(estimates.shape)} and {tuple(references.shape)}. Nothing is broadcast."
        )


def same_length(
    estimates: Tensor, references: Tensor, lengths: object, trim: bool
) -> tuple[Tensor, Tensor]:
    """Both cut to the shorter where ``trim`` allows it.

    Raises:
        ValueError: lengths differ and may not, or ``lengths`` are given for tensors that differ.
    """
    t, u = estimates.shape[-1], references.shape[-1]
    if t != u and not trim:
        raise ValueError(unequal(t, u))
    if t != u and lengths is not None:
        raise ValueError(
            f"lengths and trim exclude each other where estimates ({t} samples) and "
            f"references ({u} samples) differ. Pad both to one length first."
        )
    shorter = min(t, u)
    return estimates[..., :shorter], references[..., :shorter]


def unequal(estimates: int, references: int) -> str:
    """The refusal of two lengths."""
    return (
        f"estimates have {estimates} samples and references {references}. They must be aligned "
        "sample by sample; if one only has a longer tail, pass trim=True to cut both to the "
        "shorter."
    )


def true_lengths(
    lengths: Tensor | Sequence[int] | None,
    batch: int,
    samples: int,
    least: int,
    sample_rate: int,
    encoder: str,
) -> tuple[int, ...]:
    """The length of every mixture in samples; ``samples`` for all by default.

    Args:
        lengths: (B,) as handed in, or None.
        batch: B.
        samples: T of the padded waveforms.
        least: shortest length that gives one frame.
        sample_rate: Hz, for the text.
        encoder: name, for the text.

    Raises:
        TypeError: not whole numbers.
        ValueError: another count than B, a length above T, or below ``least``.
    """
    true: tuple[int, ...] = (samples,) * batch
    if lengths is not None:
        true = checks.whole_numbers(lengths, "lengths")
    if len(true) != batch:
        raise ValueError(
            f"lengths must hold one length for each of the {batch} mixtures, got {len(true)}."
        )
    for item, length in enumerate(true):
        if length > samples:
            raise ValueError(
                f"lengths[{item}] is {length} but the waveforms have {samples} samples."
            )
        if length < least:
            raise ValueError(
                f"mixture {item} has {length} samples ({1000 * length / sample_rate:.1f} ms), but "
                f"one frame of encoder {encoder!r} needs at least {least} samples "
                f"({1000 * least / sample_rate:.1f} ms) at {sample_rate} Hz. Pass a longer clip."
            )
    return true


def sound_waveforms(
    waves: Tensor, name: str, lengths: Sequence[int], check: bool
) -> tuple[Tensor, Tensor | None]:
    """Refuse non-finite samples; unchecked, silence the sources that have them.

    Padding beyond a mixture's length may hold anything.

    Returns:
        The waveforms (B, sources, T), and (B, sources) bool of the sound ones (None if checked).

    Raises:
        ValueError: checked, and a sample is NaN or infinite; names item and source.
    """
    checks.check_devices(**{name: waves})
    if any(length < waves.shape[-1] for length in lengths):
        waves = _padding_cleared(waves, lengths)
    sound = waves.detach().isfinite().all(-1)
    if not check:
        return torch.where(sound.unsqueeze(-1), waves, 0.0), sound
    if not bool(sound.all()):
        item, source = (int(i) for i in (~sound).nonzero()[0])
        bad = (~waves[item, source].detach().isfinite()).nonzero()
        raise ValueError(
            f"{name} must be finite, got {len(bad)} NaN or infinite samples in item {item}, "
            f"source {source}, the first at sample {int(bad[0])}. Repair the signal or leave the "
            "item out."
        )
    return waves, None


def _padding_cleared(waves: Tensor, lengths: Sequence[int]) -> Tensor:
    samples = torch.arange(waves.shape[-1], device=waves.device)
    inside = samples < devices.placed(lengths, waves.device)[:, None, None]
    return torch.where(inside, waves, 0.0)

"""Input validation: what a user hands in becomes one record of plain waveforms.

:func:`validate` takes what a user hands to :class:`~torch_mapss.MAPSS` (types, shapes, devices,
lengths, finite samples, rates, attribution) and returns one :class:`Call` of floating-point
waveforms at the encoder's rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks, devices
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.measures import checked_measures, encoded

_LIKE_SAMPLES = 100  # an axis of so many, longer than the last, is time and not sources
ACCEPTED = "(B, S, T) or (S, T): batch, sources, samples"


class Clips(NamedTuple):
    """The mixtures of one length, ready for an encoder."""

    items: tuple[int, ...]  # their places in the batch
    samples: int  # length as handed in
    waves: Tensor  # (b, sources, T) at the encoder's rate


@dataclass(frozen=True)
class Signals:
    """Validated waveforms: floating point, without padding, finite."""

    waves: Tensor  # (B, sources, T) at the rate they came in; padding may hold anything finite
    lengths: tuple[int, ...]  # true length of each mixture
    clips: tuple[Clips, ...]  # the same by length, at the encoder's rate
    valid: Tensor | None  # (B, sources) bool: False had a bad sample, and is silenced; None: all

    @property
    def complete(self) -> Tensor | None:
        """(B,) bool: mixtures without a bad sample; None: all."""
        return None if self.valid is None else self.valid.all(-1)


@dataclass(frozen=True)
class Call:
    """One validated call of :class:`~torch_mapss.MAPSS`."""

    estimates: Signals
    references: Signals | None  # None: they came as a bank
    bank: ReferenceBank | None  # None: still to be prepared
    attributed: tuple[int, ...]  # source of each estimate
    measures: tuple[str, ...]

    @property
    def prepared(self) -> ReferenceBank:
        """The bank, which must have been prepared."""
        assert self.bank is not None, "prepare the call first"
        return self.bank

    @property
    def sources(self) -> int:
        """S."""
        if self.bank is not None:
            return self.bank.sources
        assert self.references is not None
        return self.references.waves.shape[1]

    @property
    def wants_gradient(self) -> bool:
        """Whether a graph is to be kept."""
        return self.estimates.waves.requires_grad and torch.is_grad_enabled()

    def ordered(self, order: Tensor) -> Call:
        """The call with estimates in another order: (B, S') the estimate that takes each place."""

        def taken(x: Tensor, order: Tensor) -> Tensor:
            return x[torch.arange(len(order), device=order.device).unsqueeze(-1), order]

        now = self.estimates
        clips = tuple(c._replace(waves=taken(c.waves, order[list(c.items)])) for c in now.clips)
        valid = None if now.valid is None else taken(now.valid, order)
        estimates = replace(now, waves=taken(now.waves, order), clips=clips, valid=valid)
        return replace(self, estimates=estimates)


def validate(
    config: Config,
    estimates: Tensor,
    references: Tensor | ReferenceBank,
    attributed: object = None,
    lengths: Tensor | Sequence[int] | None = None,
    measures: str | Iterable[str] | None = None,
) -> Call:
    """Everything about a call that can be refused.

    Args:
        config: whose rate, frames, ``trim`` and ``check_finite`` apply.
        estimates: (B, S', T) or (S', T) waveforms.
        references: (B, S, T) or (S, T) waveforms, or a bank made of them.
        attributed: (S',) which reference each estimate belongs to; None: all in order.
        lengths: (B,) true lengths in samples; None: T.
        measures: a name or several; None: those of the settings that the bank has.

    Raises:
        TypeError: not tensors of a type that holds audio.
        ValueError: shapes, lengths, devices or samples that do not fit, see the message;
            ``attributed`` missing or wrong; a bank of other settings; gradients of clips that are
            scored in segments.
    """
    waves = as_batch(estimates, "estimates")
    bank = references if isinstance(references, ReferenceBank) else None
    if isinstance(references, ReferenceBank):
        wanted = _measures_of_bank(config, references, measures)
        _check_bank(config, references, wanted, waves, lengths)
        index = checks.check_attributed(attributed, waves.shape[1], references.sources)
        true, truth = references.lengths, None
        waves = waves[..., : references.samples]
    else:
        wanted = config.measures if measures is None else checked_measures(measures)
        other = as_batch(references, "references")
        checks.check_devices(estimates=waves, references=other)
        check_batches(estimates, references)
        check_sources(other, references.ndim)
        index = checks.check_attributed(attributed, waves.shape[1], other.shape[1])
        waves, other = same_length(waves, other, lengths, config.trim)
        true = _true_lengths(config, lengths, *other.shape[::2])
        with torch.no_grad():
            truth = _signals(config, other, "references", true)
    call = Call(_signals(config, waves, "estimates", true), truth, bank, index, wanted)
    if call.wants_gradient and any(_is_long(config, length) for length in true):
        raise ValueError(
            "scores of clips longer than a segment have no gradient, and the estimates require "
            "one. Cut the clips, score under torch.no_grad(), or use a MAPSS with segment=None."
        )
    return call


@torch.inference_mode(False)  # a bank made in validation serves in training too
@torch.no_grad()
def validate_references(
    config: Config, references: Tensor, lengths: Tensor | Sequence[int] | None
) -> Signals:
    """The same of ``prepare``. Arguments and errors as :func:`validate`."""
    waves = as_batch(references, "references")
    check_sources(waves, references.ndim)
    true = _true_lengths(config, lengths, *waves.shape[::2])
    return _signals(config, waves, "references", true)


def _signals(config: Config, waves: Tensor, name: str, lengths: tuple[int, ...]) -> Signals:
    waves, valid = valid_waveforms(waves, name, lengths, config.check_finite)
    rates = config.sample_rate, config.grid.sample_rate
    by_length: dict[tuple[int, ...], list[int]] = {}
    for item, length in enumerate(lengths):  # each is scored as if it were alone
        alone = (item,) if _is_long(config, length) else ()
        by_length.setdefault((length, *alone), []).append(item)
    clips = tuple(
        Clips(tuple(items), samples, audio.resample(_picked(waves, items, samples), *rates))
        for (samples, *_), items in by_length.items()
    )
    return Signals(waves, lengths, clips, valid)


def _is_long(config: Config, samples: int) -> bool:
    return config.is_long(-(-samples * config.grid.sample_rate // config.sample_rate))


def _picked(waves: Tensor, items: Sequence[int], samples: int) -> Tensor:
    if list(items) == list(range(items[0], items[-1] + 1)):  # neighbours need no copy
        return waves[items[0] : items[-1] + 1, :, :samples]
    return devices.picked(waves, 0, items)[..., :samples]


def _true_lengths(
    config: Config, lengths: Tensor | Sequence[int] | None, batch: int, samples: int
) -> tuple[int, ...]:
    """The length of every mixture in samples; ``samples`` for all by default.

    Raises:
        TypeError: not whole numbers.
        ValueError: another count than B, a length above T, or one too short for a frame.
    """
    true: tuple[int, ...] = (samples,) * batch
    if lengths is not None:
        true = checks.whole_numbers(lengths, "lengths")
    if len(true) != batch:
        raise ValueError(
            f"lengths must hold one length for each of the {batch} mixtures, got {len(true)}."
        )
    least, rate = config.shortest, config.sample_rate
    for item, length in enumerate(true):
        if length > samples:
            raise ValueError(
                f"lengths[{item}] is {length} but the waveforms have {samples} samples."
            )
        if length < least:
            raise ValueError(
                f"mixture {item} has {length} samples ({1000 * length / rate:.1f} ms), but one "
                f"frame of encoder {config.encoders['encoder'].name!r} needs at least {least} "
                f"samples ({1000 * least / rate:.1f} ms) at {rate} Hz. Pass a longer clip."
            )
    return true


def _measures_of_bank(
    config: Config, bank: ReferenceBank, measures: str | Iterable[str] | None
) -> tuple[str, ...]:
    """Those asked for; by default those of the settings that the bank was prepared for.

    Raises:
        ValueError: one that it was not prepared for.
    """
    if measures is None:
        free = {*config.measures} - {measure.name for measure in encoded(config.measures)}
        found = tuple(name for name in config.measures if name in bank.measures or name in free)
        if not found:
            raise ValueError(
                f"the bank was prepared for {', '.join(bank.measures)}, and this MAPSS computes "
                f"{', '.join(config.measures)}. Pass measures=, or prepare the bank with this one."
            )
        return found
    wanted = checked_measures(measures)
    missing = [m.name for m in encoded(wanted) if m.name not in bank.measures]
    if missing:
        raise ValueError(
            f"the bank was not prepared for {', '.join(map(repr, missing))} but for "
            f"{', '.join(bank.measures)}. Call prepare(references, measures={wanted!r})."
        )
    return wanted


def _check_bank(
    config: Config,
    bank: ReferenceBank,
    measures: Sequence[str],
    waves: Tensor,
    lengths: Tensor | Sequence[int] | None,
) -> None:
    # "bleed" has the settings that all measures share.
    compared = [("bleed", bank.measures[0]), *((m, m) for m in measures if m in bank.settings)]
    for measure, name in compared:
        here, there = config.bank_settings(measure), bank.settings[name]
        unlike = [
            f"{n} {there.get(n)!r}, here {here[n]!r}" for n in here if here[n] != there.get(n)
        ]
        if unlike:
            raise ValueError(
                f"the bank was prepared for {name} with other settings: {'; '.join(unlike)}. "
                "Prepare it again with this MAPSS, or score with the one that made it."
            )
    if waves.shape[0] != bank.batch:
        raise ValueError(
            f"estimates hold {waves.shape[0]} mixtures and the bank {bank.batch}. Pass the "
            "estimates of exactly the mixtures that were prepared, in their order."
        )
    if lengths is not None:
        given = _true_lengths(config, lengths, bank.batch, bank.samples)
        if given != bank.lengths:
            raise ValueError(
                f"lengths {given} differ from those the bank was prepared with, "
                f"{bank.lengths}. Leave lengths out: the bank has them."
            )
    longer_is_fine = config.trim and waves.shape[-1] >= bank.samples
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
            f"Transpose it: {name}.mT."
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
    """The message for two lengths that differ."""
    return (
        f"estimates have {estimates} samples and references {references}. They must be aligned "
        "sample by sample; if one only has a longer tail, pass trim=True to cut both to the "
        "shorter."
    )


def valid_waveforms(
    waves: Tensor, name: str, lengths: Sequence[int], check: bool
) -> tuple[Tensor, Tensor | None]:
    """Refuse non-finite samples; unchecked, silence the sources that have them.

    Padding beyond a mixture's length may hold anything.

    Returns:
        The waveforms (B, sources, T), and (B, sources) bool of the valid ones (None if checked).

    Raises:
        ValueError: checked, and a sample is NaN or infinite; names item and source.
    """
    checks.check_devices(**{name: waves})
    if any(length < waves.shape[-1] for length in lengths):
        waves = _padding_cleared(waves, lengths)
    valid = waves.detach().isfinite().all(-1)
    if not check:
        return torch.where(valid.unsqueeze(-1), waves, 0.0), valid
    if not bool(valid.all()):
        item, source = (int(i) for i in (~valid).nonzero()[0])
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

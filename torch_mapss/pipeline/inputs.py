"""Input validation: what a user hands in becomes one record of plain waveforms.

:func:`validate` takes what a user hands to :class:`~torch_mapss.MAPSS` (types, shapes, devices,
lengths, finite samples, rates, attribution) and returns one :class:`Call` of floating-point
waveforms at the encoder's rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks, devices
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.measures import checked_measures, with_encoder

PIT = ("si_sdr",)
_LIKE_SAMPLES = 100  # an axis of so many, longer than the last, is time and not sources


class Clips(NamedTuple):
    """The mixtures of one length, ready for an encoder."""

    items: tuple[int, ...]  # their places in the batch
    samples: int  # length as handed in
    waves: Tensor  # (b, sources, T) at the encoder's rate
    valid: Tensor  # (b, sources) bool; False: had a NaN or infinite sample, and was zeroed


class Signals(NamedTuple):
    """Validated waveforms: floating point, without padding, finite."""

    waves: Tensor  # (B, sources, T) at the rate they came in; zeros in the padding
    clips: tuple[Clips, ...]  # the same by length, at the encoder's rate


class Call(NamedTuple):
    """One validated call of :class:`~torch_mapss.MAPSS`."""

    estimates: Signals
    references: Signals | None  # None: they came as a bank
    bank: ReferenceBank | None  # None: still to be prepared
    attributed: tuple[int, ...]  # source of each estimate
    measures: tuple[str, ...]
    order: Tensor | None = None  # (B, S') with PIT: the estimate that stands in each place

    @property
    def sources(self) -> int:
        """S."""
        return self.prepared.sources if self.references is None else self.references.waves.shape[1]

    @property
    def prepared(self) -> ReferenceBank:
        """The bank, which must have been prepared."""
        assert self.bank is not None, "prepare the call first"
        return self.bank

    @property
    def wants_gradient(self) -> bool:
        """Whether a graph is recorded."""
        return self.estimates.waves.requires_grad and torch.is_grad_enabled()

    def signs(self, number: int) -> Tensor:
        """(b, S', 1) -1 for estimates of a length whose correlation with theirs is negative."""
        own = devices.picked(self.prepared.groups[number].waves, 1, self.attributed)
        products = self.estimates.clips[number].waves.detach() * own
        return torch.where(products.sum(-1, keepdim=True) < 0.0, -1.0, 1.0)

    def pairs(self) -> Iterator[tuple[Clips, Tensor]]:
        """For each length: the estimates, and all references (b, S, T) at the encoder's rate."""
        if self.references is not None and self.bank is None:
            held = [clips.waves for clips in self.references.clips]
        else:
            held = [group.waves for group in self.prepared.groups]
        for clips, waves in zip(self.estimates.clips, held):
            yield clips, waves.to(clips.waves.dtype)

    def ordered(self, order: Tensor) -> Call:
        """The call with estimates in another order: (B, S') the estimate that takes each place."""
        waves, clips = self.estimates
        orders = (order[list(each.items)] for each in clips)
        new = (
            each._replace(waves=taken(each.waves, own), valid=taken(each.valid, own))
            for each, own in zip(clips, orders)
        )
        estimates = Signals(taken(waves, order), tuple(new))
        return self._replace(estimates=estimates, order=order)


def taken(x: Tensor, order: Tensor) -> Tensor:
    """(B, S', ...) with the sources of every mixture in the ``order`` (B, S')."""
    return x[torch.arange(len(order), device=order.device).unsqueeze(-1), order]


def validate(
    config: Config,
    estimates: Tensor,
    references: Tensor | ReferenceBank,
    attributed: object = None,
    lengths: Tensor | Sequence[int] | None = None,
    measures: str | Iterable[str] | None = None,
    frames: int | None = None,
) -> Call:
    """Check a call, and group its waveforms by length.

    Args:
        config: whose rate, frames, ``trim`` and ``check_finite`` apply.
        estimates: (B, S', T) or (S', T) waveforms.
        references: (B, S, T) or (S, T) waveforms, or a bank made of them.
        attributed: (S',) which reference each estimate belongs to; None: all in order.
        lengths: (B,) true lengths in samples; None: T.
        measures: a name or several; None: those of the settings that the bank has.
        frames: how many are scored at most; None: all.

    Raises:
        TypeError: not tensors of a type that holds audio.
        ValueError: shapes, lengths, devices or samples that do not fit, see the message;
            ``attributed`` missing or wrong; a bank of other settings; measures that the settings
            cannot compute, of so many sources or of so long a clip; gradients of clips that are
            scored in segments.
    """
    if frames is not None:
        checks.check_whole(frames, "frames", 1)
    waves = as_batch(estimates, "estimates")
    bank, other, truth = None, None, None
    if isinstance(references, ReferenceBank):
        bank, sources, samples = references, references.sources, references.samples
        wanted = _measures_of_bank(config, bank, measures)
        _check_bank(config, bank, wanted, waves)
    else:
        other = _references(references)
        _, sources, samples = other.shape
        shapes = tuple(estimates.shape), tuple(references.shape)
        wanted = config.measures if measures is None else checked_measures(measures)
        checks.check_devices(estimates=waves, references=other)
        if len(shapes[0]) != len(shapes[1]) or len(waves) != len(other):
            raise ValueError(
                "estimates (B, S', T) and references (B, S, T) must hold the same B mixtures, got "
                f"{shapes[0]} and {shapes[1]}. Nothing is broadcast."
            )
    if waves.shape[-1] != samples:
        _check_trim(config, waves.shape[-1], samples, lengths, bank is not None)
        samples = min(waves.shape[-1], samples)
        waves = waves[..., :samples]
    true = _true_lengths(config, lengths, len(waves), samples, bank)
    index = checks.check_attributed(attributed, waves.shape[1], sources)
    config.check(wanted, sources, max(true))
    if other is not None:
        with torch.no_grad():
            truth = _signals(config, other[..., :samples], "references", true)
    call = Call(_signals(config, waves, "estimates", true), truth, bank, index, wanted)
    if call.wants_gradient and any(config.is_long(length) for length in true):
        raise ValueError(
            "scores of clips longer than a segment have no gradient, and the estimates require "
            "one. Cut the clips, score under torch.no_grad(), or use a MAPSS with segment=None."
        )
    return call


@torch.inference_mode(False)  # a bank made in validation serves in training too
@torch.no_grad()
def validate_references(
    config: Config,
    references: Tensor,
    lengths: Tensor | Sequence[int] | None,
    measures: Sequence[str],
) -> Signals:
    """Check the arguments of :meth:`MAPSS.prepare`; they and errors are as in :func:`validate`."""
    waves = _references(references)
    true = _true_lengths(config, lengths, *waves.shape[::2])
    config.check(measures, waves.shape[1], max(true))
    return _signals(config, waves, "references", true)


def valid_waveforms(
    waves: Tensor, name: str, lengths: Sequence[int], check: bool
) -> tuple[Tensor, Tensor]:
    """Refuse non-finite samples, or (without ``check``) zero the sources that have them.

    Padding beyond a mixture's length may hold anything.

    Returns:
        The waveforms (B, sources, T), and (B, sources) bool of the valid ones.

    Raises:
        ValueError: checked, and a sample is NaN or infinite; names item and source.
    """
    checks.check_devices(**{name: waves})
    if any(length < waves.shape[-1] for length in lengths):
        samples = torch.arange(waves.shape[-1], device=waves.device)
        inside = samples < devices.placed(lengths, waves.device)[:, None, None]
        waves = torch.where(inside, waves, 0.0)
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
    return waves, valid


def _signals(config: Config, waves: Tensor, name: str, lengths: tuple[int, ...]) -> Signals:
    waves, valid = valid_waveforms(waves, name, lengths, config.check_finite)
    rates = config.sample_rate, config.grid.sample_rate
    by_length: dict[tuple[int, ...], list[int]] = {}
    for item, length in enumerate(lengths):  # each is scored as if it were alone
        alone = (item,) if config.is_long(length) else ()
        by_length.setdefault((length, *alone), []).append(item)
    clips = []
    for (samples, *_), items in by_length.items():
        neighbours = items == list(range(items[0], items[-1] + 1))  # which need no copy
        some = waves[items[0] : items[-1] + 1] if neighbours else devices.picked(waves, 0, items)
        resampled = audio.resample(some[..., :samples], *rates)
        clips.append(Clips(tuple(items), samples, resampled, devices.picked(valid, 0, items)))
    return Signals(waves, tuple(clips))


# ------------------------------------------------------------------------------------------------
# Shapes and lengths
# ------------------------------------------------------------------------------------------------


def as_batch(x: object, name: str) -> Tensor:
    """``x`` as (B, sources, T) floating point.

    Raises:
        TypeError: not a tensor, or of a type that holds no audio.
        ValueError: another rank, empty, or with time before the sources.
    """
    accepted = "(B, S, T) or (S, T): batch, sources, samples"
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name} must be a tensor of shape {accepted}, got {type(x).__name__}. Convert it "
            "with torch.as_tensor, or use torch_mapss.evaluate for arrays and files."
        )
    checks.check_plain(x, name)
    hint = None if x.ndim in (2, 3) else "."
    if x.ndim == 4:
        hint = f". Channels are not sources: mix them down first, e.g. {name}.mean(channel_axis)."
    elif 0 in x.shape:
        hint = ", which is empty."
    elif x.ndim in (2, 3) and x.shape[-2] > x.shape[-1] and x.shape[-2] >= _LIKE_SAMPLES:
        axes = "(samples, sources)" if x.ndim == 2 else "(batch, samples, sources)"
        hint = f", which looks like {axes}. Transpose it: {name}.mT."
    if hint is not None:
        raise ValueError(f"{name} must have shape {accepted}, got {tuple(x.shape)}{hint}")
    waves = audio.as_waveform(x, name)
    return waves if waves.ndim == 3 else waves.unsqueeze(0)


def _references(references: Tensor) -> Tensor:
    waves = as_batch(references, "references")
    if waves.shape[1] < 2:
        raise ValueError(
            f"at least two references are needed, got {waves.shape[1]}: axis {references.ndim - 2} "
            f"of references holds the sources (shape {tuple(references.shape)}). The measures "
            "compare an estimate with the other sources of the mixture."
        )
    return waves


def _check_trim(
    config: Config, estimates: int, references: int, lengths: object, bank: bool
) -> None:
    """Raise ValueError unless waveforms of two lengths may be cut to the shorter."""
    if not config.trim or (bank and estimates < references):
        raise ValueError(
            f"estimates have {estimates} samples and {'the bank' if bank else 'references'} "
            f"{references}. They must be aligned sample by sample; if one only has a longer tail, "
            "pass trim=True to cut both to the shorter. A bank is not cut: prepare it anew."
        )
    if lengths is not None and not bank:
        raise ValueError(
            f"lengths and trim exclude each other where estimates ({estimates} samples) and "
            f"references ({references} samples) differ. Pad both to one length first."
        )


def _true_lengths(
    config: Config,
    lengths: Tensor | Sequence[int] | None,
    batch: int,
    samples: int,
    bank: ReferenceBank | None = None,
) -> tuple[int, ...]:
    """The length of every mixture in samples; by default the bank's, or ``samples`` for all.

    Raises:
        TypeError: not whole numbers.
        ValueError: another count than B, a length above T, one too short for a frame, or another
            one than in the bank.
    """
    true = (samples,) * batch if bank is None else bank.lengths
    if lengths is not None:
        true = checks.whole_numbers(lengths, "lengths")
    if len(true) != batch or max(true) > samples:
        raise ValueError(
            f"lengths must hold one length of at most {samples} samples for each of the {batch} "
            f"mixtures, got {true}."
        )
    if bank is not None and true != bank.lengths:
        raise ValueError(
            f"lengths {true} differ from those the bank was prepared with, {bank.lengths}. Leave "
            "lengths out: the bank has them."
        )
    grid, rate, shortest = config.grid, config.sample_rate, min(true)
    least = -(-grid.receptive_field * rate // grid.sample_rate)  # samples of one frame
    if shortest < least:
        widest = max(config.encoders.values(), key=lambda slot: slot.frames.receptive_field)
        raise ValueError(
            f"estimates and references: mixture {true.index(shortest)} has {shortest} samples "
            f"({1000 * shortest / rate:.1f} ms), but one frame of encoder {widest.name!r} needs at "
            f"least {least} samples ({1000 * least / rate:.1f} ms) at {rate} Hz. Pass longer clips."
        )
    return true


# ------------------------------------------------------------------------------------------------
# Banks
# ------------------------------------------------------------------------------------------------


def _measures_of_bank(
    config: Config, bank: ReferenceBank, measures: str | Iterable[str] | None
) -> tuple[str, ...]:
    """Those asked for; by default those of the settings that the bank was prepared for."""
    wanted = config.measures if measures is None else checked_measures(measures)
    missing = [m.name for m in with_encoder(wanted) if m.name not in bank.measures]
    found = tuple(name for name in wanted if name not in missing)
    if not found or (missing and measures is not None):
        raise ValueError(
            f"the bank was prepared for {', '.join(bank.measures)} and not for "
            f"{', '.join(map(repr, missing))}. Pass measures= to the call, or call "
            f"prepare(references, measures={wanted!r})."
        )
    return found


def _check_bank(
    config: Config, bank: ReferenceBank, measures: Sequence[str], waves: Tensor
) -> None:
    made = bank.settings["measures"]  # "bleed" needs no preparing
    there = {**bank.settings, "measures": {name: made.get(name, {}) for name in measures}}
    unlike = [
        f"{name} {was!r}, here {now!r}"
        for name, was, now in checks.differing(there, config.bank_settings(measures))
    ]
    if unlike:
        raise ValueError(
            f"the bank was prepared with other settings: {'; '.join(unlike)}. Prepare it again "
            "with this MAPSS, or score with the one that made it."
        )
    if len(waves) != bank.batch:
        raise ValueError(
            f"estimates hold {len(waves)} mixtures and the bank {bank.batch}. Pass the estimates "
            "of exactly the mixtures that were prepared, in their order."
        )
    checks.check_devices(estimates=waves, bank=bank.groups[0].waves)


# ------------------------------------------------------------------------------------------------
# Outputs in any order
# ------------------------------------------------------------------------------------------------


def check_pit(
    pit: str | None, attributed: Sequence[int] | None, choices: Sequence[str] = PIT
) -> str | None:
    """``pit``, one of ``choices`` or None.

    Raises:
        ValueError: something else, or the source of every estimate is given as well.
    """
    if pit is None:
        return None
    checks.check_choice(pit, "pit", choices)
    if attributed is not None:
        raise ValueError(
            f"pit={pit!r} looks for the source of every estimate, and attributed={attributed} "
            "states it. Leave one of them out."
        )
    return pit


def check_permutable(call: Call, pit: str) -> None:
    """Raise ValueError unless there is one estimate per reference, and none is attributed."""
    if call.attributed != tuple(range(call.sources)):
        raise ValueError(
            f"pit={pit!r} needs one estimate per reference and no attribution, got "
            f"attributed={call.attributed} of {call.sources} sources. Leave pit out where the "
            "source of an estimate is known."
        )


@torch.no_grad()
def best_order(call: Call) -> Tensor:
    """The estimate that stands for each reference, by the largest total SI-SDR of a mixture.

    Args:
        call: validated, one estimate per reference.

    Returns:
        (B, S) int64 on the device of the estimates. A silent reference takes what the others
        leave.
    """
    order = torch.empty(call.estimates.waves.shape[:2], dtype=torch.int64)
    for clips, references in call.pairs():
        best = audio.match_sources(clips.waves, references)
        order[list(clips.items)] = best.argsort(-1).cpu()
    return order.to(call.estimates.waves.device)


def in_order(
    config: Config,
    estimates: Tensor,
    references: Tensor | ReferenceBank,
    lengths: Tensor | Sequence[int] | None,
    measures: Iterable[str],
    pit: str,
) -> Tensor:
    """Estimates in the order of their references, (B, S, T) or (S, T) as they came.

    Raises:
        TypeError, ValueError: input that cannot be scored, or not one estimate per reference.
    """
    call = validate(config, estimates, references, None, lengths, measures)
    check_permutable(call, pit)
    batch = estimates.reshape(-1, *estimates.shape[-2:])
    return taken(batch, best_order(call)).reshape(estimates.shape)

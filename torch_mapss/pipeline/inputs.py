"""Checks of a user's input: waveforms, their shapes and lengths, banks of references."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks, devices
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.measures import checked_measures, with_encoder

PIT = ("si_sdr",)
# PIT over the loss scores every permutation: 24 of them for 4 sources.
MOST_PERMUTED = 4
_LIKE_SAMPLES = 100  # an axis at least this long, and longer than the last one, must be time


# ------------------------------------------------------------------------------------------------
# Samples
# ------------------------------------------------------------------------------------------------


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
        inside = samples < devices.upload(lengths, waves.device)[:, None, None]
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


def resampled(
    config: Config, waves: Tensor, lengths: Sequence[int], groups: Iterable[Sequence[int]]
) -> tuple[Tensor, ...]:
    """Cut waveforms to their lengths and bring them to the encoder's rate, group by group.

    Args:
        config: settings of the scorer.
        waves: (B, sources, T), finite.
        lengths: (B,) true lengths in samples.
        groups: indices of the items in each group, which share a length.

    Returns:
        Waveforms (b, sources, T) of each group.
    """
    of_groups = []
    for items in groups:
        samples = lengths[items[0]]
        stretch = slice(items[0], items[-1] + 1)
        adjacent = tuple(items) == tuple(range(items[0], items[-1] + 1))  # needs no copy
        same_length = waves[stretch] if adjacent else devices.select(waves, items, 0)
        cut = same_length[..., :samples]
        of_groups.append(audio.resample(cut, config.sample_rate, config.grid.sample_rate))
    return tuple(of_groups)


# ------------------------------------------------------------------------------------------------
# Shapes and lengths
# ------------------------------------------------------------------------------------------------


def as_batch(x: object, name: str) -> Tensor:
    """``x`` as (B, sources, T) floating point; ``name`` is "estimates" or "references".

    Raises:
        TypeError: not a tensor, or of a dtype that cannot hold audio.
        ValueError: of another rank, empty, or with time before the sources; fewer than two
            references.
    """
    accepted = "(B, S, T) or (S, T): batch, sources, samples"
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name} must be a tensor of shape {accepted}, got {type(x).__name__}. Convert it "
            "with torch.as_tensor, or use torch_mapss.evaluate for arrays and files."
        )
    waves = x if x.ndim == 0 else audio.as_waveform(x, name)  # a single number is refused below
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
    if name == "references" and waves.shape[-2] < 2:
        raise ValueError(
            f"at least two references are needed, got {waves.shape[-2]}: axis {x.ndim - 2} "
            f"of references holds the sources (shape {tuple(x.shape)}). The measures "
            "compare an estimate with the other sources of the mixture."
        )
    return waves if waves.ndim == 3 else waves.unsqueeze(0)


def check_trim(
    config: Config, samples: int, references: Tensor | ReferenceBank, lengths: object
) -> None:
    """Raise ValueError unless estimates and references may be cut to the shorter length.

    Args:
        config: settings of the scorer, with ``trim``.
        samples: length of the estimates.
        references: references of another length.
        lengths: the user's argument.
    """
    is_bank = isinstance(references, ReferenceBank)
    if isinstance(references, ReferenceBank):
        expected = references.samples
    else:
        expected = references.shape[-1]
    if not config.trim or (is_bank and samples < expected):
        raise ValueError(
            f"estimates have {samples} samples and {'the bank' if is_bank else 'references'} "
            f"{expected}. They must be aligned sample by sample; if one only has a longer tail, "
            "pass trim=True to cut both to the shorter. A bank cannot be trimmed: prepare a new "
            "one."
        )
    if lengths is not None and not is_bank:
        raise ValueError(
            f"lengths and trim exclude each other where estimates ({samples} samples) and "
            f"references ({expected} samples) differ. Pad both to one length first."
        )


def check_gradient(config: Config, lengths: Sequence[int]) -> None:
    """Raise ValueError for clips that are scored in segments, which have no gradient."""
    if any(config.is_long(length) for length in lengths):
        raise ValueError(
            "scores of clips longer than a segment have no gradient, and the estimates require "
            "one. Cut the clips, score under torch.no_grad(), or use a MAPSS with segment=None."
        )


def true_lengths(
    config: Config,
    lengths: Tensor | Sequence[int] | None,
    batch: int,
    samples: int,
    references: Tensor | ReferenceBank,
) -> tuple[int, ...]:
    """Length of each mixture in samples; by default the bank's, or ``samples`` for all.

    Raises:
        TypeError: not whole numbers.
        ValueError: not B lengths, a length above T or too short for a frame, or lengths that differ
            from the bank's.
    """
    bank = references if isinstance(references, ReferenceBank) else None
    true = (samples,) * batch if bank is None else bank.lengths
    if lengths is not None:
        true = checks.check_lengths(lengths)
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
    rate, shortest = config.sample_rate, min(true)
    least = samples_of_a_frame(config)
    if shortest < least:
        encoders = config.grid_encoders.values()
        widest = max(encoders, key=lambda encoder: encoder.frames.receptive_field)
        raise ValueError(
            f"estimates and references: mixture {true.index(shortest)} has {shortest} samples "
            f"({1000 * shortest / rate:.1f} ms), but one frame of encoder {widest.name!r} needs at "
            f"least {least} samples ({1000 * least / rate:.1f} ms) at {rate} Hz. Pass longer clips."
        )
    return true


def samples_of_a_frame(config: Config) -> int:
    """Number of samples, before resampling, that one frame needs."""
    grid = config.grid
    return -(-grid.receptive_field * config.sample_rate // grid.sample_rate)


# ------------------------------------------------------------------------------------------------
# Banks
# ------------------------------------------------------------------------------------------------


def measures_of_bank(
    config: Config, bank: ReferenceBank, measures: str | Iterable[str] | None
) -> tuple[str, ...]:
    """The measures asked for; by default all measures of the scorer that the bank has."""
    asked = config.measures if measures is None else checked_measures(measures)
    missing = [m.name for m in with_encoder(asked) if m.name not in bank.measures]
    prepared = tuple(name for name in asked if name not in missing)
    if not prepared or (missing and measures is not None):
        raise ValueError(
            f"the bank was prepared for {', '.join(bank.measures)} and not for "
            f"{', '.join(map(repr, missing))}. Pass measures= to the call, or call "
            f"prepare(references, measures={asked!r})."
        )
    return prepared


def check_bank(config: Config, bank: ReferenceBank, measures: Sequence[str], waves: Tensor) -> None:
    """Raise ValueError unless a reference bank fits the settings and the estimates (B, S', T)."""
    by_measure = bank.settings["measures"]  # "bleed" needs no preparing
    used = {name: by_measure.get(name, {}) for name in measures}
    differences = [
        f"{name} {of_bank!r}, here {of_scorer!r}"
        for name, of_bank, of_scorer in checks.differing(
            {**bank.settings, "measures": used}, config.bank_settings(measures)
        )
    ]
    if differences:
        raise ValueError(
            f"the bank was prepared with other settings: {'; '.join(differences)}. Prepare it "
            "again with this MAPSS, or score with the one that made it."
        )
    if len(waves) != bank.batch:
        raise ValueError(
            f"estimates hold {len(waves)} mixtures and the bank {bank.batch}. Pass the estimates "
            "of exactly the mixtures that were prepared, in their order."
        )
    checks.check_devices(estimates=waves, bank=bank.groups[0].waves)


# ------------------------------------------------------------------------------------------------
# Permutations of outputs
# ------------------------------------------------------------------------------------------------


def check_pit(
    pit: str | None, attributed: Sequence[int] | None, choices: Sequence[str] = PIT
) -> str | None:
    """``pit``, one of ``choices`` or None.

    Raises:
        ValueError: not a valid choice, or ``attributed`` is passed as well.
    """
    if pit is None:
        return None
    checks.check_choice(pit, "pit", choices)
    if attributed is not None:
        raise ValueError(
            f"pit={pit!r} searches for the source of every estimate, but attributed={attributed} "
            "states it. Leave one of them out."
        )
    return pit


def check_permutable(attributed: tuple[int, ...], sources: int, pit: str) -> None:
    """Raise ValueError unless estimates can be permuted.

    Args:
        attributed: (S',) source of each estimate.
        sources: S.
        pit: ``"si_sdr"``, or ``"loss"``.
    """
    if attributed != tuple(range(sources)):
        raise ValueError(
            f"pit={pit!r} needs one estimate per reference and no attribution, got "
            f"attributed={attributed} of {sources} sources. Leave pit out where the source of an "
            "estimate is known."
        )
    if pit == "loss" and sources > MOST_PERMUTED:
        raise ValueError(
            f"pit='loss' scores every permutation and takes at most {MOST_PERMUTED} sources, "
            f"got {sources}. Use pit='si_sdr'."
        )


# ------------------------------------------------------------------------------------------------
# Frames and excerpts
# ------------------------------------------------------------------------------------------------


def checked_frames(frames: int | None) -> int | None:
    """Check ``frames``: None, or a whole number of at least 1."""
    return None if frames is None else checks.check_whole(frames, "frames", 1)


def checked_excerpts(
    excerpts: Sequence[tuple[int, int]], references: Tensor
) -> list[tuple[int, int]]:
    """The excerpts of a single mixture, checked.

    Raises:
        TypeError: references are not an audio tensor, or edges are not whole numbers.
        ValueError: the excerpts do not lie in a single mixture one after another.
    """
    batch, _, samples = as_batch(references, "references").shape
    pairs: list[tuple[int, int]] = []
    for excerpt in excerpts:
        edges = checks.whole_numbers(excerpt, "excerpts")
        if len(edges) != 2:
            raise ValueError(
                "excerpts must be pairs of the first sample and the one after the last, got "
                f"{excerpt!r}."
            )
        pairs.append((edges[0], edges[1]))
    ends = [0, *(end for _, end in pairs)]
    in_order = all(end <= begin for end, (begin, _) in zip(ends, pairs))
    has_samples = all(begin < end for begin, end in pairs)
    if batch != 1 or not pairs or not in_order or not has_samples or ends[-1] > samples:
        raise ValueError(
            f"excerpts must be parts of a single mixture of {samples} samples, in order, without "
            f"overlap and none of them empty, got {list(excerpts)} for references of shape "
            f"{tuple(references.shape)}."
        )
    return pairs

"""Waveforms at the border of the pipeline: shapes, lengths, finite samples.

Each refusal says what was expected, what came and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks

ACCEPTED = "(B, S, T) or (S, T): batch, sources, samples"


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
    inside = samples < torch.tensor(lengths, device=waves.device)[:, None, None]
    return torch.where(inside, waves, 0.0)

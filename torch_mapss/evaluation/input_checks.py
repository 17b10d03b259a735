"""What about a mixture's signals makes its scores mean something else than a reader expects.

Nothing here changes a score. Each finding names the signals and says what to do: a silent output,
channels that cancel, a constant offset, a delay, a narrow band, signals that are the same or the
sum of others, outputs in another order than the references.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.audio import SILENCE_PEAK, bandwidth, estimate_lag, is_constant
from torch_mapss.evaluation.audio_input import Clip
from torch_mapss.evaluation.io import listed

#: The longest lag that is looked for, and the longest that ``align="shift"`` removes, in seconds.
LAG_SEARCH_S, LAG_LIMIT_S = 1.0, 0.5
# A peak of the cross-correlation is believed from here on. An estimate of rated separators has 0.36
# or more with its reference, a signal that has nothing to do with it about 0.1.
_LEAST_CORRELATION = 0.2
# Periodic signals have peaks at every period: another one must stand out.
_CLEARER = 1.05
_SAME_DB = 40.0  # SI-SDR of two signals that are one
_SWAP_DB, _SWAP_LEAST_DB = 3.0, -5.0  # gain of every estimate that moves; what it then must reach
_FAINT_DB = -60.0  # of an estimate beside its reference
_MUTED_DB = -80.0  # of a frame beside its estimate's peak
_CANCELLED_DB = 10.0  # lost in a downmix beyond what independent channels lose
_LOW_RATE, _LOW_BAND = 0.9, 0.85  # shares of the encoder's
_ROUNDING_S = 1e-6  # of times in seconds
# Mean of a signal beside its RMS. Sound has less: 0.01 for one second of a 40 Hz tone.
_LEAST_OFFSET = 0.03
_SUM_DB = -40.0  # what is left of a reference that is the sum of others
_BLOCK = 2**20  # samples at a time
_PART = 0.05  # least coefficient of one of the others in it


class Finding(NamedTuple):
    """One thing that a reader of the scores must know."""

    kind: str  # a word: silent, faint, channels, offset, lag, rate, band, twins, sum, same, ...
    text: str  # a sentence that names the signals and says what to do


class Signals(NamedTuple):
    """The signals of one mixture and one system, as they are scored."""

    estimates: Sequence[Clip]  # S'
    references: Sequence[Clip]  # S
    outputs: Tensor  # (S', T), before any alignment
    truth: Tensor  # (S, T)
    attributed: Sequence[int]  # S', the reference of each estimate
    mixture: Clip | None
    rate: int  # Hz, of outputs and truth
    encoder_rate: int  # Hz
    hop_s: float  # of the encoder's frames
    frame_s: float  # what one of them sees
    lags: Sequence[int | None]  # S', samples behind the reference; None: none can be told
    removed: Sequence[int]  # S', lags that are removed, by align="shift"
    moved: Tensor  # (C, S', T): the estimates of each channel, their lags removed
    channels: Tensor  # (C, S, T): the references


class Inspection(NamedTuple):
    """What was found about the signals of a mixture."""

    findings: tuple[Finding, ...]
    silent: tuple[bool, ...]  # S': no sound at all
    estimate_bands: tuple[float, ...]  # S', Hz: where the spectrum ends
    reference_bands: tuple[float, ...]  # S


def measure_lags(
    outputs: Tensor, truth: Tensor, rate: int, align: bool
) -> tuple[list[int | None], list[int]]:
    """The lag of every estimate behind its reference, and what of it is to be removed.

    Args:
        outputs: (S', T).
        truth: (S', T), the reference of each.
        rate: Hz.
        align: remove lags, if they are short enough.

    Returns:
        Samples; None where none can be told.
    """
    longest = min(round(LAG_SEARCH_S * rate), outputs.shape[-1] // 2)
    found = estimate_lag(outputs, truth, longest)
    lags: list[int | None] = []
    for samples, size, unshifted in zip(*(values.tolist() for values in found)):
        if size < _LEAST_CORRELATION:
            lags.append(None)
        else:
            lags.append(samples if size > _CLEARER * unshifted else 0)
    limit = LAG_LIMIT_S * rate
    return lags, [lag if align and lag is not None and abs(lag) <= limit else 0 for lag in lags]


def inspect(signals: Signals) -> Inspection:
    """Look a mixture's signals over."""
    silent = is_constant(signals.outputs).tolist()
    estimate_bands, reference_bands = (
        tuple(bandwidth(waves, signals.rate).tolist()) for waves in (signals.outputs, signals.truth)
    )
    look = _Look(signals, silent, reference_bands, *_products(signals))
    found = tuple(Finding(kind, text) for kind, check in _CHECKS.items() for text in check(look))
    return Inspection(found, tuple(silent), estimate_bands, reference_bands)


def muted_frames(outputs: Tensor, times: Tensor, length_s: float, rate: int) -> Tensor:
    """In which frames an estimate is muted: at least 80 dB below its own peak throughout.

    Args:
        outputs: (S', T).
        times: (F,) seconds, the centres of the frames.
        length_s: of a frame.
        rate: Hz.

    Returns:
        (S', F) bool.
    """
    peak = outputs.abs().amax(-1, keepdim=True).clamp(min=SILENCE_PEAK)
    sounds = outputs.abs() > 10 ** (_MUTED_DB / 20) * peak
    before = torch.nn.functional.pad(sounds.cumsum(-1), (1, 0))
    centres = times.to(outputs.device)
    starts = ((centres - length_s / 2) * rate).round().long().clamp(0, outputs.shape[-1])
    ends = ((centres + length_s / 2) * rate).round().long().clamp(0, outputs.shape[-1])
    return before[:, ends] == before[:, starts]


def covered_frames(
    removed: Sequence[float], times: Tensor, length_s: float, seconds: float
) -> Tensor:
    """Frames that an estimate still reaches into once its lag is removed, (S', F) bool.

    Args:
        removed: S' lags in seconds, positive: it was moved to an earlier time, so its end is gone.
        times: (F,) seconds, the centres of the frames.
        length_s: of a frame.
        seconds: of the signals.
    """
    lags = torch.tensor(removed, dtype=times.dtype, device=times.device).unsqueeze(-1)
    first, last = times - length_s / 2, times + length_s / 2
    return (first >= -lags - _ROUNDING_S) & (last <= seconds - lags + _ROUNDING_S)


# ------------------------------------------------------------------------------------------------
# What the checks look at
# ------------------------------------------------------------------------------------------------


class _Look(NamedTuple):
    """The signals, and what is measured of them once for all checks.

    Rows of what follows are the estimates, the references, their sum and, if it is long enough,
    the mixture.
    """

    signals: Signals
    silent: Sequence[bool]  # S'
    bands: Sequence[float]  # S, Hz: where the spectra of the references end
    means: Tensor  # (n,)
    power: Tensor  # (n,) mean square
    gram: Tensor  # (n, n) inner products without the means, each over its two norms

    @property
    def estimates(self) -> list[tuple[int, Clip, int]]:
        """Row and clip of each estimate, and the row of its reference."""
        count, index = len(self.signals.estimates), self.signals.attributed
        return [(k, clip, count + index[k]) for k, clip in enumerate(self.signals.estimates)]

    @property
    def references(self) -> list[tuple[int, Clip]]:
        """Row and clip of each reference."""
        return list(enumerate(self.signals.references, len(self.signals.estimates)))

    @property
    def mixtures(self) -> list[tuple[int, str]]:
        """Row and name of all that is the mixture: the given one first."""
        total = len(self.signals.estimates) + len(self.signals.references)
        given = self.signals.mixture
        found = [(total + 1, f"the mixture {given.label}")] if given is not None else []
        return [*found[: len(self.means) - total - 1], (total, "the sum of the references")]

    def si_sdr(self, one: int, other: int) -> float:
        """SI-SDR of one row against another, in dB."""
        part = min(float(self.gram[one, other]) ** 2, 1.0)
        return 10 * math.log10(max(part, 1e-30) / max(1.0 - part, 1e-30))

    def same(self, one: int, other: int) -> bool:
        """Whether two rows are one signal, at whatever level."""
        return self.si_sdr(one, other) > _SAME_DB


def _products(signals: Signals) -> tuple[Tensor, Tensor, Tensor]:
    """Means, powers and inner products of all rows, see :class:`_Look`, a block at a time."""
    outputs, truth = signals.outputs, signals.truth
    samples, mixture = truth.shape[-1], []
    if signals.mixture is not None and len(signals.mixture.wave) >= samples:
        mixture = [signals.mixture.wave[None, :samples].to(truth.device)]
    width = len(outputs) + len(truth) + 1 + len(mixture)
    sums = torch.zeros(width, dtype=torch.float64)
    gram = torch.zeros(width, width, dtype=torch.float64)
    for start in range(0, samples, _BLOCK):
        rows = [x[:, start : start + _BLOCK] for x in (outputs, truth, *mixture)]
        rows.insert(2, rows[1].sum(0, keepdim=True))
        block = torch.cat(rows).cpu().double()
        sums, gram = sums + block.sum(-1), gram + block @ block.T
    means, power = sums / samples, gram.diagonal() / samples
    centred = gram - samples * torch.outer(means, means)
    norms = centred.diagonal().clamp(min=0.0).sqrt()
    safe = torch.where(norms > 0, norms, 1.0)
    return means, power, centred / torch.outer(safe, safe)


def _decibels(ratio: float) -> float:
    return 20 * math.log10(max(ratio, 1e-30))


# ------------------------------------------------------------------------------------------------
# Checks: each gives a sentence for every signal it concerns
# ------------------------------------------------------------------------------------------------


def _silent(look: _Look) -> Iterator[str]:
    for row, clip, _ in look.estimates:
        if look.silent[row]:
            yield (
                f"{clip.label} is silent. It is scored all the same, or silence would pay, but "
                "with a log PM that outweighs all others in a mean: log_pm_compressed is bounded"
            )


def _faint(look: _Look) -> Iterator[str]:
    for row, clip, own in look.estimates:
        level = _decibels(math.sqrt(float(look.power[row]) / max(float(look.power[own]), 1e-60)))
        if not look.silent[row] and level < _FAINT_DB:
            yield (
                f"{clip.label} lies {-level:.0f} dB below its reference. Levels are normalised, "
                "so the little there is is scored as if it were loud: is it meant to be silent?"
            )


def _channels(look: _Look) -> Iterator[str]:
    clips = {clip.label: clip for clip in (*look.signals.references, *look.signals.estimates)}
    for label, clip in clips.items():
        if clip.cancelled > 10 * math.log10(clip.channels) + _CANCELLED_DB:
            silence = clip.cancelled == math.inf
            left = "is silence" if silence else f"lies {clip.cancelled:.0f} dB below them"
            yield (
                f"{label}: its {clip.channels} channels cancel each other; their mean {left}, and "
                "the mean is what is scored. Turn a channel over, or hand over one of them"
            )


def _offset(look: _Look) -> Iterator[str]:
    """A constant in a signal: it makes silence active, and is a difference to the reference."""
    for row, clip in (*look.references, *((row, clip) for row, clip, _ in look.estimates)):
        mean, level = float(look.means[row]), math.sqrt(float(look.power[row]))
        if level > SILENCE_PEAK and _LEAST_OFFSET < abs(mean) / level < 1.0 - 1e-6:
            yield (
                f"{clip.label} has a constant offset of {mean:.2g} "
                f"({_decibels(abs(mean) / level):.0f} dB of its level), which counts as sound. "
                "Subtract the mean of the file"
            )


def _lag(look: _Look) -> Iterator[str]:
    rate, hop = look.signals.rate, look.signals.hop_s
    for row, clip, own in look.estimates:
        lag = look.signals.lags[row]
        if lag is None or look.signals.removed[row] or abs(lag) <= hop * rate:
            continue
        size, way = abs(lag) / rate, "late" if lag > 0 else "early"
        hint = '--align (align="shift") removes it'
        if size > LAG_LIMIT_S:
            hint = f"more than the {1000 * LAG_LIMIT_S:.0f} ms that --align removes: cut the file"
        yield (
            f"{clip.label} is {1000 * size:.1f} ms {way} against {dict(look.references)[own].label}"
            f", more than a frame of {1000 * hop:.0f} ms. Delay counts as distortion; {hint}"
        )


def _rate(look: _Look) -> Iterator[str]:
    wanted = look.signals.encoder_rate
    clips = (*look.signals.references, *look.signals.estimates)
    low = {clip.label: clip.rate for clip in clips if clip.rate < _LOW_RATE * wanted}
    if low:
        yield (
            f"sampled at {min(low.values())} Hz, below the encoder's {wanted} Hz: "
            f"{listed(low, 3)}. {_narrow(min(low.values()) / 2)}"
        )


def _band(look: _Look) -> Iterator[str]:
    """A band that ends early in all references: one dull source among others is no such case."""
    widest, full = max(look.bands), look.signals.encoder_rate / 2
    if 0 < widest < _LOW_BAND * full and not any(_rate(look)):
        yield (
            f"nothing above {widest / 1000:.1f} kHz in any reference of "
            f"{listed((clip.label for clip in look.signals.references), 3)}, though the encoder "
            f"receives up to {full / 1000:g} kHz. {_narrow(widest)}"
        )


def _narrow(edge: float) -> str:
    return (
        f"There is nothing to score above {edge / 1000:.1f} kHz, and scores come out higher than "
        "at full band: compare them with scores of the same band only"
    )


def _twins(look: _Look) -> Iterator[str]:
    """Signals that are there twice, at whatever level, among the estimates or the references."""
    outputs = [(row, clip) for row, clip, _ in look.estimates]
    for kind, clips in (("estimates", outputs), ("references", look.references)):
        for (row, clip), (other, twin) in itertools.combinations(clips, 2):
            if look.same(row, other):
                yield (
                    f"{kind} {clip.label} and {twin.label} are the same signal. Hand over one "
                    "signal per source"
                )


def _sum(look: _Look) -> Iterator[str]:
    """References that are the sum of others, or the mixture: by least squares on the others."""
    used = {row: clip for row, clip in look.references if float(look.gram[row, row]) > 0.5}
    for row, clip in used.items():
        rest = [other for other in used if other != row]
        if len(rest) < 2:
            continue
        gram, own = look.gram[rest][:, rest], look.gram[rest, row]
        weights = torch.linalg.lstsq(gram, own.unsqueeze(-1)).solution.squeeze(-1)
        parts = [used[k].name for k, weight in zip(rest, weights.tolist()) if weight > _PART]
        # With a negative weight it is another one that is the sum.
        negative = bool((weights < -_PART).any())
        if 1.0 - float(own @ weights) < 10 ** (_SUM_DB / 10) and len(parts) > 1 and not negative:
            others = " ".join(one.name for k, one in look.references if k != row)
            yield (
                f"reference {clip.label} is the sum of {' and '.join(parts)}: it is no source of "
                "its own, and what all share lowers the scores. Leave it out: --sources "
                f"{others}"
            )


def _same(look: _Look) -> Iterator[str]:
    """Estimates that are their reference, sample by sample."""
    truth = look.signals.truth[list(look.signals.attributed)]
    alike = (look.signals.outputs == truth).all(-1).tolist()
    labels = [clip.label for row, clip, _ in look.estimates if alike[row] and not look.silent[row]]
    if labels:
        yield (
            f"{listed(labels, 3)}: the same as the reference, sample by sample. Was the folder of "
            "the references handed over as a system? As a hidden reference it is fine"
        )


def _mixture(look: _Look) -> Iterator[str]:
    """Estimates and references that are the mixture, as given or as the sum of references."""
    (given, name), (total, _) = look.mixtures[0], look.mixtures[-1]
    for row, clip in look.references:
        if given != total and look.same(row, given) and not look.same(row, total):
            yield (
                f"reference {clip.label} is {name} itself, which is no source. Leave it out with "
                "--sources"
            )
    for row, clip, own in look.estimates:
        # One source may be all that is heard of a mixture: its estimate is then both.
        found = [n for k, n in look.mixtures if look.same(row, k) and not look.same(own, k)]
        if found:
            yield (
                f"estimate {clip.label} is {found[0]} itself. Was an output mistaken for it? As a "
                "baseline it is fine"
            )


def _order(look: _Look) -> Iterator[str]:
    """Estimates that fit another reference each, all of them better by SI-SDR."""
    from scipy.optimize import linear_sum_assignment

    clips = dict(look.references)
    if len(look.estimates) > len(clips):
        return
    levels = [[look.si_sdr(row, other) for other in clips] for row, *_ in look.estimates]
    best = [min(clips) + k for k in linear_sum_assignment(levels, maximize=True)[1].tolist()]
    moved = [(row, clip, own, best[row]) for row, clip, own in look.estimates if best[row] != own]
    gains = [look.si_sdr(row, new) - look.si_sdr(row, own) for row, _, own, new in moved]
    reached = all(look.si_sdr(row, new) > _SWAP_LEAST_DB for row, *_, new in moved)
    if moved and reached and min(gains) > _SWAP_DB:
        pairs = ", ".join(
            f"{clip.label} fits {clips[new].label} by {gain:.0f} dB better"
            for (_, clip, _, new), gain in zip(moved, gains)
        )
        yield (
            f"estimates fit other references better than their own: {pairs} (SI-SDR). If they are "
            "in another order than the references, reorder them, or pass --permute "
            '(permute=True; in metrics and losses pit="si_sdr")'
        )


_CHECKS: dict[str, Callable[[_Look], Iterator[str]]] = {
    "silent": _silent,
    "faint": _faint,
    "channels": _channels,
    "offset": _offset,
    "lag": _lag,
    "rate": _rate,
    "band": _band,
    "twins": _twins,
    "sum": _sum,
    "same": _same,
    "mixture": _mixture,
    "order": _order,
}

"""What about a mixture's signals makes its scores mean something else than a reader expects.

Nothing here changes a score. Each finding names the signals and says what to do: a silent output,
channels that cancel, a constant offset, a delay, a narrow band, signals that are the same or the
sum of others, outputs in another order than the references.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.audio import (
    SILENCE_PEAK,
    bandwidth,
    estimate_lag,
    is_constant,
)
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


class Lags(NamedTuple):
    """Lags of the estimates behind their references, in samples; None: none can be told."""

    found: tuple[int | None, ...]  # S'
    removed: tuple[int, ...]  # S', by align="shift"


class Signals(NamedTuple):
    """The signals of one mixture as they are scored."""

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


class Inspection(NamedTuple):
    """What was found about the signals of a mixture."""

    findings: tuple[Finding, ...]
    silent: tuple[bool, ...]  # S': no sound at all
    estimate_bands: tuple[float, ...]  # S', Hz: where the spectrum ends
    reference_bands: tuple[float, ...]  # S


def measure_lags(signals: Signals, align: bool) -> Lags:
    """The lag of every estimate, and what of it is to be removed."""
    longest = min(round(LAG_SEARCH_S * signals.rate), signals.outputs.shape[-1] // 2)
    found = estimate_lag(signals.outputs, signals.truth[list(signals.attributed)], longest)
    lags: list[int | None] = []
    for samples, size, unshifted in zip(*(values.tolist() for values in found)):
        if size < _LEAST_CORRELATION:
            lags.append(None)
        else:
            lags.append(samples if size > _CLEARER * unshifted else 0)
    limit = LAG_LIMIT_S * signals.rate
    removed = [lag if align and lag is not None and abs(lag) <= limit else 0 for lag in lags]
    return Lags(tuple(lags), tuple(removed))


def inspect(signals: Signals, lags: Lags) -> Inspection:
    """Look a mixture's signals over."""
    silent = is_constant(signals.outputs)
    bands = [bandwidth(waves, signals.rate).tolist() for waves in (signals.outputs, signals.truth)]
    found: list[Finding] = []
    found += _silent(signals, silent)
    products = _products(signals)
    found += _faint(signals, silent, products)
    found += _channels([*signals.references, *signals.estimates])
    found += _offsets(signals, products)
    found += _late(signals, lags)
    found += list(_rates(signals)) or _bands(signals, bands[1])
    found += _twins(signals, products)
    found += _sums(signals, products)
    found += _same(signals, silent)
    found += _mixtures(signals, products)
    found += _order(signals, products)
    return Inspection(tuple(found), tuple(silent.tolist()), tuple(bands[0]), tuple(bands[1]))


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
# Findings
# ------------------------------------------------------------------------------------------------


def _silent(signals: Signals, silent: Tensor) -> Iterator[Finding]:
    for clip, dead in zip(signals.estimates, silent.tolist()):
        if dead:
            yield Finding(
                "silent",
                f"{clip.label} is silent. It is scored all the same, or silence would pay, but "
                "with a log PM that outweighs all others in a mean: log_pm_compressed is bounded",
            )


def _channels(clips: Sequence[Clip]) -> Iterator[Finding]:
    told = set()
    for clip in clips:
        independent = 10 * math.log10(clip.channels)
        if clip.cancelled <= independent + _CANCELLED_DB or clip.label in told:
            continue
        told.add(clip.label)
        silence = clip.cancelled == math.inf
        left = "is silence" if silence else f"lies {clip.cancelled:.0f} dB below them"
        yield Finding(
            "channels",
            f"{clip.label}: its {clip.channels} channels cancel each other; their mean {left}, "
            "and the mean is what is scored. Turn a channel over, or hand over one of them",
        )


def _late(signals: Signals, lags: Lags) -> Iterator[Finding]:
    for clip, source, lag, removed in zip(
        signals.estimates, signals.attributed, lags.found, lags.removed
    ):
        if lag is None or removed or abs(lag) <= signals.hop_s * signals.rate:
            continue
        size = abs(lag) / signals.rate
        way = "late" if lag > 0 else "early"
        hint = (
            '--align (align="shift") removes it'
            if size <= LAG_LIMIT_S
            else f"more than the {1000 * LAG_LIMIT_S:.0f} ms that --align removes: cut the file"
        )
        yield Finding(
            "lag",
            f"{clip.label} is {1000 * size:.1f} ms {way} against "
            f"{signals.references[source].label}, more than a frame of "
            f"{1000 * signals.hop_s:.0f} ms. Delay counts as distortion; {hint}",
        )


def _rates(signals: Signals) -> Iterator[Finding]:
    low = [
        clip
        for clip in (*signals.references, *signals.estimates)
        if clip.rate < _LOW_RATE * signals.encoder_rate
    ]
    if low:
        rate = min(clip.rate for clip in low)
        names = listed(dict.fromkeys(clip.label for clip in low), 3)
        yield Finding(
            "rate",
            f"sampled at {rate} Hz, below the encoder's {signals.encoder_rate} Hz: {names}. "
            f"{_narrow(rate / 2)}",
        )


def _bands(signals: Signals, bands: Sequence[float]) -> Iterator[Finding]:
    """A band that ends early in all references: one dull source among others is no such case."""
    widest = max(bands)
    if 0 < widest < _LOW_BAND * signals.encoder_rate / 2:
        yield Finding(
            "band",
            f"nothing above {widest / 1000:.1f} kHz in any reference of "
            f"{listed((clip.label for clip in signals.references), 3)}, though the encoder "
            f"receives up to {signals.encoder_rate / 2000:g} kHz. {_narrow(widest)}",
        )


def _narrow(edge: float) -> str:
    return (
        f"There is nothing to score above {edge / 1000:.1f} kHz, and scores come out higher than "
        "at full band: compare them with scores of the same band only"
    )


def _same(signals: Signals, silent: Tensor) -> Iterator[Finding]:
    """Estimates that are their reference, sample by sample."""
    truth = signals.truth[list(signals.attributed)]
    same = (signals.outputs == truth).all(-1) & ~silent
    labels = [clip.label for clip, alike in zip(signals.estimates, same.tolist()) if alike]
    if labels:
        yield Finding(
            "same",
            f"{listed(labels, 3)}: the same as the reference, sample by sample. Was the folder of "
            "the references handed over as a system? As a hidden reference it is fine",
        )


# ------------------------------------------------------------------------------------------------
# Levels and products of all signals
# ------------------------------------------------------------------------------------------------


class Products(NamedTuple):
    """Means and inner products of estimates, references, their sum and the mixture, in one pass."""

    means: Tensor  # (n,)
    power: Tensor  # (n,) mean square
    gram: Tensor  # (n, n) inner products without the means, each over its two norms
    outputs: range
    truth: range
    mixed: tuple[tuple[str, int], ...]  # what else there is: name and row

    def same(self, one: int, other: int) -> bool:
        """Whether two rows are one signal, at whatever level."""
        return self.si_sdr(one, other) > _SAME_DB

    def si_sdr(self, one: int, other: int) -> float:
        """SI-SDR of one row against another, in dB."""
        part = min(float(self.gram[one, other]) ** 2, 1.0)
        return 10 * math.log10(max(part, 1e-30) / max(1.0 - part, 1e-30))


def _products(signals: Signals) -> Products:
    outputs, truth = signals.outputs, signals.truth
    count, samples = len(outputs), truth.shape[-1]
    mixed, mixture = [("the sum of the references", count + len(truth))], None
    if signals.mixture is not None and len(signals.mixture.wave) >= samples:
        mixture = signals.mixture.wave[:samples].to(truth.device)
        mixed.insert(0, (f"the mixture {signals.mixture.label}", count + len(truth) + 1))
    width = count + len(truth) + len(mixed)
    sums = torch.zeros(width, dtype=torch.float64)
    gram = torch.zeros(width, width, dtype=torch.float64)
    for start in range(0, samples, _BLOCK):
        part = slice(start, start + _BLOCK)
        rows = [outputs[:, part], truth[:, part], truth[:, part].sum(0, keepdim=True)]
        rows += [] if mixture is None else [mixture[None, part]]
        block = torch.cat(rows).cpu().double()
        sums, gram = sums + block.sum(-1), gram + block @ block.T
    means, power = sums / samples, gram.diagonal() / samples
    centred = gram - samples * torch.outer(means, means)
    norms = centred.diagonal().clamp(min=0.0).sqrt()
    safe = torch.where(norms > 0, norms, 1.0)
    return Products(
        means,
        power,
        centred / torch.outer(safe, safe),
        range(count),
        range(count, count + len(truth)),
        tuple(mixed),
    )


def _faint(signals: Signals, silent: Tensor, products: Products) -> Iterator[Finding]:
    for row, (clip, source) in enumerate(zip(signals.estimates, signals.attributed)):
        own, true = (float(products.power[k]) for k in (row, products.truth[source]))
        decibels = 10 * math.log10(max(own, 1e-60) / max(true, 1e-60))
        if not silent[row] and decibels < _FAINT_DB:
            yield Finding(
                "faint",
                f"{clip.label} lies {-decibels:.0f} dB below its reference. Levels are normalised, "
                "so the little there is is scored as if it were loud: is it meant to be silent?",
            )


def _offsets(signals: Signals, products: Products) -> Iterator[Finding]:
    """A constant in a signal: it makes silence active, and is a difference to the reference."""
    labels = [clip.label for clip in (*signals.estimates, *signals.references)]
    for row in (*products.truth, *products.outputs):
        mean, level = float(products.means[row]), math.sqrt(float(products.power[row]))
        if level > SILENCE_PEAK and _LEAST_OFFSET < abs(mean) / level < 1.0 - 1e-6:
            yield Finding(
                "offset",
                f"{labels[row]} has a constant offset of {mean:.2g} "
                f"({20 * math.log10(abs(mean) / level):.0f} dB of its level), which counts as "
                "sound. Subtract the mean of the file",
            )


def _twins(signals: Signals, products: Products) -> Iterator[Finding]:
    """Signals that are there twice, at whatever level, among the estimates or the references."""
    for kind, clips, rows in (
        ("estimates", signals.estimates, products.outputs),
        ("references", signals.references, products.truth),
    ):
        for one, other in itertools.combinations(range(len(rows)), 2):
            if products.same(rows[one], rows[other]):
                yield Finding(
                    "twins",
                    f"{kind} {clips[one].label} and {clips[other].label} are the same signal. "
                    "Hand over one signal per source",
                )


def _sums(signals: Signals, products: Products) -> Iterator[Finding]:
    """References that are the sum of others, or the mixture: by least squares on the others."""
    first, names = products.truth.start, [clip.name for clip in signals.references]
    gram = products.gram[first : products.truth.stop, first : products.truth.stop]
    used = [k for k in range(len(gram)) if float(gram[k, k]) > 0.5]  # 1, of silence 0
    for source in used:
        rest = [k for k in used if k != source]
        if len(rest) < 2:
            continue
        solved = torch.linalg.lstsq(gram[rest][:, rest], gram[rest, source].unsqueeze(-1))
        weights = solved.solution.squeeze(-1)
        left = 1.0 - float(gram[source, rest] @ weights)
        parts = [k for k, weight in zip(rest, weights.tolist()) if weight > _PART]
        # With a negative weight it is another one that is the sum.
        negative = bool((weights < -_PART).any())
        if left < 10 ** (_SUM_DB / 10) and len(parts) > 1 and not negative:
            others = " ".join(name for k, name in enumerate(names) if k != source)
            yield Finding(
                "sum",
                f"reference {signals.references[source].label} is the sum of "
                f"{' and '.join(names[k] for k in parts)}: it is no source of its own, and what "
                f"all share lowers the scores. Leave it out: --sources {others}",
            )


def _mixtures(signals: Signals, products: Products) -> Iterator[Finding]:
    """Estimates and references that are the mixture, as given or as the sum of references."""
    name, mixture = products.mixed[0]
    total = products.mixed[-1][1]
    for place, row in enumerate(products.truth):
        if mixture != total and products.same(row, mixture) and not products.same(row, total):
            yield Finding(
                "mixture",
                f"reference {signals.references[place].label} is {name} itself, which is no "
                "source. Leave it out with --sources",
            )
    for row, (clip, source) in enumerate(zip(signals.estimates, signals.attributed)):
        # One source may be all that is heard of a mixture: its estimate is then both.
        found = [
            name
            for name, other in products.mixed
            if products.same(row, other) and not products.same(products.truth[source], other)
        ]
        if found:
            yield Finding(
                "mixture",
                f"estimate {clip.label} is {found[0]} itself. Was an output mistaken for it? As a "
                "baseline it is fine",
            )


def _order(signals: Signals, products: Products) -> Iterator[Finding]:
    """Estimates that fit another reference each, all of them better by SI-SDR."""
    from scipy.optimize import linear_sum_assignment

    if len(signals.estimates) > len(signals.references):
        return
    levels = [[products.si_sdr(row, other) for other in products.truth] for row in products.outputs]
    best = linear_sum_assignment(levels, maximize=True)[1].tolist()
    moved = [(k, best[k], own) for k, own in enumerate(signals.attributed) if best[k] != own]
    gains = [levels[k][new] - levels[k][own] for k, new, own in moved]
    reached = all(levels[k][new] > _SWAP_LEAST_DB for k, new, _ in moved)
    if moved and reached and min(gains) > _SWAP_DB:
        pairs = ", ".join(
            f"{signals.estimates[k].label} fits {signals.references[new].label} by {gain:.0f} dB "
            "better"
            for (k, new, _), gain in zip(moved, gains)
        )
        yield Finding(
            "order",
            f"estimates fit other references better than their own: {pairs} (SI-SDR). If they are "
            "in another order than the references, reorder them, or pass --permute "
            '(permute=True; in metrics and losses pit="si_sdr")',
        )

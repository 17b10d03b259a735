"""What about a mixture's signals makes its scores mean something else than a reader expects.

Nothing here changes a score. Each finding names the signals and says what to do: a silent output,
channels that cancel, a constant offset, a delay, a narrow band, signals that are the same or the
sum of others, outputs in another order than the references.
"""

from __future__ import annotations

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
    match_sources,
    pairwise_si_sdr,
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
    found += _faint(signals, silent)
    found += _channels([*signals.references, *signals.estimates])
    found += _offsets(signals)
    found += _late(signals, lags)
    found += list(_rates(signals)) or _bands(signals, bands[1])
    found += _twins(signals)
    found += _sums(signals)
    found += _same(signals, silent)
    found += _mixtures(signals)
    found += _order(signals)
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


def _faint(signals: Signals, silent: Tensor) -> Iterator[Finding]:
    truth = signals.truth[list(signals.attributed)]
    own, true = (waves.double().square().mean(-1) for waves in (signals.outputs, truth))
    level = 10 * (own.clamp(min=1e-60) / true.clamp(min=1e-60)).log10()
    for clip, decibels, dead in zip(signals.estimates, level.tolist(), silent.tolist()):
        if not dead and decibels < _FAINT_DB:
            yield Finding(
                "faint",
                f"{clip.label} lies {-decibels:.0f} dB below its reference. Levels are normalised, "
                "so the little there is is scored as if it were loud: is it meant to be silent?",
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


def _offsets(signals: Signals) -> Iterator[Finding]:
    """A constant in a signal: it makes silence active, and is a difference to the reference."""
    for clips, waves in ((signals.references, signals.truth), (signals.estimates, signals.outputs)):
        wide = waves.double()
        means, levels = wide.mean(-1).tolist(), wide.square().mean(-1).sqrt().tolist()
        for clip, mean, level in zip(clips, means, levels):
            if level > SILENCE_PEAK and _LEAST_OFFSET < abs(mean) / level < 1.0 - 1e-6:
                yield Finding(
                    "offset",
                    f"{clip.label} has a constant offset of {mean:.2g} "
                    f"({20 * math.log10(abs(mean) / level):.0f} dB of its level), which counts as "
                    "sound. Subtract the mean of the file",
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


def _twins(signals: Signals) -> Iterator[Finding]:
    """Signals that are there twice, at whatever level, among the estimates or the references."""
    for kind, clips, waves in (
        ("estimates", signals.estimates, signals.outputs),
        ("references", signals.references, signals.truth),
    ):
        alike = pairwise_si_sdr(waves, waves) > _SAME_DB
        for first, second in torch.triu(alike, 1).nonzero().tolist():
            yield Finding(
                "twins",
                f"{kind} {clips[first].label} and {clips[second].label} are the same signal. "
                "Hand over one signal per source",
            )


def _sums(signals: Signals) -> Iterator[Finding]:
    """References that are the sum of others, or the mixture: by least squares on the others."""
    truth = signals.truth.double()
    level = truth.square().sum(-1)
    used = [k for k in range(len(truth)) if float(level[k]) > 0.0]
    unit = truth[used] / level[used].sqrt().unsqueeze(-1)
    gram = (unit @ unit.T).cpu()
    for place, source in enumerate(used):
        rest = [k for k in range(len(used)) if k != place]
        if len(rest) < 2:
            continue
        solved = torch.linalg.lstsq(gram[rest][:, rest], gram[rest, place].unsqueeze(-1))
        weights = solved.solution.squeeze(-1)
        left = 1.0 - float(gram[place, rest] @ weights)
        parts = [used[k] for k, weight in zip(rest, weights.tolist()) if weight > _PART]
        # With a negative weight it is another one that is the sum.
        negative = bool((weights < -_PART).any())
        if left < 10 ** (_SUM_DB / 10) and len(parts) > 1 and not negative:
            names = [clip.name for clip in signals.references]
            others = " ".join(name for k, name in enumerate(names) if k != source)
            yield Finding(
                "sum",
                f"reference {signals.references[source].label} is the sum of "
                f"{' and '.join(names[k] for k in parts)}: it is no source of its own, and what "
                f"all share lowers the scores. Leave it out: --sources {others}",
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


def _mixtures(signals: Signals) -> Iterator[Finding]:
    """Estimates and references that are the mixture, as given or as the sum of references."""
    mixed = [("the sum of the references", signals.truth.sum(0))]
    if signals.mixture is not None:
        wave = signals.mixture.wave[: signals.truth.shape[-1]].to(signals.truth.device)
        if len(wave) == signals.truth.shape[-1]:
            mixed.insert(0, (f"the mixture {signals.mixture.label}", wave))
    waves = torch.stack([wave for _, wave in mixed])
    same = pairwise_si_sdr(signals.outputs, waves) > _SAME_DB
    # One source may be all that is heard of a mixture: its estimate is then both.
    whole = pairwise_si_sdr(signals.truth, waves) > _SAME_DB
    one = whole[list(signals.attributed)]
    if signals.mixture is not None and len(mixed) > 1:
        for place, clip in enumerate(signals.references):
            if whole[place, 0] and not whole[place, 1]:
                yield Finding(
                    "mixture",
                    f"reference {clip.label} is {mixed[0][0]} itself, which is no source. Leave it "
                    "out with --sources",
                )
    for place, clip in enumerate(signals.estimates):
        found = [name for k, (name, _) in enumerate(mixed) if same[place, k] and not one[place, k]]
        if found:
            yield Finding(
                "mixture",
                f"estimate {clip.label} is {found[0]} itself. Was an output mistaken for it? As a "
                "baseline it is fine",
            )


def _order(signals: Signals) -> Iterator[Finding]:
    """Estimates that fit another reference each, all of them better by SI-SDR."""
    if len(signals.estimates) > len(signals.references):
        return
    given = torch.tensor(signals.attributed)
    best = match_sources(signals.outputs, signals.truth).cpu()
    levels = pairwise_si_sdr(signals.outputs, signals.truth).cpu()
    rows = (best != given).nonzero().squeeze(-1)
    found, now = levels[rows, best[rows]], levels[rows, given[rows]]
    if len(rows) and bool(((found - now > _SWAP_DB) & (found > _SWAP_LEAST_DB)).all()):
        pairs = ", ".join(
            f"{signals.estimates[row].label} fits {signals.references[source].label} by "
            f"{gain:.0f} dB better"
            for row, source, gain in zip(rows.tolist(), best[rows].tolist(), (found - now).tolist())
        )
        yield Finding(
            "order",
            f"estimates fit other references better than their own: {pairs} (SI-SDR). If they are "
            "in another order than the references, reorder them, or pass --permute "
            '(permute=True; in metrics and losses pit="si_sdr")',
        )

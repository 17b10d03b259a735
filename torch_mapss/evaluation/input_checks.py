"""Findings about the signals of a mixture that change how its scores should be read.

Nothing here changes a score. Each finding names the signals and says what to do: a silent output,
channels that cancel, a constant offset, a delay, a narrow band, signals that are identical or the
sum of others, outputs in a different order than the references.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_mapss.audio import SILENCE_PEAK, bandwidth, is_constant
from torch_mapss.evaluation.channel_checks import Finding, channel_findings_of
from torch_mapss.evaluation.io import listed
from torch_mapss.evaluation.system_signals import LAG_LIMIT_S, SystemSignals

#: Shortest lag that changes how scores should be read: 2 ms lower PM from 0.98 to 0.94.
LEAST_LAG_S = 0.002
_SAME_DB = 40.0  # SI-SDR from which two signals count as identical
# SI-SDR: smallest gain of every estimate that moves, and the level that it must then reach.
_SWAP_DB, _SWAP_LEAST_DB = 3.0, -5.0
_FAINT_DB = -60.0  # level of an estimate relative to its reference
_CANCELLED_DB = 10.0  # loss in a downmix beyond that of independent channels
_SHARED_LAG_S = 0.0005  # tolerance for lags of one cause
_LOW_RATE, _LOW_BAND = 0.9, 0.85  # shares of the encoder's rate and band
# Ratio of a signal's mean to its RMS. Sound stays below: 0.01 for one second of a 40 Hz tone.
_LEAST_OFFSET = 0.03
_SUM_DB = -40.0  # residual of a reference that is the sum of others
_BLOCK = 2**20  # samples at a time
_PART = 0.05  # smallest coefficient of a summand


# ---------------------------------------------------------------------- Measurements, and findings


class Inspection:
    """Findings about the signals of a mixture, with the measurements behind them.

    Attributes: ``findings``; ``silent`` (S') and ``silent_references`` (S), constant signals;
    ``estimate_bands`` (S') and ``reference_bands`` (S), Hz at which the spectrum ends;
    ``estimate_levels_db`` (S'), relative to the sum of the references. ``means``, ``levels`` (RMS),
    ``cosines`` (of each two signals without their means) and ``si_sdr`` (dB, of each two) have one
    row per estimate, then per reference, then their sum and, if it is long enough, the mixture.

    Args:
        signals: signals of one mixture and system.
        has_log_pm: whether log PM is computed, so that texts may mention it.
        energy_ratios: of each channel that is scored, (S',) dB by name.
    """

    def __init__(
        self,
        signals: SystemSignals,
        has_log_pm: bool = True,
        energy_ratios: Sequence[Mapping[str, Sequence[float]]] = (),
    ) -> None:
        self.signals = signals
        self.has_log_pm = has_log_pm
        self.energy_ratios = energy_ratios
        outputs, truth = signals.mono_estimates, signals.mono_references
        self.silent = tuple(bool(is_constant(output)) for output in outputs)
        self.silent_references = tuple(bool(is_constant(reference)) for reference in truth)
        self.estimate_bands = tuple(bandwidth(outputs, signals.rate).tolist())
        self.reference_bands = tuple(bandwidth(truth, signals.rate).tolist())
        count, sum_row, samples = len(outputs), len(outputs) + len(truth), truth.shape[-1]
        reference_rows = [count + source for source in signals.attributed]
        # Row, clip, and the row of the reference.
        self.estimates = [*zip(range(count), signals.estimates, reference_rows)]
        self.references = dict(enumerate(signals.references, count))
        # Row and name of what counts as the mixture; the file of it, if long enough, comes first.
        self.mixtures, waves = [(sum_row, "the sum of the references")], [outputs, truth]
        mixture = signals.mixture
        if mixture is not None and len(mixture.wave) >= samples:
            waves.append(mixture.wave[None, :samples].to(truth.device))
            self.mixtures.insert(0, (sum_row + 1, f"the mixture {mixture.label}"))
        sums, products = _sums_and_products(*waves)
        self.means = (sums / samples).tolist()
        self.levels = (products.diagonal() / samples).sqrt().tolist()  # RMS
        level_of_sum = max(self.levels[sum_row], 1e-30)
        self.estimate_levels_db = [
            math.nan if silent else _decibels(self.levels[row] / level_of_sum)
            for row, silent in enumerate(self.silent)
        ]
        self.cosines = _cosines(products - torch.outer(sums, sums) / samples)
        self.si_sdr = _si_sdr(self.cosines).tolist()
        self.findings = (*self._findings_of_checks(), *self._channel_findings())

    def _findings_of_checks(self) -> Iterator[Finding]:
        for check in _CHECKS:
            for kind, row, *values in check(self):
                is_of_estimate = row is not None and row < len(self.silent)
                estimate = row if is_of_estimate else None
                yield Finding(kind, _TEXTS[kind].format(*values), estimate)

    def _channel_findings(self) -> Iterator[Finding]:
        for row, clip, reference_row in self.estimates:
            for finding in channel_findings_of(clip, self.references[reference_row]):
                yield finding._replace(estimate=row)

    def release(self) -> None:
        """Free the samples at the files' own rates, which are not needed any more."""
        signals = self.signals
        mixture = None if signals.mixture is None else signals.mixture._replace(native=None)
        self.signals = signals._replace(
            estimates=[clip._replace(native=None) for clip in signals.estimates],
            references=[clip._replace(native=None) for clip in signals.references],
            mixture=mixture,
        )
        self.estimates, self.references = [], {}

    def same(self, row_a: int, row_b: int) -> bool:
        """Whether two rows hold the same signal, at any level."""
        return bool(self.si_sdr[row_a][row_b] > _SAME_DB)


def _sums_and_products(
    outputs: Tensor, truth: Tensor, mixture: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums (n,) and inner products (n, n) of signals, in float64.

    The n signals are the outputs (S', T), the references (S, T), the sum of the references and,
    if there is one, the mixture (1, T).
    """
    count = len(outputs) + len(truth) + (1 if mixture is None else 2)
    sums = torch.zeros(count, dtype=torch.float64, device="cpu")
    products = torch.zeros(count, count, dtype=torch.float64, device="cpu")
    for begin in range(0, truth.shape[-1], _BLOCK):
        piece = slice(begin, begin + _BLOCK)
        rows = [outputs[:, piece], truth[:, piece], truth[:, piece].sum(0, keepdim=True)]
        if mixture is not None:
            rows.append(mixture[:, piece])
        block = torch.cat(rows).cpu().double()
        sums += block.sum(-1)
        products += block @ block.T
    return sums, products


def _cosines(covariances: Tensor) -> Tensor:
    """(n, n) cosines of the angles between signals; 0 with a signal that is constant."""
    norms = covariances.diagonal().clamp(min=0.0).sqrt()
    norms = torch.where(norms > 0, norms, 1.0)
    return covariances / torch.outer(norms, norms)


def _si_sdr(cosines: Tensor) -> Tensor:
    """(n, n) SI-SDR in dB of each signal with each other: cos² is the share that it explains."""
    explained = cosines.square().clamp(max=1.0)
    ratio = explained.clamp(min=1e-30) / (1.0 - explained).clamp(min=1e-30)
    return 10 * torch.log10(ratio)


def _decibels(ratio: float) -> float:
    return 20 * math.log10(max(ratio, 1e-30))


# --------------------------------- Checks: each yields kinds of findings, their rows, and values

_NARROW = (
    "There is nothing to score above {1:.1f} kHz, and scores come out higher than at full band: "
    "compare them with scores of the same band only"
)
_OUTWEIGHS = ", but with a log PM that outweighs all others in a mean: log_pm_compressed is bounded"
_TEXTS = {
    "silent": "{} is silent. It is still scored: leaving it out would reward silence{}",
    "absent": "{}: its reference {} is silent, the estimate is not ({:.0f} dB relative to the "
    "sum of the references, column estimate_level_db). Nothing is scored here: was the source left "
    "out of this mixture on purpose?",
    "faint": "{} lies {:.0f} dB below its reference. Levels are normalised, so what remains of it "
    "is scored as if it were loud: is it meant to be silent?",
    "channels": "{}: its {} channels cancel each other; their mean {}, and the mean is what is "
    "scored. Invert one channel, or pass a single one",
    "offset": "{} has a constant offset of {:.2g} ({:.0f} dB of its level), which counts as sound. "
    "Subtract the mean of the file",
    "lag": "{} is {:.1f} ms {} relative to {}{}. Delay counts as distortion; {}",
    "rate": "sampled at {2} Hz, below the encoder's {3} Hz: {0}. " + _NARROW,
    "band": "nothing above {1:.1f} kHz in any reference of {0}, though the encoder receives up to "
    "{2:g} kHz. " + _NARROW,
    "twins": "{} {} and {} are the same signal. Pass one signal per source",
    "sum": "reference {} is the sum of {}: it is not a separate source, and counting it lowers all "
    "scores. Leave it out: --sources {}",
    "same": "{}: the same as the reference, sample by sample. Was the folder of the references "
    "passed as a system? As a hidden reference it is fine",
    "same mean": "{}: the mean over its channels is the same as that of its reference, sample by "
    "sample, but the channels are not: its sides may be swapped, or its panning changed",
    "mixture": "{} {} is {} itself{}",
    "order": "estimates fit other references better than their own: {} (SI-SDR). If they are in "
    "a different order than the references, reorder them, or pass --permute (permute=True; in "
    'metrics and losses pit="si_sdr")',
}
# The kind, the row of the signal that it is about or None, and the values for its text.
_Findings = Iterator[tuple[Any, ...]]


def _levels(inspection: Inspection) -> _Findings:
    """Find silence, faint estimates, cancelling channels, and offsets that count as sound."""
    for row, clip, reference_row in inspection.estimates:
        level = _decibels(inspection.levels[row] / max(inspection.levels[reference_row], 1e-30))
        truth = inspection.references[reference_row]
        if inspection.silent_references[reference_row - len(inspection.estimates)]:
            if not inspection.silent[row]:
                yield "absent", row, clip.label, truth.label, inspection.estimate_levels_db[row]
        elif inspection.silent[row]:
            yield "silent", row, clip.label, _OUTWEIGHS if inspection.has_log_pm else ""
        elif level < _FAINT_DB:
            yield "faint", row, clip.label, -level
    clips = inspection.references | {row: clip for row, clip, _ in inspection.estimates}
    rows_by_label = {clip.label: row for row, clip in clips.items()}
    for label, row in rows_by_label.items():
        clip = clips[row]
        if clip.cancelled > 10 * math.log10(clip.channels) + _CANCELLED_DB:
            silence = clip.cancelled == math.inf
            mean_level = "is silence" if silence else f"lies {clip.cancelled:.0f} dB below them"
            yield "channels", row, label, clip.channels, mean_level
    for row, clip in clips.items():
        mean, level = inspection.means[row], inspection.levels[row]
        if level > SILENCE_PEAK and _LEAST_OFFSET < abs(mean) / level < 1.0 - 1e-6:
            yield "offset", row, clip.label, mean, _decibels(abs(mean) / level)


def _lags(inspection: Inspection) -> _Findings:
    rate, grid = inspection.signals.rate, inspection.signals.grid
    hop = grid.hop / grid.sample_rate
    for row, clip, reference_row in inspection.estimates:
        lag = inspection.signals.lags[row]
        if lag is None or inspection.signals.removed[row]:
            continue
        # A single lag within a frame may be a guess; a lag that most estimates share is not.
        if abs(lag) <= hop * rate and not _is_shared(lag, inspection.signals.lags, rate):
            continue
        size, way = abs(lag) / rate, "late" if lag > 0 else "early"
        frame = f", more than a frame of {1000 * hop:.0f} ms" if size > hop else ""
        hint = '--align (align="shift") removes it'
        if size > LAG_LIMIT_S:
            hint = f"more than the {1000 * LAG_LIMIT_S:.0f} ms that --align removes: cut the file"
        yield (
            "lag",
            row,
            clip.label,
            1000 * size,
            way,
            inspection.references[reference_row].label,
            frame,
            hint,
        )


def _is_shared(lag: int, lags: Sequence[int | None], rate: int) -> bool:
    """Whether a lag in samples is large enough to matter and shared by most estimates."""
    near = [abs(lag - another) <= _SHARED_LAG_S * rate for another in lags if another is not None]
    return abs(lag) >= LEAST_LAG_S * rate and 2 * sum(near) > len(near)


def _bands(inspection: Inspection) -> _Findings:
    """Find low rates, and bands that end early in all references, not only in a dull one."""
    encoder_rate, references = inspection.signals.grid.sample_rate, inspection.signals.references
    clips = (*references, *inspection.signals.estimates)
    low = {clip.label: clip.rate for clip in clips if clip.rate < _LOW_RATE * encoder_rate}
    edge = max(inspection.reference_bands)
    if low:
        lowest = min(low.values())
        yield "rate", None, listed(low, 3), lowest / 2000, lowest, encoder_rate
    elif 0 < edge < _LOW_BAND * encoder_rate / 2:
        names = listed((clip.label for clip in references), 3)
        yield "band", None, names, edge / 1000, encoder_rate / 2000


def _twins(inspection: Inspection) -> _Findings:
    """Find signals that occur twice, at any level, among the estimates or the references."""
    outputs = {row: clip for row, clip, _ in inspection.estimates}
    for kind, clips in (("estimates", outputs), ("references", inspection.references)):
        for row_a, row_b in itertools.combinations(clips, 2):
            if inspection.same(row_a, row_b):
                yield "twins", None, kind, clips[row_a].label, clips[row_b].label


def _sums(inspection: Inspection) -> _Findings:
    """Find references that are the sum of others, or the mixture, by least squares."""
    used = [row for row in inspection.references if float(inspection.cosines[row, row]) > 0.5]
    for row in used if len(used) > 2 else ():
        remaining = [k for k in used if k != row]
        target = inspection.cosines[remaining, row]
        system = inspection.cosines[remaining][:, remaining]
        weights = torch.linalg.lstsq(system, target.unsqueeze(-1)).solution[:, 0]
        by_row = zip(remaining, weights.tolist())
        summands = [inspection.references[k].name for k, weight in by_row if weight > _PART]
        # With a negative weight, another reference is the sum.
        negative = bool((weights < -_PART).any())
        residual = 1.0 - float(target @ weights)
        if residual < 10 ** (_SUM_DB / 10) and len(summands) > 1 and not negative:
            advice = " ".join(clip.name for k, clip in inspection.references.items() if k != row)
            yield "sum", None, inspection.references[row].label, " and ".join(summands), advice


def _copies(inspection: Inspection) -> _Findings:
    """Find estimates equal to their reference, and signals equal to the mixture."""
    truth = inspection.signals.mono_references[list(inspection.signals.attributed)]
    identical = (inspection.signals.mono_estimates == truth).all(-1).tolist()
    labels_by_kind: dict[str, list[str]] = {"same": [], "same mean": []}
    for row, clip, reference_row in inspection.estimates:
        if identical[row] and not inspection.silent[row]:
            equal = clip.has_same_channels(inspection.references[reference_row])
            labels_by_kind["same" if equal else "same mean"].append(clip.label)
    for kind, labels in labels_by_kind.items():
        if labels:
            yield kind, None, listed(labels, 3)
    (named, name), (total, _) = inspection.mixtures[0], inspection.mixtures[-1]
    for row, clip in inspection.references.items():
        if named != total and inspection.same(row, named) and not inspection.same(row, total):
            hint = ", which is not a source. Leave it out with --sources"
            yield "mixture", row, "reference", clip.label, name, hint
    for row, clip, reference_row in inspection.estimates:
        if inspection.silent_references[reference_row - len(inspection.estimates)]:
            continue  # reported as absent
        # If only one source is audible in a mixture, its estimate equals both.
        names = [
            n
            for k, n in inspection.mixtures
            if inspection.same(row, k) and not inspection.same(reference_row, k)
        ]
        if names:
            hint = ". Was an output mistaken for it? As a baseline it is fine"
            yield "mixture", row, "estimate", clip.label, names[0], hint


def _order(inspection: Inspection) -> _Findings:
    """Find estimates that each fit another reference better by SI-SDR."""
    from scipy.optimize import linear_sum_assignment

    rows = [*inspection.references]
    if len(inspection.estimates) > len(rows):
        return
    levels = []  # SI-SDR of every estimate with every reference
    for row, *_ in inspection.estimates:
        levels.append([inspection.si_sdr[row][reference_row] for reference_row in rows])
    swaps = []
    for (row, clip, reference_row), best in zip(
        inspection.estimates, linear_sum_assignment(levels, True)[1]
    ):
        level, gain = levels[row][best], levels[row][best] - inspection.si_sdr[row][reference_row]
        if rows[best] != reference_row:
            better = inspection.references[rows[best]].label
            text = f"{clip.label} fits {better} {gain:.0f} dB better"
            swaps.append((level > _SWAP_LEAST_DB and gain > _SWAP_DB, text))
    if swaps and all(is_clear for is_clear, _ in swaps):
        yield "order", None, ", ".join(text for _, text in swaps)


_CHECKS = (_levels, _lags, _bands, _twins, _sums, _copies, _order)

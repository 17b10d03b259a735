"""Energy ratios computed alongside the frame scores: SI-SDR, and SDR, SIR and SAR of BSS Eval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks, devices
from torch_mapss.pipeline.call import Call

#: Taps of the distortion filter that BSS Eval allows.
FILTER_LENGTH = 512
BSS_SCORES = ("sdr", "sir", "sar")
# SDR of a silent estimate of an active reference: the lowest value of SI-SDR in float64.
_LOWEST_DB = 10.0 * math.log10(torch.finfo(torch.float64).eps)


def bss_package() -> Any:
    """The package that computes SDR, SIR and SAR; ImportError with the way out if it is missing."""
    return checks.import_package(
        "fast_bss_eval", "measures bss", " (or: pip install torch_mapss[bss])"
    )


def bss_eval(estimates: Tensor, references: Tensor, attributed: Sequence[int]) -> dict[str, Tensor]:
    """SDR, SIR and SAR of BSS Eval, with filters of :data:`FILTER_LENGTH` taps.

    An estimate is projected onto all references that are not silent, since a silent one would make
    the projection singular. So its ratios do not depend on which other estimates are present.

    Args:
        estimates: (S', T) of one mixture.
        references: (S, T).
        attributed: (S',) reference of each estimate.

    Returns:
        (S',) float64 by name: NaN where the reference is silent. SIR is also NaN if only one
        reference is not silent; SIR and SAR of a silent estimate are NaN too.

    Raises:
        ImportError: fast_bss_eval is missing.
    """
    package = bss_package()
    outputs, truth = devices.wide(estimates), devices.wide(references)
    undefined = torch.tensor(torch.nan, dtype=torch.float64, device=outputs.device)
    columns = {name: [undefined] * len(outputs) for name in BSS_SCORES}
    sounding = (~audio.is_constant(truth)).nonzero()[:, 0].tolist()
    row_of_source = {source: row for row, source in enumerate(sounding)}
    # BSS Eval needs one estimate per reference; a reference without one stands in for it.
    padded = [*truth[sounding]]
    scored: dict[int, int] = {}  # row of the padded estimates by estimate
    for estimate, source in enumerate(attributed):
        if source not in row_of_source:
            continue
        if bool(audio.is_constant(outputs[estimate])):
            # Silence has no energy to compare.
            columns["sdr"][estimate] = torch.full_like(undefined, _LOWEST_DB)
            continue
        scored[estimate] = row_of_source[source]
        padded[row_of_source[source]] = outputs[estimate]
    if scored:
        ratios = package.bss_eval_sources(
            truth[sounding],
            torch.stack(padded),
            filter_length=FILTER_LENGTH,
            compute_permutation=False,
        )
        for name, ratio in zip(BSS_SCORES, ratios):
            for estimate, row in scored.items():
                columns[name][estimate] = ratio[row]
    if len(sounding) == 1:
        columns["sir"] = [undefined] * len(outputs)
    return {name: torch.stack(decibels) for name, decibels in columns.items()}


def si_sdr_of_call(call: Call) -> tuple[Tensor, Tensor]:
    """SI-SDR of every estimate with its reference, at the encoder's sample rate.

    Args:
        call: checked.

    Returns:
        (B, S') dB, 0 where undefined; and (B, S') bool, defined where the reference is not silent
        and all samples of the mixture are finite.
    """
    decibels = call.estimates.new_zeros(call.estimates.shape[:2])
    defined = torch.zeros(decibels.shape, dtype=torch.bool, device=decibels.device)
    for items, waves, references in call.pairs():
        references = devices.select(references, call.attributed, 1)
        index = devices.upload(items, decibels.device)
        audible = ~audio.is_silent(references) & call.valid[index].all(-1, keepdim=True)
        ratios = audio.si_sdr(waves, references.to(decibels.dtype))
        decibels = decibels.index_put((index,), torch.where(audible, ratios, 0.0))
        defined = defined.index_put((index,), audible)
    return decibels, defined


def bss_of_call(call: Call) -> dict[str, Tensor]:
    """SDR, SIR and SAR of every estimate, at the encoder's sample rate.

    Args:
        call: checked.

    Returns:
        (B, S') dB by score; NaN where undefined (see :func:`bss_eval`), and for mixtures with
        non-finite samples.

    Raises:
        ImportError: fast_bss_eval is missing.
    """
    rows: dict[int, Tensor] = {}  # (3, S') by item
    for items, estimates, references in call.pairs():
        for item, outputs, truth in zip(items, estimates, references):
            ratios = torch.stack([*bss_eval(outputs, truth, call.attributed).values()])
            finite = call.valid[item].all().to(ratios.device)
            rows[item] = torch.where(finite, ratios, torch.nan)
    stacked = torch.stack([rows[item] for item in range(len(rows))], 1)
    in_place = devices.back(stacked, call.estimates.device).to(call.estimates.dtype)
    return dict(zip(BSS_SCORES, in_place))

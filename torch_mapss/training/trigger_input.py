"""Frame scores on their way to a curriculum trigger: read, and filtered by their half-widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_mapss.pipeline.records import ScoreBounds, Scores


def observed(
    scores: Scores | Mapping[str, Any],
    bounds: ScoreBounds | Mapping[str, Any] | None,
    measures: Sequence[str],
    half_width: float | None,
) -> dict[str, Tensor]:
    """measure -> (n,) scores of the frames that count, float64 on the CPU.

    Args:
        scores, bounds: as handed to :meth:`FrameTrigger.observe`.
        measures: which are wanted.
        half_width: count only frames whose half-width is at most this; None: all.

    Raises:
        KeyError: a measure is missing.
        ValueError: shapes differ, or bounds are missing.
    """
    found = {}
    for measure in measures:
        values = _values(scores, measure)
        counted = values.isfinite()
        if half_width is not None and measure != "pm_rank":  # whose guarantee needs none
            counted &= _half_widths(bounds, measure, values) <= half_width  # False for NaN
        found[measure] = values[counted]
    return found


def _values(scores: Scores | Mapping[str, Any], measure: str) -> Tensor:
    """Frame scores as float64 on the CPU, NaN where undefined."""
    if isinstance(scores, Scores):
        values = getattr(scores, measure)
        if values is None:
            raise ValueError(
                f"the scores have no {measure!r}, which a condition of this trigger looks at: the "
                "rank form is one of the conformal convention. Score with MAPSS(convention="
                "'conformal')."
            )
        return torch.where(scores.active, values.detach(), torch.nan).double().cpu()
    if measure not in scores:
        raise KeyError(
            f"scores lack {measure!r}, which a condition of this trigger looks at; they hold "
            f"{sorted(scores)}."
        )
    return _tensor(scores[measure])


def _half_widths(
    bounds: ScoreBounds | Mapping[str, Any] | None, measure: str, like: Tensor
) -> Tensor:
    of = "ps" if measure == "ps" else "pm"
    if bounds is None or (not isinstance(bounds, ScoreBounds) and of not in bounds):
        raise ValueError(
            f"half_width is set, so the half-widths of {of!r} must come with the scores. Pass "
            "bounds=mapss.bounds(estimates, references), or set half_width=None."
        )
    found = getattr(bounds, of).tail if isinstance(bounds, ScoreBounds) else bounds[of]
    widths = _tensor(found)
    if widths.shape != like.shape:
        raise ValueError(
            f"half-widths of {of!r} must have the shape of its scores {tuple(like.shape)}, got "
            f"{tuple(widths.shape)}. Take both from the same estimates."
        )
    counted = like.isfinite()
    if bool(counted.any()) and bool(widths[counted].isnan().all()):
        raise ValueError(
            f"half_width is set, but the half-widths of {of!r} are NaN: the conformal convention "
            "states none. Look at 'pm_rank', which needs none, or set half_width=None."
        )
    return widths


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().double().cpu()
    return torch.as_tensor(values, dtype=torch.float64)

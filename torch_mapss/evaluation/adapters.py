"""PS and PM in the manner of other toolkits: VERSA's setup and metric, museval's arrays.

Other toolkits give arrays without saying which axis is which; a shape that can be read in two ways
is refused, with both readings.

Example:
    >>> import numpy as np
    >>> model = mapss_setup("mel")
    >>> gt = np.random.default_rng(0).normal(size=(2, 8000))  # two sources
    >>> sorted(mapss_metric(gt + 0.1 * gt[::-1], gt, 16000, model))[:2]
    ['mapss_attributed_distance', 'mapss_attributed_distance_src1']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_mapss.evaluation.options import scorer_of
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.score import evaluate

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

DEFAULT_ENCODER = "wav2vec2-large"


def mapss_setup(encoder: str = DEFAULT_ENCODER, device: str | None = None, **options: Any) -> MAPSS:
    """What :func:`mapss_metric` scores with, to be made once: VERSA's ``…_setup``.

    Options are those of :class:`torch_mapss.MAPSS`; ``"mel"`` needs no download. On the CPU if no
    device is named.
    """
    return scorer_of({"encoder": encoder, **options}, device)


def mapss_metric(
    pred: Any, gt: Any, fs: int, model: MAPSS | None = None, **options: Any
) -> dict[str, float]:
    """The scores of one utterance by name, in VERSA's manner.

    Args:
        pred: (S, T) estimates, sources first, as an array or tensor; in the order of ``gt``.
        gt: (S, T) references, at least two: PS compares an estimate with all sources.
        fs: Hz of both.
        model: of :func:`mapss_setup`; made anew with the default encoder if None.
        options: of :func:`torch_mapss.evaluate`, e.g. ``permute=True``, ``attributed=(0,)``.

    Returns:
        Of every score that is computed (``clearance``, ``ps``, ...) ``mapss_NAME``, the mean over
        the estimates, and ``mapss_NAME_src1``, ... in the order of ``pred``. NaN: no frame scored.

    Raises:
        ValueError: shapes that are no (S, T) or can be read as (T, S); and what
            :func:`torch_mapss.evaluate` refuses.
    """
    report = evaluate(
        estimates=_sources_first(pred, "pred"),
        references=_sources_first(gt, "gt"),
        sample_rate=fs,
        mapss=model if model is not None else mapss_setup(),
        **options,
    )
    found = {f"mapss_{name}": value for name, value in report.means().items()}
    for place, row in enumerate(report.rows, 1):
        found |= {f"mapss_{name}_src{place}": row[name] for name in report.means()}
    return found


def evaluate_museval(
    *, references: Any, estimates: Any, rate: int, mapss: MAPSS | None = None, **options: Any
) -> Report:
    """Score arrays as museval takes them; channels are mixed down to their mean.

    By keyword alone, as museval's own order is references first.

    Args:
        references, estimates: (sources, samples, channels), or (sources, samples) of mono signals,
            in one order.
        rate: Hz of both.
        mapss, options: as of :func:`torch_mapss.evaluate`.

    Raises:
        ValueError: shapes that are none of these, or can be read with channels before samples;
            and what :func:`torch_mapss.evaluate` refuses.
    """
    return evaluate(
        estimates=_sources_first(estimates, "estimates", channels=True),
        references=_sources_first(references, "references", channels=True),
        sample_rate=rate,
        mapss=mapss,
        **options,
    )


def _sources_first(given: Any, name: str, channels: bool = False) -> Tensor:
    """(S, T) of these, or of (S, T, channels) if there may be any."""
    waves = torch.as_tensor(given)
    if channels and waves.ndim == 3 and max(waves.shape) == waves.shape[1]:
        return waves.to(torch.promote_types(waves.dtype, torch.float32)).mean(-1)
    if waves.ndim != 2 or waves.shape[0] > waves.shape[1]:
        expected = "(S, T) or (S, T, channels)" if channels else "(S, T)"
        raise ValueError(
            f"{name} must be {expected}: all sources of the mixture, sources first; got "
            f"{tuple(waves.shape)}. Turn the axes: {name}.T of (T, S), numpy.moveaxis({name}, -1, "
            "1) of (S, channels, T); score one estimate alone as (1, T) with attributed=(0,), "
            "beside two references at least."
        )
    return waves

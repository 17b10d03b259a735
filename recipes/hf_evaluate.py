"""The scores as a metric of Hugging Face ``evaluate``: ``pip install evaluate``.

    import evaluate

    metric = evaluate.load("recipes/hf_evaluate.py")       # a copy of this file will do
    metric.add(prediction=estimates, reference=references) # (S, T) arrays of one mixture, any T
    means = metric.compute(sample_rate=16000)              # {"clearance": …, "fidelity": …, …}

``compute`` takes the keywords of :class:`torch_mapss.MAPSS` and returns what
:class:`torch_mapss.SourceScores` does, as floats. By default these are clearance, fidelity, bleed
and SI-SDR, which need no download; for PS and PM pass ``measures=("separation", "match"),
encoder="wav2vec2-large"``.
"""

from __future__ import annotations

from typing import Any

import datasets
import evaluate
import torch

import torch_mapss

_DESCRIPTION = "Leakage and distortion of separated sources: clearance, fidelity, PS, PM, bleed."


class SourceScores(evaluate.Metric):
    """See the docstring of the module."""

    def _info(self) -> evaluate.MetricInfo:
        waveforms = datasets.Sequence(datasets.Sequence(datasets.Value("float32")))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description="Estimates and references (S, T) of each mixture, in one order.",
            features=datasets.Features({"predictions": waveforms, "references": waveforms}),
        )

    def _compute(
        self,
        predictions: list[Any],
        references: list[Any],
        encoder: str = "mel",
        measures: tuple[str, ...] = ("decomposition", "bleed"),
        **options: Any,
    ) -> dict[str, float]:
        mapss = torch_mapss.MAPSS(encoder, measures=measures, **options)
        metric = torch_mapss.SourceScores(mapss)
        for estimates, sources in zip(predictions, references):
            metric.update(torch.tensor(estimates), torch.tensor(sources))
        return {name: float(mean) for name, mean in metric.compute().items()}

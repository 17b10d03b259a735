"""The module for Hugging Face ``evaluate``, where that package is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from waveforms import impaired, voices

from torch_mapss import MAPSS, SourceScores

evaluate = pytest.importorskip("evaluate")

MODULE = Path(__file__).parents[2] / "recipes" / "hf_evaluate.py"


def test_it_gives_the_scores_of_the_library(tmp_path):
    metric = evaluate.load(str(MODULE), cache_dir=str(tmp_path))
    expected = SourceScores(MAPSS("mel", measures=("decomposition", "bleed")))
    for seed, samples in enumerate((8000, 6400)):
        references = voices(1, 2, samples, seed)[0]
        estimates = impaired(references)
        metric.add(prediction=estimates.numpy(), reference=references.numpy())
        expected.update(estimates, references)
    means = {name: float(mean) for name, mean in expected.compute().items()}
    assert metric.compute() == pytest.approx(means, nan_ok=True)

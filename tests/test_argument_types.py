"""Arguments as tables, pathlib and YAML give them: NumPy numbers are numbers, text is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up_results import compared, three_systems
from public_calls import embeddings, frames, mapss, waveforms

import torch_mapss
from torch_mapss import DistortionBank, audio, bounds, functional
from torch_mapss.training.curriculum import Fraction, FrameTrigger, Quantile, Trend


def _scorer(**options: Any) -> Any:
    return torch_mapss.MAPSS("mel", **options)


def _loss(**options: Any) -> Any:
    return torch_mapss.DecompositionLoss(mapss(measures="decomposition"), **options)


def _metric(**options: Any) -> Any:
    return torch_mapss.Clearance(mapss(measures="decomposition"), **options)


def _map(**options: Any) -> Any:
    return functional.diffusion_map(embeddings()[2], **options)


def _separation(**options: Any) -> Any:
    return functional.perceptual_separation(*embeddings(), **options)


def _bounds(**options: Any) -> Any:
    return functional.separation_bounds(*embeddings(), **options)


def _pooled(**options: Any) -> Any:
    return functional.pool_separation(frames(), **options)


def _scores(**options: Any) -> Any:
    estimates, references = waveforms()
    return mapss(measures="decomposition")(estimates, references, **options)


def _bounded(**options: Any) -> Any:
    estimates, references = waveforms()
    return mapss(measures="separation").bounds(estimates, references, **options)


def _resampled(**options: Any) -> Any:
    return audio.resample(waveforms()[0], **{"orig": 16_000, "new": 8000, **options})


def _normalised(**options: Any) -> Any:
    return audio.normalize_loudness(waveforms()[0], **{"sample_rate": 16_000, **options})


def _evaluated(**options: Any) -> Any:
    estimates, references = waveforms()
    return torch_mapss.evaluate(
        estimates=estimates[0].numpy(), references=references[0].numpy(), **options
    )


def _comparison(**options: Any) -> Any:
    return compared(three_systems(), **options)


def _bootstrap(**options: Any) -> Any:
    return _bounds(tail="bootstrap", **options)


def _correlated(**options: Any) -> Any:
    return bounds.source_correlation(*embeddings(), **{"draws": 20, **options})


# Function, argument, a NumPy number that it takes, the text of a number that it refuses.
NUMBERS: list[tuple[Callable[..., Any], str, Any, str]] = [
    (_scorer, "seed", np.int64(3), "3"),
    (_scorer, "sample_rate", np.int32(16_000), "16000"),
    (_scorer, "fs", np.int64(8000), "8000"),
    (_scorer, "alpha", np.float32(1.0), "1"),
    (_scorer, "time", np.int64(1), "1"),
    (_scorer, "energy", np.float64(0.9), "9e-1"),
    (_scorer, "max_dimension", np.int64(20), "20"),
    (_scorer, "loudness", np.float64(-20.0), "-20"),
    (_scorer, "activity", np.float32(0.1), "0.1"),
    (_scorer, "segment", np.float64(5.0), "5"),
    (_scorer, "memory", np.int64(2**28), "a lot"),
    (DistortionBank, "size", np.int64(5), "5"),
    (DistortionBank, "seed", np.int64(5), "5"),
    (_loss, "clearance", np.float64(1.0), "1"),
    (_loss, "frames", np.int64(3), "3"),
    (_loss, "seed", np.int64(3), "3"),
    (_metric, "frames", np.int64(3), "3"),
    (_metric, "attributed", np.array([0, 1]), "01"),
    (_map, "alpha", np.float64(1.0), "1"),
    (_map, "time", np.float64(1.0), "1"),
    (_map, "energy", np.float64(0.9), "0.9"),
    (_map, "max_dimension", np.int64(3), "3"),
    (_separation, "attributed", np.array([0, 1]), "01"),
    (_bounds, "confidence", np.float64(0.9), "0.9"),
    (_correlated, "draws", np.int64(20), "20"),
    (_pooled, "window", np.int64(5), "5"),
    (_pooled, "hop", np.int64(5), "5"),
    (_pooled, "p", np.float64(6.0), "6"),
    (_scores, "frames", np.int64(3), "3"),
    (_scores, "attributed", np.array([0, 1]), "01"),
    (_scores, "lengths", np.array([6400]), "6400"),
    (_resampled, "orig", np.int64(16_000), "16000"),
    (_resampled, "new", np.int64(8000), "8000"),
    (_normalised, "sample_rate", np.int64(16_000), "16000"),
    (_normalised, "target", np.float64(-20.0), "-20"),
    (_evaluated, "sample_rate", np.int64(16_000), "16000"),
    (_evaluated, "bank_size", np.int64(12), "12"),
    (_evaluated, "sample_frames", np.int64(5), "5"),
    (_evaluated, "seed", np.int64(1), "1"),
    (_evaluated, "confidence", np.float64(0.9), "0.9"),
    (_evaluated, "sample_frames", 5.0, "5.0"),
    (_evaluated, "excerpts", 1.0, "1"),
    (_evaluated, "excerpts", torch.tensor(1), "1"),
    (_bootstrap, "draws", 20.0, "20"),
    (_comparison, "alpha", np.array(0.1), "0.1"),
]
IDS = [f"{function.__name__.strip('_')}-{argument}" for function, argument, *_ in NUMBERS]
QUICK = {"encoder": "mel", "measures": "decomposition", "device": "cpu"}


@pytest.mark.parametrize(("function", "argument", "number", "text"), NUMBERS, ids=IDS)
def test_numpy_numbers_are_numbers(
    function: Callable[..., Any], argument: str, number: Any, text: str
) -> None:
    settings = QUICK if function is _evaluated else {}
    function(**settings, **{argument: number})


@pytest.mark.parametrize(("function", "argument", "number", "text"), NUMBERS, ids=IDS)
def test_text_is_refused_by_the_name_of_its_argument(
    function: Callable[..., Any], argument: str, number: Any, text: str
) -> None:
    settings = QUICK if function is _evaluated else {}
    with pytest.raises((TypeError, ValueError), match=argument):
        function(**settings, **{argument: text})


def test_a_number_of_draws_is_whole() -> None:
    torch.testing.assert_close(_correlated(draws=50.0), _correlated(draws=50))
    with pytest.raises(TypeError, match=r"draws must be a whole number, got 50\.5"):
        _correlated(draws=50.5)


CHOICES: list[tuple[Callable[..., Any], str, str]] = [
    (_scorer, "convention", ""),
    (_scorer, "eigh", "float16"),
    (_scorer, "measures", ""),
    (_map, "convention", ""),
    (_separation, "convention", ""),
    (_bounds, "convention", ""),
    (_loss, "reduction", ""),
    (_metric, "reduction", ""),
    (_evaluated, "channels", ""),
    (_evaluated, "convention", ""),
    (_bounded, "convention", ""),
]
CHOICE_IDS = [f"{function.__name__.strip('_')}-{argument}" for function, argument, _ in CHOICES]


@pytest.mark.parametrize(("function", "argument", "choice"), CHOICES, ids=CHOICE_IDS)
def test_a_choice_that_is_none_is_refused(
    function: Callable[..., Any], argument: str, choice: str
) -> None:
    settings = QUICK if function is _evaluated else {}
    with pytest.raises((TypeError, ValueError), match=argument):
        function(**settings, **{argument: choice})


def test_misspelt_options_are_named() -> None:
    for function in (_bounds, _separation, _map, _scorer, _loss, _metric, _evaluated):
        settings = QUICK if function is _evaluated else {}
        with pytest.raises((TypeError, ValueError), match="confidense"):
            function(**settings, **{"confidense": 0.9})


def test_paths_are_taken_as_text_is(tmp_path: Path) -> None:
    estimates, references = waveforms()
    scorer = mapss(measures="decomposition")
    path = tmp_path / "bank.pt"
    scorer.prepare(references).save(path)
    for name in (path, str(path)):
        bank = torch_mapss.ReferenceBank.load(name)
        assert torch.equal(scorer(estimates, bank).active, scorer(estimates, references).active)


@pytest.mark.parametrize(
    ("condition", "options"),
    [
        (Quantile, {"measure": "ps", "q": "0.5", "above": 0.5}),
        (Quantile, {"measure": "ps", "q": 0.5, "above": "0.5"}),
        (Fraction, {"measure": "ps", "over": "0.5", "above": 0.5}),
        (Trend, {"measure": "ps", "span": "3", "below": 0.1}),
    ],
)
def test_levels_of_triggers_are_numbers(condition: Any, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"level|q|over|span"):
        FrameTrigger(condition(**options))

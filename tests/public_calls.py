"""One small call of every public function, for the tests of threads, processes and defaults.

Inputs are made on the CPU in stated dtypes, whatever torch's defaults are.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from waveforms import RATE, noise

import torch_mapss
from torch_mapss import DistortionBank, audio, bounds, functional, metrics
from torch_mapss.training.curriculum import FrameTrigger, Quantile

CPU = torch.device("cpu")


def waveforms(samples: int = 6400) -> tuple[Tensor, Tensor]:
    """Estimates and references (1, 2, T)."""
    references = noise(1, 2, samples)
    return references + 0.3 * references.flip(1), references


def embeddings() -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (3, 2, 6), references (3, 2, 6) and distortions (3, 2, 8, 6), float64."""
    references = noise(3, 2, 6, dtype=torch.float64)
    distortions = references.unsqueeze(2) + 0.3 * noise(3, 2, 8, 6, seed=1, dtype=torch.float64)
    return references + 0.3 * noise(3, 2, 6, seed=2, dtype=torch.float64), references, distortions


def frames() -> Tensor:
    """Frame scores (2, 30) in [0, 1]."""
    return noise(2, 30, dtype=torch.float64).abs().clamp(max=1.0)


def mapss(**options: Any) -> torch_mapss.MAPSS:
    """A scorer with small banks."""
    small_banks = {
        "separation_bank": DistortionBank("separation", size=4),
        "match_bank": DistortionBank("match", size=4),
    }
    return torch_mapss.MAPSS("mel", **small_banks, **options)


def scored() -> list[Tensor | None]:
    """Utterance scores of a call."""
    estimates, references = waveforms()
    return list(mapss()(estimates, references).utterance())


def bounded() -> Any:
    """Bounds of a call."""
    estimates, references = waveforms()
    return mapss().bounds(estimates, references).ps


def gradient() -> Tensor:
    """Gradient of a loss in the estimates."""
    estimates, references = waveforms()
    leaf = estimates.requires_grad_()
    loss = torch_mapss.MAPSSLoss(mapss(), clearance=1.0, fidelity=1.0, separation=1.0, match=1.0)
    loss(leaf, references).backward()
    assert leaf.grad is not None
    return leaf.grad


def measured(name: str) -> dict[str, Tensor]:
    """A metric over two updates, in float64: its own dtype is torch's default."""
    estimates, references = waveforms()
    metric = getattr(torch_mapss, name)(mapss())
    metric.update(estimates, references)
    metric.update(references, references)
    values = metric.compute()
    by_name = values if isinstance(values, dict) else {name: values}
    return {score: value.double() for score, value in by_name.items()}


def saved_and_loaded() -> Tensor:
    """Clearance from a bank that went through a file."""
    estimates, references = waveforms()
    scorer = mapss(measures="decomposition")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bank.pt")
        scorer.prepare(references).save(path)
        bank = torch_mapss.ReferenceBank.load(path)
    return scorer(estimates, bank).utterance().clearance


def evaluated() -> list[float]:
    """Scores of arrays."""
    estimates, references = waveforms()
    report = torch_mapss.evaluate(
        estimates=estimates[0].numpy(),
        references=references[0].numpy(),
        mapss=mapss(),
        device="cpu",
    )
    return [float(report.scores["clearance"].mean()), float(report.scores["ps"].mean())]


def decoded() -> Any:
    """A file that the package brings along."""
    path = Path(torch_mapss.__file__).parent / "assets" / "voice_low.flac"
    return audio.load_audio(path)


def triggered() -> list[float | None]:
    """Statistics of a trigger after an update."""
    trigger = FrameTrigger(Quantile("ps", 0.5, above=0.99))
    trigger.update({"ps": frames().flatten()})
    return list(trigger.statistics.values())


def triggered_by_a_list() -> list[float | None]:
    """The same of plain numbers."""
    trigger = FrameTrigger(Quantile("ps", 0.5, above=0.99))
    trigger.update({"ps": frames().flatten().tolist()})
    return list(trigger.statistics.values())


def correlated() -> Any:
    """A correlation with ratings and its bounds."""
    scores, ratings = noise(8, dtype=torch.float64), noise(8, seed=1, dtype=torch.float64)
    width = 0.01 * torch.ones(8, dtype=torch.float64, device=CPU)
    return bounds.correlation_bounds(scores, width, width, ratings, method="spearman", draws=200)


def _on_embeddings(function: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    return functools.partial(_with_embeddings, function, options)


def _with_embeddings(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    return function(*embeddings(), **options)


def _on_frames(function: Callable[..., Any]) -> Callable[[], Any]:
    return functools.partial(_with_frames, function)


def _with_frames(function: Callable[..., Any]) -> Any:
    return function(frames())


def _wave(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return functools.partial(_with_waveform, function, arguments)


def _with_waveform(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(waveforms()[0], *arguments)


def _pair(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return functools.partial(_with_pair, function, arguments)


def _with_pair(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*waveforms(), *arguments)


def _gamma(function: Callable[..., Any]) -> Callable[[], Any]:
    return functools.partial(_with_positive_numbers, function)


def _with_positive_numbers(function: Callable[..., Any]) -> Any:
    return function(1.0 + frames(), 2.0 * frames())


def encoded(name: str) -> Tensor:
    """Embeddings of noise."""
    embeddings_of_noise: Tensor = torch_mapss.load_encoder(name)(noise(2, 3200))
    return embeddings_of_noise


def distorted(kind: str) -> Any:
    """Copies of noise by a whole bank."""
    return DistortionBank(kind)(noise(2, 4000), RATE)


CALLS: dict[str, Callable[[], Any]] = {
    **{
        f"functional.{name}": _on_embeddings(getattr(functional, name))
        for name in (
            "clearance",
            "fidelity",
            "perceptual_separation",
            "perceptual_match",
            "separation_distances",
            "separation_bounds",
            "match_bounds",
            "decomposition_bounds",
        )
    },
    "functional.log_match": _on_embeddings(functional.perceptual_match, log=True),
    "functional.diffusion_map": lambda: functional.diffusion_map(embeddings()[2]),
    "functional.truncation_bounds": lambda: functional.truncation_bounds(
        functional.diffusion_map(embeddings()[2])
    ),
    **{
        f"functional.{name}": _on_frames(getattr(functional, name))
        for name in ("pool_match", "pool_separation", "pool_fidelity")
    },
    "functional.gammaincc": _gamma(functional.gammaincc),
    "functional.log_gammaincc": _gamma(functional.log_gammaincc),
    "bounds.source_correlation": _on_embeddings(bounds.source_correlation, draws=20),
    "bounds.correlation_bounds": correlated,
    "audio.integrated_loudness": _wave(audio.integrated_loudness, RATE),
    "audio.normalize_loudness": _wave(audio.normalize_loudness, RATE),
    "audio.bandwidth": _wave(audio.bandwidth, RATE),
    "audio.resample": _wave(audio.resample, RATE, 8000),
    "audio.source_activity": _wave(audio.source_activity, 400, 320),
    "audio.frame_rms": _wave(audio.frame_rms, 400, 320),
    "audio.is_silent": _wave(audio.is_silent),
    "audio.match_sources": _pair(audio.match_sources),
    "audio.si_sdr": _pair(audio.si_sdr),
    "audio.pairwise_si_sdr": _pair(audio.pairwise_si_sdr),
    "audio.load_audio": decoded,
    "DistortionBank.separation": functools.partial(distorted, "separation"),
    "DistortionBank.match": functools.partial(distorted, "match"),
    "load_encoder.mel": functools.partial(encoded, "mel"),
    "load_encoder.waveform": functools.partial(encoded, "waveform"),
    "MAPSS": scored,
    "MAPSS.bounds": bounded,
    "MAPSSLoss": gradient,
    "ReferenceBank": saved_and_loaded,
    **{name: functools.partial(measured, name) for name in metrics.__all__ if name[0].isupper()},
    "FrameTrigger": triggered,
    "FrameTrigger of a list": triggered_by_a_list,
    "evaluate": evaluated,
}


def same(result: Any, expected: Any) -> bool:
    """Whether two results hold the same numbers, NaN included, to rounding."""
    if isinstance(expected, Tensor):
        return (
            isinstance(result, Tensor)
            and result.dtype == expected.dtype
            and result.device == expected.device
            and torch.allclose(
                result.double(), expected.double(), rtol=1e-5, atol=1e-7, equal_nan=True
            )
        )
    if isinstance(expected, dict):
        return result.keys() == expected.keys() and all(
            same(result[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list | tuple):
        return len(result) == len(expected) and all(map(same, result, expected))
    if isinstance(expected, float):
        return abs(result - expected) <= 1e-6 or (result != result and expected != expected)
    if hasattr(expected, "__dataclass_fields__"):
        return all(
            same(getattr(result, name), getattr(expected, name))
            for name in expected.__dataclass_fields__
        )
    return bool(result == expected)

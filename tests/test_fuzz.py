"""Any input ends in a finite score or in an error that names the argument.

Every draw ends in scores within [0, 1] (NaN only as the mark of an undefined one, where numbers are
handed out) with finite gradients, or in a ValueError or TypeError whose text names what is wrong:
never in another exception, a NaN in a graph, or a hang. A few draws by default; many with
``-m slow``.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_scorers import small
from torch import Tensor

from torch_mapss import (
    MAPSSLoss,
    MatchLoss,
    PerceptualMatch,
    PerceptualSeparation,
    SeparationLoss,
    evaluate,
)
from torch_mapss import functional as F
from torch_mapss.core.points import NonFiniteError

pytestmark = pytest.mark.filterwarnings("ignore")
QUICK, MANY = 30, 300
NAMES = re.compile(
    r"estimates|references|preds|target|lengths|attributed|outputs|distortions|points|active|mask"
    r"|alpha|time|energy|frames|mixture \d|sources|'estimate \d'|'reference \d'"
)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OTHERS = (torch.int16, torch.int32, torch.uint8, torch.int64, torch.bool, torch.complex64)
OPTIONS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


def fuzzed(*strategies: st.SearchStrategy[Any]) -> Callable[..., Any]:
    """A test run on a few draws, and on many with ``-m slow``."""

    def decorate(check: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("draws", [QUICK, pytest.param(MANY, marks=pytest.mark.slow)])
        def test(draws: int) -> None:
            limits = settings(max_examples=draws, derandomize=draws == QUICK, **OPTIONS)
            limits(given(*strategies)(check))()

        return test

    return decorate


def outcome(call: Callable[[], Any]) -> Any:
    """What the call returns; None where it refuses by name. Anything else fails the test."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except (ValueError, TypeError) as error:
        refusal = error
    custom = type(refusal) in (ValueError, TypeError, NonFiniteError)
    if not custom or not NAMES.search(str(refusal)):
        raise AssertionError(f"no refusal of the library's own: {refusal!r}") from refusal
    return None


def check_scores(scores: Tensor, low: float = 0.0, high: float = 1.0, nan: bool = False) -> None:
    scores = scores.detach()
    if nan:
        scores = scores[~scores.isnan()]
    assert (scores.isfinite() & (scores >= low) & (scores <= high)).all()


@st.composite
def drawn_calls(draw: st.DrawFn, waves: bool) -> dict[str, Any]:
    """Waveforms or embeddings, mostly of shapes that fit, many degenerate, with options."""
    # Hypothesis prefers the ends of a range; what should be rare is decided by a seeded generator.
    chance = random.Random(draw(st.integers(0, 2**31)))
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    sources = chance.choice([1, *[2] * 6, 3, 4])
    lead = [draw(st.integers(1, 3))] if waves else draw(st.sampled_from([[], [3], [2, 2], [0]]))
    size, members = 4, chance.choice([1, *range(2, 10)])
    if waves:
        size = chance.choice([1, 399, 400, 401, 719, *[1500, 2400, 3200] * 4])
    elif chance.randrange(5) == 0:
        size = draw(st.sampled_from([1, 2, 5, 0]))
    custom, references = ("estimates" if waves else "outputs"), "references"
    shapes = {custom: [*lead, sources, size], references: [*lead, sources, size]}
    if not waves:
        shapes["distortions"] = [*lead, sources, members, size]
    if chance.randrange(20 if waves else 7) == 0:  # one shape that does not fit
        shape = shapes[draw(st.sampled_from(sorted(shapes)))]
        axis = draw(st.integers(0, len(shape) - 1))
        shape[axis] += draw(st.sampled_from([-1, 1])) if shape[axis] else 1
    made: dict[str, Any] = {}
    for name, shape in shapes.items():
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if waves:
            pitch = torch.arange(1, shape[-2] + 1).reshape(-1, 1) * 170.0 / 16_000
            x = 0.1 * x + 0.2 * torch.sin(2 * torch.pi * pitch * torch.arange(shape[-1]))
        made[name] = x.round(decimals=15 if waves else draw(st.sampled_from([0, 1, 15])))  # ties
    kinds = ["plain", "equal", "twins", "constant", "inverted", "leaky", "collapsed", "far"]
    spoil(made, custom, draw(st.sampled_from(kinds)))
    if waves:
        for x in made.values():
            for _ in range(draw(st.integers(0, 2))):  # silence, whole or from the middle on
                item, source = (draw(st.integers(0, n - 1)) if n else 0 for n in x.shape[:2])
                if x.numel():
                    x[item, source, draw(st.sampled_from([0, 0, size // 2])) :] = 0.0
    level = draw(st.sampled_from([1.0, 1.0, 1e-5, 25.0, 1e-30, 1e30]))
    for name in [custom] if waves else made:
        made[name] = made[name] * level
    if chance.randrange(6) == 0:
        x = made[draw(st.sampled_from(sorted(made)))]
        if x.numel():
            position = draw(st.integers(0, x.numel() - 1))
            x.view(-1)[position] = draw(st.sampled_from([torch.nan, torch.inf, 1e200, -torch.inf]))
    for name in made:
        weights = [*[torch.float32, torch.float32 if waves else torch.float64] * 20]
        made[name] = made[name].to(chance.choice([*weights, *FLOATS, *OTHERS]))
        made[name] = reshaped(chance, made[name]) if waves else made[name]
    if waves and chance.randrange(5) == 0:
        made["lengths"] = draw(
            st.lists(st.integers(min(400, size), size), min_size=lead[0], max_size=lead[0])
            | st.lists(st.integers(-1, size + 1), min_size=lead[0], max_size=lead[0])
            | st.sampled_from([5, "ab", [400.5], None, torch.full((lead[0],), size)])
        )
    if chance.randrange(5) == 0:
        valid = st.permutations(range(sources)) | st.just((0,))
        wrong = st.lists(st.integers(-1, 4), max_size=5) | st.sampled_from([0, "0", 0.5])
        made["attributed"] = draw(valid | valid | wrong)
        if chance.randrange(2) and getattr(made[custom], "ndim", 0) >= 2:
            made[custom] = made[custom][..., :1, :]
    return made if waves else points_options(draw, chance, made, [*lead, sources], members)


def points_options(draw, chance, made, sources: list[int], members: int) -> dict[str, Any]:
    """Masks and settings, which functions of embeddings take."""
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    if draw(st.booleans()):
        made["active"] = torch.rand(sources, generator=generator) < 0.7
    if draw(st.booleans()):
        made["mask"] = torch.rand([*sources, members], generator=generator) < 0.8
    options = {"convention": ["reference"], "alpha": [0.0, 0.5, 2.0, torch.nan]}
    options |= {"time": [2.0, 0.5, 0.0, -1.0], "energy": [0.5, 1.0, 0.0, 1.5]}
    for name, values in options.items():
        if chance.randrange(6) == 0:
            made[name] = draw(st.sampled_from(values))
    return made


def spoil(made: dict[str, Any], system: str, kind: str) -> None:
    """Degenerate waveforms and point clouds, where the shapes allow them."""
    outputs, references, distortions = made[system], made["references"], made.get("distortions")
    try:
        if kind in ("equal", "inverted", "leaky"):
            leak = 0.3 * references.flip(-2) if kind == "leaky" else 0.0
            outputs.copy_((-references if kind == "inverted" else references) + leak)
        if kind == "collapsed" and distortions is not None:
            distortions.copy_(references.unsqueeze(-2).expand_as(distortions))
        if kind == "twins":
            references.copy_(references[..., :1, :].expand_as(references))
            if distortions is not None:
                distortions.copy_(distortions[..., :1, :, :].expand_as(distortions))
        if kind == "constant":
            for x in made.values():
                x.fill_(1.0)
        if kind == "far":
            outputs.add_(1e6)
    except RuntimeError:
        return


def reshaped(chance: random.Random, x: Tensor) -> Any:
    """Mostly the tensor itself, now and then another rank, layout or container."""
    changed: dict[int, Callable[[], Any]] = {
        0: lambda: x[0] if len(x) else x,
        1: lambda: x.unsqueeze(1),
        2: lambda: x.mT.contiguous().mT,
        3: lambda: x[:0],
        4: lambda: x.to(torch.float32).numpy() if x.dtype != torch.complex64 else None,
        5: lambda: x.to("meta"),
        6: lambda: x.tolist(),
    }
    return changed.get(chance.randrange(110), lambda: x)()


@fuzzed(drawn_calls(False))
def test_functions_of_embeddings(drawn):
    names = ("outputs", "references", "distortions")
    points = [drawn[name] for name in names]
    options = {name: value for name, value in drawn.items() if name not in names}
    leaves = [x.clone().requires_grad_() if x.dtype.is_floating_point else x for x in points]
    for function, low, high in (
        (F.perceptual_separation, 0.0, 1.0),
        (F.perceptual_match, 0.0, 1.0),
        (lambda *x, **o: F.perceptual_match(*x, log=True, **o), -torch.inf, 0.0),
    ):
        score = outcome(lambda f=function: f(*leaves, **options))
        if score is None:
            continue
        check_scores(score, low, high)
        if score.requires_grad:
            slopes = torch.autograd.grad(score.sum(), leaves, allow_unused=True)
            assert all(s is None or bool(s.isfinite().all()) for s in slopes)
    for function in (F.separation_bounds, F.match_bounds):
        bounds = outcome(lambda f=function: f(*points, **options))
        if bounds is not None:
            for piece in (bounds.radius, bounds.tail, bounds.total):
                assert (piece >= 0.0).all()  # and not NaN


CONFIGS = {}, {"trim": True}, {"check_finite": False}, {"align_polarity": True}
SCORERS = tuple(small(size=3, **options) for options in CONFIGS)


@fuzzed(drawn_calls(True), st.sampled_from(SCORERS))
def test_the_pipeline(given_, mapss):
    scores = outcome(lambda: mapss(**given_))
    if scores is None:
        return
    for values in (scores.ps, scores.pm):
        check_scores(values)
        assert (values[~scores.active] == 0.0).all()
    check_scores(scores.log_pm, -torch.inf, 0.0)
    actual = scores.utterance()
    check_scores(actual.ps, nan=True)
    assert torch.equal(actual.ps.isnan(), actual.frames == 0)


LOSSES = (
    SeparationLoss,
    lambda m: SeparationLoss(m, mode="log", pit="si_sdr", reduction="none"),
    lambda m: MatchLoss(m, reduction="item", weighting="energy"),
    lambda m: MatchLoss(m, mode="log1p", frames=4),
    lambda m: MAPSSLoss(m, si_sdr=0.1, match_mode="linear", pit="loss"),
)


@fuzzed(drawn_calls(True), st.sampled_from(SCORERS), st.sampled_from(LOSSES))
def test_losses(given_, mapss, make):
    estimates = given_["estimates"]
    if isinstance(estimates, Tensor) and estimates.dtype.is_floating_point:
        given_["estimates"] = estimates.detach().clone().requires_grad_()
    value = outcome(lambda: make(mapss)(**given_))
    if value is None:
        return
    assert value.isfinite().all()
    if value.requires_grad:
        value.sum().backward()
        assert given_["estimates"].grad.isfinite().all()


METRICS = (
    PerceptualSeparation,
    lambda m: PerceptualSeparation(m, reduction="pesq"),
    lambda m: PerceptualMatch(m, reduction="source", keep_items=True),
    lambda m: PerceptualMatch(m, reduction="none"),
    lambda m: PerceptualSeparation(m, pit="si_sdr"),
)


@fuzzed(drawn_calls(True), st.sampled_from(SCORERS), st.sampled_from(METRICS))
def test_metrics(given_, mapss, make):
    metric = make(mapss)
    outcome(lambda: metric.update(given_["estimates"], given_["references"], given_.get("lengths")))
    high = 1.32 if metric.score_name == "ps_pesq" else 1.0
    check_scores(outcome(metric.compute), high=high, nan=True)
    assert metric.skipped >= 0


@fuzzed(drawn_calls(True), st.booleans(), st.booleans(), st.booleans())
def test_evaluate(given_, permute, trim, bounds):
    given_.pop("lengths", None)
    for name in ("estimates", "references"):
        x = given_[name]
        if isinstance(x, Tensor | np.ndarray) and x.ndim == 3 and len(x):
            given_[name] = x[0]
    given_ |= {"permute": permute, "trim": trim, "bounds": bounds}
    report = outcome(lambda: evaluate(**given_, mapss=SCORERS[0]))
    if report is None:
        return
    check_scores(report.ps, nan=True)
    check_scores(report.pm, nan=True)
    assert torch.equal(report.ps.isnan(), ~report.active)
    assert all(row.frames >= 0 for row in report.rows)
    assert report.summary()

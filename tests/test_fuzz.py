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
from torch import Tensor

from torch_mapss import (
    MAPSS,
    DistortionBank,
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


class Drawn(dict[str, Any]):
    """A call's arguments, told by their shapes and not by thousands of samples."""

    def __repr__(self) -> str:
        def short(x: Any) -> str:
            if not isinstance(x, Tensor | np.ndarray):
                return repr(x)[:80]
            meta = isinstance(x, Tensor) and x.device.type == "meta"
            values = "on meta" if meta else x.reshape(-1)[:6].tolist()
            return f"{x.dtype} {tuple(x.shape)} {values}"

        return ", ".join(f"{name}={short(value)}" for name, value in self.items())


def fuzzed(strategy: Callable[..., st.SearchStrategy[Any]]) -> Callable[..., Any]:
    """A test run on a few draws, and on many with ``-m slow``."""

    def decorate(check: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("draws", [QUICK, pytest.param(MANY, marks=pytest.mark.slow)])
        def test(draws: int) -> None:
            drawn = settings(
                max_examples=draws,
                deadline=None,
                derandomize=draws == QUICK,
                database=None,
                suppress_health_check=list(HealthCheck),
            )(given(strategy())(check))
            drawn()

        test.__name__ = check.__name__
        test.__doc__ = check.__doc__
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
    own = type(refusal) in (ValueError, TypeError, NonFiniteError)
    if not own or not NAMES.search(str(refusal)):
        raise AssertionError(f"no refusal of the library's own: {refusal!r}") from refusal
    return None


def check_scores(scores: Tensor, low: float = 0.0, high: float = 1.0, nan: bool = False) -> None:
    scores = scores.detach()
    if nan:
        scores = scores[~scores.isnan()]
    assert scores.isfinite().all()
    assert (scores >= low).all()
    assert (scores <= high).all()


# --------------------------------------------------------------------------------- embeddings


@st.composite
def embeddings(draw: st.DrawFn) -> dict[str, Any]:
    """Outputs, references and distortions, mostly of shapes that fit, with options."""
    # Hypothesis prefers the ends of a range; what should be rare is decided by a seeded generator.
    chance = random.Random(draw(st.integers(0, 2**31)))
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    lead = draw(st.sampled_from([(), (3,), (2, 2), (0,)]))
    sources, members = chance.choice([1, 2, 2, 2, 3, 4]), chance.choice([1, *range(2, 10)])
    features = draw(st.sampled_from([1, 2, 5, 0]) if chance.randrange(5) == 0 else st.just(4))
    shapes = {
        "outputs": [*lead, sources, features],
        "references": [*lead, sources, features],
        "distortions": [*lead, sources, members, features],
    }
    if chance.randrange(7) == 0:  # one shape that does not fit
        name = draw(st.sampled_from(sorted(shapes)))
        axis = draw(st.integers(0, len(shapes[name]) - 1))
        shapes[name][axis] += draw(st.sampled_from([-1, 1])) if shapes[name][axis] else 1
    made = Drawn()
    level = draw(st.sampled_from([1.0, 1.0, 1e-12, 1e12, 0.0, 1e-160, 1e30]))
    for name, shape in shapes.items():
        x = torch.randn(shape, generator=generator, dtype=torch.float64) * level
        made[name] = x.round(decimals=draw(st.sampled_from([0, 1, 15])))  # ties
    kind = draw(st.sampled_from(["plain", "equal", "collapsed", "twins", "constant", "far"]))
    spoil(made, kind)
    if chance.randrange(6) == 0:
        x = made[draw(st.sampled_from(sorted(made)))]
        if x.numel():
            place = draw(st.integers(0, x.numel() - 1))
            x.view(-1)[place] = draw(st.sampled_from([torch.nan, torch.inf, 1e200, -torch.inf]))
    for name in made:
        weights = [*[torch.float64, torch.float32] * 20, *FLOATS, *OTHERS]
        made[name] = made[name].to(chance.choice(weights))
    if draw(st.booleans()):
        made["active"] = torch.rand([*lead, sources], generator=generator) < 0.7
    if draw(st.booleans()):
        made["mask"] = torch.rand([*lead, sources, members], generator=generator) < 0.8
    if chance.randrange(5) == 0:
        made["attributed"] = draw(
            st.lists(st.integers(-1, 4), max_size=5) | st.permutations(range(sources))
        )
    if chance.randrange(5) == 0:
        made["convention"] = "reference"
    for name, values in {
        "alpha": [0.0, 0.5, 2.0, torch.nan],
        "time": [2.0, 0.5, 0.0, -1.0],
        "energy": [0.5, 1.0, 0.0, 1.5],
    }.items():
        if chance.randrange(7) == 0:
            made[name] = draw(st.sampled_from(values))
    return made


def spoil(made: dict[str, Any], kind: str) -> None:
    """Degenerate point clouds, where the shapes allow them."""
    outputs, references, distortions = made["outputs"], made["references"], made["distortions"]
    try:
        if kind == "equal":
            outputs.copy_(references)
        if kind == "collapsed":
            distortions.copy_(references.unsqueeze(-2).expand_as(distortions))
        if kind == "twins":
            references.copy_(references[..., :1, :].expand_as(references))
            distortions.copy_(distortions[..., :1, :, :].expand_as(distortions))
        if kind == "constant":
            for x in (outputs, references, distortions):
                x.fill_(1.0)
        if kind == "far":
            outputs.add_(1e6)
    except RuntimeError:
        return


@fuzzed(embeddings)
def test_functions_of_embeddings(drawn: dict[str, Any]) -> None:
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
            for part in (bounds.radius, bounds.tail, bounds.total):
                assert not part.isnan().any()
                assert (part >= 0.0).all()


# --------------------------------------------------------------------------------- waveforms


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, Any]:
    """Estimates and references, mostly of shapes that fit, with silence and broken samples."""
    # Hypothesis prefers the ends of a range; what should be rare is decided by a seeded generator.
    chance = random.Random(draw(st.integers(0, 2**31)))
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    batch, sources = draw(st.integers(1, 3)), chance.choice([1, *[2] * 6, 3, 4])
    samples = chance.choice([1, 399, 400, 401, 719, *[1500, 2400, 3200] * 4])
    shape = [batch, sources, samples]
    made = Drawn()
    clock = torch.arange(samples) / 16_000
    for name in ("estimates", "references"):
        noise = torch.randn(shape, generator=generator)
        pitch = torch.arange(1, sources + 1).reshape(-1, 1) * 170.0
        made[name] = 0.1 * noise + 0.2 * torch.sin(2 * torch.pi * pitch * clock)
    kind = draw(st.sampled_from(["unlike", "equal", "inverted", "leaky", "constant"]))
    references = made["references"]
    made["estimates"] = {
        "unlike": made["estimates"],
        "equal": references.clone(),
        "inverted": -references,
        "leaky": references + 0.3 * references.flip(1),
        "constant": torch.ones(shape),
    }[kind]
    silence(draw, made)
    level = draw(st.sampled_from([1.0, 1.0, 1e-5, 25.0, 1e-30, 1e30]))
    made["estimates"] = made["estimates"] * level
    if chance.randrange(7) == 0:
        x = made[draw(st.sampled_from(["estimates", "references"]))]
        x.view(-1)[draw(st.integers(0, x.numel() - 1))] = draw(
            st.sampled_from([torch.nan, torch.inf])
        )
    for name in ("estimates", "references"):
        kinds = [*[torch.float32] * 40, *FLOATS * 2, *OTHERS]
        made[name] = reshaped(chance, made[name].to(chance.choice(kinds)))
    if chance.randrange(5) == 0:
        few = st.integers(-1, samples + 1)
        made["lengths"] = draw(
            st.lists(st.integers(min(400, samples), samples), min_size=batch, max_size=batch)
            | st.lists(few, min_size=batch, max_size=batch)
            | st.sampled_from([5, "ab", [400.5], None, torch.full((batch,), samples)])
        )
    if chance.randrange(5) == 0:
        sound = st.permutations(range(sources)) | st.just((0,))
        made["attributed"] = draw(
            sound
            | sound
            | st.lists(st.integers(-1, 4), max_size=4)
            | st.sampled_from([0, "0", 0.5])
        )
        if chance.randrange(2) and getattr(made["estimates"], "ndim", 0) == 3:
            made["estimates"] = made["estimates"][:, :1]
    return made


def silence(draw: st.DrawFn, made: dict[str, Any]) -> None:
    """Whole sources or parts of them set to zero."""
    for name in ("estimates", "references"):
        x = made[name]
        for _ in range(draw(st.integers(0, 2))):
            item, source = (draw(st.integers(0, size - 1)) for size in x.shape[:2])
            start = draw(st.sampled_from([0, 0, x.shape[-1] // 2]))
            x[item, source, start:] = 0.0


def reshaped(chance: random.Random, x: Tensor) -> Any:
    """Mostly the tensor itself, now and then another rank, length, layout or container."""
    change = chance.randrange(150)
    changed: dict[int, Callable[[], Any]] = {
        0: lambda: x[0],
        1: lambda: x[0, 0],
        2: lambda: x.unsqueeze(1),
        3: lambda: x[..., :-1],
        4: lambda: x.transpose(1, 2).contiguous().transpose(1, 2),
        5: lambda: x[:0],
        6: lambda: x.to(torch.float32).numpy() if x.dtype != torch.complex64 else None,
        7: lambda: x.expand(2, *x.shape),
        8: lambda: x.to("meta"),
        9: lambda: x.tolist(),
    }
    return changed.get(change, lambda: x)()


def scorer(**options: Any) -> MAPSS:
    return MAPSS(
        "mel",
        separation_bank=DistortionBank("separation", size=3),
        match_bank=DistortionBank("match", size=3),
        **options,
    )


SCORERS = (scorer(), scorer(trim=True), scorer(check_finite=False), scorer(align_polarity=True))


@fuzzed(lambda: st.tuples(mixtures(), st.sampled_from(SCORERS)))
def test_the_pipeline(drawn: tuple[dict[str, Any], MAPSS]) -> None:
    given_, mapss = drawn
    scores = outcome(lambda: mapss(**given_))
    if scores is None:
        return
    for values in (scores.ps, scores.pm):
        check_scores(values)
        assert (values[~scores.active] == 0.0).all()
    check_scores(scores.log_pm, -torch.inf, 0.0)
    found = scores.utterance()
    check_scores(found.ps, nan=True)
    assert torch.equal(found.ps.isnan(), found.frames == 0)


LOSSES = (
    lambda m: SeparationLoss(m),
    lambda m: SeparationLoss(m, mode="log", pit="si_sdr", reduction="none"),
    lambda m: MatchLoss(m, reduction="item", weighting="energy"),
    lambda m: MatchLoss(m, mode="log1p", frames=4),
    lambda m: MAPSSLoss(m, si_sdr=0.1, match_mode="linear", pit="loss"),
)


@fuzzed(lambda: st.tuples(mixtures(), st.sampled_from(SCORERS), st.sampled_from(LOSSES)))
def test_losses(drawn: tuple[dict[str, Any], MAPSS, Any]) -> None:
    given_, mapss, make = drawn
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
    lambda m: PerceptualSeparation(m),
    lambda m: PerceptualSeparation(m, reduction="pesq"),
    lambda m: PerceptualMatch(m, reduction="source", keep_items=True),
    lambda m: PerceptualMatch(m, reduction="none"),
    lambda m: PerceptualSeparation(m, pit="si_sdr"),
)


@fuzzed(lambda: st.tuples(mixtures(), st.sampled_from(SCORERS), st.sampled_from(METRICS)))
def test_metrics(drawn: tuple[dict[str, Any], MAPSS, Any]) -> None:
    given_, mapss, make = drawn
    metric = make(mapss)
    outcome(lambda: metric.update(given_["estimates"], given_["references"], given_.get("lengths")))
    value = outcome(metric.compute)
    value = value["ps"] if isinstance(value, dict) else value
    high = 1.32 if metric.value.column == "ps_pesq" else 1.0
    check_scores(value, high=high, nan=True)
    assert metric.skipped >= 0


@fuzzed(lambda: st.tuples(mixtures(), st.booleans(), st.booleans(), st.booleans()))
def test_evaluate(drawn: tuple[dict[str, Any], bool, bool, bool]) -> None:
    given_, permute, trim, bounds = drawn
    given_.pop("lengths", None)
    for name in ("estimates", "references"):
        x = given_[name]
        if isinstance(x, Tensor | np.ndarray) and x.ndim == 3 and len(x):
            given_[name] = x[0]
    report = outcome(
        lambda: evaluate(**given_, mapss=SCORERS[0], permute=permute, trim=trim, bounds=bounds)
    )
    if report is None:
        return
    check_scores(report.ps, nan=True)
    check_scores(report.pm, nan=True)
    assert torch.equal(report.ps.isnan(), ~report.active)
    assert all(row.frames >= 0 for row in report.rows)
    assert report.summary()

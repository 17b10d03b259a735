"""Numbers and gradients where they are hardest: ties, collapse, half precision, nothing defined.

Gradients at exact degeneracy, random signs of eigenvectors with their gradients, and the curriculum
trigger on undefined epochs have their full tests in test_gradients, test_functional and
test_curriculum; here is one small case of each.
"""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from clouds import assert_derivative, clouds, random_direction
from edge import Stub, gradient, in_range, leaky, scores_of, small, voices

from torch_mapss import MAPSSLoss, MatchLoss, PerceptualMatch, PerceptualSeparation, SeparationLoss
from torch_mapss import functional as F
from torch_mapss.training.curriculum import FrameTrigger, Quantile

SCORES = {
    "ps": F.perceptual_separation,
    "pm": F.perceptual_match,
    "log_pm": lambda *x, **o: F.perceptual_match(*x, log=True, **o),
}
each_score = pytest.mark.parametrize("name", SCORES)
near = torch.testing.assert_close
pytestmark = pytest.mark.filterwarnings("ignore:mixtures")


def finite_gradients(name: str, *embeddings: torch.Tensor, **options) -> torch.Tensor:
    leaves = [x.detach().clone().requires_grad_() for x in embeddings]
    score = SCORES[name](*leaves, **options)
    assert score.isfinite().all()
    for slope in torch.autograd.grad(score.sum(), leaves, allow_unused=True):
        assert slope is None or slope.isfinite().all()
    return score.detach()


# --------------------------------------------------------------------------------- degeneracy


@each_score
def test_two_identical_sources(name):
    outputs, references, distortions = clouds(2, distortions=9)
    references[:, 1], distortions[:, 1] = references[:, 0], distortions[:, 0]
    finite_gradients(name, outputs, references, distortions)
    inputs = outputs, references, distortions
    # Only the outputs move: at them the score is smooth, while both clusters stay the same.
    direction = [random_direction([outputs], 3)[0], *(torch.zeros_like(x) for x in inputs[1:])]
    if name == "log_pm":
        assert_derivative(lambda *x: SCORES[name](*x).sum(), inputs, direction, rtol=1e-4)
    near(F.perceptual_separation(*inputs), torch.full((2, 2), 0.5).double())


def test_two_identical_sources_through_the_pipeline(mapss):
    references = voices()
    references[:, 1] = references[:, 0]
    estimates = leaky(voices())
    assert in_range(scores_of(mapss, estimates, references))
    for loss in (SeparationLoss, MatchLoss):
        gradient(loss(mapss), estimates, references)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e38, 0.0])
def test_one_bad_frame_of_embeddings_costs_that_frame_only(value):
    class Holed(Stub):
        def __call__(self, waveform):
            embeddings = super().__call__(waveform)
            embeddings[:, 7] = value
            return embeddings

    estimates, references = leaky(voices()), voices()
    clean, holed = (small(encoder)(estimates, references) for encoder in (Stub(), Holed()))
    others = torch.arange(clean.ps.shape[-1]) != 7
    near(holed.ps[..., others], clean.ps[..., others])
    near(holed.pm[..., others], clean.pm[..., others])
    if value == 0.0:  # constant: no bandwidth, hence no map
        assert (holed.ps[..., 7] == 0.5).all()
        assert (holed.pm[..., 7] == 1.0).all()
        assert holed.active[..., 7].all()
    elif not math.isfinite(value):
        assert not holed.active[..., 7].any()
        assert (holed.utterance().frames == clean.utterance().frames - 1).all()
    gradient(MAPSSLoss(small(Holed())), estimates, references)


@each_score
def test_non_finite_embeddings_name_their_frame(name):
    outputs, references, distortions = clouds(4, distortions=5)
    distortions[2, 0, 3] = torch.nan
    with pytest.raises(ValueError, match="frame 2"):
        SCORES[name](outputs, references, distortions)


@each_score
def test_constant_embeddings_have_no_gradient(name):
    outputs, references, distortions = (torch.ones_like(x) for x in clouds(2, distortions=5))
    outputs.requires_grad_()
    score = SCORES[name](outputs, references, distortions)
    expected = {"ps": 0.5, "pm": 1.0, "log_pm": 0.0}[name]
    assert (score == expected).all()
    (slope,) = torch.autograd.grad(score.sum() + 0.0 * outputs.sum(), outputs)
    assert (slope == 0.0).all()


def test_perfect_estimates(mapss):
    references = voices()
    scores = scores_of(mapss, references, references)
    assert (scores[1] == 1.0).all()
    assert (scores[0] > 0.9).all()
    for loss in (SeparationLoss, MatchLoss):
        gradient(loss(mapss), references, references)


@pytest.mark.parametrize("k", [0.05, 1.0, 200.0])
def test_gamma_tails_of_tiny_and_huge_shapes(k):
    shape = torch.tensor([k], dtype=torch.float64, requires_grad=True)
    for function in (F.gammaincc, F.log_gammaincc):
        inside = torch.tensor([0.7 * k], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, (shape, inside))
        at_zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        value = function(shape, at_zero)
        assert float(value.detach()) == (1.0 if function is F.gammaincc else 0.0)
        slopes = torch.autograd.grad(value.sum(), (shape, at_zero))
        assert all(s.isfinite().all() for s in slopes)


@pytest.mark.parametrize("shape", [0.05, 200.0])
def test_match_of_clusters_of_extreme_shape_at_distance_zero(shape):
    # A few members far out and most at the reference, or all at one distance from it.
    generator = torch.Generator().manual_seed(0)
    outputs, references, distortions = clouds(3, distortions=20, features=4)
    normal = torch.randn(distortions.shape, generator=generator, dtype=torch.float64)
    heavy = normal / normal.norm(dim=-1, keepdim=True)
    size = torch.rand(3, 2, 20, 1, generator=generator, dtype=torch.float64)
    size = size.pow(1.0 / shape) if shape < 1 else 1.0 + size / shape
    distortions = references.unsqueeze(-2) + (0.05 * size + 1e-9) * heavy
    outputs = references.clone()
    for name in SCORES:
        finite_gradients(name, outputs, references, distortions)


def test_deterministic_mode_gives_equal_bits(mapss):
    references = voices()
    estimates = leaky(references)
    estimates[..., 3000:5000] = references[..., 3000:5000]  # ties: some frames are perfect
    torch.use_deterministic_algorithms(True)
    try:
        runs = [gradient(MAPSSLoss(mapss), estimates, references) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*runs))


@each_score
@pytest.mark.parametrize("kind", ["collinear", "duplicates", "few", "flat"])
def test_clusters_that_span_no_space(name, kind):
    outputs, references, distortions = clouds(2, distortions=3 if kind == "few" else 8)
    if kind == "collinear":
        line = distortions[:, :, :1] - references.unsqueeze(-2)
        steps = torch.linspace(0.1, 1.0, 8, dtype=torch.float64)[:, None]
        distortions = references.unsqueeze(-2) + steps * line
    if kind == "duplicates":
        distortions = distortions[:, :, :2].repeat(1, 1, 4, 1)
    if kind == "flat":
        for x in (outputs, references, distortions):
            x[..., 1:] = 0.0
    score = finite_gradients(name, outputs, references, distortions)
    if name != "log_pm":
        assert in_range(score)
        shaken = [
            x + 1e-12 * d
            for x, d in zip(
                (outputs, references, distortions),
                random_direction((outputs, references, distortions), 1),
            )
        ]
        near(SCORES[name](*shaken), score, rtol=0, atol=1e-3)


def test_signs_of_eigenvectors_do_not_matter(monkeypatch, mapss):
    estimates, references = leaky(voices()), voices()
    plain, slope = gradient(MAPSSLoss(mapss), estimates, references)
    eigh = torch.linalg.eigh

    def flipped(matrix):
        values, vectors = eigh(matrix)
        sign = torch.ones(matrix.shape[-1], dtype=matrix.dtype)
        sign[1::3] = -1.0
        return values, vectors * sign

    monkeypatch.setattr(torch.linalg, "eigh", flipped)
    again, other = gradient(MAPSSLoss(mapss), estimates, references)
    near(again, plain, rtol=1e-6, atol=0)
    near(other, slope, rtol=1e-4, atol=1e-5 * float(slope.abs().max()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_agrees(mapss):
    estimates, references = leaky(voices()), voices()
    found = scores_of(small().to("cuda"), estimates.cuda(), references.cuda()).cpu()
    near(found, scores_of(mapss, estimates, references), rtol=0, atol=1e-3)


# --------------------------------------------------------------------------------- gradients


def test_the_gradient_reaches_the_estimates_and_nothing_else():
    class Linear(torch.nn.Module):
        name, sample_rate, hop, receptive_field = "linear", 16000, 320, 400

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(400, 6)
            self.graphs = []

        def forward(self, waveform):
            found = self.layer(waveform.unfold(-1, 400, 320)).tanh()
            self.graphs.append((len(waveform), found.requires_grad))
            return found

    encoder = Linear()
    references = voices().requires_grad_()
    estimates = leaky(references.detach()).requires_grad_()
    MAPSSLoss(small(encoder))(estimates, references).backward()
    assert estimates.grad.isfinite().all()
    assert (estimates.grad != 0.0).any()
    assert references.grad is None
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert [graph for _, graph in encoder.graphs].count(True) == 1  # the estimates


def test_the_trigger_ignores_undefined_epochs():
    trigger = FrameTrigger(Quantile("ps", 0.5, above=0.5), patience=2)
    assert trigger.update({"ps": [0.9, 0.9]}) is None
    assert trigger.update({"ps": [math.nan, math.nan]}) is None
    assert trigger.held == 1
    assert trigger.update({"ps": [0.8, 0.8]}) is not None
    assert list(trigger.best.values()) == pytest.approx([0.9])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss", [SeparationLoss, MAPSSLoss])
def test_losses_under_autocast(mapss, loss, dtype):
    references = voices()
    estimates = leaky(references).to(dtype)
    options = {} if loss is SeparationLoss else {"match_mode": "log1p"}
    full, _ = gradient(loss(mapss, **options), estimates.float(), references)
    leaf = estimates.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(mapss, **options)(leaf, references)
        scores = mapss(leaf, references)
    value.backward()
    assert value.dtype == scores.ps.dtype == torch.float32
    near(value.detach(), full, rtol=0, atol=2e-2)
    near(scores.ps.detach(), mapss(estimates.float(), references).ps, rtol=0, atol=2e-2)
    assert leaf.grad.dtype == dtype
    assert leaf.grad.isfinite().all()
    assert leaf.grad.abs().sum() > 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_steep_gradients_stay_finite_in_half_precision(mapss, dtype):
    references = voices()
    estimates = (leaky(references) * 1e-3).to(dtype)
    _, full = gradient(MatchLoss(mapss, mode="log"), estimates.float(), references)
    assert full.abs().max() > torch.finfo(torch.float16).max
    _, slope = gradient(MatchLoss(mapss, mode="log"), estimates, references)
    assert slope.dtype == dtype
    points = [x.to(dtype) for x in clouds(2, distortions=2, seed=4)]
    finite_gradients("log_pm", *points)


# --------------------------------------------------------------------------------- nothing defined


@pytest.mark.parametrize("loss", [SeparationLoss, MatchLoss, MAPSSLoss])
@pytest.mark.parametrize("reduction", ["mean", "sum", "item", "none", "global"])
def test_a_batch_without_anything_defined(mapss, loss, reduction):
    silence = torch.zeros(2, 2, 4000)
    estimates = leaky(voices(2, seconds=0.25)).requires_grad_()
    module = loss(mapss, reduction=reduction)
    with pytest.warns(UserWarning, match="can be scored"):
        value = module(estimates, silence)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(estimates, silence)  # said once
    assert (value == 0.0).all()
    value.sum().backward()
    assert (estimates.grad == 0.0).all()
    assert module.last.skipped == 2


@pytest.mark.parametrize("metric_class", [PerceptualSeparation, PerceptualMatch])
def test_a_long_evaluation_with_undefined_items(mapss, metric_class):
    metric = metric_class(mapss, keep_items=True)
    expected = []
    for item in range(6):
        references = voices(seconds=0.25, seed=item)
        estimates = leaky(references)
        if item in (1, 4):
            references[:, item % 2] = 0.0
        metric.update(estimates, references)
        expected.append(item in (1, 4))
    rows = metric.item_scores()
    assert rows.isnan().all(-1).tolist() == expected
    assert metric.skipped == 2
    near(metric.compute(), rows[[0, 2, 3, 5]].mean(), rtol=0, atol=1e-6)

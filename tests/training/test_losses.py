"""The losses: values by hand, gradients of the whole chain, undefined items, bad starts."""

from __future__ import annotations

import copy
import functools
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from bursts import by_hand, leaky, noise, small, voices
from clouds import numerical_derivative
from test_metrics import AROUND, defaults
from torch import Tensor, nn

from torch_mapss import (
    MAPSS,
    Bleed,
    BleedLoss,
    Clearance,
    ClearanceLoss,
    DecompositionLoss,
    DistortionBank,
    FidelityLoss,
    MAPSSLoss,
    MatchLoss,
    PerceptualSeparation,
    Scores,
    SeparationLoss,
    audio,
)
from torch_mapss.metrics import clearance
from torch_mapss.training.terms import LOG_FLOOR, leakage_values

EVERYTHING = functools.partial(MAPSSLoss, clearance=1.0, fidelity=2.0, bleed=0.01, si_sdr=0.1)
LOSSES = {"separation": SeparationLoss, "match": MatchLoss, "pair": DecompositionLoss}
LOSSES |= {"everything": EVERYTHING}
scorer = functools.cache(functools.partial(small, size=8))  # a call takes milliseconds
each_loss = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)


def gradient(loss, estimates: Tensor, *arguments, **options) -> tuple[Tensor, Tensor]:
    leaf = estimates.detach().clone().requires_grad_()
    value = loss(leaf, *arguments, **options)
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    assert bool(value.isfinite().all())
    assert bool(grad.isfinite().all())
    return value.detach(), grad


@pytest.fixture
def references() -> Tensor:
    return voices(3, 2, 4800)


@pytest.mark.parametrize(
    ("loss", "weighting", "options", "of"),
    [
        (ClearanceLoss, None, {}, lambda s: 1 - s.clearance),
        (FidelityLoss, "energy", {}, lambda s: s.distortion_ratio),
        (DecompositionLoss, "mine", {}, lambda s: 1 - s.clearance + 2 * s.distortion_ratio),
        (SeparationLoss, None, {}, lambda s: 1 - s.ps),
        (SeparationLoss, "energy", {"mode": "log"}, lambda s: -s.ps.log()),
        (MatchLoss, "mine", {"mode": "log"}, lambda s: -s.log_pm),
        (MatchLoss, None, {"mode": "linear"}, lambda s: 1 - s.pm),
        (MatchLoss, "energy", {}, lambda s: (1 - s.log_pm).log()),
        (MAPSSLoss, "mine", {}, lambda s: 1 - s.ps + 0.1 * (1 - s.log_pm).log()),
        (
            *(
                MAPSSLoss,
                None,
                {"separation": 0, "match": 0.3, "match_mode": "log", "clearance": 0.5},
            ),
            lambda s: -0.3 * s.log_pm + 0.5 * (1 - s.clearance),
        ),
    ],
)
def test_values_are_means_of_the_scores(references, loss, weighting, options, of):
    references[1, :, 2400:] = 0.0  # mixtures of different numbers of scored frames
    mapss, estimates = scorer(), leaky(references)
    scores = mapss(estimates, references)
    weights = None
    if weighting == "energy":
        normal = audio.normalize_loudness(references, 16000)
        grid = mapss.config.grid
        weights = audio.frame_rms(normal, grid.receptive_field, grid.hop).square()
    if weighting == "mine":
        weights = torch.arange(scores.ps.numel()).reshape(scores.ps.shape) % 7 + 1.0
        weighting = lambda given, bank: weights.to(given.ps)  # noqa: E731
    value = loss(mapss, weighting=weighting, **options)(estimates, references)
    expected = by_hand(of(scores), scores.active, weights)
    assert float(value) == pytest.approx(expected, rel=1e-4)
    assert (value.shape, value.dtype) == ((), torch.float32)


def test_reductions_agree(references):
    estimates = leaky(references)
    each = MAPSSLoss(scorer(), reduction="none", si_sdr=0.1)(estimates, references)
    assert each.shape == (3, 2)
    mean, expected = each.mean(), {"item": each.mean(-1), "sum": each.sum()}
    for name, value in {**expected, "mean": mean, "global": mean}.items():  # of one process
        found = MAPSSLoss(scorer(), reduction=name, si_sdr=0.1)(estimates, references)
        torch.testing.assert_close(found, value)


def test_log_of_ps_goes_on_as_its_tangent():
    """A swapped pair has PS 0 in places: its loss is finite and still falls towards the own."""
    references = voices(1, 2, 4800).double()
    loss = SeparationLoss(scorer(), mode="log")
    swapped = references.flip(1)
    value, _ = gradient(loss, swapped, references)
    _, grad = gradient(loss, swapped + 1e-3 * voices(1, 2, 4800, seed=3).double(), references)
    assert float(value) > 5.0
    assert float(grad.abs().max()) > 0.0
    shares = torch.tensor([0.0, 0.5, 1.0 - 1e-9, 1.0 + 1e-9], dtype=torch.float64)
    ps = (LOG_FLOOR * shares).requires_grad_()
    scores = Scores(torch.ones(4, dtype=torch.bool), torch.zeros(4), ("separation",), ps=ps)
    values = leakage_values(scores, "log")
    values.sum().backward()
    torch.testing.assert_close(values + math.log(LOG_FLOOR), (1.0 - shares).clamp(min=0.0))
    torch.testing.assert_close(ps.grad, torch.full_like(ps, -1.0 / LOG_FLOOR))


def test_bleed_costs_what_lies_above_the_floor():
    references = voices(2, 2, 9600)
    references[:, 0, 4800:] = 0.0
    estimates = references + torch.tensor([[[0.1], [0.1]], [[0.001], [0.1]]]) * references.flip(1)
    scores = scorer()(estimates, references, measures="bleed")
    defined = scores.defined("bleed_db")
    assert defined.any(-1).tolist() == [[True, False]] * 2
    for floor in (-80.0, -40.0):
        loss = BleedLoss(scorer(), floor_db=floor, weighting="energy")
        value, grad = gradient(loss, estimates, loss.prepare(references))
        expected = by_hand((scores.bleed_db - floor).clamp(min=0.0), defined)
        assert float(value) == pytest.approx(expected, rel=1e-5)
        assert float(loss(estimates - 1e-7 * grad, references)) < float(value)
    assert float(grad[1].abs().max()) == 0.0  # below the floor
    assert (grad[0, 0, 5200:].abs() > 0.0).any()
    assert loss.last.defined.tolist() == [[True, False]] * 2
    silent = references.clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(silent, references), silent)
    assert not bool(grad.isnan().any())


def test_a_loss_prepares_and_loads_what_it_needs(references):
    """No weights of the default encoder where clearance, fidelity and bleed are all there is."""
    loss = MAPSSLoss(clearance=1.0, fidelity=2.0, bleed=0.1, separation=0.0, match=0.0)
    bank = loss.prepare(references)
    assert list(bank.groups[0].encoded) == ["decomposition"]
    assert bool(loss(leaky(references), bank).isfinite())
    assert loss.measures == loss.mapss.config.measures == ("decomposition", "bleed")
    assert loss.mapss.config.encoders["encoder"]._encoder is None
    shown = repr(DecompositionLoss(scorer(), frames=7))
    assert all(part in shown for part in ("clearance=1.0, fidelity=2.0", "frames=7"))
    assert "floor_db=-30" in repr(BleedLoss(scorer(), floor_db=-30.0))


class Mine(nn.Linear):  # a term that is trained
    def forward(self, e: Tensor, r: Tensor) -> Tensor:
        return self.weight[0, 0] * (e - r).abs().mean(-1)


def test_a_term_of_ones_own(references):
    estimates, seen = leaky(references), []

    def extra(e: Tensor, r: Tensor) -> Tensor:
        seen.append(r)
        return (e - r).abs().mean(-1)

    plain = SeparationLoss(scorer())(estimates, references)
    loss = MAPSSLoss(scorer(), match=0, extra=extra)
    expected = plain + (estimates - references).abs().mean()
    torch.testing.assert_close(loss(estimates, references), expected)
    assert torch.equal(seen[0], references)
    bank = loss.mapss.prepare(references)
    torch.testing.assert_close(loss(estimates, bank, waveforms=references), expected)
    with pytest.raises(ValueError, match="waveforms=references"):
        loss(estimates, bank)
    alone = loss(estimates[:, 1:], references, attributed=(1,))
    assert torch.equal(seen[-1], references[:, 1:])
    assert bool(alone.isfinite())
    mine = Mine(1, 1, bias=False)
    loss = MAPSSLoss(scorer(), extra=mine)
    assert [name for name, _ in loss.named_parameters()] == ["extra.weight"]
    loss(estimates, references).backward()
    assert float(mine.weight.grad) > 0.0
    with pytest.raises(ValueError, match=r"extra must return .* \(3, 2\) for reduction 'none'"):
        MAPSSLoss(scorer(), reduction="none", extra=lambda e, r: e.mean())(estimates, references)


def test_terms_pull_alike_as_they_come():
    """Relative gradient norms within a factor of ten, from a good output to the mixture."""
    references = voices(2, 2, 4800)
    noise = torch.randn(references.shape, generator=torch.Generator().manual_seed(2))
    default = MAPSSLoss(MAPSS("mel"))  # with whole banks, which the weights are made for
    bank = default.mapss.prepare(references)
    assert default.settings["match_mode"] == MatchLoss(scorer()).settings["match_mode"] == "log1p"
    for share in (0.1, 1.0):
        estimates = references + share * (references.flip(1) + 0.01 * noise)
        norms = []
        for name in ("separation", "match"):
            weights = {"separation": 0.0, "match": 0.0, name: default.weights[name]}
            _, grad = gradient(MAPSSLoss(default.mapss, **weights), estimates, bank)
            norms.append(float(grad.norm()))
        assert 0.1 < norms[0] / norms[1] < 10.0, (share, norms)


def test_record_of_the_last_call(references):
    references[1, 0] = 0.0
    loss = MAPSSLoss(scorer(), si_sdr=0.1)
    estimates = leaky(references).requires_grad_()
    loss(estimates, references)
    assert loss.last.defined.tolist() == [[True, True], [False, False], [True, True]]
    assert int(loss.last.skipped) == 1
    assert set(loss.last.terms) == {"separation", "match", "si_sdr"}
    assert float(loss.last.terms["si_sdr"]) < 0.0
    assert not any(term.requires_grad for term in loss.last.terms.values())


@pytest.mark.parametrize("pit", ["si_sdr", "loss"])
def test_permutations_are_found_for_each_mixture(pit):
    references = voices(2, 3, 4800)
    estimates = leaky(references, 0.2)
    shuffled = torch.stack([estimates[0, [2, 0, 1]], estimates[1]])
    options = {"reduction": "none", "extra": lambda e, r: 50.0 * (e - r).abs().mean(-1)}
    plain, loss = MAPSSLoss(scorer(), **options), MAPSSLoss(scorer(), pit=pit, **options)
    expected, value = plain(estimates, references), loss(shuffled, references)
    assert loss.last.order.tolist() == [[1, 2, 0], [0, 1, 2]]
    torch.testing.assert_close(value[0], expected[0, [2, 0, 1]])  # where the estimates stand
    torch.testing.assert_close(value[1], expected[1])
    _, grad = gradient(loss, shuffled, references)
    _, straight = gradient(plain, estimates, references)
    torch.testing.assert_close(grad[0], straight[0, [2, 0, 1]])


def test_permutation_by_loss_is_the_least_and_sees_the_same_random_frames(references):
    estimates = leaky(references, 0.9)
    loss = SeparationLoss(scorer(), reduction="item")
    both = torch.stack([loss(estimates, references), loss(estimates.flip(1), references)])
    found = SeparationLoss(scorer(), reduction="item", pit="loss")(estimates, references)
    torch.testing.assert_close(found, both.min(0).values)
    swapped = leaky(references).flip(1)
    plain = SeparationLoss(scorer(), frames=7, seed=4)
    loss = SeparationLoss(scorer(), frames=7, seed=4, pit="loss")
    for _ in range(2):
        torch.testing.assert_close(loss(swapped, references), plain(swapped.flip(1), references))


def test_permutations_that_make_no_sense(references, monkeypatch):
    monkeypatch.setattr(DistortionBank, "measure", None)  # refused before anything is distorted
    with pytest.raises(ValueError, match="one estimate per reference"):
        SeparationLoss(scorer(), pit="si_sdr")(references[:, :1], references, attributed=(0,))
    many = voices(1, 5, 2400)
    with pytest.raises(ValueError, match="at most 4 sources, got 5"):
        SeparationLoss(scorer(), pit="loss")(many, many)
    for make in (FidelityLoss, functools.partial(MAPSSLoss, separation=0)):
        with pytest.raises(ValueError, match="pit"):  # distortion alone orders no outputs
            make(scorer(), pit="loss")


def test_inside_a_permutation_wrapper(references):
    """torchmetrics' wrapper, whole mixtures at a time; speaker by speaker is refused."""
    from torchmetrics.functional.audio import permutation_invariant_training as pit

    loss = SeparationLoss(scorer(), reduction="item", mode="log")
    estimates = leaky(references)
    swapped = torch.cat([estimates[:1].flip(1), estimates[1:]])
    best, order = pit(swapped, references, loss, mode="permutation-wise", eval_func="min")
    torch.testing.assert_close(best, loss(estimates, references))
    assert order.tolist() == [[1, 0], [0, 1], [0, 1]]
    with pytest.raises(ValueError, match="no value speaker by speaker"):
        pit(swapped, references, loss, mode="speaker-wise", eval_func="min")


def with_silence(references: Tensor) -> tuple[Tensor, Tensor]:
    references, estimates = references.clone(), leaky(references)
    references[..., 0, 1000:2000] = 0.0
    estimates[..., 0, 900:2100] = 0.0
    return estimates, references


def clipped(references: Tensor) -> tuple[Tensor, Tensor]:
    limit = 0.3 * references.abs().amax()
    return leaky(references).clamp(-limit, limit), references


CASES = {"leaky": lambda r: (leaky(r), r), "silent spans": with_silence, "clipped": clipped}
CHAINS = {
    "1-ps": SeparationLoss,
    "-log pm": functools.partial(MatchLoss, mode="log"),
    "pair": DecompositionLoss,
    "all": functools.partial(MAPSSLoss, separation_mode="log", si_sdr=0.1, weighting="energy"),
}


@pytest.mark.parametrize(
    ("encoder", "case"), [*(("mel", case) for case in CASES), ("waveform", "silent spans")]
)
@pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS)
def test_the_whole_chain_against_differences(case, encoder, make):
    """Waveform, loudness, encoder, manifold, loss: in float64, along a random direction."""
    estimates, references = CASES[case](voices(1, 2, 2400, seed=1).double())
    loss = make(scorer(encoder))
    bank = loss.mapss.prepare(references)
    generator = torch.Generator().manual_seed(2)
    direction = torch.randn(estimates.shape, generator=generator, dtype=torch.float64)
    _, grad = gradient(loss, estimates, bank)
    slope = float((grad * direction).sum())
    errors = []
    # Rounding spoils small steps and curvature large ones; where lies between differs by case.
    for h in (1e-6, 3e-7, 3e-6, 1e-7, 1e-5):
        found = float(numerical_derivative(lambda e: loss(e, bank), [estimates], [direction], h))
        errors.append(abs(found / slope - 1.0))
        if errors[-1] < 1e-5:
            return
    pytest.fail(f"slope {slope}, relative errors of the differences {errors}")


def one_sided(f, x: Tensor, direction: Tensor, h: float) -> Tensor:
    """Slope of f from x along the direction, of second order."""
    return (4.0 * f(x + h * direction) - f(x + 2.0 * h * direction) - 3.0 * f(x)) / (2.0 * h)


@pytest.mark.parametrize("encoder", ["mel", "waveform"])
@pytest.mark.parametrize(("measure", "equal"), [("ps", 1), ("ps", 2), ("log_pm", 1)])
def test_the_slope_at_an_output_equal_to_its_reference(encoder, measure, equal):
    """Every distance comes twice there, so the median may tie, and PM sits on its top.

    Those are kinks: the gradient of each frame must lie between the slopes on both sides, and
    where these agree, equal them.
    """
    references = voices(1, 2, 2000, seed=1).double()
    estimates = leaky(references)
    estimates[:, :equal] = references[:, :equal]
    mapss = scorer(encoder)
    bank = mapss.prepare(references)

    def frames(e: Tensor) -> Tensor:
        scores = mapss(e, bank)
        return getattr(scores, measure)[scores.active]

    generator = torch.Generator().manual_seed(2)
    direction = torch.randn(estimates.shape, generator=generator, dtype=torch.float64)
    leaf = estimates.clone().requires_grad_()
    each = (torch.autograd.grad(f, leaf, retain_graph=True)[0] for f in frames(leaf))
    slopes = torch.stack([(slope * direction).sum() for slope in each])
    right = one_sided(frames, estimates, direction, 1e-6)
    left = -one_sided(frames, estimates, -direction, 1e-6)
    low, high = torch.minimum(left, right), torch.maximum(left, right)
    slack = 1e-4 * torch.maximum(low.abs(), high.abs()) + 1e-5 * float(slopes.abs().max())
    assert bool(((slopes >= low - slack) & (slopes <= high + slack)).all())
    assert int((high - low < slack).sum()) >= len(slopes) // 4  # the others may hide anything
    assert float(slopes.abs().max()) > 0.0


@each_loss
@pytest.mark.filterwarnings("ignore:no estimate")
def test_identical_sources(make):
    """Clusters of one place, and outputs in it: finite, also where all points coincide."""
    one = voices(1, 1, 3000).double().expand(-1, 2, -1).clone()
    loss = make(scorer())
    _, grad = gradient(loss, leaky(one), one)
    # Nothing can be clear of a source that is its own.
    assert (float(grad.abs().max()) > 0.0) == (make is not DecompositionLoss)
    gradient(loss, one, one)


STARTS = {
    "silence": torch.zeros_like,
    "noise": lambda r: noise(*r.shape, seed=5),
    "permuted": lambda r: r.flip(1),
    "equal outputs": lambda r: r.sum(1, keepdim=True).expand_as(r).clone(),
}


FROM_BAD_STARTS = LOSSES | {
    "separation": functools.partial(SeparationLoss, mode="log"),
    "match": functools.partial(MAPSSLoss, match=1.0, match_mode="log", si_sdr=0.1),
    "linear": SeparationLoss,
}


@pytest.mark.parametrize("steps", [2, pytest.param(250, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("make", [*FROM_BAD_STARTS.values()], ids=FROM_BAD_STARTS)
def test_steps_from_bad_starts(kind, make, steps):
    loss, references = make(scorer()), voices(2, 2, 2400, seed=3)
    bank = loss.mapss.prepare(references)
    estimates = STARTS[kind](references).requires_grad_()
    descent = (torch.optim.SGD if make is EVERYTHING else torch.optim.Adam)([estimates], lr=1e-2)
    for _ in range(steps):
        descent.zero_grad()
        value = loss(estimates, bank)
        value.backward()
        assert bool(value.isfinite())
        assert bool(estimates.grad.isfinite().all())
        descent.step()


@pytest.mark.parametrize("make", [SeparationLoss, MatchLoss, DecompositionLoss, MAPSSLoss])
def test_a_mixture_with_a_silent_reference_does_not_count(references, make):
    estimates = leaky(references)
    broken = references.clone()
    broken[1, 0] = 0.0
    keep = [0, 2]
    value, grad = gradient(make(scorer()), estimates, broken)
    expected, expected_grad = gradient(make(scorer()), estimates[keep], references[keep])
    torch.testing.assert_close(value, expected)
    assert float(grad[1].abs().max()) == 0.0
    torch.testing.assert_close(grad[keep], expected_grad)
    each, _ = gradient(make(scorer(), reduction="none"), estimates, broken)
    assert each[1].tolist() == [0.0, 0.0]
    assert float(each[keep].min()) > 0.0


@each_loss
def test_a_silent_estimate_costs_more_than_a_leaky_one(references, make):
    estimates = references + 0.3 * references.roll(1, -2)
    silent = estimates.clone()
    silent[1, 0] = 0.0
    loss = make(scorer(), reduction="none")
    (value, _), (good, _) = (gradient(loss, e, references) for e in (silent, estimates))
    assert float(value[1, 0]) > float(good[1, 0])
    torch.testing.assert_close(value[[0, 2]], good[[0, 2]])


@pytest.mark.parametrize("si_sdr", [0.0, 0.1])
def test_nothing_defined_is_a_zero_with_one_warning(references, si_sdr):
    loss = MAPSSLoss(scorer(), si_sdr=si_sdr)
    silence = torch.zeros_like(references)
    with pytest.warns(UserWarning, match="no estimate of this batch of 3 can be scored") as caught:
        value, grad = gradient(loss, references, silence)
    assert (len(caught), float(value), float(grad.abs().max())) == (1, 0.0, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient(loss, references, silence)
    assert bool(loss.last.terms["match"].isnan())


def test_padded_batches_score_as_the_mixtures_alone():
    references, lengths = voices(3, 2, 6400), (6400, 4000, 5200)
    estimates = leaky(references)
    for item, length in enumerate(lengths):
        references[item, :, length:] = 0.0
        estimates[item, :, length:] = 7.0  # whatever the padding holds
    loss = MAPSSLoss(scorer(), si_sdr=0.1, reduction="none", weighting="energy")
    value, grad = gradient(loss, estimates, references, lengths=lengths)
    for item, length in enumerate(lengths):
        span = slice(item, item + 1), slice(None), slice(length)
        alone, alone_grad = gradient(loss, estimates[span], references[span])
        torch.testing.assert_close(value[item], alone[0], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(grad[span], alone_grad, rtol=1e-2, atol=1e-5)
        assert float(grad[item, :, length:].abs().sum()) == 0.0


@pytest.mark.parametrize(("pit", "si_sdr"), [(None, 0.0), ("si_sdr", 0.0), (None, 0.1)])
def test_unchecked_samples_take_out_their_mixture(references, pit, si_sdr):
    estimates = leaky(references)
    broken = estimates.clone()
    broken[2, 1, 700] = math.nan
    loss = MAPSSLoss(scorer(check_finite=False), pit=pit, si_sdr=si_sdr)
    value, grad = gradient(loss, broken, references)
    expected, _ = gradient(loss, estimates[:2], references[:2])
    torch.testing.assert_close(value, expected)
    assert float(grad[2].abs().max()) == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_numbers_are_those_of_a_call_outside(references, dtype):
    loss = MAPSSLoss(scorer(), si_sdr=0.1, pit="si_sdr")
    estimates = leaky(references)
    expected, expected_grad = gradient(loss, estimates, references)
    leaf = estimates.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        value = loss(leaf, references)
        inside, inside_grad = gradient(loss, estimates, references)  # backward pass inside
        half, half_grad = gradient(loss, estimates.to(dtype), references)
    value.backward()
    assert torch.equal(value, expected)
    assert torch.equal(leaf.grad, expected_grad)
    assert torch.equal(inside, expected)
    torch.testing.assert_close(inside_grad, expected_grad, rtol=2e-2, atol=1e-3)
    assert (half.dtype, half_grad.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(half, expected, rtol=2e-2, atol=2e-2)


def test_what_a_scaler_overshoots_stays_infinite(references):
    """The gradient is held at the end of float16 by itself, but not against the scale."""
    loss = MatchLoss(scorer(), mode="log")
    estimates = (0.01 * leaky(references)).half().requires_grad_()
    value = loss(estimates, references)
    (plain,) = torch.autograd.grad(value, estimates, retain_graph=True)
    assert bool(plain.isfinite().all())
    _, exact = gradient(loss, estimates.float(), references)
    beyond = exact.abs() > 65504.0
    (scaled,) = torch.autograd.grad(1024.0 * value, estimates)
    mild = (exact.abs() * 1024.0 > 66000.0) & ~beyond
    assert bool(beyond.any() & mild.any())
    assert bool((plain[beyond].abs() == 65504.0).all())
    assert bool(scaled[mild].isinf().all())


def test_swapped_arguments_are_refused_where_gradients_tell(references):
    estimates = leaky(references).requires_grad_()
    for loss in (make(scorer()) for make in LOSSES.values()):
        with pytest.raises(ValueError, match="estimates first"):
            loss(references, estimates)
        with torch.no_grad():  # nothing tells them apart in validation
            loss(references, estimates)
        with pytest.raises(TypeError, match="estimates must be a tensor"):
            loss(loss.mapss.prepare(references), estimates)


def test_another_sample_rate():
    references = voices(1, 2, 9600)
    loss = MAPSSLoss(scorer(sample_rate=32000), si_sdr=0.1, pit="si_sdr", weighting="energy")
    value, grad = gradient(loss, leaky(references), references)
    low = [audio.resample(x, 32000, 16000) for x in (leaky(references), references)]
    plain = MAPSSLoss(scorer(), si_sdr=0.1, weighting="energy")
    torch.testing.assert_close(value, plain(*low))
    assert grad.shape == references.shape


def test_random_frames_move_on_in_training_and_stay_in_evaluation(references):
    estimates = leaky(references)
    loss = SeparationLoss(scorer(), frames=5)
    bank = loss.mapss.prepare(references)
    training = [float(loss(estimates, bank)) for _ in range(4)]
    assert len(set(training)) == 4
    loss.eval()
    assert float(loss(estimates, bank)) == float(loss(estimates, bank))
    loss.train()
    fifth = float(loss(estimates, bank))
    again = SeparationLoss(loss.mapss, frames=5)
    again.draws = loss.draws - 1
    assert float(again(estimates, bank)) == fifth
    other = SeparationLoss(loss.mapss, frames=5, seed=1)
    assert float(other(estimates, bank)) not in training


def test_random_frames_estimate_the_loss_without_bias():
    references = voices(1, 2, 4800)
    estimates = leaky(references)
    loss = SeparationLoss(scorer(), frames=6)
    bank = loss.mapss.prepare(references)
    draws = torch.stack([loss(estimates, bank) for _ in range(25)])
    whole = SeparationLoss(loss.mapss)(estimates, bank)
    error = draws.std() / math.sqrt(len(draws))
    assert float((draws.mean() - whole).abs()) < 4.0 * float(error)
    assert float(draws.std()) > 0.0


@pytest.mark.parametrize("around", AROUND, ids=str)
@pytest.mark.parametrize(("name", "known"), [("pair", "waveforms"), ("everything", "bank")])
def test_defaults_of_torch_change_no_loss(references, name, known, around):
    """As Lightning's "bf16-true" and a default device set them around a step."""
    options: dict[str, Any] = {"frames": 7, "pit": "si_sdr", "weighting": "energy"}
    loss = LOSSES[name](scorer(), **options)
    given = references if known == "waveforms" else loss.mapss.prepare(references)
    leaf = leaky(references).requires_grad_()
    expected = loss.eval()(leaf, given)
    with defaults(**around):
        found = loss(leaf, given)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    slopes = [torch.autograd.grad(value, leaf)[0] for value in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=0, atol=0)


def test_copies_and_pickles_right_after_a_step(references):
    loss = MAPSSLoss(scorer(), frames=7, si_sdr=0.1, pit="si_sdr")
    estimates = leaky(references).requires_grad_()
    loss(estimates, references).backward()
    twin, revived = copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))
    assert twin.draws == revived.draws == loss.draws
    expected = loss(estimates, references)
    torch.testing.assert_close(twin(estimates, references), expected)
    torch.testing.assert_close(revived(estimates, references), expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("reduction", "median"), ("weighting", "loud"), ("pit", "sdr"), ("frames", 0)),
        *(("seed", 2**70), ("separation", -1.0), ("match", math.nan), ("floor_db", math.nan)),
        *(("separation_mode", "log1p"), ("match_mode", "exp")),
    ],
)
def test_bad_settings(name, value):
    with pytest.raises(ValueError, match=name):
        MAPSSLoss(scorer(), **{name: value})
    with pytest.raises(ValueError, match="every term"):
        MAPSSLoss(scorer(), separation=0, match=0)


@pytest.mark.parametrize("options", [{"weight": -1}, {"rate": 16000}, {"measures": "match"}])
@pytest.mark.parametrize(
    "make",
    [DecompositionLoss, Clearance, functools.partial(clearance, torch.zeros(1), torch.zeros(1))],
    ids=["loss", "metric", "function"],
)
def test_options_that_do_nothing_are_refused(make, options):
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        make(encoder="mel", **options)


def test_weights_may_change_between_calls(references):
    loss = MAPSSLoss(scorer(), match=0.0)
    estimates = leaky(references)
    loss(estimates, references)
    loss.weights["match"] = 0.1
    expected = MAPSSLoss(loss.mapss)
    torch.testing.assert_close(loss(estimates, references), expected(estimates, references))
    pair = ClearanceLoss(scorer())
    pair.weights |= {"bleed": 0.1, "match": 0.1, "separation": 1.0}  # settings: their defaults
    assert bool(pair(estimates, references).isfinite())
    none = dict.fromkeys(("separation", "match"), 0.0)
    fidelity = none | {"fidelity": 1.0}
    for wrong, message, pit in (
        ({"no": 1.0}, "no", None),
        ({"match": -5.0}, "match", None),
        (none, "every", None),
        (fidelity, "needs a term of leakage", "loss"),
    ):
        spoilt = MAPSSLoss(scorer(), pit=pit)
        spoilt.weights |= wrong
        with pytest.raises(ValueError, match=message):
            spoilt(estimates, references)


def test_waveforms_beside_a_bank_are_its_references(references):
    loss = MAPSSLoss(scorer(trim=True), extra=lambda e, r: (e - r).square().mean(-1))
    estimates, bank = leaky(references), loss.mapss.prepare(references)
    expected = loss(estimates, references)
    leaf = references.clone().requires_grad_()
    torch.testing.assert_close(loss(estimates, bank, waveforms=leaf), expected)
    assert not loss(estimates, bank, waveforms=leaf).requires_grad
    longer = torch.nn.functional.pad(references, (0, 40), value=1.0)
    torch.testing.assert_close(loss(estimates, longer), expected)  # trimmed alike
    for wrong in (references[:1], references[:, :1], longer):
        with pytest.raises(ValueError, match=r"waveforms must be the references \(B, S, T\)"):
            loss(estimates, bank, waveforms=wrong)
    with pytest.raises(ValueError, match="waveforms must be finite"):
        loss(estimates, bank, waveforms=torch.full_like(references, math.nan))


def test_bad_weights(references):
    for weighting, error, message in (
        (lambda s, b: -s.ps, ValueError, "at least 0"),
        (lambda s, b: s.ps * math.nan, ValueError, "finite"),
        (lambda s, b: s.ps[..., :2], ValueError, "weighting must return"),
        (lambda s, b: 1.0, TypeError, "tensor"),
    ):
        with pytest.raises(error, match=message):
            SeparationLoss(scorer(), weighting=weighting)(leaky(references), references)


def test_metrics_of_one_scorer_take_banks_of_their_own_measures(references):
    mapss, estimates = scorer(), leaky(references)
    pair = mapss.prepare(references, measures="decomposition")
    ps = mapss.prepare(references, measures="separation")
    metrics = [(Clearance(mapss), pair), (PerceptualSeparation(mapss), ps), (Bleed(mapss), ps)]
    for gain in (1.0, 0.9, 0.8):
        for metric, bank in metrics:
            metric.update(gain * estimates, bank)
    expected = mapss(estimates, references).utterance()
    assert float(metrics[0][0].compute()) == pytest.approx(float(expected.clearance.mean()), 1e-4)
    assert float(metrics[1][0].compute()) == pytest.approx(float(expected.ps.mean()), 1e-4)


def test_a_bank_serves_all_that_share_the_settings_of_its_measures(references):
    """The encoder of PS and PM, here one whose weights are not at hand, does not matter."""
    estimates = leaky(references)
    loss = DecompositionLoss(local_files_only=True)
    bank = loss.prepare(references)
    metric = Clearance(MAPSS("mel", measures="decomposition"))
    expected = MAPSS("mel")(estimates, references).utterance().clearance.mean()
    assert float(metric(estimates, bank)) == pytest.approx(float(expected), 1e-5)
    given = MAPSS("mel").prepare(references)
    assert float(loss(estimates, given)) == pytest.approx(float(loss(estimates, bank)), 1e-5)
    assert "wav2vec2" not in repr(loss)
    with pytest.raises(ValueError, match=r"loudness -23\.0, here -30\.0"):
        MAPSS("mel", loudness=-30.0)(estimates, bank)
    with pytest.raises(TypeError, match="collate_fn"):
        type(bank).join([(references, bank)])

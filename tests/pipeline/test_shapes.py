"""Shapes, types, devices and the order of arguments: nothing is guessed, every refusal is told.

The permutation wrapper of torchmetrics in both modes: test_metrics.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from clouds import clouds
from small_scorers import scores_of, small
from waveforms import impaired, voices

from torch_mapss import (
    MAPSS,
    MAPSSLoss,
    MatchLoss,
    PerceptualMatch,
    PerceptualSeparation,
    SeparationLoss,
    evaluate,
)
from torch_mapss import functional as F
from torch_mapss.metrics import perceptual_match, perceptual_separation

near = torch.testing.assert_close
# What messages from inside torch and NumPy look like.
FOREIGN = re.compile(
    r"einsum|broadcast with|mat1|must match the size|Expected all tensors|size mism"
)


@pytest.fixture(scope="module")
def mapss() -> MAPSS:
    """Six distortions of each bank: a call takes milliseconds."""
    return small(size=6)


def entries(mapss):
    """Every way to score a pair of tensors."""
    return {
        "mapss": mapss,
        "loss": MAPSSLoss(mapss),
        "separation loss": SeparationLoss(mapss, pit="si_sdr"),
        "match loss": MatchLoss(mapss, frames=3),
        "metric": PerceptualSeparation(mapss).update,
        "function": lambda e, r: perceptual_match(e, r, mapss),
        "bounds": mapss.bounds,
    }


def refused(mapss, estimates, references, words=""):
    for name, call in entries(mapss).items():
        with pytest.raises((ValueError, TypeError)) as caught:
            call(estimates, references)
        text = str(caught.value)
        assert re.search("estimates|references|preds|target", text), (name, text)
        assert re.search(words, text), (name, text)
        assert not FOREIGN.search(text), (name, text)


def test_estimates_and_references_on_different_devices(mapss):
    references = voices()
    refused(mapss, references.to("meta"), references, "meta.*cpu|cpu.*meta")
    refused(mapss, references, references.to("meta"), "meta.*cpu|cpu.*meta")
    meta = references.to("meta")
    refused(mapss, meta, meta, "meta")
    words = r"metric on cpu.*meta.*metric\.to\('meta'\).*ModuleDict"
    with pytest.raises(ValueError, match=words):
        PerceptualSeparation(mapss).update(meta, meta)


@pytest.mark.parametrize(
    ("estimates", "references", "words"),
    [
        ((8000,), (8000,), r"\(8000,\)"),
        ((1, 1, 1, 2, 8000), (1, 1, 1, 2, 8000), r"\(1, 1, 1, 2, 8000\)"),
        ((1, 2, 2, 8000), (1, 2, 2, 8000), "mix them down"),
        ((2, 2, 8000), (2, 8000), r"\(2, 2, 8000\)|one mixture|\(S, T\)|preds"),
        ((1, 2, 8000), (2, 2, 8000), r"\(1, 2, 8000\)"),
        ((2, 2, 8000), (3, 2, 8000), r"\(3, 2, 8000\)"),
        ((1, 3, 8000), (1, 2, 8000), "attributed="),
        ((1, 2, 8000), (1, 3, 8000), "attributed="),
        ((1, 2, 8000), (1, 2, 7000), "8000.*7000"),
        ((1, 2, 1), (1, 2, 8000), "8000"),
        ((1, 1, 8000), (1, 1, 8000), "two references"),
        ((8000, 2), (8000, 2), "mT|one mixture|\\(S, T\\)"),
        ((3, 8000, 2), (3, 8000, 2), r"looks like \(batch, samples, sources\).*\.mT"),
        ((1, 2, 399), (1, 2, 399), "399 samples.*400 samples"),
        ((0, 2, 8000), (0, 2, 8000), "empty"),
        ((1, 0, 8000), (1, 2, 8000), "empty"),
        ((1, 2, 0), (1, 2, 0), "empty"),
        ((), (), r"\(\)"),
    ],
)
def test_shapes_that_do_not_fit_are_listed(mapss, estimates, references, words):
    refused(mapss, torch.zeros(estimates), torch.zeros(references), words)


NO_ARRAYS = {
    "ndarray": np.zeros((1, 2, 8000), dtype="float32"),
    "list": [[0.0] * 8000] * 2,
    "NoneType|missing": None,
    "float": 3.0,
    "str": "a.wav",
    "sparse|layout": voices().to_sparse(),
    "nested|layout": torch.nested.nested_tensor([voices()[0], voices()[0, :, :700]]),
}


@pytest.mark.parametrize("words", NO_ARRAYS)
@pytest.mark.parametrize("argument_index", [0, 1])
def test_non_tensors_and_special_layouts_are_refused(mapss, words, argument_index):
    arguments = [voices(), voices()]
    arguments[argument_index] = NO_ARRAYS[words]
    refused(mapss, *arguments, "" if "|" in words else words)


def test_strided_and_expanded_tensors_are_plain_ones(mapss):
    references, estimates = voices(2), impaired(voices(2))
    plain = scores_of(mapss, estimates, references)
    wide = torch.zeros(2, 2, 16000)
    wide[..., ::2] = references
    near(scores_of(mapss, estimates, wide[..., ::2]), plain)
    near(
        scores_of(mapss, estimates.transpose(1, 2).contiguous().transpose(1, 2), references), plain
    )
    single = references[:1].expand(2, -1, -1)
    near(
        scores_of(mapss, single + 0.1, single),
        scores_of(mapss, single.clone() + 0.1, single.clone()),
    )
    with torch.inference_mode():
        made = voices(2) + 0.0
        near(scores_of(mapss, made, references), scores_of(mapss, references, references))
    near(scores_of(mapss, made, references), scores_of(mapss, references, references))


def calls(mapss, **option):
    """Every call that takes the option, with it."""
    (name,) = option
    e, r = voices(2), voices(2)
    functions = [
        lambda: mapss(e, r, **option),
        lambda: MAPSSLoss(mapss, **(option if name == "frames" else {}))(
            e, r, **({} if name == "frames" else option)
        ),
    ]
    if name == "lengths":
        functions += [
            lambda: mapss.prepare(r, **option),
            lambda: PerceptualMatch(mapss).update(e, r, **option),
            lambda: mapss.bounds(e, r, **option),
        ]
    else:
        settings = {"sample_frames" if name == "frames" else name: option[name]}
        functions += [
            lambda: PerceptualMatch(mapss, **option).update(e, r),
            lambda: evaluate(estimates=e[0], references=r[0], mapss=mapss, **settings),
        ]
    if name == "attributed":
        points = clouds(2, distortions=4)
        functions += [
            lambda f=f: f(*points, **option) for f in (F.perceptual_match, F.match_bounds)
        ]
    return functions


BAD = {
    "lengths": [
        5, [4000], [4000, 9000], [4000, 100], [4000.5, 4000], [[4000], [4000]], ["a", "b"], "ab",
        [4000, None], [True, 4000], torch.tensor([[4000, 4000]]), torch.tensor([torch.nan, 4000.0]),
        [-1, 4000], torch.tensor(4000), [4000, float("inf")],
    ],
    "attributed": [
        (0,), (0, 0), (0, 2), (-1, 0), (0.5, 1), "01", (None, 0), torch.tensor([0.0, 1.5]), {},
        ("a", "b"), 1, torch.tensor([[0, 1]]), (True, False), object(),
    ],
    "frames": [0, -3, 2.5, "3", True, torch.tensor(2.5)],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_options_that_do_not_fit_are_named(mapss, name):
    for value in BAD[name]:
        for call in calls(mapss, **{name: value}):
            with pytest.raises((ValueError, TypeError), match=rf"{name}|mixture \d has"):
                call()


@pytest.mark.parametrize("shares", [torch.ones(2), [1.0, 0.8], np.array([0.5, 1.0]), (1, 1)])
def test_error_for_fractional_lengths_says_how_to_convert(mapss, shares):
    for call in calls(mapss, lengths=shares):
        with pytest.raises(ValueError, match=r"lengths = \(shares \* T\)\.round\(\)\.long\(\)"):
            call()


@pytest.mark.parametrize("attributed", [torch.tensor([[0], [1]]), [[0], [1]], np.array([[0], [1]])])
def test_an_attribution_for_each_item_is_refused_with_a_way_out(mapss, attributed):
    estimates, references = voices(2)[:, :1], voices(2)
    points = clouds(2, distortions=4)
    for call in (
        lambda: mapss(estimates, references, attributed),
        lambda: MAPSSLoss(mapss)(estimates, references, attributed),
        lambda: PerceptualMatch(mapss, attributed=attributed),
        lambda: F.perceptual_match(*points, attributed=attributed),
    ):
        with pytest.raises(ValueError, match=r"whole batch.*first in every item.*=\(0,\)"):
            call()


@pytest.mark.parametrize("make", [tuple, list, np.array, torch.tensor, iter])
def test_attributions_of_any_integer_kind(mapss, make):
    references = voices()
    estimates = impaired(references).flip(1)
    scores = mapss(estimates, references, make([1, 0]))
    near(scores.ps, mapss(estimates.flip(1), references).ps.flip(1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sample_rate", 0), ("sample_rate", -8000), ("sample_rate", 16000.5),
        ("sample_rate", "16k"), ("sample_rate", float("nan")),
        ("alpha", 2.0), ("alpha", float("nan")), ("alpha", "1"), ("time", 0.0), ("time", "1"),
        ("energy", 0.0), ("energy", float("nan")), ("energy", "all"),
        ("convention", "mine"), ("loudness", float("nan")), ("loudness", "loud"),
        ("activity", -0.1), ("activity", float("nan")), ("activity", "0.1"),
        ("seed", 0.5), ("seed", "a"), ("layer", 1.5), ("separation_bank", "all"),
        ("match_bank", 3), ("encoder", None), ("encoder", 3), ("dtype", "int8"),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_named(name, value):
    options = {"encoder": "mel", name: value}
    with pytest.raises((ValueError, TypeError), match=name.split("_")[-1]):
        MAPSS(**options)


def test_order_is_estimates_then_references_everywhere(mapss):
    references = voices()
    estimates = references + 0.02 * torch.randn(
        references.shape, generator=torch.Generator().manual_seed(0)
    )
    right, wrong = scores_of(mapss, estimates, references), scores_of(mapss, references, estimates)
    assert not torch.allclose(right, wrong)
    ps = float(right[0].mean())
    metric = PerceptualSeparation(mapss)
    metric.update(preds=estimates, target=references)
    reports = evaluate(estimates=estimates[0], references=references[0], mapss=mapss)
    functions = [
        float(SeparationLoss(mapss)(estimates, references).neg() + 1),
        float(SeparationLoss(mapss)(references=references, estimates=estimates).neg() + 1),
        float(metric.compute()),
        float(PerceptualSeparation(mapss)(estimates, references)),
        float(perceptual_separation(estimates, references, mapss)),
        reports.means()["ps"],
    ]
    near(torch.tensor(functions), torch.full((len(functions),), ps), rtol=0, atol=1e-5)

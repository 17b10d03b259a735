"""Bad audio, and audio at the edge of what can be scored."""

from __future__ import annotations

import warnings

import pytest
import torch
from edge import Stub, gradient, in_range, leaky, scores_of, small, voices
from torch import Tensor

from torch_mapss import (
    MAPSS,
    DistortionBank,
    MAPSSLoss,
    MatchLoss,
    PerceptualMatch,
    PerceptualSeparation,
    SeparationLoss,
)
from torch_mapss import functional as F

LOSSES = (SeparationLoss, MatchLoss, MAPSSLoss)
METRICS = (PerceptualSeparation, PerceptualMatch)
near = torch.testing.assert_close
pytestmark = pytest.mark.filterwarnings("ignore:mixtures")


# ------------------------------------------------------------------------------------- silence


@pytest.mark.parametrize("loss", LOSSES)
def test_one_silent_reference_leaves_the_rest_of_the_batch(mapss, loss):
    references = voices(3)
    references[1, 0] = 0.0
    estimates = leaky(voices(3))
    scores = scores_of(mapss, estimates, references)
    assert scores[:, 1].isnan().all()
    assert scores[:, [0, 2]].isfinite().all()
    near(scores[:, [0, 2]], scores_of(mapss, estimates[[0, 2]], references[[0, 2]]))
    value, slope = gradient(loss(mapss), estimates, references)
    without, other = gradient(loss(mapss), estimates[[0, 2]], references[[0, 2]])
    near(value, without)
    near(slope[[0, 2]], other)
    assert (slope[1] == 0.0).all()


@pytest.mark.parametrize("metric_class", METRICS)
def test_one_silent_reference_is_skipped_and_counted(mapss, metric_class):
    references = voices(3)
    estimates = leaky(references)
    references[1, 0] = 0.0
    metric = metric_class(mapss)
    metric.update(estimates, references)
    rest = metric_class(mapss)
    rest.update(estimates[[0, 2]], references[[0, 2]])
    near(metric.compute(), rest.compute())
    assert (metric.skipped, rest.skipped) == (1, 0)


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_silent_source_of_three_leaves_two(silent):
    # Noise is drawn for the place of a source, which moves when one before it is left out.
    banks = {
        f"{kind}_bank": DistortionBank(kind, without=("noise",), size=6)
        for kind in ("separation", "match")
    }
    mapss = MAPSS("mel", **banks)
    audible = [source for source in range(3) if source != silent]
    references = voices(1, 3)
    estimates = leaky(references)
    references[:, silent] = 0.0
    estimates[:, silent] = 0.0
    three = scores_of(mapss, estimates, references)
    assert three[..., silent].isnan().all()
    two = scores_of(mapss, estimates[:, audible], references[:, audible])
    near(three[..., audible], two, rtol=0, atol=1e-3)


def test_a_silent_last_source_changes_nothing_for_the_others(mapss):
    references = voices(1, 3)
    estimates = leaky(references)
    references[:, 2] = 0.0
    three = scores_of(mapss, estimates, references)
    two = scores_of(mapss, estimates[:, :2], references[:, :2])
    near(three[..., :2], two, rtol=0, atol=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_silent_estimate_scores_low_with_finite_gradients(mapss, loss):
    references = voices(2)
    estimates = leaky(references, 0.05)
    clean = scores_of(mapss, estimates, references)
    estimates[0, 1] = 0.0
    scores = scores_of(mapss, estimates, references)
    assert scores.isfinite().all()
    assert in_range(scores)
    ps, pm = scores[:, 0, 1]
    assert ps < min(0.6, clean[0, 0, 1])  # as far from its own source as from the other
    assert pm < 0.01
    near(scores[:, 1], clean[:, 1])
    _, slope = gradient(loss(mapss), estimates, references)
    assert slope[1].abs().sum() > 0.0


@pytest.mark.parametrize("metric_class", METRICS)
def test_seven_of_eight_clips_are_scored(mapss, metric_class):
    references = voices(8, seconds=0.3)
    estimates = leaky(references)
    references[5] = 0.0
    metric = metric_class(mapss, keep_items=True)
    metric.update(estimates, references)
    rows = metric.item_scores()
    assert rows.isnan().any(-1).tolist() == [item == 5 for item in range(8)]
    near(metric.compute(), rows[[0, 1, 2, 3, 4, 6, 7]].mean(), rtol=0, atol=1e-6)
    assert metric.skipped == 1


# ------------------------------------------------------------------------------------- level


@pytest.mark.parametrize("seconds", [0.2, 0.03, 0.025])
def test_clips_shorter_than_a_loudness_block(mapss, seconds):
    references = voices(1, seconds=seconds)
    estimates = leaky(references)
    scores = scores_of(mapss, estimates, references)
    assert scores.isfinite().all()
    gradient(MAPSSLoss(mapss), estimates, references)
    for gain in (1e-2, 30.0):
        near(scores_of(mapss, gain * estimates, references), scores, rtol=0, atol=1e-3)
        near(scores_of(mapss, estimates, gain * references), scores, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("who", "decibels"),
    [("estimates", -100), ("references", -100), ("both", -100), ("one", -100), ("both", -60)],
)
def test_very_quiet_sources_score_as_at_normal_level(mapss, who, decibels):
    references = voices()
    estimates = leaky(references)
    normal = scores_of(mapss, estimates, references)
    gain = 10 ** (decibels / 20)
    quiet, true = estimates.clone(), references.clone()
    if who in ("estimates", "both"):
        quiet *= gain
    if who in ("references", "both"):
        true *= gain
    if who == "one":
        true[:, 0] *= gain
    near(scores_of(mapss, quiet, true), normal, rtol=0, atol=2e-2)
    gradient(MAPSSLoss(mapss), quiet, true)


def test_the_level_rules_are_documented():
    from torch_mapss import audio

    assert "silent" in (audio.is_silent.__doc__ or "")
    assert "ungated" in (audio.integrated_loudness.__doc__ or "")
    assert audio.SILENCE_PEAK > 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_quietest_and_the_loudest_numbers_of_a_type(mapss, dtype):
    references = voices()
    estimates = leaky(references)
    limits = torch.finfo(dtype)
    for peak in (limits.max / 2, limits.tiny * 1e3):
        scaled = (estimates / estimates.abs().max()).to(torch.float64) * peak
        scores = mapss(scaled.to(dtype), references)
        assert in_range(scores.utterance().ps)
        assert scores.ps.isfinite().all()
        assert scores.pm.isfinite().all()


def test_a_loud_estimate_is_not_clipped(mapss):
    references = voices()
    estimates = leaky(references)
    unit = estimates / estimates.abs().max()
    near(
        scores_of(mapss, 25 * unit, references),
        scores_of(mapss, unit, references),
        rtol=0,
        atol=1e-3,
    )
    _, slope = gradient(MAPSSLoss(mapss), 25 * unit, references)
    _, quiet = gradient(MAPSSLoss(mapss), unit, references)
    near(25 * slope, quiet, rtol=1e-2, atol=1e-3 * float(quiet.abs().max()))
    loud = unit[0].abs() > 0.8
    assert (slope[0][loud] != 0.0).any()


# ------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["estimates", "references"])
def test_a_non_finite_sample_is_refused_by_place(mapss, name, value):
    given = {"references": voices(3), "estimates": leaky(voices(3))}
    given[name][1, 0, 700] = value
    words = rf"{name} must be finite.*item 1, source 0.*sample 700"
    with pytest.raises(ValueError, match=words):
        mapss(**given)
    for loss in LOSSES:
        with pytest.raises(ValueError, match=words):
            loss(mapss)(given["estimates"], given["references"])
    for metric_class in METRICS:
        with pytest.raises(ValueError, match=words):
            metric_class(mapss).update(given["estimates"], given["references"])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["estimates", "references"])
def test_unchecked_a_non_finite_sample_undoes_its_item_only(name, value):
    mapss = small(check_finite=False)
    given = {"references": voices(3), "estimates": leaky(voices(3))}
    clean = scores_of(mapss, **given)
    given[name][1, 0, 700] = value
    scores = scores_of(mapss, **given)
    assert scores[:, 1].isnan().all()
    near(scores[:, [0, 2]], clean[:, [0, 2]])
    _, slope = gradient(MAPSSLoss(mapss), given["estimates"], given["references"])
    assert (slope[1] == 0.0).all()


@pytest.mark.parametrize("other", ["a little noise", "nothing"])
def test_sources_that_hardly_meet(mapss, other):
    references = voices(seconds=2.0)
    half = references.shape[-1] // 2
    together = 640 if other == "a little noise" else -1600  # 40 ms, or a pause between them
    references[:, 0, half + max(together, 0) :] = 0.0
    references[:, 1, : half - min(together, 0)] = 0.0
    estimates = leaky(references)
    metric = PerceptualSeparation(mapss)
    if together > 0:
        found = mapss(estimates, references).utterance()
        assert found.ps.isfinite().all()
        assert in_range(torch.stack([found.ps, found.pm]))
        assert 1 <= int(found.frames.min()) <= int(found.frames.max()) <= 5
        return
    with pytest.warns(UserWarning, match="no frame in which two") as told:
        found = mapss(estimates, references).utterance()
    assert len(told) == 1
    assert found.ps.isnan().all()
    assert (found.frames == 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric.update(estimates, references)
        assert metric.compute().isnan()
    assert metric.skipped == 1


@pytest.mark.parametrize("samples", [80, 399, 1])
def test_clips_too_short_for_a_frame_are_refused_before_encoding(samples):
    stub = Stub()
    mapss = small(stub)
    clip = voices()[..., :samples]
    words = rf"{samples} samples \({1000 * samples / 16000:.1f} ms\).*at least 400.*25\.0 ms"
    for call in (mapss, MAPSSLoss(mapss), PerceptualMatch(mapss).update):
        with pytest.raises(ValueError, match=words):
            call(clip, clip)
    assert stub.calls == 0


def test_unequal_lengths_are_refused_or_trimmed(mapss):
    references = voices()
    estimates = leaky(references)[..., :-1]
    for call in (mapss, MAPSSLoss(mapss), PerceptualMatch(mapss).update):
        with pytest.raises(ValueError, match=r"7999.*8000.*trim=True"):
            call(estimates, references)
    trimming = small(trim=True)
    by_hand = scores_of(mapss, estimates, references[..., :-1])
    near(scores_of(trimming, estimates, references), by_hand, rtol=0, atol=0)
    # The other way round, and for prepared references.
    near(
        scores_of(trimming, leaky(references), references[..., :-1]),
        scores_of(mapss, leaky(references)[..., :-1], references[..., :-1]),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize(
    ("dtype", "full"),
    [(torch.int16, 2**15), (torch.int32, 2**31), (torch.uint8, 2**7), (torch.int8, 2**7)],
)
def test_integers_are_pcm(mapss, dtype, full):
    references = voices()
    estimates = leaky(references)
    offset = 128 if dtype == torch.uint8 else 0
    limit = full - 1

    def whole(wave: Tensor) -> Tensor:
        return ((wave.double() * full).round().clamp(-limit, limit) + offset).to(dtype)

    def back(wave: Tensor) -> Tensor:
        return ((wave.double() - offset) / full).float()

    given = whole(estimates), whole(references)
    found = scores_of(mapss, *given)
    near(found, scores_of(mapss, *(back(x) for x in given)), rtol=0, atol=1e-3)
    assert found.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
@pytest.mark.parametrize("name", ["estimates", "references"])
def test_types_that_hold_no_audio_are_refused(mapss, name, dtype):
    given = {"references": voices(), "estimates": voices()}
    given[name] = given[name].to(dtype)
    with pytest.raises(TypeError, match=name):
        mapss(**given)


# ------------------------------------------------------------------------------------- sources


def test_one_reference_is_refused(mapss):
    for shape, axis in (((1, 1, 8000), 1), ((1, 8000), 0)):
        wave = voices()[0, 0].reshape(shape)
        with pytest.raises(ValueError, match=rf"at least two references.*axis {axis}"):
            mapss(wave, wave)
        with pytest.raises(ValueError, match=r"at least two references"):
            mapss.prepare(wave)
    with pytest.raises(ValueError, match="at least two sources"):
        F.perceptual_separation(torch.randn(1, 3), torch.randn(1, 3), torch.randn(1, 5, 3))


def test_one_estimate_of_two_references_needs_attribution(mapss):
    references = voices()
    estimates = leaky(references)
    with pytest.raises(ValueError, match=r"1 estimates for 2 references.*attributed="):
        mapss(estimates[:, :1], references)
    for source in (0, 1):
        alone = mapss(estimates[:, [source]], references, attributed=(source,))
        assert alone.ps.shape[1] == 1
        assert alone.active.any()
        assert in_range(torch.stack([alone.ps, alone.pm]))


# ------------------------------------------------------------------------------------- any input


def test_scores_of_any_estimate_stay_in_the_unit_interval(mapss):
    references = voices()
    noise = torch.randn(references.shape, generator=torch.Generator().manual_seed(3))
    made = {
        "perfect": references,
        "leaky": leaky(references),
        "noise": noise,
        "inverted": -references,
        "swapped": references.flip(1),
        "clipped": references.clamp(-0.01, 0.01),
        "mixture": references.sum(1, keepdim=True).expand_as(references),
        "constant": torch.full_like(references, 0.3),
        "click": torch.zeros_like(references).index_fill_(-1, torch.tensor([4000]), 1.0),
    }
    found = {}
    bank = mapss.prepare(references)
    for name, estimates in made.items():
        scores = mapss(estimates, bank)
        for value in (scores.ps, scores.pm):
            assert value.min() >= 0.0, name
            assert value.max() <= 1.0, name
        assert (scores.log_pm <= 0.0).all(), name
        utterance = scores.utterance()
        found[name] = torch.stack([utterance.ps, utterance.pm])
        assert found[name].isfinite().all(), name
        gradient(MAPSSLoss(mapss), estimates, bank)
    for name in ("leaky", "noise", "swapped", "clipped", "mixture"):
        assert (found[name] < found["perfect"]).all(), name
    assert (found["swapped"] < 0.1).all()

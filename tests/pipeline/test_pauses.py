"""Pauses, levels and the grid: what clearance, fidelity and bleed must see, and what must not move
them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_scorers import small
from torch import Tensor
from waveforms import RATE, bursts, impaired, noise, voices

from torch_mapss import MAPSS, BleedLoss, DecompositionLoss
from torch_mapss import functional as F
from torch_mapss.audio.loudness import at_loudness, passing_blocks
from torch_mapss.encoders import MelEncoder

near = torch.testing.assert_close


def pair(**options: Any) -> MAPSS:
    return MAPSS("mel", measures=("decomposition", "bleed"), **options)


def pausing(seconds: float = 5.0, plays: float = 1.5) -> tuple[Tensor, Tensor]:
    """(2, T) sources of which the first plays at the beginning; the other one's part after it."""
    references = bursts(seconds)
    later = torch.arange(references.shape[-1]) >= (plays + 0.3) * RATE
    references[0, round(plays * RATE) :] = 0.0
    return references, torch.where(later, references[1], 0.0)


def test_leakage_in_a_pause_lowers_only_clearance():
    references, others_in_pause = pausing()
    mapss = pair()
    clearance, bleed = [], []
    for leakage in (0.0, 0.03, 0.1, 0.2, 1.0):
        estimates = references.clone()
        estimates[0] += leakage * others_in_pause
        scores = mapss(estimates, references)
        utterance = scores.utterance()
        # Identical while its source plays: gated by itself its fidelity was 0.8 at 0.2.
        assert float(utterance.fidelity[0, 0]) == pytest.approx(1.0, abs=1e-3)
        playing = scores.active[0, 0]
        near(scores.clearance[0, 0][playing], torch.ones(int(playing.sum())), rtol=0, atol=1e-3)
        clearance.append(float(utterance.clearance[0, 0]))
        bleed.append(float(utterance.bleed_db[0, 0]))
    assert clearance == sorted(clearance, reverse=True)
    assert clearance[0] == 1.0
    assert clearance[-1] < 0.5
    assert bleed[0] == -100.0
    assert bleed == sorted(bleed)


def test_the_paper_s_measures_take_the_same_gain_as_an_option():
    references, others_in_pause = pausing()
    estimates = references.clone()
    estimates[0] += 0.2 * others_in_pause
    by_gain = {}
    for gain in ("own", "reference"):
        scores = small(gain=gain, measures="match")(estimates, references)
        by_gain[gain] = float(scores.utterance().pm[0, 0])
    assert by_gain["own"] < 0.9
    assert by_gain["reference"] == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(ValueError, match="gain must be one of 'own', 'reference'"):
        MAPSS("mel", gain="both")


@pytest.mark.parametrize("sources", [2, 3])
def test_frames_of_pauses_are_those_of_the_functional_stage(sources):
    references = bursts(1.2, sources=sources)
    estimates = impaired(references)
    mapss = pair()
    bank = mapss.prepare(references)
    scores = mapss(estimates, bank)
    assert not scores.active[scores.defined("fidelity").logical_not()].any()
    clips, encoded = bank.groups[0], bank.groups[0].encoded["decomposition"]
    gates = passing_blocks(references, RATE, -23.0)
    outputs = mapss.decomposition_encoder(at_loudness(estimates, RATE, -23.0, gates=gates))
    resting = (scores.defined("clearance") & ~scores.active)[0]
    assert resting.any(-1).all()
    for output in range(sources):
        for frame in resting[output].nonzero()[:3, 0].tolist():
            points = outputs[:, frame], encoded.references[0, :, frame]
            options = {"active": clips.active[0, :, frame]}
            if sources > 2:
                options["others"] = encoded.others[0, :, frame]
            if encoded.mask is not None:
                options["mask"] = encoded.mask[0]
            expected = F.clearance(*points, encoded.distortions[0, :, :, frame], **options)
            near(scores.clearance[0, output, frame], expected[output])
            assert scores.fidelity[0, output, frame] == 0.0


def test_a_source_that_is_silent_throughout_has_neither():
    references = bursts(1.0, sources=3)
    references[1] = 0.0
    scores = pair()(impaired(references), references)
    for field in ("clearance", "fidelity", "bleed_db"):
        assert scores.defined(field).any(-1)[0].tolist() == [True, False, True]
    references[2] = 0.0
    with pytest.warns(UserWarning, match="no frame in which two sources"):
        alone = pair()(impaired(references), references)
    assert not alone.defined("clearance").any()


def test_sources_that_never_play_together_have_clearance_alone():
    references = bursts(1.2)
    half = references.shape[-1] // 2
    references[0, half - 400 :] = references[1, : half + 400] = 0.0
    with pytest.warns(UserWarning, match="except for clearance and bleed"):
        utterance = pair()(impaired(references), references).utterance()
    assert utterance.fidelity.isnan().all()
    assert (utterance.clearance < 1.0).all()
    loss = DecompositionLoss(pair())
    estimates = impaired(references).unsqueeze(0).requires_grad_()
    loss(estimates, references.unsqueeze(0)).backward()
    assert estimates.grad.abs().sum() > 0.0


@pytest.mark.parametrize("segment", [None, 1.0])
def test_alone_padded_and_in_segments(segment):
    references = torch.stack([bursts(2.3), bursts(2.3, seed=4)])
    estimates = impaired(references)
    lengths = [36_800, 24_100]
    batch = pair(segment=segment)(estimates, references, lengths=lengths)
    alone = pair()(estimates[1:, :, :24_100], references[1:, :, :24_100])
    frames = alone.active.shape[-1]
    for field in ("clearance", "fidelity", "bleed_db"):
        values, defined = batch.of(field)[1], batch.defined(field)[1]
        near(values[:, :frames], alone.of(field)[0], rtol=0, atol=1e-4, equal_nan=True)
        assert torch.equal(defined[:, :frames], alone.defined(field)[0])
        assert not defined[:, frames:].any()


def test_drawn_frames_are_of_all_that_a_measure_scores():
    references = bursts(2.0)
    mapss = small()
    drawn = mapss(impaired(references), references, frames=20)
    assert int(drawn.defined("clearance").any(1).sum()) == 20
    assert 0 < int(drawn.active.any(1).sum()) < 20
    paper = mapss(impaired(references), references, measures="separation", frames=20)
    assert int(paper.active.any(1).sum()) == 20


def test_target_alone_has_the_same_scores():
    references = bursts(1.0)
    of_both = pair()(impaired(references), references)
    target = pair()(impaired(references)[1:], references, attributed=(1,))
    near(target.clearance[:, 0], of_both.clearance[:, 1])
    assert torch.equal(target.defined("clearance")[:, 0], of_both.defined("clearance")[:, 1])


@pytest.mark.parametrize("references", [voices(samples=24_000)[0], bursts(1.5)], ids=["v", "b"])
def test_no_offset_hides_clicks_from_the_frames(references):
    """Clicks every 20 ms, 20 dB below the source: with windows of 25 ms they moved F by 0.28."""
    mapss = MAPSS("mel", measures="decomposition")
    bank = mapss.prepare(references)
    level = 0.1 * references[0].square().mean().sqrt()
    fidelity = []
    for offset in range(0, 320, 40):
        clicks = torch.zeros(references.shape[-1])
        clicks[offset::320] = 1.0
        estimates = references.clone()
        estimates[0] += level * clicks / clicks.square().mean().sqrt()
        fidelity.append(float(mapss(estimates, bank).utterance().fidelity[0, 0]))
    assert max(fidelity) - min(fidelity) < 0.05


def test_training_on_one_grid_holds_between_its_frames():
    references = voices(samples=6000)
    mapss = MAPSS("mel", measures="decomposition")
    loss, bank = DecompositionLoss(mapss), mapss.prepare(references)
    estimates = references + 0.05 * noise(*references.shape) * 10 + 0.2 * references.flip(1)
    estimates.requires_grad_()
    optimizer = torch.optim.Adam([estimates], lr=4e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss(estimates, bank).backward()
        optimizer.step()
    fidelity = []
    for offset in (0, 160):
        shifted = estimates.detach()[..., offset:], references[..., offset:]
        fidelity.append(float(mapss(*shifted).utterance().fidelity.mean()))
    assert fidelity[0] > 0.95
    assert fidelity[0] - fidelity[1] < 0.05


def test_ends_of_a_clip_are_padded_and_the_encoder_of_the_paper_is_not():
    mapss = MAPSS("mel")
    assert (mapss.encoder.window, mapss.encoder.margin) == (400, 0)
    wide = mapss.decomposition_encoder
    assert (wide.window, wide.margin, wide.receptive_field) == (800, -200, 400)
    assert wide.floor == pytest.approx(4e-5)
    wave = noise(1600)
    assert len(wide(wave)) == len(mapss.encoder(wave)) == 4
    padded = MelEncoder(window=800, floor=wide.floor)(torch.nn.functional.pad(wave, (200, 200)))
    near(wide(wave), padded)


def test_bleed_of_the_reference_is_the_floor_and_softer_pauses_are_no_gain():
    references = bursts(1.5)  # whose pauses are 26 dB softer, not silent
    mapss = MAPSS("mel", measures="bleed")
    softer = references.clone()
    own_pauses = mapss(references, references).bleed_defined[0, 0]
    assert own_pauses.any()
    pause = torch.zeros(references.shape[-1], dtype=torch.bool)
    for frame in own_pauses.nonzero()[:, 0].tolist():
        pause[320 * frame : 320 * frame + 400] = True
    softer[0] = torch.where(pause, 0.1 * references[0], references[0])
    for estimates in (references, softer, 7.0 * references):
        leaf = estimates.clone().unsqueeze(0).requires_grad_()
        bleed = mapss(leaf, references.unsqueeze(0)).bleed_db[0, 0]
        assert (bleed[own_pauses] == -100.0).all()
        value = BleedLoss(mapss)(leaf, references.unsqueeze(0))
        (slope,) = torch.autograd.grad(value, leaf)
        assert float(value.detach()) == 0.0
        assert (slope == 0.0).all()


def test_half_widths_of_utterances_are_those_of_the_functional_stage():
    references = torch.stack([bursts(1.0), bursts(1.0, seed=2)])
    lengths = [16_000, 12_000]
    bounds = pair().bounds(impaired(references), references, 0.9, lengths=lengths)
    alone = pair().bounds(impaired(references)[1:, :, :12_000], references[1:, :, :12_000], 0.9)
    segments = pair(segment=1.0).bounds(impaired(references)[:1], references[:1], 0.9)
    for name in ("utterance_clearance", "utterance_fidelity"):
        tail = getattr(bounds, name).tail
        assert tail.shape == (2, 2)
        assert (tail > 0.0).all()
        near(tail[1:], getattr(alone, name).tail)
        near(tail[:1], getattr(segments, name).tail, rtol=1e-3, atol=1e-5)
        doubled = references.repeat(1, 1, 2)  # twice as long: the error does not shrink
        longer = getattr(pair().bounds(impaired(doubled), doubled, 0.9), name).tail
        assert float(longer[0, 0] / tail[0, 0]) == pytest.approx(1.0, abs=0.25)

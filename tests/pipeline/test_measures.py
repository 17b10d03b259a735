"""Measures side by side: what each needs, encodes and returns; decomposition and bleed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from small_scorers import Counting, small
from torch import Tensor
from waveforms import RATE, bursts, impaired

from torch_mapss import MAPSS, DistortionBank, ReferenceBank
from torch_mapss.pipeline.copies import shared_banks
from torch_mapss.pipeline.measures import MEASURES, checked_measures
from torch_mapss.score_table import scores_of

FIELDS = ("clearance", "fidelity", "ps", "pm", "log_pm")


def test_names_of_measures():
    assert checked_measures(None) == tuple(MEASURES)
    assert checked_measures("match") == ("match",)
    assert checked_measures(["bleed", "decomposition"]) == ("decomposition", "bleed")
    assert checked_measures(["ps_pesq", "clearance"]) == ("decomposition", "separation")
    for wrong in ("both", [], ["ps", "both"], [None]):
        with pytest.raises(ValueError, match="measures"):
            checked_measures(wrong)
    with pytest.raises(TypeError, match="measures"):
        checked_measures(3)  # type: ignore[arg-type]
    for ratio in ("sdr", "si_sdr", "bss"):
        refused = rf"of their scores \(clearance, .*got '{ratio}'.*by torch_mapss.evaluate"
        with pytest.raises(ValueError, match=refused):
            checked_measures(["ps", ratio])
    assert checked_measures(["sdr", "ps"], ("si_sdr", "bss")) == ("separation", "bss")
    assert checked_measures("si_sdr", ("si_sdr", "bss")) == ("si_sdr",)


@pytest.mark.parametrize("segment", [None, 1.0])
def test_each_measure_alone_has_the_same_scores(segment):
    references = bursts(1.5, sources=3)
    estimates = impaired(references)
    mapss = small(segment=segment, size=4)
    scores = mapss(estimates, references)
    assert scores.measures == tuple(MEASURES)
    for name, measure in MEASURES.items():
        alone = mapss(estimates, references, measures=name)
        assert alone.measures == (name,)
        assert torch.equal(alone.active, scores.active)
        for field in (field for any_measure in MEASURES.values() for field in any_measure.fields):
            if field in measure.fields:
                expected = getattr(scores, field)
                # In segments an encoder beside others may have its copies made in longer pieces.
                tolerances = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}
                torch.testing.assert_close(getattr(alone, field), expected, **tolerances)
            else:
                assert getattr(alone, field) is None
                with pytest.raises(ValueError, match=field):
                    alone.of(field)
        for column, values in alone.utterance()._asdict().items():
            is_known = column in (*scores_of([name]), "frames")
            assert bool(values.isnan().all()) != is_known or column == "frames"


def test_a_member_is_distorted_once_and_encoded_once_for_an_encoder():
    references = bursts(0.6)
    counts = {}
    for name, measures in (("ps", "separation"), ("both", ("separation", "decomposition"))):
        encoder = Counting()
        mapss = small(encoder, size=30, decomposition_encoder=encoder)
        mapss.prepare(references, measures=measures)
        counts[name] = encoder.waveforms
    assert counts["both"] == counts["ps"]
    mapss = MAPSS("mel")
    ((bank, members_by_measure),) = shared_banks(mapss.config, ("decomposition", "separation"))
    members = [bank.members[member_index] for member_index in members_by_measure["decomposition"]]
    assert tuple(members) == mapss.decomposition_bank.members
    assert len(members) == 20
    assert len({member.family for member in members}) >= 10
    few = DistortionBank(size=7)
    assert MAPSS("mel", separation_bank=few).decomposition_bank == few


def test_decomposition_alone_loads_no_weights(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    references = bursts(0.6)
    mapss = MAPSS(local_files_only=True, cache_dir="/nonexistent")
    key = mapss.key
    scores = mapss(impaired(references), references, measures=("decomposition", "bleed"))
    assert scores.active.any()
    assert mapss.key == key
    assert mapss.describe()["encoder"]["checkpoint"] == "facebook/wav2vec2-large-lv60"
    assert "wav2vec2-large" in repr(mapss)
    with pytest.raises(OSError, match="wav2vec2-large"):
        mapss(impaired(references), references, measures="separation")
    for wrong in ({"encoder": "wav2vec9"}, {"decomposition_encoder": "none such"}):
        with pytest.raises(ValueError, match="encoder"):
            MAPSS(**wrong)
    with pytest.warns(UserWarning, match="decomposition_encoder"):
        MAPSS("mel", decomposition_encoder="wav2vec2-base")
    MAPSS("owner/unknown")  # which is looked for when it is used
    mapss.to("cpu").half()
    assert str(mapss.config.encoders["encoder"].options["device"]) == "cpu"


def test_frames_of_a_checkpoint_are_known_without_its_weights(tmp_path):
    """Its settings alone say them: clearance, fidelity and bleed load and fetch nothing."""
    write_checkpoint(tmp_path, "wav2vec2", large=True)
    scores = MAPSS(tmp_path, layer=1)
    assert scores.encoder.layer == 1
    loaded = scores.describe(), scores.key
    for file in tmp_path.glob("model*"):
        file.unlink()
    mapss = MAPSS(tmp_path, layer=1)
    references = bursts(0.6)
    assert mapss(impaired(references), references, measures=("decomposition", "bleed")).active.any()
    assert (mapss.describe(), mapss.key) == loaded
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        mapss(impaired(references), references)


def test_a_time_that_a_measure_does_not_take_is_refused_at_once():
    with pytest.raises(ValueError, match="whole number of diffusion steps"):
        MAPSS("mel", time=0.5)
    assert MAPSS("mel", time=0.5, measures=("separation", "match")).config.settings.time == 0.5


def test_a_bank_serves_the_measures_it_was_prepared_for():
    references = bursts(0.6)
    mapss = small()
    bank = mapss.prepare(references, measures=("decomposition", "match"))
    scores = mapss(impaired(references), bank)
    assert scores.measures == ("decomposition", "match", "bleed")
    with pytest.raises(ValueError, match="'separation'"):
        mapss(impaired(references), bank, measures="separation")
    with pytest.raises(ValueError, match="measures"):
        ReferenceBank.join([bank, mapss.prepare(references)])
    lines = repr(bank).split("\n")
    assert len(lines) == 5
    assert "decomposition, match" in lines[1]
    assert len(repr(mapss.prepare(references, measures="bleed")).split("\n")) == 5


def test_sums_of_sources_cannot_be_recombined():
    mapss = small()
    three = torch.stack([bursts(0.6, sources=3, seed=s) for s in range(2)])
    bank = mapss.prepare(three)
    assert bank.recombined([[1, 1, 1]]).batch == 1
    with pytest.raises(ValueError, match="index"):
        bank.recombined([[0, 1, 0]])
    plain = mapss.prepare(three, measures=("separation", "match"))
    assert plain.recombined([[0, 1, 0]]).batch == 1


@pytest.mark.parametrize("convention", ["paper", "reference"])
def test_bounds_of_all_measures_bring_the_scores_of_the_same_maps(convention):
    references = bursts(0.8)
    mapss = small(convention=convention)
    bank = mapss.prepare(references)
    all_bounds = mapss.bounds(impaired(references), bank, frames=8)
    scores = mapss(impaired(references), bank, frames=8)
    for field, words in (
        ("bleed_db", "field must be one of"),
        ("nonsense", "field must be one of"),
    ):
        with pytest.raises(ValueError, match=words):
            all_bounds.of(field)
    with pytest.raises(ValueError, match="field must be one of"):
        scores.of("nonsense")
    with pytest.raises(ValueError, match="were not computed"):
        mapss.bounds(impaired(references), bank, measures="match", frames=3).of("ps")
    for field in ("clearance", "fidelity", "ps", "pm"):
        torch.testing.assert_close(getattr(all_bounds.scores, field), getattr(scores, field))
        bounds = all_bounds.of(field)
        torch.testing.assert_close(bounds.total, bounds.radius + bounds.tail)
        defined = scores.defined(field)
        assert not bounds.radius[~defined].any()
        assert not bounds.tail[~defined].any()
        assert bounds.tail.amin() == 0.0 < bounds.tail.amax()
    assert not all_bounds.clearance.radius.any()
    alone = mapss.bounds(impaired(references), bank, measures="decomposition", frames=8)
    assert alone.ps is None
    torch.testing.assert_close(alone.fidelity, all_bounds.fidelity)
    derived_bounds = mapss.bounds(impaired(references), bank, convention="derived")
    assert (derived_bounds.scores is None) == (convention == "reference")


def test_gradients_of_all_measures():
    references = bursts(0.6, sources=3).double()
    references[0, 3000:6000] = 0.0
    estimates = impaired(references).requires_grad_()
    scores = small()(estimates, references)
    for field in (*FIELDS, "distortion_ratio", "bleed_db"):
        values = scores.of(field)[scores.defined(field)]
        (grad,) = torch.autograd.grad(values.sum(), estimates, retain_graph=True)
        assert grad.isfinite().all(), field
        assert grad.abs().sum() > 0.0, field


def pausing(seconds: float = 2.0) -> Tensor:
    """Two noises, of which the first pauses in the middle third."""
    generator = torch.Generator().manual_seed(0)
    waves = 0.1 * torch.randn(2, round(seconds * RATE), generator=generator)
    third = waves.shape[-1] // 3
    waves[0, third : 2 * third] = 0.0
    return waves


def bleed_of(estimates: Tensor, references: Tensor, **options: Any) -> tuple[Tensor, Any]:
    mapss = MAPSS("mel", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = mapss(estimates, references, measures="bleed")
    return scores.bleed_db[0], scores


@pytest.mark.parametrize("segment", [None, 1.0])
def test_bleed_is_the_level_in_the_pauses(segment):
    # Blocks of loudness reach into the pause, so in 2 s what fills all of it lowers the gain by
    # 1.3 dB, in 4 s by 0.3 dB.
    references = pausing(4.0)
    leaking = references.clone()
    leaking[0] = torch.where(references[0] == 0.0, references[1], references[0])
    levels, scores = bleed_of(leaking, references, segment=segment)
    defined = scores.defined("bleed_db")
    assert 55 < int(defined[0, 0].sum()) < 75
    assert not defined[0, 1].any()  # which never pauses
    assert torch.equal(defined[0], ~levels.isnan())
    values = scores.utterance()
    assert float(values.bleed_db[0, 0]) == pytest.approx(0.0, abs=0.5)
    assert values.bleed_db[0, 1].isnan()
    quiet = references.clone()
    quiet[0] = torch.where(references[0] == 0.0, 0.1 * references[1], references[0])
    _, softer = bleed_of(quiet, references, segment=segment)
    assert float(softer.utterance().bleed_db[0, 0]) == pytest.approx(-20.0, abs=0.2)
    # Neither a gain nor an offset of three times the signal changes it. A larger one is heard as
    # the click that it begins with.
    _, levels_with_offset = bleed_of(3e-3 * quiet + 0.001, references, segment=segment)
    torch.testing.assert_close(
        levels_with_offset.bleed_db, softer.bleed_db, rtol=0, atol=0.01, equal_nan=True
    )


def test_bleed_of_silence_and_of_gates_is_the_floor():
    references = pausing()
    levels, _ = bleed_of(torch.zeros_like(references), references)
    assert (levels[~levels.isnan()] == -100.0).all()
    gated, _ = bleed_of(references, references)
    inside = gated[0, 40:60]  # frames within the pause
    assert (inside[~inside.isnan()] == -100.0).all()
    longer = pausing(16.0)
    only = torch.zeros_like(longer)  # bleed and nothing else
    only[0] = torch.where(longer[0] == 0.0, longer[1], 0.0)
    assert (bleed_of(only, longer)[0][0, 300:500] > 15.0).all()
    silent = references.clone()
    silent[0] = 0.0
    assert bleed_of(references, silent)[0][0].isnan().all()


def test_bleed_of_short_pauses_and_padded_items():
    references = pausing(1.0)
    references[0] = 0.1 * torch.randn(16000, generator=torch.Generator().manual_seed(3))
    references[0, 8000:8800] = 0.0  # two frames and a half
    levels, _ = bleed_of(references, references)
    assert int((~levels[0].isnan()).sum()) == 2
    repeated = torch.stack([references, references])
    mapss = MAPSS("mel", measures="bleed")
    padded = mapss(repeated, repeated, lengths=[16000, 9000]).bleed_db
    torch.testing.assert_close(padded[0], levels, equal_nan=True)
    alone = mapss(references[:, :9000], references[:, :9000]).bleed_db
    torch.testing.assert_close(padded[1, :, : alone.shape[-1]], alone[0], equal_nan=True)
    assert padded[1, :, alone.shape[-1] :].isnan().all()

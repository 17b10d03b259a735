"""The training recipes, run small on voices made up here."""

from __future__ import annotations

import csv
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, ReferenceBank, audio

RECIPES = Path(__file__).parents[2] / "recipes"


def recipe(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def voice(pitch: float, seed: int, samples: int = 16000) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    clock = torch.arange(samples) / 16000
    tone = sum((math.tau * k * pitch * clock).sin() / k for k in range(1, 6))
    swell = 0.2 + (math.tau * 3 * clock + seed).sin().square()
    return 0.1 * swell * tone + 0.002 * torch.randn(samples, generator=generator)


@pytest.fixture(scope="module")
def speech(tmp_path_factory) -> Path:
    """Three talkers, two of which are names of one."""
    import soundfile

    folder = tmp_path_factory.mktemp("speech")
    for place, talker in enumerate(("low", "high", "alto")):
        for take in range(2):
            wave = voice(110.0 * (place + 1) + 3 * take, 10 * place + take)
            soundfile.write(folder / f"{talker}_{take}.wav", wave.numpy(), 16000)
    return folder


SMALL = {"steps": 2, "batch": 2, "seconds": 0.4, "pool": 3, "refresh": 1, "frames": 6}
SMALL |= {"bank-size": 6, "test-mixtures": 2, "test-seconds": 0.6, "test-frames": 4}
SMALL |= {"test-every": 2, "log-every": 1}


def call(speech: Path, out: Path, *more: str) -> list[str]:
    small = [part for name, value in SMALL.items() for part in (f"--{name}", str(value))]
    return ["--speech", str(speech), "--out", str(out), *small, *more]


@pytest.mark.slow
def test_the_table_has_every_loss_and_every_measure(speech, tmp_path):
    train = recipe("train_separator")
    table = train.main(call(speech, tmp_path))
    lines = table.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["mixture", *train.LOSSES]
    shown = slice(2, 2 + len(train.MEASURES))
    assert lines[0].split("|")[shown] == [f" {name} " for name in train.MEASURES]
    numbers = [float(cell) for line in lines[2:] for cell in line.split("|")[shown]]
    assert all(math.isfinite(number) for number in numbers)
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == table
    assert (tmp_path / "curves.png").stat().st_size > 1000
    with open(tmp_path / "log.csv", newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert {(row["loss"], row["step"]) for row in rows if row["train_loss"]} == {
        (loss, step) for loss in train.LOSSES for step in ("1", "2")
    }
    weights = [torch.load(tmp_path / f"{loss}-0.pt") for loss in ("si_sdr", "both")]
    assert not torch.equal(weights[0]["leave.bias"], weights[1]["leave.bias"])


class Clock:
    """Tells the times it is given, one after the other."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def __call__(self) -> float:
        return self.times.pop(0)


def test_the_pace_is_told_between_tests():
    train = recipe("train_separator")
    clock = Clock(0.0, 10.0, 30.0, 34.0, 44.0, 75.0)
    pace = train.Pace(steps=8, tests=4, every=30.0, clock=clock)
    pace.step()
    assert not pace.is_due()
    pace.step()  # at 30 s: two steps, of 15 s each
    assert pace.is_due()
    assert not pace.is_due()
    assert str(pace) == "2 of all 8 steps, 15.00 s each, about 2 min left"
    pace.test()  # 4 s
    assert pace.left() == pytest.approx(6 * 15.0 + 3 * 4.0)
    pace.step()
    assert not pace.is_due()
    pace.step()
    assert pace.is_due()
    assert pace.done == 4
    values = dict.fromkeys(train.MEASURES, 0.25)
    said = train.expectation(pace, values, values | {"log_pm": -90.0})
    assert "8 steps and 4 tests take about 3 min in all (17.75 s a step, 4.0 s a test)" in said
    assert "log_pm -90.000" in said
    assert train.spoken(45.0) == "45 s"
    assert train.spoken(3 * 3600.0) == "3 h 00 min"


def test_what_to_expect_is_said_once_after_the_first_test(speech, tmp_path, capsys):
    train = recipe("train_separator")
    options = ["--losses", "si_sdr", "--steps", "4", "--tell-every", "0", "--target", "low"]
    train.main(call(speech, tmp_path, *options, "--same", "high=alto"))
    said = capsys.readouterr().out
    assert said.count("What to expect: 4 steps and 2 tests") == 1
    assert said.index("step 2: si_sdr") < said.index("What to expect") < said.index("step 3: loss")
    assert [f"{n} of all 4 steps" in said for n in range(1, 5)] == [True] * 4


def test_tests_are_scored_with_whole_banks(speech, tmp_path):
    train = recipe("train_separator")
    stage = train.prepare(train.arguments(call(speech, tmp_path)))
    for kind in ("separation", "match"):
        assert stage.held_out.mapss.banks[kind] == DistortionBank(kind)
        assert stage.mapss.banks[kind].size == 6


def test_the_interferer_rises_when_the_trigger_fires(speech, tmp_path, capsys, monkeypatch):
    from torch_mapss.training.curriculum import FrameTrigger, Quantile

    train = recipe("train_separator")
    easy = FrameTrigger(Quantile("ps", 0.5, above=0.0), patience=2)
    monkeypatch.setattr(
        train.Curriculum, "rising", staticmethod(lambda: train.Curriculum(easy, -18.0, -12.0))
    )
    options = ["--losses", "si_sdr", "--curriculum", "--check-every", "1", "--target", "low"]
    train.main(call(speech, tmp_path, *options, "--steps", "4", "--same", "high=alto"))
    said = capsys.readouterr().out
    assert "interferer up to -9 dB: epoch 2, firing 1: 50 % quantile of PS is" in said
    assert "interferer up to -6 dB: epoch 4, firing 2" in said


def test_levels_stop_at_the_top():
    from torch_mapss.training.curriculum import FrameTrigger, Quantile

    train = recipe("train_separator")
    curriculum = train.Curriculum(FrameTrigger(Quantile("ps", 0.5, above=0.5)), -8.0, -2.0)
    assert curriculum.check({"ps": [0.4]}) is None
    assert curriculum.check({"ps": [0.6]}) is not None
    assert (curriculum.lowest, curriculum.highest) == (-5.0, 0.0)
    assert curriculum.check({"ps": [0.6]}) is None
    assert curriculum.highest == 0.0


def test_pools_of_one_seed_give_equal_batches_with_and_without_banks(speech):
    train = recipe("train_separator")
    options = train.arguments(call(speech, Path("x")))
    voices = train.load_voices(str(speech), {"alto": "high"})
    assert sorted(voices) == ["high", "low"]
    mapss = train.small_scorer(options)
    cache: dict[int, ReferenceBank] = {}
    plain = train.Pool(voices, options, 3, None, {})
    first, second = (train.Pool(voices, options, 3, mapss, cache) for _ in range(2))
    for _ in range(3):
        batches = [pool.draw(-6.0, 0.0) for pool in (plain, first, second)]
        assert torch.equal(batches[0].references, batches[1].references)
        assert torch.equal(batches[0].references, batches[2].references)
        whole = mapss.prepare(batches[0].references)
        estimates = batches[0].references + 0.3 * batches[0].references.flip(1)
        expected, got = mapss(estimates, whole), mapss(estimates, batches[1].bank)
        torch.testing.assert_close(got.ps, expected.ps, rtol=1e-3, atol=1e-3)
        assert torch.equal(got.active, expected.active)
    assert len(cache) <= first.drawn  # what was renewed before it was needed is not prepared


def test_leakage_members_stand_beside_the_few_distortions_of_training(speech):
    train = recipe("train_separator")
    options = train.arguments(
        call(speech, Path("x"), "--leakage", "3", "--convention", "conformal")
    )
    mapss = train.small_scorer(options)
    assert mapss.settings.convention == "conformal"
    assert mapss.banks["separation"] == DistortionBank("separation", size=6)
    few = DistortionBank("match", size=6)
    assert mapss.banks["match"].names()[:6] == few.names()
    assert mapss.banks["match"].families == few.families | {"leakage": 3}


def test_pairs_of_a_pool_stay_together_where_the_bank_mixes_them(speech):
    train = recipe("train_separator")
    voices = train.load_voices(str(speech), {"alto": "high"})
    options = [
        train.arguments(call(speech, Path("x"), *more))
        for more in (("--leakage", "3"), ("--pairs",))
    ]
    scorers = [train.small_scorer(option) for option in options]
    pools = [
        train.Pool(voices, options[0], 5, scorers[0], {}),
        train.Pool(voices, options[0], 5, None, {}),
        train.Pool(voices, options[1], 5, scorers[1], {}),
    ]
    for _ in range(3):
        batches = [pool.draw(-6.0, 0.0) for pool in pools]
        assert torch.equal(batches[0].references, batches[1].references)
        assert torch.equal(batches[0].references, batches[2].references)
        whole = [pair.waves for pair in pools[0].pairs]
        for mixture in batches[0].references:
            assert any(torch.equal(mixture[0], waves[0]) for waves in whole)
            (own,) = (waves for waves in whole if torch.equal(mixture[0], waves[0]))
            gain = mixture[1].norm() / own[1].norm()
            torch.testing.assert_close(mixture[1], gain * own[1])
            assert 10 ** (-6.1 / 20) < float(gain) < 1.01
        assert batches[0].bank is not None
        assert batches[0].bank.mixes
        assert batches[2].bank is not None
        assert not batches[2].bank.mixes
        estimates = batches[0].references + 0.3 * batches[0].references.flip(1)
        expected = scorers[0](estimates, scorers[0].prepare(batches[0].references))
        got = scorers[0](estimates, batches[0].bank)
        torch.testing.assert_close(got.log_pm, expected.log_pm, rtol=1e-3, atol=1e-2)


def test_the_loss_has_the_form_of_pm_that_is_asked_for(speech):
    from torch_mapss import MAPSSLoss

    train = recipe("train_separator")
    asked = ["--convention", "conformal", "--leakage", "2", "--mode", "linear", "--match", "0.7"]
    options = train.arguments(call(speech, Path("x"), *asked, "--target", "low"))
    mapss = train.small_scorer(options)
    voices = train.load_voices(str(speech), {"alto": "high"})
    batch = train.Pool(voices, options, 0, mapss, {}).draw(-6.0, 0.0)
    estimates = batch.references + 0.2 * batch.references.flip(1)
    weights = {"si_sdr": 0.1, "frames": options.frames}
    form = {"match": 0.7, "match_mode": "linear"}
    expected = {
        "pm": MAPSSLoss(mapss, separation=0.0, **form, **weights),
        "ps": MAPSSLoss(mapss, separation=1.0, match=0.0, **weights),
        "both": MAPSSLoss(mapss, separation=1.0, **form, **weights),
    }
    for name, loss in expected.items():
        got = train.make_loss(name, mapss, options)(estimates, batch)
        torch.testing.assert_close(got, loss(estimates, batch.bank))


def test_held_out_results_show_every_convention_whatever_the_loss_has(speech, tmp_path):
    train = recipe("train_separator")
    stages = [
        train.prepare(train.arguments(call(speech, tmp_path, *more, "--target", "low")))
        for more in ((), ("--convention", "conformal", "--leakage", "2"))
    ]
    assert stages[0].untouched == stages[1].untouched
    held = stages[0].held_out
    found = held.results(lambda mix: held.references + 0.5 * held.references.flip(1))
    conformal = MAPSS("mel", convention="conformal")
    estimates = held.references + 0.5 * held.references.flip(1)
    scores = conformal(estimates, held.references, frames=held.frames).utterance()
    assert found["pm_conformal"] == pytest.approx(float(scores.pm.mean()), abs=1e-5)
    assert found["pm_rank"] == pytest.approx(float(scores.pm_rank.mean()), abs=1e-5)
    # Leakage of half the amplitude and nothing else. The levels of the two cancel in the mean.
    assert found["si_sar"] > 50.0
    assert found["si_sir"] == pytest.approx(6.02, abs=1.0)


def test_what_the_recipe_refuses(speech, tmp_path):
    train = recipe("train_separator")
    with pytest.raises(SystemExit, match="--target must be one of"):
        train.main(["--speech", str(speech), "--out", str(tmp_path), "--target", "bass"])
    with pytest.raises(SystemExit, match="at least two talkers"):
        train.main(["--speech", str(tmp_path), "--out", str(tmp_path)])


def test_ascent_turns_a_mixture_into_its_sources(speech, tmp_path):
    ascend = recipe("ascend_waveform")
    files = [str(speech / f"{name}_0.wav") for name in ("low", "high")]
    rows = ascend.main(
        ["--references", *files, "--out", str(tmp_path), "--steps", "60", "--start", "0"]
        + ["--seconds", "0.4", "--frames", "10", "--bank-size", "8", "--test-every", "60"]
    )
    assert [row["step"] for row in rows] == [0, 60]
    assert rows[0]["ps"] == pytest.approx(0.5, abs=1e-5)  # equal outputs: as far from both
    assert rows[1]["ps"] > 0.53
    assert rows[1]["si_sdr"] > rows[0]["si_sdr"] + 0.1
    assert (tmp_path / "ascent.png").stat().st_size > 1000
    wave, rate = audio.load_audio(tmp_path / "estimate_0.wav")
    assert (wave.shape, rate) == ((1, 6400), 16000)


# ------------------------------------------------------------------------- recombined banks


def test_recombined_banks_score_as_banks_made_of_the_new_mixtures():
    banks = {f"{k}_bank": DistortionBank(k, size=8) for k in ("separation", "match")}
    mapss = MAPSS("mel", **banks)
    slots = [(voice(100 + 40 * i, i, 8000), voice(300 + 50 * i, 9 + i, 8000)) for i in range(3)]
    pairs = torch.stack([torch.stack(pair) for pair in slots])
    pairs[1, 1, :4000] = 0.0
    joined = ReferenceBank.join([mapss.prepare(pair[None]) for pair in pairs])
    mixtures = torch.stack([torch.stack([pairs[0, 0], 0.1 * pairs[1, 1]]), pairs[2]])
    estimates = mixtures + 0.3 * mixtures.flip(1)
    expected = mapss(estimates, mixtures)
    got = mapss(estimates, joined.recombined([[0, 1], [2, 2]]))
    assert torch.equal(got.active, expected.active)
    torch.testing.assert_close(got.ps, expected.ps, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.log_pm, expected.log_pm, rtol=1e-3, atol=1e-2)
    with pytest.raises(ValueError, match=r"index must lie in \[0, 3\)"):
        joined.recombined([[0, 3]])
    with pytest.raises(ValueError, match=r"index must be \(B', S\)"):
        joined.recombined([0, 1])
    longer = ReferenceBank.join([joined, mapss.prepare(pairs[:1, :, :6000])])
    with pytest.raises(ValueError, match="only mixtures of one length"):
        longer.recombined([[0, 1]])


def test_validation_never_hears_the_test():
    train = recipe("train_separator")
    marks = {"a": list(range(8)), "b": list(range(4))}
    learnt, held = train.split(marks)
    assert learnt == {"a": [0, 1, 2, 3, 4, 5], "b": [0, 1, 2]}
    assert held == {"a": [6, 7], "b": [3]}
    learnt, checked = train.split(marks, validate=True)
    assert learnt == {"a": [0, 1, 2, 3], "b": [0, 1]}
    assert checked == {"a": [4, 5], "b": [2]}
    with pytest.raises(SystemExit, match=r"at least 3 utterances .* \['b'\]"):
        train.split({"a": [0, 1, 2], "b": [0, 1]}, validate=True)

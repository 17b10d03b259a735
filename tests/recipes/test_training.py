"""The training recipes, run small on voices made up here."""

from __future__ import annotations

import csv
import importlib.util
import math
from pathlib import Path

import pytest
import torch
from recipe_scripts import recipe, write
from waveforms import hum

from torch_mapss import MAPSS, DistortionBank, FrameTrigger, ReferenceBank
from torch_mapss.curriculum import Quantile

command, train = recipe("train_separator"), recipe("separator_training")
tune = recipe("finetune_convtasnet")


@pytest.fixture(scope="module")
def speech(tmp_path_factory) -> Path:
    """Two talkers."""
    folder = tmp_path_factory.mktemp("speech")
    for talker_index, talker in enumerate(("low", "high")):
        for take in range(2):
            pitch = 110.0 * (talker_index + 1) + 3 * take
            wave = hum(pitch, 10 * talker_index + take, 1.0)
            write(folder / f"{talker}_{take}.wav", wave)
    return folder


SMALL = {"steps": 2, "batch": 2, "seconds": 0.4, "pool": 3, "refresh": 1, "frames": 6}
SMALL |= {"bank-size": 6, "test-mixtures": 2, "test-seconds": 0.6, "test-frames": 4}
SMALL |= {"test-every": 2, "check-every": 1}


def call(speech: Path, out: Path, *options: str) -> list[str]:
    small = [f"--{name}={value}" for name, value in SMALL.items()]
    return ["--speech", str(speech), "--out", str(out), *small, *options]


def logged(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "log.csv").read_text("utf-8").splitlines()))


@pytest.mark.slow
def test_the_page_has_every_loss_and_every_measure(speech, tmp_path):
    text = command.main(call(speech, tmp_path, "--seeds", "0", "1", "2"))
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    means, changes = lines[: len(command.LOSSES) + 3], lines[len(command.LOSSES) + 3 :]
    assert [line.split("|")[1].strip() for line in means[2:]] == ["mixture", *command.LOSSES]
    assert [line.split("|")[1].strip() for line in changes[2:]] == [*command.LOSSES[1:]]
    assert means[0].split("|")[2 : 2 + len(train.MEASURES)] == [f" {m} " for m in train.MEASURES]
    for line in means[2:]:
        cells = line.split("|")[2 : 2 + len(train.MEASURES)]
        for measure, cell in zip(train.MEASURES, cells, strict=True):
            if measure == "pesq" and importlib.util.find_spec("pesq") is None:
                assert not cell.strip()  # pesq comes with the extra `recipes`
            else:
                assert math.isfinite(float(cell.split()[0]))
    assert "python recipes/train_separator.py --speech FOLDER --out OUT" in text
    assert str(speech) not in text
    assert (tmp_path / "training.md").read_text(encoding="utf-8") == text
    assert (tmp_path / "curves.png").stat().st_size > 1000
    rows = logged(tmp_path)
    steps = {(row["loss"], row["step"]) for row in rows if row["train_loss"]}
    assert steps == {(loss, step) for loss in command.LOSSES for step in ("1", "2")}
    weights = [torch.load(tmp_path / f"{loss}-0.pt") for loss in ("si_sdr", "1-2")]
    assert not torch.equal(weights[0]["leave.bias"], weights[1]["leave.bias"])


def test_quick_settings_and_defaults_in_the_help(speech, tmp_path, capsys):
    options = command.arguments(["--speech", "x", "--out", "y", "--quick"])
    assert (options.steps, options.batch, options.test_mixtures) == (10, 4, 3)
    with pytest.raises(SystemExit):
        command.arguments(["--help"])
    assert "(default: 1500)" in capsys.readouterr().out
    assert train.weights_of("1:0.5") == {"clearance": 1.0, "fidelity": 0.5}
    assert train.weights_of("si_sdr") == {}


def test_the_interferer_rises_when_the_trigger_fires(speech, tmp_path, capsys, monkeypatch):
    easy = FrameTrigger(Quantile("ps", 0.5, above=0.0), patience=2)
    monkeypatch.setattr(train, "FrameTrigger", lambda *conditions, **options: easy)
    options = ["--losses", "si_sdr", "--curriculum", "--target", "low", "--steps", "4"]
    command.main(call(speech, tmp_path, *options))
    told = capsys.readouterr()
    assert "interferer up to -9 dB: epoch 2, firing 1: 50 % quantile of PS is" in told.out
    assert "interferer up to -6 dB: epoch 4, firing 2" in told.out
    assert "interferer=-6 dB" in told.err
    levels = [row["interferer_level"] for row in logged(tmp_path)][1:]
    assert levels == ["-12.0", "-12.0", "-9.0", "-9.0"]
    monkeypatch.undo()
    curriculum = train.Curriculum(rising=True)
    curriculum.lowest, curriculum.highest = -8.0, -2.0  # levels stop at the top
    reasons = [curriculum.check({"ps": [0.9]}) for _ in range(6)]
    assert sum(reason is not None for reason in reasons) == 1
    assert (curriculum.lowest, curriculum.highest) == (-5.0, 0.0)
    assert train.Curriculum(rising=False).check({"ps": [0.9]}) is None


def test_pools_of_one_seed_give_equal_mixtures_whatever_is_prepared(speech):
    options = command.arguments(call(speech, Path("x")))
    voices = train.load_voices(str(speech))
    assert sorted(voices) == ["high", "low"]
    losses = {name: train.make_loss(name, options) for name in ("ps+pm", "1:2")}
    assert train.make_loss("si_sdr", options) is None
    plain = train.Pool(voices, options, 3, None)
    pools = {name: train.Pool(voices, options, 3, loss.prepare) for name, loss in losses.items()}
    for _ in range(3):
        references, nothing = plain.draw(-6.0, 0.0)
        assert nothing is None
        estimates = references + 0.3 * references.flip(1)
        for name, loss in losses.items():
            same, bank = pools[name].draw(-6.0, 0.0)
            assert torch.equal(same, references)
            loss.eval()  # frames are drawn from the start again
            expected = loss(estimates, loss.prepare(references))
            loss.eval()
            torch.testing.assert_close(loss(estimates, bank), expected, rtol=1e-3, atol=1e-3)


def test_held_out_results_come_from_whole_banks(speech, tmp_path):
    options = command.arguments(call(speech, tmp_path, "--target", "low"))
    held_out = train.HeldOut(train.load_voices(str(speech)), options)
    assert held_out.mapss.config.banks["separation_bank"] == DistortionBank("separation")
    references = held_out.references
    separated = held_out.results(lambda mix: references + 0.5 * references.flip(1))
    # Leakage of half the amplitude and nothing else. The levels of the two cancel in the mean.
    assert separated["si_sar"] > 50.0
    assert separated["si_sir"] == pytest.approx(6.02, abs=1.0)
    mixture = held_out.results(lambda mix: mix.unsqueeze(1).expand(-1, 2, -1))
    assert mixture["ps"] == pytest.approx(0.5, abs=1e-4)
    assert separated["clearance"] > mixture["clearance"]


def test_invalid_arguments_of_the_recipe_are_refused(speech, tmp_path):
    with pytest.raises(SystemExit, match="--target must be one of"):
        command.main(["--speech", str(speech), "--out", str(tmp_path), "--target", "bass"])
    with pytest.raises(SystemExit, match="at least two talkers"):
        command.main(["--speech", str(tmp_path), "--out", str(tmp_path)])


def test_validation_never_sees_the_test():
    marks = {"a": list(range(8)), "b": list(range(4))}
    tested = {"a": [6, 7], "b": [3]}
    assert (*train.split(marks),) == ({"a": [0, 1, 2, 3, 4, 5], "b": [0, 1, 2]}, tested)
    checked = {"a": [4, 5], "b": [2]}
    assert (*train.split(marks, validate=True),) == ({"a": [0, 1, 2, 3], "b": [0, 1]}, checked)
    with pytest.raises(SystemExit, match=r"\['b'\] .* at least 3"):
        train.split({"a": [0, 1, 2], "b": [0, 1]}, validate=True)


@pytest.mark.parametrize("weights", ["scratch", "checkpoint"])
def test_fine_tuning_conv_tasnet(speech, tmp_path, capsys, weights):
    small = ["--size", "tiny", "--steps", "2", "--batch", "2", "--seconds", "0.4", "--pool", "3"]
    small += ["--refresh", "1", "--test-mixtures", "2", "--speech", str(speech)]
    if weights == "checkpoint":
        network = tune.build(tune.arguments([*small, "--out", "x"])).network
        torch.save(network.state_dict(), tmp_path / "mine.pt")
        small += ["--checkpoint", str(tmp_path / "mine.pt")]
    results = tune.main([*small, "--warm-up", "1", "--out", str(tmp_path / "out")])
    for values in results.values():
        assert set(values) == {"si_sdr", "clearance", "fidelity"}
        assert all(math.isfinite(value) for value in values.values())
    assert results["before"] != results["after"]
    assert "s a step" in capsys.readouterr().out
    assert (tmp_path / "out/finetuning.png").stat().st_size > 1000
    assert torch.load(tmp_path / "out/convtasnet.pt", weights_only=True)


def test_a_network_of_another_rate_gives_signals_of_the_same_length(speech):
    model = tune.Separator(torch.nn.Conv1d(1, 2, 1), rate=8000)
    assert model(torch.randn(3, 6401)).shape == (3, 2, 6401)


def test_recombined_banks_score_as_banks_made_of_the_new_mixtures():
    banks = {f"{k}_bank": DistortionBank(k, size=8) for k in ("separation", "match")}
    mapss = MAPSS("mel", **banks)
    slots = [(hum(100 + 40 * i, i, 0.5), hum(300 + 50 * i, 9 + i, 0.5)) for i in range(3)]
    pairs = torch.stack([torch.stack(pair) for pair in slots])
    pairs[1, 1, :4000] = 0.0
    joined = ReferenceBank.join([mapss.prepare(pair[None]) for pair in pairs])
    mixtures = torch.stack([torch.stack([pairs[0, 0], 0.1 * pairs[1, 1]]), pairs[2]])
    estimates = mixtures + 0.3 * mixtures.flip(1)
    expected = mapss(estimates, mixtures)
    got = mapss(estimates, joined.recombined([[0, 1], [2, 2]]))
    assert torch.equal(got.active, expected.active)
    for field in ("ps", "clearance", "fidelity"):
        torch.testing.assert_close(got.of(field), expected.of(field), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.log_pm, expected.log_pm, rtol=1e-3, atol=1e-2)
    with pytest.raises(ValueError, match=r"index must be .* in \[0, 3\)"):
        joined.recombined([[0, 3]])
    with pytest.raises(ValueError, match=r"index must be \(B', S\)"):
        joined.recombined([0, 1])
    longer = ReferenceBank.join([joined, mapss.prepare(pairs[:1, :, :6000])])
    with pytest.raises(ValueError, match="only mixtures of one length"):
        longer.recombined([[0, 1]])

"""Front ends made of other encoders, and the pair as a loss under several."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from checkpoints import random_whisper
from recipe_scripts import recipe, write
from waveforms import hum

from torch_mapss.encoders.mel import mel_on_grid
from torch_mapss.evaluation import demo


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "whisper"
    random_whisper(max_source_positions=200).save_pretrained(folder)
    return folder


def test_channels_are_standardised_on_the_demo_voices(whisper):
    encoder = recipe("toolkit").load(f"{whisper}@2:standardised")
    waves, _ = demo.voices()
    features = encoder(waves).flatten(0, 1)
    torch.testing.assert_close(features.mean(0), torch.zeros(features.shape[-1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(features.std(0), torch.ones(features.shape[-1]), atol=1e-4, rtol=0)


def test_joined_encoders_have_equal_shares(whisper):
    toolkit = recipe("toolkit")
    waves, _ = demo.voices()
    joined = toolkit.load(f"mel+{whisper}@1")(waves)
    standardised = recipe("front_ends").Standardised
    encoders = mel_on_grid(16_000, 320, 400), toolkit.load(f"{whisper}@1")
    encoded = [standardised(encoder)(waves) for encoder in encoders]
    means = [(output[0] - output[1]).square().mean(-1) for output in encoded]
    torch.testing.assert_close((joined[0] - joined[1]).square().sum(-1), means[0] + means[1])
    assert toolkit.shown(f"mel+{whisper}@1") == "mel+whisper@1"


def test_local_attention_does_not_see_far(whisper):
    toolkit, reach = recipe("toolkit"), recipe("front_ends").REACH
    wave = torch.stack([hum(120.0, 0, 2.0), hum(120.0, 0, 2.0)])
    wave[1, 24000:] += 0.1 * hum(200.0, 1, 0.5)  # from frame 75 on
    plain, local = (toolkit.load(f"{whisper}@1{kind}")(wave) for kind in ("", ":local"))
    untouched = slice(0, 75 - reach - 2)
    assert float((plain[0] - plain[1])[untouched].abs().max()) > 1e-4
    torch.testing.assert_close(local[0, untouched], local[1, untouched], atol=1e-5, rtol=1e-4)
    short = hum(120.0, 0, 0.15)[None]  # all within reach: the same encoder
    same = [toolkit.load(f"{whisper}@1{kind}")(short) for kind in ("", ":local")]
    torch.testing.assert_close(*same, atol=1e-5, rtol=1e-4)


def test_layers_of_one_pass_are_those_of_encoders_of_their_own(whisper, monkeypatch):
    toolkit, hidden_states = recipe("toolkit"), recipe("hidden_states")
    names = [f"{whisper}@{layer}" for layer in range(3)]
    shared = hidden_states.shared_passes(["mel", *names, f"{whisper}@1:local"])
    assert [*shared] == [str(whisper)]
    one_pass = shared[str(whisper)]
    passes: list[int] = []
    monkeypatch.setattr(
        hidden_states,
        "hidden_states",
        lambda *call, original=hidden_states.hidden_states: passes.append(1) or original(*call),
    )
    waves = torch.stack([hum(120.0, 0, 1.0), hum(180.0, 1, 1.0)])
    one_pass.encoder.memory_budget = 1  # a chunk for each clip
    for name in names:
        embeddings = toolkit.load(name, shared=shared)(waves)
        torch.testing.assert_close(embeddings, toolkit.load(name)(waves), atol=1e-5, rtol=1e-5)
    assert len(passes) == 1
    toolkit.load(names[0], shared=shared)(waves.flip(0))
    one_pass.forget()
    toolkit.load(names[0], shared=shared)(waves)
    assert len(passes) == 3
    assert hidden_states.shared_passes([names[1], f"mel+{names[1]}"]) == {}  # one layer alone


def test_the_page_on_losses_says_what_repeats_it(tmp_path):
    """Its seeds, also where they are the default, and how the files of talkers are named."""
    script, toolkit = recipe("losses"), recipe("toolkit")
    measures = [*script.WAVEFORM_MEASURES, "clearance mel", "fidelity mel"]
    rows = toolkit.Rows(tmp_path / "rows", ("arm", "seed"), measures, {})
    for arm, seeds in (("mixture", [0]), ("SI-SDR alone", [0, 1, 2]), ("mel", [0, 1, 2])):
        for seed in seeds:
            rows.add(arm, seed, **dict.fromkeys(measures, 0.5))
    numbers = {"steps": 9, "batch": 4, "seconds": 1.0, "pool": 8, "test_mixtures": 3}
    numbers |= {"test_seconds": 2.0, "seeds": [0, 1, 2], "encoders": ["mel"], "target": "carlo"}
    arguments = ["--speech", "data/speech", "--target", "carlo", "--out", str(tmp_path / "out")]
    page = "\n".join(script.page(argparse.Namespace(**numbers), arguments, rows))
    command = "losses.py --speech speech --target carlo --seeds 0 1 2 --out OUT\n"
    for fragment in (command, "seeds 0, 1, 2.", "a subfolder of that name", "200 steps (here 9)"):
        assert fragment in page, fragment


@pytest.mark.slow
def test_a_separator_is_trained_under_several_encoders(whisper, tmp_path):
    for talker_index, talker in enumerate(("low", "high")):
        for take in range(2):
            wave = hum(110.0 * (talker_index + 1) + 3 * take, 10 * talker_index + take, 1.0)
            write(tmp_path / "speech" / f"{talker}_{take}.wav", wave)
    script, layer = recipe("losses"), f"{whisper}@1"
    arguments = ["--speech", str(tmp_path / "speech"), "--out", str(tmp_path / "out")]
    arguments += ["--target", "low", "--encoders", "mel", layer, "--seeds", "0", "1"]
    arguments += ["--steps", "2", "--batch", "2", "--seconds", "0.4", "--pool", "2"]
    arguments += ["--test-mixtures", "2", "--test-seconds", "0.6"]
    rows = script.main(arguments)
    assert len(rows) == 1 + 2 * 3
    trained = {row["arm"]: row["clearance mel"] for row in rows.where(seed=1)}
    assert len(set(trained.values())) == 3  # three losses, three separators
    assert [*trained] == ["SI-SDR alone", "mel", "whisper@1"]
    page = (tmp_path / "out" / "losses.md").read_text(encoding="utf-8")
    assert "clearance whisper@1" in page
    assert "Less `mel`, seed by seed" in page

"""Clearance and fidelity by an encoder and layer of their own: options, protocol, what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from checkpoints import random_whisper
from separations import write_all
from waveforms import leaky, tones

from torch_mapss import MAPSS, evaluate, load_encoder
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.results import load_results

pytestmark = pytest.mark.filterwarnings("ignore:decomposition_encoder")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "whisper"
    random_whisper(max_source_positions=200).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """References and estimates."""
    folder, truth = tmp_path_factory.mktemp("audio"), tones()
    return write_all(folder / "truth", truth), write_all(folder / "made", leaky(truth))


def test_the_layer_of_the_pair_is_an_option(tmp_path, files, whisper, capsys):
    command = ["score", "--references", *files[0], "--estimates", *files[1]]
    command += ["--measures", "decomposition", "--pair-encoder", str(whisper)]
    by_layer = {}
    for layer in (1, 2):
        out = tmp_path / str(layer)
        assert cli.main([*command, "--pair-layer", str(layer), "--out", str(out)]) == 0
        by_layer[layer] = results = load_results(out)
        said = f"clearance and fidelity by {whisper}, layer {layer}, weights "
        assert said in capsys.readouterr().out
        table = pd.read_csv(out / "scores.csv")
        assert table["notes"].str.contains(said, regex=False).all()
        assert f"encoder {whisper}, layer {layer}, weights " in results.statement()
        encoder = load_encoder(whisper, layer=layer)
        report = evaluate(
            references=files[0],
            estimates=files[1],
            encoder="mel",
            measures="decomposition",
            decomposition_encoder=encoder,
        )
        for name in ("clearance", "fidelity"):
            assert list(table[name]) == pytest.approx(list(report.scores[name]), rel=1e-6)
        assert json.loads((out / "settings.json").read_text())["options"]["decomposition_layer"]
    assert by_layer[1].protocol != by_layer[2].protocol
    fidelity = [results.scores["fidelity"] for results in by_layer.values()]
    assert (fidelity[0] - fidelity[1]).abs().max() > 1e-3


def test_one_set_of_weights_serves_two_layers_or_one(whisper):
    """The layer of PS and PM is not that of the pair; equal layers are one encoder."""
    mapss = MAPSS(whisper, layer=2, decomposition_encoder=whisper, decomposition_layer=1)
    assert (mapss.encoder.layer, mapss.decomposition_encoder.layer) == (2, 1)
    described = mapss.describe()
    assert (described["encoder"]["layer"], described["decomposition_encoder"]["layer"]) == (2, 1)
    mapss = MAPSS(whisper, layer=2, decomposition_encoder=whisper, decomposition_layer=2)
    assert mapss.encoder is mapss.decomposition_encoder
    default = MAPSS("mel", decomposition_encoder=whisper)
    assert default.decomposition_encoder.layer == 1
    assert default.key == MAPSS("mel", decomposition_encoder=whisper, decomposition_layer=1).key


def test_layer_is_refused_for_encoders_without_layers(files, whisper, capsys):
    command = ["score", "--references", *files[0], "--estimates", *files[1], "--pair-layer", "2"]
    for encoder in ((), ("--pair-encoder", "waveform")):
        assert cli.main([*command, *encoder]) == 2
        name = encoder[-1] if encoder else "mel"
        said = f"decomposition_layer=2 was passed, but decomposition_encoder '{name}' has no layers"
        assert said in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"already made.*load_encoder\(NAME, layer=2\)"):
        MAPSS("mel", decomposition_encoder=load_encoder(whisper, layer=1), decomposition_layer=2)
    with pytest.raises(ValueError, match="layer must be from 0 to"):
        MAPSS("mel", decomposition_encoder=whisper, decomposition_layer=9).decomposition_encoder  # noqa: B018


def test_no_note_about_the_default_encoder(files):
    report = evaluate(references=files[0], estimates=files[1], encoder="mel", bank_size=10)
    assert not [note for note in report.notes if "clearance" in note]
    elsewhere = evaluate(references=files[0], estimates=files[1], encoder="mel", measures="bleed")
    assert not [note for note in elsewhere.notes if "clearance" in note]

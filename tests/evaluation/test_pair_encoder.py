"""Clearance and fidelity by an encoder and layer of their own: options, protocol, what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from checkpoints import random_whisper
from separations import write_all
from waveforms import leaky, tones

from torch_mapss import MAPSS, compare, evaluate, evaluate_set, load_encoder
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


def test_pair_encoder_on_another_grid_without_an_encoder(tmp_path, files, capsys):
    """The pair, bleed and SI-SDR read no other encoder, whose frames need not fit."""
    command = ["score", "--references", *files[0], "--estimates", *files[1]]
    command += ["--pair-encoder", "mel-44k"]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "clearance and fidelity by mel-44k" in capsys.readouterr().out
    results = load_results(tmp_path / "out")
    settings = results.settings
    assert (settings["encoder_rate"], settings["receptive_field"]) == (44_100, 1102)
    assert settings["decomposition_encoder"]["name"] == "mel-44k"
    assert "encoder" not in settings
    measures = ("decomposition", "bleed")
    alone = MAPSS("mel-44k", decomposition_encoder=load_encoder("mel-44k"), measures=measures)
    report = evaluate(references=files[0], estimates=files[1], mapss=alone, measures=measures)
    for name in ("clearance", "fidelity", "si_sdr"):
        assert list(results.scores[name]) == pytest.approx(list(report.scores[name]), rel=1e-6)

    # In Python the encoder of PS and PM is wav2vec 2.0 by default: not read here, and not loaded.
    entry = {"mixture_id": "m", "references": files[0], "systems": {"s": files[1]}}
    options = {"measures": measures, "decomposition_encoder": "mel-44k"}
    of_set = evaluate_set([entry], out=tmp_path / "set", **options)
    assert of_set.protocol == results.protocol
    assert list(of_set.scores["fidelity"]) == pytest.approx(list(results.scores["fidelity"]))

    # PS and PM need another run, and what the message says is a run that works.
    assert cli.main([*command, "--encoder", "mel", "--out", str(tmp_path / "both")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "share rate, hop and frame centres" in said
    assert "on the command line with a run for each, which has its own --measures and --out" in said
    runs = ([*command, "--measures", "decomposition"], command[:-2] + ["--measures", "bleed", "ps"])
    for index, run in enumerate(runs):
        run = [*run, "--encoder", "mel", "--bank-size", "10", "--out", str(tmp_path / f"{index}")]
        assert cli.main([*run, "--quiet"]) == 0


def test_compare_names_the_pair_encoder(tmp_path, files):
    for system in ("one", "two"):
        options = {"encoder": "mel", "decomposition_encoder": "waveform"}
        options |= {"measures": ("decomposition", "bleed")}
        report = evaluate(references=files[0], estimates=files[1], **options)
        report.save(tmp_path / "out", system=system)
    said = "Clearance and fidelity by waveform."
    assert said in compare(tmp_path / "out").summary()
    assert said not in compare(tmp_path / "out", measures="bleed").summary()


def test_no_note_about_the_default_encoder(files):
    report = evaluate(references=files[0], estimates=files[1], encoder="mel", bank_size=10)
    assert not [note for note in report.notes if "clearance" in note]
    elsewhere = evaluate(references=files[0], estimates=files[1], encoder="mel", measures="bleed")
    assert not [note for note in elsewhere.notes if "clearance" in note]

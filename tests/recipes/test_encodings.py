"""Layers, encoders and overlays, run small on voices made up here and random checkpoints."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
import torch
from checkpoints import LAYERS, write_checkpoint, write_whisper
from recipe_scripts import recipe, voice, write

from torch_mapss.encoders import load_encoder

SMALL = ("--seconds", "0.6", "--bank-size", "6", "--every", "6")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "small"
    write_whisper(folder)
    return folder


@pytest.fixture(scope="module")
def rated_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two mixtures with four systems that leak more and more, and ratings of two questions."""
    folder = tmp_path_factory.mktemp("rated")
    entries, ratings = [], []
    for track in ("one", "two"):
        seed = 7 * len(entries)
        target, other = voice(110.0, seed), voice(170.0 + 20 * seed, seed + 1)
        noise = torch.randn(len(target), generator=torch.Generator().manual_seed(seed))
        write(folder / track / "voice.wav", target)
        write(folder / track / "band.wav", other)
        systems = {}
        for place, leak in enumerate((0.05, 0.3, 0.6, 0.9)):
            name = f"S{place}"
            write(folder / track / f"{name}.wav", target + leak * other + 0.02 * place**2 * noise)
            systems[name] = [f"{track}/{name}.wav", None]
            for question, mean in (("leak", 90 - 80 * leak), ("tone", 80.0 - place**2)):
                ratings.append((track, name, "voice", question, mean))
        systems["control:ref"] = [f"{track}/voice.wav", None]
        ratings.append((track, "control:ref", "voice", "leak", 100.0))
        files = [f"{track}/{n}.wav" for n in ("voice", "band")]
        entries.append({"mixture_id": track, "references": files, "systems": systems})
    (folder / "mapss.json").write_text(json.dumps(entries))
    with open(folder / "ratings.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("track", "system", "source", "question", "mean_rating"))
        lines.writerows(ratings)
    return folder


@pytest.fixture(scope="module")
def utterances(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two speakers of two languages each."""
    folder = tmp_path_factory.mktemp("speech")
    items = []
    for place, (speaker, language) in enumerate(
        (who, tongue) for who in ("ann", "bob") for tongue in ("en", "it")
    ):
        name = f"{speaker}_{language}"
        write(folder / f"{name}.wav", voice(110.0 + 35 * place, place))
        items.append({"id": name, "path": f"{name}.wav", "speaker": speaker, "language": language})
    (folder / "manifest.json").write_text(json.dumps({"items": items}))
    return folder / "manifest.json"


def arguments(folder: Path, out: Path) -> list[str]:
    files = ["--manifest", str(folder / "mapss.json"), "--ratings", str(folder / "ratings.csv")]
    return [*files, "--out", str(out), *SMALL]


# ------------------------------------------------------------------------------------------------
# Every layer in one pass
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["whisper", "wavlm"])
def test_each_waveform_is_encoded_once_for_all_layers(family, whisper, tmp_path, monkeypatch):
    rated = recipe("rated", monkeypatch)
    if family != "whisper":
        write_checkpoint(tmp_path / family, family)
    path = whisper if family == "whisper" else tmp_path / family
    found = rated.Layers(load_encoder(path, layer=LAYERS), range(LAYERS + 1), every=3)
    waves = torch.stack([voice(110.0, 0), voice(150.0, 1), voice(110.0, 0)])
    for layer in range(LAYERS + 1):
        alone = load_encoder(path, layer=layer)(waves)[:, ::3]
        assert (found.features(waves, layer) - alone).abs().max() < 1e-4 * alone.abs().max()
    assert found.encoded == 2  # the third is the first
    view = found.view(1)
    assert (view.hop, view.receptive_field) == (960, 400)
    assert view(waves).shape[1] == (waves.shape[1] - 400) // 960 + 1
    found.forget()
    found.features(waves, 0)
    assert found.encoded == 4


@pytest.mark.slow
def test_layers_of_a_rated_folder(whisper, rated_folder, tmp_path, monkeypatch):
    script = recipe("layers", monkeypatch)
    seen: dict[str, int] = {}
    forget = script.rated.Layers.forget

    def count(self: Any) -> None:
        seen[self.encoder.name] = self.encoded
        forget(self)

    monkeypatch.setattr(script.rated.Layers, "forget", count)
    options = ["--encoders", str(whisper), "--random", "--top", "2"]
    rows = script.main([*arguments(rated_folder, tmp_path), *options])
    assert len(rows) == 2 * 3 * 2 * 4  # encoders, layers, tracks, systems; no controls
    names = rows.distinct("encoder")
    assert names == ["small", "small (random)"]
    most = 2 * (2 * (1 + 6 + 6) + 4)  # two tracks: references, both banks, outputs
    assert all(0 < count <= most for count in seen.values())
    page = (tmp_path / "layers.md").read_text(encoding="utf-8")
    assert "| layer | PS / leak | log B / leak | PM / tone | log PM / tone |" in page
    assert "Max-min over PS and PM, SRCC and PCC, all: layer" in page
    assert (tmp_path / "layers.png").stat().st_size > 5000
    before = (tmp_path / "rows.csv").read_bytes()
    monkeypatch.setattr(script.toolkit, "target_scores", None)  # nothing is scored again
    script.main([*arguments(rated_folder, tmp_path), *options])
    assert (tmp_path / "rows.csv").read_bytes() == before


def test_correlations_are_those_of_scipy(tmp_path, monkeypatch):
    rated = recipe("rated", monkeypatch)
    columns = ("ps", "pm", "rating:leak")
    rows = rated.toolkit.Rows(tmp_path, rated.KEYS, columns, {})
    generator = torch.Generator().manual_seed(3)
    expected: dict[str, list[float]] = {"SRCC": [], "PCC": []}
    for track in range(3):
        scores, said = torch.rand(2, 6, generator=generator).double()
        for place in range(6):
            key = dict.fromkeys(rated.KEYS, "x") | {"track": str(track), "system": str(place)}
            rows.add(**key, ps=float(scores[place]), pm=0.5, **{"rating:leak": float(said[place])})
        expected["SRCC"].append(scipy.stats.spearmanr(scores, said).statistic)
        expected["PCC"].append(scipy.stats.pearsonr(scores, said).statistic)
    for method, values in expected.items():
        found = rated.correlation(rows, "ps", "leak", method, encoder="x")
        assert found.value == pytest.approx(sum(values) / 3)
        assert found.error == pytest.approx(scipy.stats.sem(values))
        assert found.tracks == 3
    first = rated.correlation(rows, "ps", "leak", "PCC", {"0"})
    assert first.value == pytest.approx(expected["PCC"][0])
    assert math.isnan(first.error)
    constant = rated.correlation(rows, "pm", "leak", "SRCC")
    assert math.isnan(constant.value)
    assert constant.tracks == 0


def test_differences_are_paired_over_tracks(tmp_path, monkeypatch):
    rated = recipe("rated", monkeypatch)
    rows = rated.toolkit.Rows(tmp_path, rated.KEYS, ("ps", "rating:leak"), {})
    generator = torch.Generator().manual_seed(4)
    expected = []
    for track in range(4):
        one, other, said = torch.rand(3, 6, generator=generator).double()
        for place in range(6):
            key = dict.fromkeys(rated.KEYS, "x") | {"track": str(track), "system": str(place)}
            for encoder, scores in (("one", one), ("other", other)):
                if (encoder, track) != ("other", 3):  # which the other did not come to
                    values = {"ps": float(scores[place]), "rating:leak": float(said[place])}
                    rows.add(**{**key, "encoder": encoder}, **values)
        if track < 3:
            values = [scipy.stats.spearmanr(scores, said).statistic for scores in (one, other)]
            expected.append(values[0] - values[1])
    found = rated.difference(rows, "ps", "leak", "SRCC", "one", "other")
    assert found.tracks == 3
    assert found.value == pytest.approx(sum(expected) / 3)
    assert found.error == pytest.approx(scipy.stats.sem(expected))


def test_encoders_are_compared_on_the_tracks_that_all_of_them_have(tmp_path, monkeypatch):
    rated = recipe("rated", monkeypatch)
    rows = rated.toolkit.Rows(tmp_path, rated.KEYS, ("ps",), {})
    assert rated.common_tracks(rows) == set()
    for encoder, tracks in (("mel", "abc"), ("whisper", "bcd"), ("random", "abd")):
        for track in tracks:
            key = dict.fromkeys(rated.KEYS, "x") | {"track": track, "encoder": encoder}
            rows.add(**key, ps=0.5)
    assert rated.common_tracks(rows) == {"b"}


def test_the_layer_taken_has_the_best_worst_number(tmp_path, monkeypatch):
    rated = recipe("rated", monkeypatch)
    asked = {"ps": "a", "pm": "b"}
    values = {  # layer -> scenario -> PS, PM
        "0": {"en": (0.9, 0.9), "es": (0.9, 0.1)},
        "1": {"en": (0.7, 0.6), "es": (0.6, 0.8)},
        "2": {"en": (0.5, 0.99), "es": (0.99, 0.99)},
    }

    def known(rows: Any, measure: str, question: str, method: str, **where: str) -> Any:
        assert question == asked[measure]
        value = values[where["layer"]][where["scenario"]][measure == "pm"]
        return rated.Correlation(value, 0.0, 1)

    monkeypatch.setattr(rated, "correlation", known)
    monkeypatch.setattr(rated, "layers_of", lambda rows, encoder: ["0", "1", "2"])
    assert rated.best_layer(None, "x", asked, ["en"]) == ("0", 0.9)
    assert rated.best_layer(None, "x", asked, ["es"]) == ("2", 0.99)
    assert rated.best_layer(None, "x", asked, ["en", "es"]) == ("1", 0.6)


# ------------------------------------------------------------------------------------------------
# Encoders
# ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_encoders_of_a_rated_folder(whisper, rated_folder, tmp_path, monkeypatch):
    script = recipe("encoders", monkeypatch)
    options = ["--encoders", "mel", f"{whisper}@2", "--random"]
    options += ["--bank-size", "7"]
    rows = script.main([*arguments(rated_folder, tmp_path), *options])
    assert rows.distinct("encoder") == ["mel", "small", "small (random)"]
    assert rows.distinct("layer") == ["", "2"]
    assert len(rows) == 3 * 2 * 4
    # Each system leaks more than the one before; networks of random weights promise nothing.
    clean, some, _, much = (
        rows.mean("ps", encoder="mel", system=f"S{place}") for place in range(4)
    )
    assert clean > some > much
    page = (tmp_path / "encoders.md").read_text(encoding="utf-8")
    assert "| small (random) | 3 | 2 | 32 | 16 kHz, 50/s | random |" in page
    assert "| PS / leak | PS / tone |" in page
    assert (tmp_path / "encoders.png").stat().st_size > 5000
    with pytest.raises(SystemExit, match="nobody was asked loudness; questions: leak, tone"):
        script.main([*arguments(rated_folder, tmp_path), "--ps-question", "loudness"])


@pytest.mark.slow
def test_without_ratings_the_control_takes_their_place(utterances, tmp_path, monkeypatch):
    script = recipe("encoders", monkeypatch)
    options = ["--manifest", str(utterances), "--out", str(tmp_path), *SMALL, "--steps", "3"]
    rows = script.main([*options, "--encoders", "mel", "--languages"])
    scenarios = rows.distinct("scenario")
    assert scenarios == ["en only", "it only", "multilingual"]
    mixtures = json.loads((tmp_path / "mixtures.json").read_text())
    assert len(mixtures) == 8  # four targets, each beside its own and another language
    for mixture in mixtures:
        speakers, languages = zip(*(name.split("_") for name in mixture["sources"]))
        assert len(set(speakers)) == 2
        assert (len(set(languages)) == 1) == (mixture["scenario"] != "multilingual")
    assert len(rows) == 8 * 2 * 3
    leak = script.rated.correlation(rows, "ps", "leakage", "SRCC")
    assert leak.value > 0.9  # PS falls with leakage
    assert leak.tracks == 8
    page = (tmp_path / "encoders.md").read_text(encoding="utf-8")
    assert "en only: SRCC | it only: SRCC | multilingual: SRCC | together: SRCC |" in page


def test_a_random_twin_has_the_shape_and_other_weights(whisper, tmp_path, monkeypatch):
    untrained = recipe("untrained", monkeypatch)
    twin = untrained.untrained(str(whisper), tmp_path / "twin")
    wave = voice(110.0, 0)[None]
    trained, random = (load_encoder(path, layer=2)(wave) for path in (whisper, twin))
    assert trained.shape == random.shape
    assert (trained - random).abs().max() > 0.1 * trained.abs().max()
    again = untrained.untrained(str(whisper), tmp_path / "again")
    assert torch.equal(load_encoder(again, layer=2)(wave), random)
    other = untrained.untrained(str(whisper), tmp_path / "other", seed=1)
    assert not torch.equal(load_encoder(other, layer=2)(wave), random)
    write_checkpoint(tmp_path / "mert", "mert")
    music = untrained.untrained(str(tmp_path / "mert"), tmp_path / "music")
    assert load_encoder(music).sample_rate == 24_000


def test_every_published_shape_is_known(monkeypatch):
    untrained = recipe("untrained", monkeypatch)
    rows = [row for row in untrained.encoder_table() if row.needs_download]
    assert {row.name for row in rows} == set(untrained.SHAPES)
    for row in rows:
        kind, settings, preprocessor = untrained._shape(row.name)
        assert kind in row.checkpoint.replace("MERT", "hubert").replace("-", "")
        layers = settings.get("num_hidden_layers", settings.get("encoder_layers", 12))
        assert (
            layers
            == {"large": 24, "base": 12, "xlsr": 24, "mert": 12, "whisper": layers}[
                row.name.split("-")[0 if kind == "whisper" or row.name == "mert" else 1]
            ]
        )
        assert preprocessor["sampling_rate"] == row.sample_rate


# ------------------------------------------------------------------------------------------------
# Overlays
# ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_overlay_of_two_encoders(whisper, rated_folder, utterances, tmp_path, monkeypatch):
    script = recipe("overlays", monkeypatch)
    named = ["--out", str(tmp_path), "--seconds", "0.6", "--bank-size", "6"]
    files = ["--manifest", str(rated_folder / "mapss.json"), "--mixture", "two", "--system", "S2"]
    found = script.main([*files, *named, "--encoders", "mel", f"{whisper}@2"])
    assert [*found] == ["mel", "small, layer 2"]
    frames = (round(0.6 * 16000) - 400) // 320 + 1
    for curve in found.values():
        assert curve.scores["ps"].shape == (1, frames)  # the other source is not estimated
        assert 0.3 < float(curve.scores["ps"].nanmean()) < 0.9
    with open(tmp_path / "overlay.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * frames
    assert float(rows[5]["seconds"]) == pytest.approx((5 * 320 + 200) / 16000)
    assert float(rows[5]["ps"]) == pytest.approx(float(found["mel"].scores["ps"][0, 5]), rel=1e-4)
    assert (tmp_path / "overlay.png").stat().st_size > 20_000
    both = script.main(["--manifest", str(utterances), *named, "--encoders", "mel"])
    assert both["mel"].scores["pm"].shape == (2, frames)
    with pytest.raises(SystemExit, match=r"no system 'S9'; there are S0, S1"):
        script.main([*files[:-1], "S9", *named, "--encoders", "mel"])
    with pytest.raises(SystemExit, match="no mixture 'three'; there are one, two"):
        script.main([*files[:2], "--mixture", "three", *named, "--encoders", "mel"])

"""Listening tests: what is chosen and written, and what comes back."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from pandas import DataFrame, read_csv
from separations import save_manifest, score_set, write_all, write_manifest
from waveforms import leaky, tones

from torch_mapss import audio
from torch_mapss.evaluation import cli, listen
from torch_mapss.evaluation.listen import QUESTIONS, choose, spanned, write_test
from torch_mapss.evaluation.listen_ratings import rating_tables, read_key, read_ratings
from torch_mapss.evaluation.ratings import load_ratings
from torch_mapss.evaluation.records import rows_of
from torch_mapss.evaluation.results import Results, load_results

yaml = pytest.importorskip("yaml")
SYSTEMS = ("one", "two", "three", "four")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_manifest(root := tmp_path_factory.mktemp("set"), 3, SYSTEMS, seconds=0.7)
    quiet = 1e-3 * leaky(tones(2, 0.7, seed=2), 0.2)  # levels differ between systems
    write_all(root / "m2" / "two", quiet)
    score_set(path, root / "out")
    return root / "out"


def csv_rows(path: Path) -> list[dict[str, str]]:
    return rows_of(read_csv(path, dtype=str, keep_default_na=False))


@pytest.fixture(scope="module")
def many_results(results: Results) -> Results:
    """Results of many mixtures with scores of a skewed distribution."""
    rng = np.random.default_rng(0)
    rows = []
    for n in range(60):
        for system in SYSTEMS[:3]:
            row = {"mixture_id": f"m{n}", "system": system, "source": "a", "source_index": 0}
            row |= {"status": "ok", "estimate": f"{n}/{system}.wav", "reference": f"{n}.wav"}
            row |= {"clearance": float(rng.beta(8, 2)), "fidelity": float(rng.beta(2, 3))}
            rows.append(row)
    return Results(**{**vars(results), "scores": DataFrame(rows)})


def test_stimuli_span_the_measures(many_results):
    """More of 16 cells of ranks hold a stimulus than where pages are drawn by lot."""
    ranks = many_results.scores[spanned(many_results)].rank(method="first").to_numpy() - 1
    cells = dict(zip(many_results.scores["estimate"], map(tuple, 16 * ranks // (4 * len(ranks)))))

    def spread(pages: Any) -> int:
        return len({cells[row["estimate"]] for rows in pages for row in rows})

    rng, all_pages = np.random.default_rng(0), choose(many_results, 60)
    spreads_by_lot = []
    for _ in range(50):
        drawn_pages = [all_pages[k] for k in rng.choice(60, 8, replace=False)]
        spreads_by_lot.append(spread(drawn_pages))
    chosen = spread(choose(many_results, 8))
    assert chosen >= 14
    assert chosen > np.mean(spreads_by_lot) + 1.5


def test_choice_is_seeded_and_bounded(results, many_results, monkeypatch):
    assert choose(many_results, 5) == choose(many_results, 5)
    assert choose(many_results, 5) != choose(many_results, 5, seed=1)
    assert len(choose(results, 50)) == 6  # three mixtures of two sources
    monkeypatch.setattr(listen, "MAX_SYSTEMS", 2)
    assert all(len(rows) == 2 for rows in choose(results, 4))
    with pytest.raises(ValueError, match="count"):
        choose(results, 0)
    nothing = {**vars(results), "scores": results.scores.assign(status="failed")}
    with pytest.raises(ValueError, match="nothing to listen to"):
        choose(Results(**nothing), 3)


def test_hidden_reference_of_the_results_is_left_out(folder, tmp_path):
    """Whether it is the file of the reference or a copy of it."""
    path, truth = folder.parent / "manifest.json", folder.parent / "m0" / "truth"
    entries = json.loads(path.read_text(encoding="utf-8"))[:1]
    for truth_folder in (truth, Path(shutil.copytree(truth, tmp_path / "copy"))):
        files = [f"{truth_folder}/{source}.wav" for source in "ab"]
        entries[0]["systems"][f"control:{truth_folder.name}"] = files
    listed = save_manifest(path.parent, entries, "controls.json")
    score_set(listed, tmp_path / "out", measures="decomposition")
    for page in choose(load_results(tmp_path / "out")):
        assert {row["system"] for row in page} == {*SYSTEMS}


@pytest.fixture(scope="module")
def listening_test(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("test")
    assert cli.main(["listen", str(folder), "--out", str(out), "--pages", "6", "--quiet"]) == 0
    return out


def test_sounds_have_equal_loudness_and_match_the_key(listening_test, results):
    key = csv_rows(listening_test / "stimuli.csv")
    scored = {(r["mixture_id"], r["system"], r["source"]): r for r in rows_of(results.scores)}
    pages = [key[k : k + 5] for k in range(0, len(key), 5)]
    assert {page[0]["role"] for page in pages} == {"hidden_reference"}
    assert len({tuple(row["system"] for row in page) for page in pages}) > 1  # drawn anew
    for row in key:
        assert not any(name in row["file"] for name in (*SYSTEMS, "m0", "m1", "m2"))
        heard, rate = soundfile.read(listening_test / row["file"], dtype="float32")
        loudness = audio.integrated_loudness(torch.from_numpy(heard), rate).item()
        assert loudness == pytest.approx(-23.0, abs=0.05)
        assert float(row["loudness_lufs"]) == pytest.approx(loudness, abs=0.01)
        paths = results.audio(row["mixture_id"])
        path = paths.references[paths.sources.index(row["source"])]
        if row["role"] == "system":
            scored_row = scored[row["mixture_id"], row["system"], row["source"]]
            path = results.locate(scored_row["estimate"])
            for name in ("clearance", "fidelity", "ps", "log_pm"):
                assert float(row[name]) == pytest.approx(scored_row[name], rel=1e-5)
        original, _ = soundfile.read(path, dtype="float32")
        gain = heard @ original / (original @ original)
        np.testing.assert_allclose(heard, gain * original, atol=1e-6)


def test_a_peak_lowers_its_whole_page(results, tmp_path, monkeypatch):
    monkeypatch.setattr(listen, "LOUDNESS", 0.0)
    monkeypatch.setattr(listen, "LONG_S", 0.5)
    with pytest.warns(UserWarning, match="--seconds"):
        write_test(results, choose(results, 1), tmp_path)
    rows = csv_rows(tmp_path / "stimuli.csv")
    loudness = [float(row["loudness_lufs"]) for row in rows]
    assert max(loudness) - 0.1 < min(loudness) < -1.1
    peaks = [abs(soundfile.read(tmp_path / row["file"])[0]).max() for row in rows]
    assert max(peaks) == pytest.approx(1.0, abs=1e-4)


# As webMUSHRA's manual for experimenters lists them; `popupContent` is what its code calls it.
OPTIONS = {
    "": "testname testId bufferSize stopOnErrors showButtonPreviousPage remoteService pages",
    "generic": "type id name content",
    "volume": "type id name content stimulus defaultVolume",
    "mushra": "type id name content reference stimuli showWaveform enableLooping strict randomize "
    "createAnchor35 createAnchor70 showConditionNames",
    "finish": "type name content popupContent showResults writeResults",
}


def test_configurations_have_all_documented_options_and_existing_files(listening_test):
    for question, text in QUESTIONS.items():
        configuration = yaml.safe_load(
            (listening_test / f"{question}.yaml").read_text(encoding="utf-8")
        )
        assert configuration["testId"] == f"mapss-{question}"
        welcome, volume, (word, *pages), end = configuration["pages"]
        for record in (configuration, welcome, volume, *pages, end):
            assert {*record} == {*OPTIONS[record.get("type", "")].split()}
        assert (welcome["type"], volume["type"], end["type"]) == ("generic", "volume", "finish")
        assert (end["writeResults"], word, configuration["bufferSize"]) == (True, "random", 2048)
        ids = dict.fromkeys(row["page"] for row in csv_rows(listening_test / "stimuli.csv"))
        assert [page["id"] for page in pages] == [*ids]
        for page in pages:
            assert page["content"] == welcome["content"] == text
            assert [*page["stimuli"]] == ["C1", "C2", "C3", "C4"]
            for path in (volume["stimulus"], page["reference"], *page["stimuli"].values()):
                assert path.startswith("configs/mapss/audio/")
                assert (listening_test / path.removeprefix("configs/mapss/")).is_file()


def test_missing_and_broken_files_leave_no_partial_test(folder, results, tmp_path, capsys):
    reference_path = Path(results.locate(choose(results, 2)[-1][0]["reference"]))
    content, existing = reference_path.read_bytes(), tmp_path / "old"
    existing.mkdir()
    (existing / "ratings.csv").write_text("mine")
    command = ["listen", str(folder), "--quiet", "--pages", "2", "--out"]
    try:
        for broken in (b"RIFF nonsense", None):
            reference_path.write_bytes(broken) if broken else reference_path.unlink()
            for out in (tmp_path / "new", existing):
                assert cli.main([*command, str(out)]) == 2
                assert str(reference_path) in capsys.readouterr().err
    finally:
        reference_path.write_bytes(content)
    assert [path.name for path in tmp_path.rglob("*")] == ["old", "ratings.csv"]
    # A folder that is there keeps what is in it, and gets the whole test.
    assert cli.main([*command, str(existing)]) == 0
    names = {"ratings.csv", "stimuli.csv", "audio", *(f"{name}.yaml" for name in QUESTIONS)}
    assert {path.name for path in existing.iterdir()} == names
    assert len([*(existing / "audio").iterdir()]) == 10


def test_excerpts_have_their_own_scores(results, tmp_path):
    write_test(results, choose(results, 2), tmp_path, seconds=0.4)
    for row in csv_rows(tmp_path / "stimuli.csv"):
        begin, end = float(row["start_s"]), float(row["end_s"])
        assert end - begin == pytest.approx(0.4)
        wave, rate = soundfile.read(tmp_path / row["file"])
        assert len(wave) == pytest.approx(0.4 * rate, abs=1)
        if row["role"] == "system":
            frames = results.frames(row["mixture_id"])
            active, _, scores = frames.systems[row["system"]]
            source_index = results.audio(row["mixture_id"]).sources.index(row["source"])
            inside = (frames.times >= begin) & (frames.times <= end) & active[source_index]
            assert float(row["ps"]) == pytest.approx(
                scores["ps"][source_index][inside].mean(), rel=1e-5
            )
            worse = 1.0 - scores["fidelity"][source_index][inside].astype(float)
            rms = np.sqrt(np.nanmean(worse**2))
            assert float(row["fidelity"]) == pytest.approx(1.0 - rms, rel=1e-5)


HEADER = "session_test_id,{}trial_id,rating_stimulus,rating_score"


def answers(path: Path, key: DataFrame, scores: Any) -> Path:
    """``mushra.csv`` as webMUSHRA's service writes it, of two listeners; a page has an anchor."""
    cells = [*zip(key["page"], key["condition"]), (key["page"].iloc[0], "anchor35")]
    rows = []
    for listener in ("ann", "bob"):
        for page, condition in cells:
            score = scores(listener, page, condition)
            rows.append(f"mapss-quality,{listener},30,{page},{condition},{score},1200,")
    header = HEADER.format("email,age,") + ",rating_time,rating_comment"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def given_score(listener: str, page: str, condition: str) -> int:
    ends, number = {"reference": 100 - 10 * (listener == "bob"), "anchor35": 10}, int(page[-2:])
    return ends.get(condition) or 10 * int(condition[1:]) + number + 20 * (listener == "ann")


def test_ratings_come_back_under_their_names(listening_test, folder, tmp_path):
    key = read_key(listening_test / "stimuli.csv")
    path = answers(tmp_path / "mushra.csv", key, given_score)
    assert (
        cli.main(["listen", str(folder), "--out", str(listening_test), "--ratings", str(path)]) == 0
    )
    rows = csv_rows(listening_test / "ratings.csv")
    assert len(rows) == len(key) + 1
    columns = "dataset track source system question role mean_rating n_ratings std median_rating"
    assert [*rows[0]] == [*columns.split(), "mean_norm", "median_norm"]
    joined, _ = load_ratings(listening_test / "ratings.csv")  # by what reads it for correlations
    assert joined["is_system"].sum() == 24
    by_place = {(r["track"], r["source"], r["system"]): r for r in rows}
    for stimulus in rows_of(key):
        row = by_place[stimulus["mixture_id"], stimulus["source"], stimulus["system"]]
        conditions = [*key.loc[key["page"] == stimulus["page"], "condition"]]
        conditions += ["anchor35"] * (stimulus["page"] == key["page"].iloc[0])
        scores_by_listener = [
            [given_score(listener, stimulus["page"], c) for c in conditions]
            for listener in ("ann", "bob")
        ]
        trials = DataFrame(scores_by_listener, columns=conditions).T
        scores = trials.loc[stimulus["condition"]]
        norms = 100 * (scores - trials.min()) / (trials.max() - trials.min())
        assert (row["question"], row["role"]) == ("quality", stimulus["role"])
        assert row["n_ratings"] == "2"
        assert float(row["mean_rating"]) == float(row["median_rating"]) == scores.mean()
        assert float(row["std"]) == pytest.approx(scores.std())
        assert float(row["mean_norm"]) == pytest.approx(norms.mean())
    anchor = by_place[key["mixture_id"].iloc[0], key["source"].iloc[0], "anchor35"]
    assert anchor["role"] == "anchor_35"
    listeners = {row["listener"] for row in csv_rows(listening_test / "ratings_listeners.csv")}
    assert listeners == {"ann/30", "bob/30"}


@pytest.mark.parametrize(
    ("form", "sessions", "listeners", "warning"),
    [
        ("session_uuid,", ["ann,", "bob,", "ann,"], {"ann", "bob"}, "session_uuid"),
        ("age,sex,", ["25,m,", "25,m,", "31,f,"], {"25/m", "25/m (2)", "31/f"}, "1 sessions"),
        ("", ["", "", ""], {"{}", "{} (2)", "{} (3)"}, None),
    ],
)
def test_sessions_of_listeners(
    listening_test, tmp_path, recwarn, form, sessions, listeners, warning
):
    key = read_key(listening_test / "stimuli.csv")[:3]
    rows = []
    for listener, score in zip(sessions, (40, 45, 60)):
        for row in rows_of(key):
            rows.append(f"mapss-quality,{listener}{row['page']},{row['condition']},{score}")
    (path := tmp_path / "m.csv").write_text("\n".join([HEADER.format(form), *rows]) + "\n")
    stimuli, single = rating_tables(read_ratings([path]), key)
    assert [*stimuli["n_ratings"]] == [len(listeners)] * 3
    # One session that rates a page again counts once.
    expected = (50 + 45) / 2 if len(listeners) == 2 else (40 + 45 + 60) / 3
    assert stimuli["mean_rating"][0] == pytest.approx(expected)
    assert math.isnan(stimuli["mean_norm"][0])  # all alike on every page
    assert {*single["listener"]} == {name.format(path) for name in listeners}
    messages = [str(record.message) for record in recwarn if record.category is UserWarning]
    assert len(messages) == (warning is not None)
    assert all(str(warning) in message for message in messages)


def test_ratings_of_another_test_are_refused(folder, tmp_path, capsys):
    make = ["listen", str(folder), "--pages", "2", "--quiet", "--out"]
    out, other_folder = tmp_path / "t", tmp_path / "other"
    assert cli.main([*make, str(out)]) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert cli.main([*make, str(out), "--seed", "5"]) == 2
    assert cli.main([*make, str(out), "--pages", "3"]) == 2
    assert capsys.readouterr().err.count("holds another listening test") == 2
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    # The same test may be made again, over a key that went through a spreadsheet program.
    key = (out / "stimuli.csv").read_text(encoding="utf-8")
    (out / "stimuli.csv").write_text(key.replace(",", ";"), encoding="utf-8-sig")
    assert cli.main([*make, str(out)]) == 0
    assert (out / "stimuli.csv").read_bytes() == before[out / "stimuli.csv"]
    assert cli.main([*make, str(other_folder), "--seed", "5"]) == 0
    path = answers(tmp_path / "mushra.csv", read_key(out / "stimuli.csv"), lambda *_: 40)
    read = ["listen", str(folder), "--quiet", "--ratings", str(path), "--out"]
    assert cli.main([*read, str(other_folder)]) == 2
    assert "of another test" in capsys.readouterr().err
    assert not (other_folder / "ratings.csv").exists()
    assert cli.main([*read, str(out)]) == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("t-q,p01,C1,x\n", "line 2: rating_score"),
        ("t-q,p01,C1,5\nt-q,p01,C1,101\n", "line 3: rating_score"),
        ("t-q,p77,C1,5\n", "'p77'"),
        ("", "holds no rating"),
    ],
)
def test_files_without_ratings_are_refused(listening_test, folder, tmp_path, capsys, text, error):
    for name in ("ratings.csv", "ratings_listeners.csv"):
        (listening_test / name).unlink(missing_ok=True)
    (path := tmp_path / "mushra.csv").write_text(f"{HEADER.format('')}\n{text}")
    command = ["listen", str(folder), "--ratings", str(path), "--out"]
    for out, message in ((listening_test, error), (folder, "stimuli.csv")):  # where there is no key
        assert cli.main([*command, str(out)]) == 2
        assert message in capsys.readouterr().err
    assert not (listening_test / "ratings.csv").exists()
    assert not (listening_test / "ratings_listeners.csv").exists()

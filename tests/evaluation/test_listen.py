"""Listening tests: what is chosen and written, and what comes back."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from pandas import DataFrame
from separations import leaky, score_set, sources, write_all, write_manifest

from torch_mapss import audio
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.listen import choose, spanned
from torch_mapss.evaluation.listen_files import QUESTIONS, write_test
from torch_mapss.evaluation.listen_ratings import (
    RATING_COLUMNS,
    Rating,
    rating_tables,
    read_key,
    read_ratings,
)
from torch_mapss.evaluation.ratings import load_ratings
from torch_mapss.evaluation.results import Results, load_results, records

yaml = pytest.importorskip("yaml")
SYSTEMS = ("one", "two", "three", "four")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    path = write_manifest(root, 4, SYSTEMS, seconds=1.0)
    quiet = 1e-3 * leaky(sources(2, 1.0, seed=2), 0.2)  # levels differ between systems
    write_all(root / "m2" / "two", quiet)
    score_set(path, root / "out")
    return root / "out"


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return load_results(folder)


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------------------------- choosing


def made_up(results: Results, seed: int) -> Results:
    """Results of many mixtures with scores of a skewed distribution."""
    rng = np.random.default_rng(seed)
    rows = [
        {"mixture_id": f"m{n}", "system": system, "source": "a", "source_index": 0, "status": "ok"}
        | {"clearance": float(rng.beta(8, 2)), "fidelity": float(rng.beta(2, 3))}
        for n in range(60)
        for system in SYSTEMS[:3]
    ]
    return Results(**{**vars(results), "scores": DataFrame(rows)})


def spread(pages: Any, reference: Results) -> int:
    """How many of 16 cells of ranks hold a stimulus."""
    cells = []
    for name in spanned(reference):
        values = np.sort([row[name] for row in records(reference.scores)])
        found = [np.searchsorted(values, row[name]) for page in pages for row in page.rows]
        cells.append(4 * np.array(found) // len(values))
    return len(set(zip(*map(tuple, cells))))


def test_stimuli_span_the_measures(results: Results) -> None:
    many = made_up(results, 0)
    chosen = spread(choose(many, 8), many)
    rng = np.random.default_rng(0)
    everything = choose(many, 60)
    drawn = [
        spread([everything[k] for k in rng.choice(60, 8, replace=False)], many) for _ in range(50)
    ]
    assert chosen >= 14
    assert chosen > np.mean(drawn) + 1.5


def test_choice_is_seeded_and_bounded(results: Results) -> None:
    many = made_up(results, 1)
    assert choose(many, 5) == choose(many, 5)
    assert choose(many, 5) != choose(many, 5, seed=1)
    assert len(choose(results, 50)) == 8  # four mixtures of two sources
    some = choose(results, 3, systems=["one", "three"])
    assert {row["system"] for page in some for row in page.rows} == {"one", "three"}
    assert all(len(page.rows) == 2 for page in choose(results, 4, most=2))
    with pytest.raises(ValueError, match=r"systems .*'five'"):
        choose(results, 3, systems=["five"])
    with pytest.raises(ValueError, match="count"):
        choose(results, 0)


def test_nothing_scored_is_nothing_to_hear(results: Results) -> None:
    rows = results.scores.assign(status="failed")
    with pytest.raises(ValueError, match="nothing to listen to"):
        choose(Results(**{**vars(results), "scores": rows}), 3)


# -------------------------------------------------------------------------------------- writing


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("test")
    options = ["--pages", "8", "--quiet"]
    assert cli.main(["listen", str(folder), "--out", str(out), *options]) == 0
    return out


def test_all_sounds_have_one_loudness(made: Path) -> None:
    for row in rows_of(made / "stimuli.csv"):
        wave, rate = soundfile.read(made / row["file"], dtype="float32")
        loudness = audio.integrated_loudness(torch.from_numpy(wave), rate)
        assert loudness == pytest.approx(-23.0, abs=0.05)
        assert float(row["loudness_lufs"]) == pytest.approx(-23.0, abs=0.05)
        assert abs(wave).max() <= 1.0


def test_a_peak_lowers_its_whole_page(results: Results, tmp_path: Path) -> None:
    pages = choose(results, 1)
    write_test(results, pages, tmp_path, loudness=0.0)
    rows = rows_of(tmp_path / "stimuli.csv")
    loudness = [float(row["loudness_lufs"]) for row in rows]
    assert max(loudness) - min(loudness) < 0.1
    assert max(loudness) < -1.0
    peaks = [abs(soundfile.read(tmp_path / row["file"])[0]).max() for row in rows]
    assert max(peaks) == pytest.approx(1.0, abs=1e-4)


def test_the_configuration_names_what_is_there(made: Path) -> None:
    for question in ("quality", "interference"):
        found = yaml.safe_load((made / f"{question}.yaml").read_text(encoding="utf-8"))
        assert found["testId"] == f"mapss-{question}"
        welcome, volume, pages, end = found["pages"]
        assert (welcome["type"], volume["type"], end["type"]) == ("generic", "volume", "finish")
        assert end["writeResults"] is True
        assert pages[0] == "random"
        assert len(pages) == 9
        assert {row["page"] for row in rows_of(made / "stimuli.csv")} == {
            p["id"] for p in pages[1:]
        }
        for page in pages[1:]:
            assert page["type"] == "mushra"
            assert page["content"] == welcome["content"]
            assert [*page["stimuli"]] == ["C1", "C2", "C3", "C4"]
            for path in (page["reference"], *page["stimuli"].values()):
                assert path.startswith("configs/mapss/audio/")
                assert (made / path.removeprefix("configs/mapss/")).is_file()


# As webMUSHRA's manual for experimenters lists them; `popupContent` is what its code calls it.
OPTIONS = {
    "": "testname testId bufferSize stopOnErrors showButtonPreviousPage remoteService pages",
    "generic": "type id name content",
    "volume": "type id name content stimulus defaultVolume",
    "mushra": "type id name content reference stimuli showWaveform enableLooping strict randomize "
    "createAnchor35 createAnchor70 showConditionNames",
    "finish": "type name content popupContent showResults writeResults",
}


def test_the_configuration_has_all_documented_options_and_no_others(made: Path) -> None:
    found = yaml.safe_load((made / "quality.yaml").read_text(encoding="utf-8"))
    first, second, (word, *trials), last = found["pages"]
    assert word == "random"
    for record in (found, first, second, *trials, last):
        assert {*record} == {*OPTIONS[record.get("type", "")].split()}
    assert found["bufferSize"] in (256, 512, 1024, 2048, 4096, 8192, 16384)
    assert 0.0 <= second["defaultVolume"] <= 1.0
    names = [page["id"] for page in (first, second, *trials)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("broken", [None, b"RIFF nonsense"])
def test_nothing_is_left_where_a_file_is_missing_or_broken_midway(
    folder: Path,
    results: Results,
    tmp_path: Path,
    broken: bytes | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    last = choose(results, 8)[-1]
    there = Path(results.audio(last.mixture_id).references[last.source_index])
    kept = there.read_bytes()
    old = tmp_path / "old"
    old.mkdir()
    (old / "ratings.csv").write_text("mine")
    command = ["listen", str(folder), "--quiet", "--pages", "8", "--out"]
    try:
        there.unlink()
        if broken:
            there.write_bytes(broken)
        for out in (tmp_path / "new", old):
            assert cli.main([*command, str(out)]) == 2
            assert str(there) in capsys.readouterr().err
    finally:
        there.write_bytes(kept)
    assert [path.name for path in tmp_path.rglob("*")] == ["old", "ratings.csv"]
    # A folder that is there keeps what is in it, and gets the whole test.
    assert cli.main([*command, str(old)]) == 0
    assert {p.name for p in old.iterdir()} == {
        "ratings.csv",
        "stimuli.csv",
        *(f"{question}.yaml" for question in QUESTIONS),
        "audio",
    }
    assert len([*(old / "audio").iterdir()]) == 40


def test_the_key_tells_and_the_names_do_not(made: Path, results: Results) -> None:
    rows = rows_of(made / "stimuli.csv")
    scored = {(r["mixture_id"], r["system"], r["source"]): r for r in records(results.scores)}
    orders = set()
    for page in {row["page"] for row in rows}:
        own = [row for row in rows if row["page"] == page]
        assert own[0]["role"] == "hidden_reference"
        assert own[0]["condition"] == "reference"
        orders.add(tuple(row["system"] for row in own[1:]))
    assert len(orders) > 1  # the order of systems is drawn anew
    for row in rows:
        assert not any(name in row["file"] for name in (*SYSTEMS, "m0", "m1", "m2", "m3"))
        if row["role"] == "system":
            known = scored[row["mixture_id"], row["system"], row["source"]]
            for name in ("ps", "log_pm"):
                assert float(row[name]) == pytest.approx(known[name], rel=1e-5)


def test_the_right_sound_is_under_the_name(made: Path, results: Results) -> None:
    for row in rows_of(made / "stimuli.csv"):
        paths = results.audio(row["mixture_id"])
        place = paths.sources.index(row["source"])
        path = paths.references[place]
        if row["role"] == "system":
            path = paths.estimates[row["system"]][place]
        heard, _ = soundfile.read(made / row["file"])
        given, _ = soundfile.read(path)
        gain = heard @ given / (given @ given)
        np.testing.assert_allclose(heard, gain * given, atol=1e-6)


def test_excerpts_have_their_own_scores(results: Results, tmp_path: Path) -> None:
    write_test(results, choose(results, 2), tmp_path, seconds=0.4)
    for row in rows_of(tmp_path / "stimuli.csv"):
        start, end = float(row["start_s"]), float(row["end_s"])
        assert end - start == pytest.approx(0.4)
        wave, rate = soundfile.read(tmp_path / row["file"])
        assert len(wave) == pytest.approx(0.4 * rate, abs=1)
        if row["role"] != "system":
            continue
        frames = results.frames(row["mixture_id"])
        system = frames.systems[row["system"]]
        place = results.audio(row["mixture_id"]).sources.index(row["source"])
        inside = (frames.times >= start) & (frames.times <= end) & system.active[place]
        assert float(row["ps"]) == pytest.approx(system.ps[place][inside].mean(), rel=1e-5)


def test_what_is_refused(results: Results, tmp_path: Path) -> None:
    pages = choose(results, 1)
    with pytest.raises(ValueError, match="questions"):
        write_test(results, pages, tmp_path, questions=["beauty"])
    for name in ("", "a/b", "a b"):
        with pytest.raises(ValueError, match="test_id"):
            write_test(results, pages, tmp_path, test_id=name)


# --------------------------------------------------------------------------------- reading back

HEADER = "session_test_id,{}trial_id,rating_stimulus,rating_score"


def answers(path: Path, key: list[dict[str, str]], scores: Any) -> Path:
    """``mushra.csv`` as webMUSHRA's service writes it, of two listeners; a page has an anchor."""
    rows = [
        f"mapss-quality,{who},30,{row['page']},{row['condition']},"
        f"{scores(who, row['page'], row['condition'])},1200,"
        for who in ("ann", "bob")
        for row in [*key, {"page": key[0]["page"], "condition": "anchor35"}]
    ]
    path.write_text(
        "\n".join([HEADER.format("email,age,") + ",rating_time,rating_comment", *rows]) + "\n",
        encoding="utf-8",
    )
    return path


def given_score(listener: str, page: str, condition: str) -> int:
    if condition == "reference":
        return 100 if listener == "ann" else 90
    if condition == "anchor35":
        return 10
    number = int(page.rpartition("-p")[2])
    return 10 * int(condition[1:]) + number + (20 if listener == "ann" else 0)


def test_ratings_come_back_under_their_names(made: Path, folder: Path, tmp_path: Path) -> None:
    key = read_key(made / "stimuli.csv")
    path = answers(tmp_path / "mushra.csv", key, given_score)
    assert cli.main(["listen", str(folder), "--out", str(made), "--ratings", str(path)]) == 0
    rows = rows_of(made / "ratings.csv")
    assert len(rows) == len(key) + 1
    assert tuple(rows[0]) == RATING_COLUMNS
    joined = load_ratings(made / "ratings.csv")  # by what reads it for correlations
    assert joined.table["is_system"].sum() == 32
    by_place = {(r["track"], r["source"], r["system"]): r for r in rows}
    for stimulus in key:
        row = by_place[stimulus["mixture_id"], stimulus["source"], stimulus["system"]]
        page, condition = stimulus["page"], stimulus["condition"]
        scores = [given_score(who, page, condition) for who in ("ann", "bob")]
        assert (row["question"], row["role"]) == ("quality", stimulus["role"])
        assert row["n_ratings"] == "2"
        assert float(row["mean_rating"]) == float(row["median_rating"]) == np.mean(scores)
        assert float(row["std"]) == pytest.approx(np.std(scores, ddof=1))
        own = [r["condition"] for r in key if r["page"] == page]
        own += ["anchor35"] * (page == key[0]["page"])
        trials = [[given_score(who, page, one) for one in own] for who in ("ann", "bob")]
        norms = [100 * (s - min(t)) / (max(t) - min(t)) for s, t in zip(scores, trials)]
        assert float(row["mean_norm"]) == pytest.approx(np.mean(norms))
    anchor = by_place[key[0]["mixture_id"], key[0]["source"], "anchor35"]
    assert anchor["role"] == "anchor_35"
    assert {row["listener"] for row in rows_of(made / "ratings_listeners.csv")} == {
        "ann/30",
        "bob/30",
    }


def mushra(path: Path, form: str, rows: list[str]) -> Path:
    path.write_text("\n".join([HEADER.format(form), *rows]) + "\n", encoding="utf-8")
    return path


def test_one_session_that_rates_a_page_again_counts_once(made: Path, tmp_path: Path) -> None:
    key = read_key(made / "stimuli.csv")[:3]
    rows = [
        f"mapss-quality,{who},{row['page']},{row['condition']},{score}"
        for who, score in (("ann", 40), ("bob", 40), ("ann", 60))
        for row in key
    ]
    with pytest.warns(UserWarning, match="session_uuid"):
        ratings = read_ratings([mushra(tmp_path / "m.csv", "session_uuid,", rows)])
    stimuli, _ = rating_tables(ratings, key)
    assert [row["n_ratings"] for row in stimuli] == [2] * 3
    assert stimuli[0]["mean_rating"] == pytest.approx((50 + 40) / 2)
    assert math.isnan(stimuli[0]["mean_norm"])  # all alike on every page


@pytest.mark.parametrize("form", ["age,gender,", ""])
def test_listeners_with_the_same_answers_stay_apart(
    made: Path, tmp_path: Path, form: str, recwarn: pytest.WarningsRecorder
) -> None:
    key = read_key(made / "stimuli.csv")[:3]
    rows = [
        f"mapss-quality,{who if form else ''}{row['page']},{row['condition']},{score}"
        for who, score in (("25,male,", 30), ("25,male,", 50), ("31,female,", 70))
        for row in key
    ]
    ratings = read_ratings([mushra(tmp_path / "m.csv", form, rows)])
    stimuli, listeners = rating_tables(ratings, key)
    assert [row["n_ratings"] for row in stimuli] == [3] * 3
    assert stimuli[0]["mean_rating"] == 50
    assert len({row["listener"] for row in listeners}) == 3
    told = [str(one.message) for one in recwarn if "25/male" in str(one.message)]
    assert [text.split()[0] for text in told] == ["1"] * bool(form)


def test_ratings_of_another_test_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make = ["listen", str(folder), "--pages", "2", "--quiet", "--out"]
    out, other = tmp_path / "t", tmp_path / "other"
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
    assert cli.main([*make, str(other), "--seed", "5"]) == 0
    path = answers(tmp_path / "mushra.csv", read_key(out / "stimuli.csv"), lambda *_: 40)
    read = ["listen", str(folder), "--quiet", "--ratings", str(path), "--out"]
    assert cli.main([*read, str(other)]) == 2
    assert "of another test" in capsys.readouterr().err
    assert not (other / "ratings.csv").exists()
    assert cli.main([*read, str(out)]) == 0


def test_a_key_without_a_mark_still_reads() -> None:
    """Of tests that were made before pages had one."""
    row = {"page": "p01", "condition": "C1", "mixture_id": "m", "source": "a", "system": "s"}
    key = [row | {"role": "system"}]
    rows, _ = rating_tables([Rating("quality", "p01", "C1", "ann", 30.0)], key)
    assert rows[0]["mean_rating"] == 30.0
    with pytest.raises(ValueError, match="another test"):
        rating_tables([Rating("quality", "12345678-p01", "C1", "ann", 30.0)], key)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "lacks"),
        (f"{HEADER.format('')}\nt-q,p01,C1,x\n", "line 2: rating_score"),
        (f"{HEADER.format('')}\nt-q,p01,C1,5\nt-q,p01,C1,101\n", "line 3: rating_score"),
        (f"{HEADER.format('')}\nt-q,p77,C1,5\n", "'p77'"),
        (f"{HEADER.format('')}\nt-q,p1,C1,5\n{HEADER.format('age,')}\n", "in line 3"),
        (f"{HEADER.format('')}\nt-q,25,p1,C1,5\n", "line 2"),
    ],
)
def test_ratings_that_are_none(
    made: Path,
    folder: Path,
    tmp_path: Path,
    text: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "mushra.csv"
    path.write_text(text, encoding="utf-8")
    assert cli.main(["listen", str(folder), "--out", str(made), "--ratings", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_a_key_that_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--out", str(folder), "--ratings", str(folder / "scores.csv")]
    assert cli.main(["listen", str(folder), *options]) == 2
    assert "stimuli.csv" in capsys.readouterr().err
    with pytest.raises(ValueError, match="page"):
        read_key(folder / "scores.csv")


def test_long_sounds_are_told(results: Results, tmp_path: Path, monkeypatch: Any) -> None:
    from torch_mapss.evaluation import listen_files

    monkeypatch.setattr(listen_files, "LONG_S", 0.5)
    with pytest.warns(UserWarning, match="--seconds"):
        write_test(results, choose(results, 1), tmp_path)

"""PM's rank wherever PM and log PM are, in results of the conformal convention and in no others."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from separations import leaky, small_mapss, sources, write_all, write_manifest

from torch_mapss import evaluate
from torch_mapss.evaluation import cli, frame_store
from torch_mapss.evaluation.adapters import mapss_metric
from torch_mapss.evaluation.comparison import compare
from torch_mapss.evaluation.correlate import correlate
from torch_mapss.evaluation.frame_store import Kept
from torch_mapss.evaluation.measures import MEASURES, RANK, measures_of, rank_meaning
from torch_mapss.evaluation.page import write_page
from torch_mapss.evaluation.results import load_results
from torch_mapss.evaluation.verify import verify
from torch_mapss.evaluation.worst import worst_segments

SIZE = 6  # members of each bank
FLOOR = 1.0 / (SIZE + 1)
CONFORMAL = ("--encoder", "mel", "--bank-size", str(SIZE), "--convention", "conformal")
RANKED = ("ps", "pm", "log_pm", RANK, "foreign_distance", "log_foreign_distance")


def scored(root: Path, *options: str) -> Path:
    """Results of three mixtures and two systems; one estimate is too long to be scored."""
    manifest = write_manifest(root / "set", 3, seconds=0.4)
    write_all(root / "set/m2/bad", leaky(sources(2, 0.5), 0.5))
    base = ["evaluate", str(manifest), "--out", str(root / "out"), "--quiet", "--save-frames"]
    assert cli.main([*base, *(options or CONFORMAL)]) == 1
    return root / "out"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(tmp_path_factory.mktemp("ranked"))


def test_evaluate_tells_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write_manifest(tmp_path / "set", 2, seconds=0.4)
    assert cli.main(["evaluate", str(manifest), "--out", str(tmp_path / "out"), *CONFORMAL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("PM rank")[0].rstrip().endswith("median")
    assert sum("PM rank:" in line for line in lines) == 1
    assert f"{FLOOR:.2g} with up to {SIZE} distortions" in " ".join(" ".join(lines).split())
    assert max(map(len, lines)) < 130


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the paper's convention."""
    return scored(tmp_path_factory.mktemp("plain"), *CONFORMAL[:4])


def table(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_ranks_of_frames_are_kept_and_their_means_in_all_tables(folder: Path) -> None:
    results = load_results(folder)
    assert results.measures == RANKED
    for row in results.scores:
        if row["status"] == "failed":
            assert np.isnan(row[RANK])
            continue
        frames = results.frames(row["mixture_id"]).systems[row["system"]]
        ranks = frames.pm_rank[row["source_index"]][frames.active[row["source_index"]]]
        assert ranks.dtype == np.float32
        # Whole multiples of the floor, which none is below.
        np.testing.assert_allclose(ranks / FLOOR, np.round(ranks / FLOOR), atol=1e-4)
        assert ranks.min() >= FLOOR * (1 - 1e-6)
        assert row[RANK] == pytest.approx(ranks.mean(), rel=1e-5)
    for item in results.items:
        pair = item["mixture_id"], item["system"]
        own = [r[RANK] for r in results.scores if (r["mixture_id"], r["system"]) == pair]
        assert item[RANK] == pytest.approx(np.mean(own), rel=1e-8, nan_ok=True)
    for one in results.sets:
        items = [i[RANK] for i in results.items if i["system"] == one["system"]]
        assert one[RANK] == pytest.approx(np.nanmean(items), rel=1e-8)


def test_frames_as_tables_have_the_rank_of_every_frame(folder: Path) -> None:
    rows = table(folder / "frames/m0/good/pm.csv")
    frames = load_results(folder).frames("m0").systems["good"]
    made = np.array([float(row[RANK]) for row in rows]).reshape(frames.pm_rank.shape)
    np.testing.assert_allclose(made, frames.pm_rank, rtol=1e-6)
    assert RANK not in table(folder / "frames/m0/good/ps.csv")[0]
    told = json.loads((folder / "frames/m0/good/report.json").read_text(encoding="utf-8"))
    assert told["means"][RANK] == pytest.approx(
        np.mean([float(row[RANK]) for row in table(folder / "frames/m0/good/scores.csv")])
    )
    assert any("valid under exchangeability" in line.lower() for line in told["measures"])


def test_other_conventions_have_no_place_for_it(plain: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("scores", "items", "summary"):
        assert RANK not in table(plain / f"{name}.csv")[0]
    for name in ("scores", "pm"):
        assert RANK not in table(plain / f"frames/m0/good/{name}.csv")[0]
    with np.load(frame_store.path_of(str(plain), "m0")) as content:
        assert not [key for key in content if key.endswith(RANK)]
    results = load_results(plain)
    assert results.measures == MEASURES
    assert results.frames("m0").systems["good"].pm_rank is None
    found = compare(results)
    assert {row["measure"] for row in (*found.pairs, *found.ranking)} == set(MEASURES)
    assert "rank:" not in found.summary()
    found.save(tmp_path / "c")
    assert not [*(tmp_path / "c").glob(f"*{RANK}*")]
    page = Path(write_page(results, tmp_path / "p.html")).read_text(encoding="utf-8")
    assert RANK not in page[: page.index("</main>")]
    assert RANK not in page[page.index('id="content"') :].split("</script>", 1)[0]
    with pytest.raises(ValueError, match=r"no pm_rank.*'paper' convention.*--convention conf"):
        worst_segments(results, measures=[RANK])


def test_compare_ranks_tests_and_draws_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert cli.main(["compare", str(folder), "--out", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())  # its lines are wrapped
    assert "PM rank good" in printed
    assert "1/(N_p + 1)" in printed
    assert "Valid under exchangeability" in printed
    assert "p-value" not in printed
    rows = [row for row in table(tmp_path / "ranking.csv") if row["measure"] == RANK]
    items = {(i["mixture_id"], i["system"]): i[RANK] for i in load_results(folder).items}
    for row in rows:
        own = [value for (_, system), value in items.items() if system == row["system"]]
        assert int(row["n"]) == np.isfinite(own).sum()
        assert float(row["mean"]) == pytest.approx(np.nanmean(own))
    (pair,) = [row for row in table(tmp_path / "comparison.csv") if row["measure"] == RANK]
    both = [items[m, "good"] - items[m, "bad"] for m in ("m0", "m1")]
    assert float(pair["difference"]) == pytest.approx(np.mean(both))
    assert (tmp_path / f"box_{RANK}.png").exists()
    assert "No mixture has a score" not in compare(folder).summary([RANK])
    # The order of a table's measures is that of PM, log PM, rank.
    assert compare(folder).measures == RANKED


def test_results_of_unlike_conventions_do_not_mix(folder: Path, plain: Path) -> None:
    with pytest.raises(ValueError, match="convention is"):
        compare([folder, plain])


def test_worst_lists_the_lowest_ranks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["worst", str(folder), "--n", "3", "--measures", RANK, "log_pm"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "PM rank" in printed
    assert f"{FLOOR:.2g} with up to {SIZE} distortions" in printed
    segments = worst_segments(load_results(folder), 1, [RANK])
    frames = load_results(folder).frames(segments[0].mixture_id)
    values = frames.systems[segments[0].system].pm_rank[segments[0].place]
    inside = (frames.times > segments[0].start) & (frames.times < segments[0].end)
    assert segments[0].score == pytest.approx(np.nanmean(values[inside]), rel=1e-5)


def test_correlate_takes_it(folder: Path, plain: Path, tmp_path: Path) -> None:
    ratings = tmp_path / "ratings.csv"
    rows = load_results(folder).scores
    lines = [
        f"{r['mixture_id']},{r['system']},{r['source']},quality,{k}" for k, r in enumerate(rows)
    ]
    ratings.write_text("\n".join(["track,system,source,question,mean_rating", *lines]) + "\n")
    found = correlate(folder, ratings, draws=0)
    assert [*found.labels][2:5] == ["pm", "log_pm", RANK]
    there = [k for k, r in enumerate(rows) if r["status"] == "ok"]
    made = {(s.track, s.system, s.source): s.scores[RANK] for s in found.stimuli}
    for k in there:
        row = rows[k]
        key = row["mixture_id"], row["system"], row["source"]
        assert made[key] == row[RANK]
    text = " ".join(found.summary().split())
    assert "PM rank" in text
    assert "Valid under exchangeability" in text
    assert RANK not in correlate(plain, ratings, draws=0).labels
    # A table with an empty column of it, as they were once, has it no more than one without.
    old = shutil.copytree(plain, tmp_path / "old")
    lines = (old / "scores.csv").read_text(encoding="utf-8").splitlines()
    text = "\n".join([f"{RANK},{lines[0]}", *(f",{line}" for line in lines[1:])])
    (old / "scores.csv").write_text(text + "\n", encoding="utf-8")
    assert RANK not in correlate(old, ratings, draws=0).labels


def test_verify_redoes_it(folder: Path) -> None:
    assert cli.main(["verify", str(folder), "--pairs", "2", "--quiet"]) == 0
    path = frame_store.path_of(str(folder), "m1")
    kept = Path(path).read_bytes()
    frames = frame_store.read(path)
    frames.systems["bad"].pm_rank[0] *= np.float32(0.5)
    try:
        frame_store.write(path, frames)
        (line,) = verify(load_results(folder)).differences
    finally:
        Path(path).write_bytes(kept)
    assert "pm_rank of 'a'" in line


def test_the_page_shows_it_and_says_what_it_is(folder: Path, tmp_path: Path) -> None:
    page = Path(write_page(folder, tmp_path / "page.html")).read_text(encoding="utf-8")
    head = page[: page.index("<main>")]
    assert f"{FLOOR:.2g} with up to {SIZE} distortions. Valid under exchangeability" in head
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', page, re.S)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    assert content["measures"][RANK] == "PM rank"
    assert set(content["boxes"][RANK]) == {"good", "bad"}
    assert {row["measure"] for row in content["ranking"]} == set(content["measures"])
    frames = load_results(folder).frames("m0").systems["good"]
    (row,) = [r for r in content["rows"] if (r["mixture"], r["system"]) == ("m0", "good")][:1]
    assert row[RANK] == pytest.approx(frames.pm_rank[0][frames.active[0]].mean(), rel=1e-5)
    curve = np.array(content["details"][row["detail"]][RANK], dtype=float)
    np.testing.assert_allclose(curve[frames.active[0]], frames.pm_rank[0][frames.active[0]], 1e-3)


def test_the_key_of_a_listening_test_has_it(folder: Path, plain: Path, tmp_path: Path) -> None:
    assert cli.main(["listen", str(folder), "--out", str(tmp_path / "t"), "--quiet"]) == 0
    known = {(r["mixture_id"], r["system"], r["source"]): r for r in load_results(folder).scores}
    rows = [r for r in table(tmp_path / "t/stimuli.csv") if r["role"] == "system"]
    assert rows
    for row in rows:
        own = known[row["mixture_id"], row["system"], row["source"]]
        assert float(row[RANK]) == pytest.approx(own[RANK], rel=1e-5)
    assert cli.main(["listen", str(plain), "--out", str(tmp_path / "p"), "--quiet"]) == 0
    assert RANK not in table(tmp_path / "p/stimuli.csv")[0]


def test_reports_tell_and_draw_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    truth = sources(2, 0.4)
    given: dict[str, Any] = {"estimates": leaky(truth), "references": truth, "sample_rate": 16000}
    report = evaluate(**given, mapss=small_mapss(SIZE, convention="conformal"), bounds=True)
    assert report.pm_rank is not None
    assert report.pm_rank.isfinite().equal(report.active)
    line = report.summary().splitlines()[-1]
    head = report.summary().splitlines()[0]
    assert head.split("PM rank")[0].rstrip().endswith("log PM")
    assert "p-value" not in report.summary()
    assert "PM has no ±" in report.summary()
    assert head.count("±") == 1
    assert "Valid under exchangeability" in " ".join(report.summary().split())
    assert line.startswith("Computed on")
    figure = report.plot()
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert "PM rank: valid under exchangeability" in labels
    drawn = {line.get_label(): line for line in figure.axes[0].get_lines()}["PM rank"]
    np.testing.assert_allclose(drawn.get_ydata(), report.pm_rank[0].numpy())
    other = evaluate(**given, mapss=small_mapss(SIZE))
    assert other.pm_rank is None
    assert RANK not in other.table()[0]
    assert RANK not in other.means()
    assert "rank:" not in other.summary()
    assert not [t for t in other.plot().legends[0].get_texts() if "rank" in t.get_text()]


def test_other_toolkits_get_it() -> None:
    truth = sources(2, 0.4)
    model = small_mapss(SIZE, convention="conformal")
    found = mapss_metric(leaky(truth), truth, 16000, model)
    mean = (found[f"mapss_{RANK}_src1"] + found[f"mapss_{RANK}_src2"]) / 2
    assert found[f"mapss_{RANK}"] == pytest.approx(mean)
    assert f"mapss_{RANK}" not in mapss_metric(leaky(truth), truth, 16000, small_mapss(SIZE))


def test_a_table_has_the_measures_that_some_row_has() -> None:
    assert measures_of([]) == MEASURES
    assert measures_of([{RANK: None}, {}]) == MEASURES
    assert measures_of([{}, {RANK: float("nan")}]) == RANKED
    assert "0.012 with up to 83" in rank_meaning({"match_bank": {"size": 83}})


def test_systems_with_and_without_a_rank_share_a_file(folder: Path, tmp_path: Path) -> None:
    """As when results are kept that were made before frames had ranks."""
    frames = load_results(folder).frames("m0")
    old = frames.systems["bad"]._replace(pm_rank=None)
    path = frame_store.path_of(str(tmp_path), "m0")
    frame_store.write(path, frames._replace(systems={**frames.systems, "bad": old}))
    again = frame_store.read(path).systems
    assert again["bad"].pm_rank is None
    np.testing.assert_array_equal(again["good"].pm_rank, frames.systems["good"].pm_rank)
    assert Kept(str(tmp_path), "m0").path == path

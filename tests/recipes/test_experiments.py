"""The experiments of the paper, run small on voices made up here."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal
from recipe_scripts import RATE, recipe, voice, write
from torch import Tensor

from torch_mapss.functional import gammaincc

SMALL = ("--seconds", "0.6", "--bank-size", "6", "--every", "6")


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Utterances of two speakers in two languages."""
    folder = tmp_path_factory.mktemp("speech")
    items = []
    for place, (speaker, language) in enumerate((("ann", "en"), ("bob", "it"))):
        name = f"{speaker}_1"
        write(folder / f"{name}.wav", voice(110.0 + 70 * place, place))
        items.append({"id": name, "path": f"{name}.wav", "speaker": speaker, "language": language})
    (folder / "manifest.json").write_text(json.dumps({"items": items}))
    return folder / "manifest.json"


# ------------------------------------------------------------------------------------------------
# Toolkit
# ------------------------------------------------------------------------------------------------


def test_rows_survive_a_kill_and_refuse_other_settings(tmp_path, monkeypatch):
    toolkit = recipe("toolkit", monkeypatch)
    rows = toolkit.Rows(tmp_path, ("a", "b"), ("x",), {"every": 1})
    rows.add(a="one", b=0.1, x=1.5)
    rows.add(a="two, really", b=1 / 3, x=math.nan)
    with open(tmp_path / "rows.csv", "a") as file:
        file.write("three,0.5,2.")  # cut off by a kill
    again = toolkit.Rows(tmp_path, ("a", "b"), ("x",), {"every": 1})
    assert len(again) == 2
    assert again.has("one", 0.1)
    assert again.has("two, really", 1 / 3)
    assert not again.has("three", 0.5)
    again.add(a="three", b=0.5, x=2.5)
    assert again.mean("x") == 2.0  # NaN is left out
    with open(tmp_path / "rows.csv", newline="") as file:
        assert [row["a"] for row in csv.DictReader(file)] == ["one", "two, really", "three"]
    with pytest.raises(SystemExit, match="every: 1 there, 2 now"):
        toolkit.Rows(tmp_path, ("a", "b"), ("x",), {"every": 2})


def test_manifests_of_every_layout_are_read(speech, tmp_path, monkeypatch):
    toolkit = recipe("toolkit", monkeypatch)
    pairs = list(toolkit.load_mixtures(speech, RATE))
    assert [(m.name, m.scenario) for m in pairs] == [("ann_1+bob_1", "en"), ("bob_1+ann_1", "it")]
    power = pairs[0].references.square().mean(-1).sqrt()
    torch.testing.assert_close(power, torch.full((2,), toolkit.LEVEL), rtol=1e-3, atol=0)
    root = speech.parent
    files = [str(root / "ann_1.wav"), str(root / "bob_1.wav")]
    entry = {"mixture_id": "m", "references": files, "systems": {"A": [files[0], None]}}
    (tmp_path / "a.json").write_text(json.dumps([entry]))
    (mixture,) = toolkit.load_mixtures(tmp_path / "a.json", RATE, seconds=0.25, systems=True)
    assert mixture.references.shape == (2, RATE // 4)
    assert mixture.sources == ("ann_1", "bob_1")
    assert mixture.systems["A"][1] is None
    torch.testing.assert_close(mixture.systems["A"][0], mixture.references[0])
    (tmp_path / "b.json").write_text('{"items": [{"path": "x"}]}')
    with pytest.raises(SystemExit, match="no manifest"):
        next(toolkit.load_mixtures(tmp_path / "b.json", RATE))


def test_progress_tells_what_is_left(capsys, monkeypatch):
    toolkit = recipe("toolkit", monkeypatch)
    times = iter([0.0, 10.0, 25.0, 30.0, 60.0])
    assert list(toolkit.progress(range(4), "steps", clock=lambda: next(times))) == [0, 1, 2, 3]
    said = capsys.readouterr().err.splitlines()
    assert said == ["steps: 2 of 4, 25 s left", "steps: 4 of 4, 0 s left"]


def test_tables_escape_what_latex_would_read(monkeypatch):
    toolkit = recipe("toolkit", monkeypatch)
    assert r"a\_b & 5\,\% \\".replace(r"\,", "") in toolkit.latex(["x", "y"], [["a_b", "5%"]])
    assert toolkit.number(math.nan) == toolkit.percent(math.nan) == "–"


# ------------------------------------------------------------------------------------------------
# Experiments
# ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_leakage_and_distortion(speech, tmp_path, monkeypatch):
    script = recipe("leakage_distortion", monkeypatch)
    arguments = ["--manifest", str(speech), "--out", str(tmp_path), "--steps", "3", *SMALL]
    rows = script.main(arguments)
    assert len(rows) == 2 * 2 * 3
    for sweep in ("leakage", "distortion"):
        clean, worst = (rows.mean("pm", sweep=sweep, amount=a) for a in (0.0, 1.0))
        assert clean > 0.99
        assert worst < clean
    ps = [rows.mean("ps", sweep="leakage", amount=a) for a in (0.0, 0.5, 1.0)]
    assert ps[0] > ps[1] > ps[2]
    page = (tmp_path / "leakage_distortion.md").read_text(encoding="utf-8")
    assert "| α | en: PS/PM | it: PS/PM | together: PS/PM | log PM | log B |" in page
    assert (tmp_path / "leakage_distortion.png").stat().st_size > 5000
    before = (tmp_path / "rows.csv").read_bytes()
    monkeypatch.setattr(script.toolkit, "target_scores", None)  # nothing is scored again
    script.main(arguments)
    assert (tmp_path / "rows.csv").read_bytes() == before


def test_random_phase_keeps_magnitudes_and_leaking_adds(monkeypatch):
    script = recipe("leakage_distortion", monkeypatch)
    references = torch.stack([voice(110.0, 0), voice(190.0, 1)])
    torch.testing.assert_close(script.leaking(references, 0.5), references[0] + references[1] / 2)
    torch.testing.assert_close(
        script.random_phase(references, 0.0), references[0], atol=1e-5, rtol=0
    )
    turned = script.random_phase(references, 0.3)
    assert not torch.allclose(turned, references[0], atol=1e-3)
    levels = [float(w.square().mean().sqrt()) for w in (turned, references[0])]
    assert levels[0] == pytest.approx(levels[1], rel=0.15)


def test_surfaces(tmp_path, monkeypatch):
    script = recipe("surfaces", monkeypatch)
    ps, *pm = script.main(["--points", "12", "--out", str(tmp_path)])
    assert float(ps.values[3, 3]) == 0.5
    assert bool((ps.values.diff(dim=0) > 0).all())  # rises with B
    assert bool((ps.values.diff(dim=1) < 0).all())  # falls with A
    assert [surface.title for surface in pm] == ["PM, θ = 1", "PM, a = 1", "PM, k = 1"]
    exponential = pm[2]  # Q(1, x) is exp(-x)
    ratio = exponential.horizontal[None] / exponential.vertical[:, None]
    torch.testing.assert_close(exponential.values, (-ratio).exp())
    shape, scale = pm[1].horizontal[4], pm[1].vertical[7]
    torch.testing.assert_close(pm[1].values[7, 4], gammaincc(shape, 1.0 / scale))
    assert (tmp_path / "surfaces.png").stat().st_size > 5000


def test_lost_packets_are_nested_and_length_stays(monkeypatch):
    script = recipe("packet_loss", monkeypatch)
    wave = torch.arange(16000.0)
    few, many = (script.drop(wave, RATE, share) for share in (0.1, 0.2))
    assert len(few) == 14400
    assert set(many.tolist()) < set(few.tolist())
    assert bool((few.diff() > 0).all())
    speech = voice(120.0, 3)
    for codec in ("none", "opus", "mp3"):
        made = script.damaged(speech, RATE, 0.1, codec)
        assert made.shape == speech.shape
        assert float(made.abs().max()) > 0.01
    assert script.damaged(speech, RATE, 0.0, "opus") is speech
    coded = script.coded(speech, RATE, "opus")
    kept = float(np.corrcoef(coded.numpy(), speech.numpy())[0, 1])
    assert 0.7 < kept < 1.0  # a codec changes a voice, and keeps it


@pytest.mark.slow
def test_packet_loss_against_pesq(speech, tmp_path, monkeypatch):
    pytest.importorskip("pesq")
    script = recipe("packet_loss", monkeypatch)
    rows = script.main(["--manifest", str(speech), "--out", str(tmp_path), "--steps", "2", *SMALL])
    clean, lossy = (rows.mean("pesq", loss=share) for share in (0.0, 0.2))
    assert clean > 4.6
    assert lossy < clean
    assert rows.mean("pm", loss=0.2) < rows.mean("pm", loss=0.0)
    assert (tmp_path / "packet_loss.png").stat().st_size > 5000


@pytest.mark.slow
def test_rivals_know_a_good_output_from_a_bad_one(speech, tmp_path, monkeypatch):
    script = recipe("rivals", monkeypatch)
    ann, bob = voice(110.0, 0, 4.0), voice(180.0, 1, 4.0)
    noise = 0.03 * torch.randn(len(ann), generator=torch.Generator().manual_seed(5))
    for name, wave in (("ann", ann), ("bob", bob), ("good", ann + 0.05 * bob), ("bad", ann + bob)):
        write(tmp_path / f"{name}.wav", wave + (noise if name == "bad" else 0.0))
    entry = {
        "mixture_id": "m",
        "references": ["ann.wav", "bob.wav"],
        "systems": {"good": ["good.wav", None], "bad": ["bad.wav", None]},
    }
    (tmp_path / "manifest.json").write_text(json.dumps([entry]))
    names = [
        n for n in ("stoi", "si_sdr", "sdr", "sir", "sar", "ci_sdr") if n in script.available()
    ]
    rows = script.main(
        ["--manifest", str(tmp_path / "manifest.json"), "--out", str(tmp_path / "out")]
        + ["--measures", *names]
    )
    (good,), (bad,) = (rows.where(system=name) for name in ("good", "bad"))
    for name in names:
        assert float(good[name]) > float(bad[name]), name
    a, b, e = (wave.double().numpy() for wave in (ann, bob, ann + 0.05 * bob))
    scale = e @ a / (a @ a)
    expected = 10 * math.log10((scale * a) @ (scale * a) / ((e - scale * a) @ (e - scale * a)))
    assert float(good["si_sdr"]) == pytest.approx(expected, abs=0.02)  # the files have 16 bits
    del b


def test_a_rival_that_fails_leaves_a_nan_and_says_so(capsys, monkeypatch):
    script = recipe("rivals", monkeypatch)

    def broken(estimate: Tensor, references: Tensor, rate: int) -> float:
        raise RuntimeError("no utterance found")

    found = script.scored(
        {"broken": script.Rival("Broken", broken, "x")}, torch.ones(8), torch.ones(2, 8), 0, RATE
    )
    assert math.isnan(found["broken"])
    assert "broken: RuntimeError: no utterance found" in capsys.readouterr().err


def test_the_list_of_rivals_says_what_is_missing_and_why(capsys, monkeypatch, tmp_path):
    script = recipe("rivals", monkeypatch)
    assert script.main(["--manifest", "x", "--out", str(tmp_path), "--list"]) is None
    listed = capsys.readouterr().out
    for label in ("PESQ", "SIR", "NISQA", "MCD", "UTMOS", "SCOREQ", "ViSQOL"):
        assert f"| {label} |" in listed
    assert len({*(r.label for r in script.RIVALS.values()), *script.MISSING}) == 18


# ------------------------------------------------------------------------------------------------
# Frames
# ------------------------------------------------------------------------------------------------


def test_mutual_information_is_that_of_danon(monkeypatch):
    script = recipe("nmi", monkeypatch)
    rng = np.random.default_rng(0)
    x = rng.uniform(size=4000)
    assert script.nmi(x, x, 10) == pytest.approx(1.0)
    assert script.nmi(x, rng.uniform(size=4000), 10) < 0.02
    assert script.nmi(np.full(9, 0.5), x[:9], 10) == 0.0
    # Two bins, by hand: 3 of 4 agree.
    a, b = np.array([0.1, 0.1, 0.9, 0.9]), np.array([0.1, 0.1, 0.9, 0.1])
    h = [-sum(p * math.log(p) for p in ps) for ps in ([0.5, 0.5], [0.75, 0.25], [0.5, 0.25, 0.25])]
    assert script.nmi(a, b, 2) == pytest.approx(2 * (h[0] + h[1] - h[2]) / (h[0] + h[1]))
    assert (
        sorted(script.equal_counts(x[:20] ** 9, 4))
        == [0.125] * 5 + [0.375] * 5 + [0.625] * 5 + [0.875] * 5
    )
    np.testing.assert_allclose(script.normalised(np.array([2.0, 3.0, 4.0])), [0.0, 0.5, 1.0])
    assert np.isnan(script.normalised(np.ones(3))).all()


@pytest.mark.slow
def test_frames_are_scored_once_for_nmi_and_histograms(speech, tmp_path, monkeypatch):
    arguments = ["--manifest", str(speech), "--bank-size", "20"]
    nmi = recipe("nmi", monkeypatch)
    rows = nmi.main([*arguments, "--out", str(tmp_path / "nmi"), "--bins", "4"])
    assert len(rows) == 2 * 10 * 2
    counts = [row["frames"] for row in rows if row["scenario"] == "en" and row["below"] == "ps"]
    assert counts == sorted(counts)
    assert counts[-1] > 0
    assert (tmp_path / "nmi" / "nmi_mel.png").stat().st_size > 5000
    histograms = recipe("histograms", monkeypatch)
    out = tmp_path / "histograms"
    first = histograms.main([*arguments, "--out", str(out)])
    assert {row["scenario"] for row in first} == {"en", "it"}
    for row in first:
        assert row["PS radius"] > 0
        assert row["PM half-width"] > 0
    monkeypatch.setattr(histograms.toolkit, "_scored_frames", None)  # kept from the first run
    assert histograms.main([*arguments, "--out", str(out)]) == first
    assert (out / "histograms_mel.png").stat().st_size > 5000


# ------------------------------------------------------------------------------------------------
# With ratings
# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tracks, one rated source, three systems that leak more and more; a table of ratings."""
    folder = tmp_path_factory.mktemp("rated")
    entries, lines = [], ["track,source,system,question,role,mean_rating"]
    for track in range(2):
        pair = [voice(100.0 + 20 * track, track), voice(170.0 + 30 * track, 5 + track)]
        names = [f"t{track}_a.wav", f"t{track}_b.wav"]
        for name, wave in zip(names, pair):
            write(folder / name, wave)
        systems = {}
        for place, leak in enumerate((0.05, 0.3, 0.9)):
            name = f"t{track}_s{place}.wav"
            write(folder / name, pair[0] + leak * pair[1])
            systems[f"s{place}"] = [name, None]
            lines.append(f"t{track},voice,s{place},interference,system,{90 - 40 * place}")
        entry = {"mixture_id": f"t{track}", "sources": ["voice", "other"]}
        entries.append({**entry, "references": names, "systems": systems})
    (folder / "mapss.json").write_text(json.dumps(entries))
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_every_family_is_left_out_once_and_the_next_one_overdone(monkeypatch):
    script = recipe("banks", monkeypatch)
    found = script.configurations()
    assert len(found) == 14
    assert found["original"] == (None, None)
    assert found["O. noise, E. tone"] == ("noise", "tone")
    assert found["O. vibrato, E. notch"] == ("vibrato", "notch")
    bank = script.DistortionBank("separation", extra=script.EXCESS)
    names = bank.names(RATE)
    kept = {
        c: [name for name, keep in zip(names, script.kept_members(bank, RATE, c)) if keep]
        for c in found
    }
    assert kept["original"] == list(script.DistortionBank("separation").names(RATE))
    family = {member.name: member.family for member in bank.members}
    for name, (without, extended) in found.items():
        here = kept[name]
        if without is not None:
            assert without not in {family[member] for member in here}
            assert [m for m in here if m.endswith("/excess")] == [f"{extended}/excess"]
    assert {m.family for m in script.EXCESS} == set(script.FAMILIES)


def test_excess_is_far_from_the_reference(monkeypatch):
    script = recipe("banks", monkeypatch)
    generator = torch.Generator().manual_seed(0)  # all frequencies, as no single voice has
    swell = (math.tau * torch.arange(2 * RATE) / RATE).sin().square()  # with quiet parts
    wave = 0.1 * swell * torch.randn(1, 2 * RATE, generator=generator)
    both = script.DistortionBank("separation", extra=script.EXCESS)
    copies = both(wave, RATE)
    for member, copy in zip(copies.names, copies.waveforms[0]):
        if member.endswith("/excess"):
            assert bool(copy.isfinite().all()), member
            kept = float(np.corrcoef(copy.numpy(), wave[0].numpy())[0, 1])
            assert kept < 0.97, member


@pytest.mark.slow
def test_a_choice_of_members_scores_as_a_bank_of_them(rated, tmp_path, monkeypatch):
    from torch_mapss import MAPSS, DistortionBank

    script = recipe("banks", monkeypatch)
    arguments = ["--manifest", str(rated / "mapss.json"), "--ratings", str(rated / "ratings.csv")]
    arguments += ["--out", str(tmp_path), "--every", "8"]
    rows = script.main(arguments)
    name = "O. echo, E. clipping"
    (row,) = rows.where(bank=name, mixture="t0", system="s1")
    extra = [member for member in script.EXCESS if member.family == "clipping"]
    banks = {
        f"{kind}_bank": DistortionBank(kind, without=["echo"], extra=extra)
        for kind in ("separation", "match")
    }
    toolkit = script.toolkit
    mapss = MAPSS("mel", **banks)
    mixture = next(
        iter(toolkit.load_mixtures(rated / "mapss.json", mapss.sample_rate, systems=True))
    )
    bank = mapss.prepare(mixture.references[None])
    alone = toolkit.target_scores(mapss, bank, mixture.systems["s1"][0], every=8)
    for measure in ("ps", "pm", "log_pm", "foreign_distance"):
        assert float(row[measure]) == pytest.approx(alone[measure], rel=1e-6), measure
    page = (tmp_path / "banks.md").read_text(encoding="utf-8")
    assert "| largest change |" in page
    assert page.count("| O. ") == 13


def test_lags_are_undone(monkeypatch):
    toolkit, script = recipe("toolkit", monkeypatch), recipe("delay", monkeypatch)
    wave = voice(130.0, 4)
    for lag in (0, 37, 160, 800):
        moved = script.delayed(wave, RATE, 1000 * lag / RATE)
        assert bool((moved[:lag] == 0).all())
        torch.testing.assert_close(moved[lag:], wave[: len(wave) - lag])
        back = toolkit.aligned(moved, wave, RATE)
        inside = slice(800, -800)
        torch.testing.assert_close(back[inside], wave[inside])


@pytest.mark.slow
def test_delays_cost_less_where_they_are_undone(speech, rated, tmp_path, monkeypatch):
    script = recipe("delay", monkeypatch)
    delays = ["--delays", "0", "40"]
    rows = script.main(
        ["--manifest", str(speech), "--out", str(tmp_path / "plain"), *SMALL, *delays]
    )
    late = {kind: rows.mean("pm", signals=kind, delay=40.0) for kind in rows.distinct("signals")}
    # Not 1: the end of the clip went out with the delay.
    assert late["aligned"] > late["as they are"] + 0.1
    arguments = ["--manifest", str(rated / "mapss.json"), "--ratings", str(rated / "ratings.csv")]
    out = tmp_path / "rated"
    script.main([*arguments, "--out", str(out), "--bank-size", "6", "--every", "6", *delays])
    page = (out / "delay.md").read_text(encoding="utf-8")
    assert "| mel | all | interference | PS | 100.00/" in page
    assert (out / "delay.png").stat().st_size > 5000


@pytest.mark.slow
def test_one_page_of_all_measures_against_listeners(rated, tmp_path, monkeypatch):
    script = recipe("listeners", monkeypatch)
    arguments = ["--manifest", str(rated / "mapss.json"), "--ratings", str(rated / "ratings.csv")]
    arguments += ["--out", str(tmp_path), "--encoders", "mel", "--conventions", "paper"]
    arguments += ["--sample-frames", "4", "--bank-size", "6", "--no-rivals", "--draws", "50"]
    found = script.main(arguments)
    (row,) = (
        r
        for r in found["mel", "paper"].rows.to_dict("records")
        if r["measure"] == "ps" and r["pooling"] == "per_track"
    )
    assert row["srcc"] == pytest.approx(1.0)
    page = (tmp_path / "listeners.md").read_text(encoding="utf-8")
    for part in ("## interference", "| t0 voice |", "| s2 | 2 | 10.00 |", "SRCC radius"):
        assert part in page
    again = script.main([*arguments, "--scored"])
    assert_frame_equal(again["mel", "paper"].rows, found["mel", "paper"].rows)


# ------------------------------------------------------------------------------------------------
# SEBASS
# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sebass(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of the download's shape: four talkers, and three instruments without drums."""
    root = tmp_path_factory.mktemp("sebass")
    lines = ["campaign,mixture,source,system,mean_rating"]
    for mixture, count in (("female_inst_sim", 4), ("nodrums_inst_sim", 3)):
        waves = [voice(100.0 + 35 * k, k, 0.45) for k in range(count)]
        for k, wave in enumerate(waves, 1):
            write(root / "SASSEC/Signals/orig" / f"{mixture}_{k}.wav", wave)
            for place, leak in enumerate((0.05, 0.3, 0.9), 1):
                name = f"Algo{place}"
                made = wave + leak * waves[k % count]
                write(root / "SASSEC/Signals" / name / f"{mixture}_{k}.wav", made)
                lines.append(f"SASSEC,{mixture},{k},{name},{100 - 30 * place + k}")
    (root / "SASSEC" / "Signals" / "readme.txt").write_text("not audio")
    (root / "ratings.csv").write_text("\n".join(lines) + "\n")
    return root


def test_folders_become_manifests_of_the_papers_scenarios(sebass, tmp_path, monkeypatch):
    script = recipe("sebass", monkeypatch)
    found = script.files_of(sebass, script.LAYOUT)
    assert len(found) == 7 * 4
    rules = {**script.LAYOUT["scenarios"], **script.MULTILINGUAL}
    made = {name: script.manifest(found, name, rule, sebass) for name, rule in rules.items()}
    assert {name: len(entries) for name, entries in made.items()} == {
        "English": 1,
        "Spanish": 1,
        "Music (Drums)": 0,
        "Music (No Drums)": 1,
        "Multilingual": 1,
    }
    (spanish,) = made["Spanish"]
    assert spanish["sources"] == ["3", "4"]
    assert [Path(p).name for p in spanish["references"]] == [
        "female_inst_sim_3.wav",
        "female_inst_sim_4.wav",
    ]
    assert sorted(spanish["systems"]) == ["Algo1_SASSEC", "Algo2_SASSEC", "Algo3_SASSEC"]
    assert Path(spanish["systems"]["Algo2_SASSEC"][1]).parts[-2:] == (
        "Algo2",
        "female_inst_sim_4.wav",
    )
    assert len(made["Music (No Drums)"][0]["references"]) == 3
    with pytest.raises(SystemExit, match="holds no mixture of this layout"):
        script.main(["--root", str(tmp_path), "--out", str(tmp_path / "out")])


@pytest.mark.slow
def test_both_tables_of_the_paper_come_out_of_such_a_tree(sebass, tmp_path, monkeypatch):
    script = recipe("sebass", monkeypatch)
    arguments = ["--root", str(sebass), "--ratings", str(sebass / "ratings.csv")]
    arguments += ["--out", str(tmp_path), "--encoder", "mel", "--sample-frames", "4"]
    found = script.main([*arguments, "--bank-size", "6", "--draws", "20"])
    assert list(found) == ["English", "Spanish", "Music (No Drums)"]
    (row,) = (
        r
        for r in found["English"].rows.to_dict("records")
        if r["measure"] == "ps" and r["pooling"] == "per_track"
    )
    assert (row["srcc"], row["sources"], row["tracks"]) == (pytest.approx(1.0), 2, 1)
    page = (tmp_path / "sebass.md").read_text(encoding="utf-8")
    assert "| Measure | English: SRCC | English: PCC | Spanish: SRCC |" in page
    assert "| PS CIs (95%) |" in page
    assert r"\textbf{Measure} & \textbf{English: SRCC}" in (
        tmp_path / "correlations_basic_audio_quality.tex"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    ["leakage_distortion", "surfaces", "packet_loss", "delay", "banks", "nmi", "histograms"]
    + ["rivals", "listeners", "sebass"],
)
def test_every_script_explains_itself(name, monkeypatch, capsys):
    script = recipe(name, monkeypatch)
    with pytest.raises(SystemExit) as done:
        script.main(["--help"])
    assert done.value.code == 0
    said = capsys.readouterr().out
    assert f"python recipes/experiments/{name}.py" in said
    assert "--out" in said

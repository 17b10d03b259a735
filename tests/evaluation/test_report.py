"""`evaluate` and its report: files and arrays in, tables out."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from separations import entries_of, write, write_all, write_manifest
from stub_scorers import Weighted
from waveforms import RATE, leaky, tones

from torch_mapss import (
    MAPSS,
    DistortionBank,
    Report,
    compare,
    evaluate,
    evaluate_set,
    load_encoder,
    score_mixture,
)
from torch_mapss.audio.waveforms import resample
from torch_mapss.evaluation.results import load_results

TRUTH = tones()
MADE = leaky(TRUTH)


def scored(mapss: MAPSS, estimates: Any = MADE, references: Any = TRUTH, **options: Any) -> Report:
    return evaluate(estimates=estimates, references=references, mapss=mapss, **options)


@pytest.fixture(scope="module")
def report(mapss: MAPSS) -> Report:
    return scored(mapss, bounds=True)


@pytest.fixture(scope="module")
def plain(mapss: MAPSS) -> Report:
    return scored(mapss)


def ps_of(report: Report) -> list[float]:
    return [row.ps for row in report.rows]


def test_files_score_as_the_pipeline_does(tmp_path, mapss):
    references, estimates = write_all(tmp_path / "t", TRUTH), write_all(tmp_path / "m", MADE)
    report, scores = scored(mapss, estimates, references), mapss(MADE, TRUTH)
    for name in ("ps", "pm", "log_pm", "clearance", "attributed_distance", "foreign_distance"):
        values = getattr(report, name)
        assert torch.equal(values[report.active], getattr(scores, name)[0][scores.active[0]])
        assert values[~report.active].isnan().all()
    assert torch.equal(report.active, scores.active[0])
    assert torch.equal(report.times, scores.times)
    pooled = scores.utterance()
    for source_index, row in enumerate(report.rows):
        for name in ("ps", "pm", "log_pm", "ps_pesq", "clearance", "fidelity"):
            assert row[name] == getattr(pooled, name)[0, source_index].item()
        foreign = scores.foreign_distance[0, source_index][scores.active[0, source_index]].double()
        assert row.foreign_distance == pytest.approx(foreign.mean().item(), rel=1e-6)
        assert row.log_foreign_distance == pytest.approx(foreign.log().mean().item(), rel=1e-6)
        assert row.frames == int(pooled.frames[0, source_index]) > 0
    assert report.notes == ()


@pytest.mark.parametrize("make", [partial(load_encoder, "mel"), Weighted], ids=["mel", "own"])
def test_encoders_are_passed_as_objects_everywhere(make, tmp_path):
    encoder = make()
    settings: dict[str, Any] = {"encoder": encoder, "measures": "ps", "bank_size": 5}
    waves = resample(TRUTH, RATE, encoder.sample_rate), resample(MADE, RATE, encoder.sample_rate)
    bank = DistortionBank("separation", size=5)
    mapss = MAPSS(encoder, measures="separation", separation_bank=bank)
    expected = mapss(waves[1], waves[0]).utterance().ps[0]
    report = evaluate(estimates=waves[1], references=waves[0], device="cpu", **settings)
    assert report.scores["ps"].tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    manifest = write_manifest(tmp_path / "set", 1, ("one",))
    table = evaluate_set(manifest, out=tmp_path / "out", device="cpu", **settings).scores
    assert table["ps"].notna().all()
    (entry,) = entries_of(manifest)
    entry["references"] = [str(manifest.parent / name) for name in entry["references"]]
    entry["systems"] = {"one": [str(manifest.parent / name) for name in entry["systems"]["one"]]}
    rows = score_mixture(entry, device="cpu", **settings)
    assert [row["ps"] for row in rows] == pytest.approx(table["ps"].tolist(), rel=1e-6)


def test_only_requested_fields_are_present(mapss):
    report = scored(mapss, measures="decomposition")
    assert [*report.frames] == ["clearance", "fidelity"]
    assert [*report.means()] == ["clearance", "fidelity", "si_sdr"]
    assert report.ps is None
    assert "ps" not in report.rows[0]
    with pytest.raises(AttributeError, match="'ps'"):
        _ = report.rows[0].ps


def test_clearance_and_fidelity_need_no_checkpoint(mapss, tmp_path):
    """Whatever encoder PS and PM would take: here one that is not to be found."""
    nowhere = {"cache_dir": str(tmp_path / "empty"), "local_files_only": True}
    settings = {"estimates": MADE, "references": TRUTH, "measures": "decomposition"}
    expected = evaluate(**settings, encoder="mel").rows[0].clearance
    assert evaluate(**settings, **nowhere).rows[0].clearance == pytest.approx(expected, rel=1e-6)
    report = evaluate(**settings, mapss=MAPSS("wav2vec2-large", **nowhere))
    assert report.rows[0].clearance == pytest.approx(expected, rel=1e-6)
    paths = write_all(tmp_path, TRUTH)
    entry = {"mixture_id": "m", "references": paths, "systems": {"s": paths}}
    results = evaluate_set([entry], out=tmp_path / "o", measures="decomposition", **nowhere)
    assert results.measures == ("clearance", "fidelity", "si_sdr")


def test_bleed_is_scored_where_only_others_are_active(mapss):
    (truth := tones(2, 1.0))[0, RATE // 2 :] = 0.0
    (made := truth.clone())[0] += 0.1 * truth[1]
    report = scored(mapss, made, truth, measures="bleed")
    assert bool(report.bleed_db[0, report.times > 0.52].isfinite().all())
    assert bool(report.bleed_db[1].isnan().all())
    assert -25.0 < report.rows[0].bleed_db < -15.0
    assert f"{report.rows[0].bleed_db:.1f}" in report.summary()


def test_stereo_at_another_rate_scores_as_a_hand_made_mono_file(tmp_path, mapss):
    truth = tones(rate=44_100)
    side = tones(1, seed=9, rate=44_100)[0].flip(0)
    waves = torch.cat([truth, leaky(truth, 0.3)])
    mono = write_all(tmp_path / "mono", resample(waves, 44_100, RATE), "abcd")
    stereo = [
        # Channels that differ by more than their level, with the signal as their mean.
        write(tmp_path / "stereo" / f"{k}.wav", torch.stack([wave + side, wave - side]), 44_100)
        for k, wave in enumerate(waves)
    ]
    plain, from_stereo = scored(mapss, mono[2:], mono[:2]), scored(mapss, stereo[2:], stereo[:2])
    for row, mono_row in zip(from_stereo.rows, plain.rows):
        assert (row.ps, row.pm) == pytest.approx((mono_row.ps, mono_row.pm), abs=2e-2)
    assert from_stereo.rows[0].estimate_rate == from_stereo.rows[0].reference_rate == 44_100
    for words in ("2 channels averaged", "resampled from 44100 to 16000 Hz"):
        assert "\n".join(from_stereo.notes).count(words) == 4
    assert "resampled from 44100" in from_stereo.summary()


def test_lengths_must_agree_but_for_rounding_and_may_be_trimmed(tmp_path, mapss):
    references, estimates = write_all(tmp_path / "t", TRUTH), write_all(tmp_path / "made", MADE)
    high = resample(MADE, RATE, 44_100)[:, :-3]  # one sample less at 16 kHz
    paths = [write(tmp_path / f"{k}.wav", wave, 44_100) for k, wave in enumerate(high)]
    report = scored(mapss, paths, references)
    assert any("cut from 8000 to 7999 samples" in note for note in report.notes)
    shorter = [write(tmp_path / f"{k}.wav", wave[:-6], 44_100) for k, wave in enumerate(high)]
    with pytest.raises(ValueError, match=r"7997 samples .* at 44100 Hz"):
        scored(mapss, shorter, references)
    write(tmp_path / "made" / "b.wav", MADE[1, :7000])
    with pytest.raises(ValueError, match=r"made/b\.wav' has 7000 .*has 8000 samples.*trim"):
        scored(mapss, estimates, references)
    report = scored(mapss, estimates, references, trim=True)
    assert ps_of(report) == ps_of(scored(mapss, MADE[:, :7000], TRUTH[:, :7000]))
    assert any("cut from 8000 to 7000" in note for note in report.notes)


def test_arrays_have_the_stated_rate_and_integers_are_pcm(tmp_path, mapss, plain):
    wide = tones(rate=48_000)
    report = scored(mapss, leaky(wide).numpy(), wide.numpy(), sample_rate=48_000)
    low = resample(wide, 48_000, RATE)
    assert ps_of(report) == pytest.approx(ps_of(scored(mapss, leaky(low), low)), abs=1e-4)
    assert report.rows[0].estimate_rate == 48_000
    pcm = (MADE * 2.0**14).round().to(torch.int16)
    assert ps_of(scored(mapss, pcm)) == ps_of(scored(mapss, pcm / 2.0**15))
    paths = write_all(tmp_path, TRUTH)  # files have a rate of their own
    assert ps_of(scored(mapss, MADE, paths, sample_rate=RATE)) == ps_of(plain)
    with pytest.raises(ValueError, match="Leave sample_rate out"):
        scored(mapss, paths, paths, sample_rate=16_000)
    with pytest.raises(TypeError, match="positional"):
        evaluate(TRUTH, TRUTH)  # type: ignore[misc]


def test_assumed_rate_is_reported(tmp_path, mapss, plain):
    note = "arrays were taken to be at 16000 Hz, the encoder's rate"
    assert note in plain.notes[0]
    assert note in plain.summary()
    paths = write_all(tmp_path, TRUTH)
    assert note in scored(mapss, MADE, paths).notes[0]
    for report in (
        scored(mapss, paths, paths),
        scored(mapss, sample_rate=RATE),
        evaluate(
            estimates=MADE,
            references=TRUTH,
            mapss=MAPSS("mel", sample_rate=RATE, measures="bleed"),
            measures="bleed",
        ),
    ):
        assert note not in report.summary()


def test_target_alone_and_permutation(mapss, plain):
    expected = mapss(MADE[1:], TRUTH, attributed=(1,)).utterance().ps[0, 0].item()
    for report in (scored(mapss, MADE[1:], attributed=(1,)), scored(mapss, [None, MADE[1]])):
        assert [row.source_index for row in report.rows] == [1]
        assert report.sources == ("reference 2",)
        assert report.rows[0].ps == expected
    report = scored(mapss, MADE.flip(0), permute=True)
    assert report.attributed == (1, 0)
    assert report.rows[0].ps == pytest.approx(plain.rows[1].ps, abs=1e-6)
    assert "estimate 1 -> reference 2" in report.notes[-1]


def test_sample_frames_scores_so_many(mapss, plain):
    state = torch.get_rng_state()
    report = scored(mapss, sample_frames=4)
    assert torch.equal(state, torch.get_rng_state())
    assert report.active.any(0).sum() == 4
    assert torch.equal(report.ps[report.active], plain.ps[report.active])
    assert "at most 4 frames" in report.summary()


def test_utterance_bounds_are_those_of_the_pooling(report, plain, mapss):
    frames = mapss.bounds(MADE, TRUTH)
    for source_index, row in enumerate(report.rows):
        for name in ("ps", "pm"):
            radius, tail, _ = (
                x[0, source_index][frames.active[0, source_index]] for x in frames.of(name)
            )
            assert row[f"{name}_radius"] == pytest.approx(radius.mean().item(), rel=1e-5)
            # Errors of frames up to four apart may be shared [eq:avg_pool_h].
            width = (5 * tail.square().sum()).sqrt() / len(tail)
            assert row[f"{name}_tail"] == pytest.approx(width.item(), rel=1e-5)
        assert row.ps_pesq_tail > 0
        assert f"{row.ps_radius + row.ps_tail:.3f}" in report.summary()
    assert "ps_tail" not in plain.rows[0]
    assert "±" not in plain.summary()


def test_a_silent_reference_is_undefined_counted_and_left_out(mapss):
    waves = tones(3, 0.4)
    waves[2] = 0.0  # is never active: its estimate has no score, and no bound
    report = scored(mapss, leaky(waves), waves, bounds=True)
    assert math.isnan(report.rows[2].ps + report.rows[2].pm)
    assert report.rows[2].frames == 0
    assert report.means()["ps"] == pytest.approx((report.rows[0].ps + report.rows[1].ps) / 2)
    assert "2 of 3 estimates have scored frames" in report.summary()
    cells = {line.split("  ")[0]: line.split() for line in report.summary().splitlines()}
    widths = [row.ps_radius + row.ps_tail for row in report.rows[:2]]
    assert f"{sum(widths) / 2:.3f}" in cells["mean"]
    assert cells["reference 3"].count("-") >= 4


def test_a_saved_report_is_a_set_of_one(tmp_path, mapss, plain):
    for system, report in {"mine": plain, "poor": scored(mapss, leaky(TRUTH, 0.6))}.items():
        folder = report.save(tmp_path / "new" / "nested", system=system)
    results = load_results(folder)
    assert (results.mixtures, results.systems) == (("mixture",), ("mine", "poor"))
    assert results.scores.query("system == 'mine'")["ps"].tolist() == pytest.approx(ps_of(plain))
    assert compare(results).measures[0] == "clearance"
    frames = results.frames("mixture").systems["mine"]
    assert np.array_equal(frames.scores["ps"], plain.ps.numpy(), equal_nan=True)
    assert [*pd.read_csv(Path(folder, "summary.csv"))["system"]] == ["mine", "poor"]


def test_estimates_in_another_order_are_saved_with_their_own_references(tmp_path, mapss):
    """With a frame score of each, and under the path of each."""
    paths = write_all(tmp_path, MADE)
    truth = write_all(tmp_path / "truth", TRUTH)
    report = scored(mapss, paths[::-1], truth, attributed=(1, 0), measures="separation")
    results = load_results(report.save(tmp_path / "out"))
    assert [*results.scores["estimate"]] == paths
    assert [*results.scores["ps"]] == pytest.approx(ps_of(report)[::-1])
    stored = results.frames("mixture").systems["estimates"].scores["ps"]
    assert np.array_equal(stored, report.ps.flip(0).numpy(), equal_nan=True)


def test_the_table_of_frames_holds_every_frame_exactly(tmp_path, report):
    report.frame_table().to_csv(tmp_path / "frames.csv", index=False)
    table = pd.read_csv(tmp_path / "frames.csv")
    stored = {
        name: torch.tensor(values.to_numpy(), dtype=torch.float32).reshape(report.active.shape)
        for name, values in table.drop(columns=["source", "frame"]).items()
    }
    torch.testing.assert_close(stored["time_s"][0].double(), report.times.double())
    assert torch.equal(stored["active"].bool(), report.active)
    for name in ("ps", "pm", "clearance"):
        assert torch.equal(stored[name].isnan(), ~report.active)
        assert torch.equal(stored[name][report.active], getattr(report, name)[report.active])
        total = stored[f"{name}_radius"] + stored[f"{name}_tail"]
        torch.testing.assert_close(stored[f"{name}_total"], total, equal_nan=True)
        assert bool((total[report.active] > 0).any())


def test_json_is_strict_and_tells_settings_and_versions(tmp_path, mapss):
    silent = torch.stack([TRUTH[0], 0.0 * TRUTH[1]])
    with pytest.warns(UserWarning, match="no frame in which two sources"):
        scored(mapss, TRUTH, silent).save(tmp_path)
    read = partial(json.loads, parse_constant=pytest.fail)
    record = read((tmp_path / "records" / "mixture.json").read_text("utf-8"))
    assert record["systems"]["estimates"]["rows"][0]["ps"] is None
    content = read((tmp_path / "settings.json").read_text("utf-8"))
    settings = content["settings"]
    assert (settings["encoder"]["name"], settings["separation_bank"]["seed"]) == ("mel", 0)
    assert (settings["permute"], settings["decomposition_encoder"]["sample_rate"]) == (False, RATE)
    assert content["versions"]["torch"] == torch.__version__
    assert "nan" in (tmp_path / "scores.csv").read_text(encoding="utf-8")


def test_words_names_and_a_small_table(tmp_path, report, mapss):
    text, row = report.summary(), report.rows[0]
    for word in ("PS, Perceptual Separation", "0 to 1", "clearance", "95 % confidence"):
        assert word in text
    assert {f"{row.ps:.3f}", f"{row.frames}/{row.total_frames}"} <= {*text.split()}
    assert str(report) == text
    report_of_names = scored(
        mapss, names=iter(["Sängerin <b>", "鼓 & b"]), measures="decomposition"
    )
    assert report_of_names.sources == ("Sängerin <b>", "鼓 & b")
    assert len(repr(report_of_names).splitlines()) == 5
    assert "2 estimates, 2 references, 24 frames at 16000 Hz" in repr(report_of_names)
    html = report_of_names._repr_html_()
    assert all(name in html for name in ("Sängerin &lt;b&gt;", "鼓 &amp; b"))
    assert (html.count("<b>"), html.count("<tr")) == (0, 4)
    assert (
        report_of_names == report_of_names,
        report_of_names == report,
        hash(report_of_names) == hash(report_of_names),
    ) == (True, False, True)
    paths = [[write(tmp_path / f"{x}{k}/x.wav", TRUTH[k]) for k in (0, 1)] for x in "es"]
    report_of_names = scored(mapss, *paths, measures="separation")  # equal stems are told apart
    assert report_of_names.sources == ("s0/x", "s1/x")
    assert [clip.name for clip in report_of_names.estimates] == ["e0/x", "e1/x"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimates": "x.wav"}, "a list of paths or arrays.*got 'x.wav'"),
        ({"estimates": TRUTH.T}, r"for \(samples, sources\) pass estimates\.T"),
        ({"estimates": TRUTH[None]}, r"must have shape \(S, T\).*\(1, 2, 8000\)"),
        ({"estimates": list(TRUTH[:, None])}, r"estimates\[0\] must be one mono signal"),
        ({"references": ["a.wav", TRUTH[0]]}, "mix files and arrays"),
        ({"estimates": TRUTH[:1], "references": TRUTH[:1]}, "at least two references .*got 1"),
        ({"estimates": TRUTH[:1]}, "1 estimates for 2 references"),
        ({"estimates": [None, None]}, "estimates must hold at least one source"),
        ({"references": [TRUTH[0], None]}, "references must not contain None"),
        ({"estimates": 5}, "must be a list of paths or arrays"),
        ({"estimates": ["/nowhere/a.wav", "/nowhere/b.wav"]}, "/nowhere/a.wav"),
        ({"encoder": "mel"}, "encoder cannot be applied to a MAPSS"),
        ({"permute": True, "attributed": (0, 1)}, "permute"),
        ({"estimates": [TRUTH[0], None], "attributed": (0,)}, "attributed"),
        ({"names": ["one"]}, "one name for each of the 2 references"),
        ({"sample_rate": 0}, "sample_rate must be"),
        ({"sample_rate": "16000"}, "sample_rate must be"),
        ({"confidence": 95}, "confidence"),
        ({"measures": "loudness"}, "measures"),
        ({"align": "lag"}, "align"),
    ],
)
def test_refusals(mapss, arguments, message):
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=message):
        scored(mapss, **arguments)

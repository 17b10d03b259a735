"""The demo: offline, quick, and its scores fall as its estimates get worse."""

import socket

import pandas
import torch
from separations import small_mapss

from torch_mapss.audio.files import load_audio
from torch_mapss.audio.loudness import integrated_loudness
from torch_mapss.evaluation import cli, demo, plots
from torch_mapss.evaluation.results import load_results


def test_scores_fall_with_the_grade_and_everything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", None)  # as long as it opens none
    monkeypatch.setattr(demo, "MAPSS", lambda _: small_mapss(6))
    voices, rate = demo.voices()
    monkeypatch.setattr(demo, "voices", lambda: (voices[:, :24_000], rate))
    monkeypatch.setattr(demo, "plot_reports", lambda *_: plots.new_figure(1.0, 1.0))
    out = tmp_path / "new"
    assert cli.main(["demo", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "1 = no leakage from the other sources" in text
    rows = pandas.read_csv(out / "scores.csv")
    grades = [grade.name for grade in demo.GRADES]
    assert [*zip(rows["grade"], rows["source"])] == [(g, v) for g in grades for v in demo.VOICES]
    for _, source_rows in rows.groupby("source"):
        for measure in ("clearance", "fidelity", "ps", "pm", "log_pm"):
            values = [*source_rows[measure]]
            assert values == sorted(values, reverse=True)
            assert values[0] - values[2] > 0.1
        assert source_rows["ps"].iloc[0] > 0.9
        assert (
            source_rows["frames"] > 0.8 * source_rows["total_frames"]
        ).all()  # there are few pauses
    assert all(f"{score:.3f}" in text for score in rows["ps"])
    assert [*load_results(out / "results").systems] == grades
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert len([*(out / "audio").iterdir()]) == 9
    assert (out / "audio/poor_high_voice.wav").exists()
    # All are at one level, so the mixture is the sum of the references.
    names = ("reference_low_voice", "reference_high_voice", "mixture")
    low, high, mixed = (load_audio(out / "audio" / f"{name}.wav")[0] for name in names)
    torch.testing.assert_close(mixed, low + high, atol=1e-4, rtol=0.0)


def test_clips_and_their_degradations():
    waves, rate = demo.voices()
    assert (rate, waves.shape) == (16_000, (2, 48_000))
    level = integrated_loudness(waves, rate)
    torch.testing.assert_close(level, torch.tensor([-23.0, -23.0]), atol=0.2, rtol=0.0)
    torch.testing.assert_close(demo.shaken(waves, 0.0), waves, atol=1e-5, rtol=0.0)
    errors = [float((demo.shaken(waves, a) - waves).square().mean()) for a in (0.15, 0.45, 0.8)]
    assert errors == sorted(errors)
    assert torch.equal(demo.shaken(waves, 0.5), demo.shaken(waves, 0.5))
    leak = demo.separated(waves, demo.Grade("", -20.0, 0.0)) - waves
    torch.testing.assert_close(leak, 0.1 * waves.flip(0), atol=1e-5, rtol=0.0)

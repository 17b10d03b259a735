"""``--channels each``: the scores of every channel, and their mean, wherever scores are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from separations import small_mapss, write
from torch import Tensor
from waveforms import leaky, tones

from torch_mapss import Report, compare, evaluate, evaluate_set, score_mixture
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.page.content import page_content
from torch_mapss.evaluation.results import load_results
from torch_mapss.evaluation.verify import verify

NAMES = ["clearance", "fidelity", "si_sdr"]
LEFT, RIGHT = 0, 1


def stereo_with_a_bad_right_channel() -> tuple[Tensor, Tensor]:
    """References and estimates (S, C, T): leakage in the right channel alone."""
    truth = tones(2, 0.8, seed=1)
    made = torch.stack([leaky(truth, 0.05), leaky(truth, 0.6)], 1)
    return torch.stack([truth, truth], 1), made


def scored(references: Any, estimates: Any, **settings: Any) -> Report:
    settings = {"mapss": small_mapss(), "measures": "decomposition"} | settings
    return evaluate(references=references, estimates=estimates, **settings)


def files(folder: Path, waves: Tensor) -> list[str]:
    return [write(folder / f"{name}.wav", wave) for name, wave in zip("ab", waves)]


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, list[str]]:
    """Stereo files whose right channel is bad."""
    references, estimates = stereo_with_a_bad_right_channel()
    return {
        "references": files(tmp_path / "references", references),
        "estimates": files(tmp_path / "estimates", estimates),
    }


def test_a_bad_right_channel_shows() -> None:
    references, estimates = stereo_with_a_bad_right_channel()
    report = scored(references, estimates, channels="each")
    assert report.channels is not None
    assert report.channels["channel"].tolist() == [1, 2, 1, 2]
    assert report.channels["source_index"].tolist() == [0, 0, 1, 1]
    by_channel = report.channels.groupby("channel")[NAMES].mean()
    assert (by_channel.loc[1] > by_channel.loc[2] + 0.05).all()
    assert scored(references.mean(1), estimates.mean(1)).channels is None


def test_a_channel_scores_as_a_mono_file_and_an_estimate_as_its_channels() -> None:
    references, estimates = stereo_with_a_bad_right_channel()
    report = scored(references, estimates, channels="each")
    assert report.channels is not None
    for channel in (LEFT, RIGHT):
        alone = scored(references[:, channel], estimates[:, channel])
        of_channel = report.channels[report.channels["channel"] == channel + 1]
        np.testing.assert_allclose(of_channel[NAMES], alone.scores[NAMES], atol=1e-9)
    means = report.channels.groupby("source_index")[NAMES].mean()
    np.testing.assert_allclose(report.scores[NAMES], means, atol=1e-12)


def test_undefined_in_one_channel() -> None:
    """A score is the mean over the channels in which it is defined."""
    references, estimates = stereo_with_a_bad_right_channel()
    references[:, RIGHT] = 0.0
    with pytest.warns(UserWarning, match="have no frame in which two sources are active"):
        report = scored(references, estimates, channels="each")
    assert report.channels is not None
    left, right = (report.channels[report.channels["channel"] == n] for n in (1, 2))
    assert right[NAMES].isna().all(axis=None)
    np.testing.assert_allclose(report.scores[NAMES], left[NAMES])


def test_excerpts_have_channels_and_standard_errors() -> None:
    references, estimates = stereo_with_a_bad_right_channel()
    excerpts = {"excerpts": 3, "excerpt_seconds": 1.0}
    long = [torch.cat([waves] * 6, -1) for waves in (references, estimates)]
    report = scored(*long, channels="each", **excerpts)
    assert report.channels is not None
    means = report.channels.groupby("source_index")["fidelity"].mean()
    np.testing.assert_allclose(report.scores["fidelity"], means)
    assert (report.scores["fidelity_se"] >= 0.0).all()


def test_order_of_estimates_does_not_move_channels() -> None:
    references, estimates = stereo_with_a_bad_right_channel()
    report = scored(references, estimates.flip(0), channels="each", attributed=(1, 0))
    in_order = scored(references, estimates, channels="each")
    assert report.channels is not None
    pandas.testing.assert_frame_equal(report.channels, in_order.channels)


def test_exchanged_channels_move_no_score() -> None:
    references, estimates = stereo_with_a_bad_right_channel()
    report = scored(references, estimates, channels="each")
    exchanged = scored(references.flip(1), estimates.flip(1), channels="each")
    pandas.testing.assert_frame_equal(report.scores[NAMES], exchanged.scores[NAMES])
    assert report.channels is not None
    assert exchanged.channels is not None
    left = report.channels[report.channels["channel"] == 1]
    moved_left = exchanged.channels[exchanged.channels["channel"] == 2]
    np.testing.assert_array_equal(left[NAMES], moved_left[NAMES])


def test_tables_of_a_run(paths: dict[str, list[str]], tmp_path: Path) -> None:
    entry = {"mixture_id": "m", "references": paths["references"]}
    entry |= {"systems": {"bad right": paths["estimates"], "truth": paths["references"]}}
    settings = {"encoder": "mel", "measures": "decomposition", "channels": "each"}
    with pytest.warns(UserWarning, match="the same as the reference"):
        results = evaluate_set([entry], out=tmp_path / "results", **settings)
    exported = pandas.read_csv(tmp_path / "results" / "channels.csv")
    assert len(exported) == len(results.channels) == 8  # systems, sources, channels
    np.testing.assert_allclose(exported[NAMES], results.channels[NAMES])
    keys = ["mixture_id", "system", "source"]
    means = exported.groupby(keys)[NAMES].mean()
    np.testing.assert_allclose(results.scores.set_index(keys)[NAMES].sort_index(), means, atol=1e-6)
    rows = [row for row in score_mixture(entry, **settings) if row["system"] == "bad right"]
    assert rows[0]["fidelity"] == pytest.approx(means.loc[("m", "bad right", "a"), "fidelity"])
    outcome = verify(results)
    assert outcome.passed
    assert outcome.rows == 4
    exported.loc[0, "fidelity"] = 0.5
    exported.to_csv(tmp_path / "results" / "channels.csv", index=False)
    (difference,) = verify(load_results(tmp_path / "results")).differences
    assert difference.startswith("channels.csv, mixture 'm', system 'bad right', source 'a'")


def test_scores_unequal_to_channel_means_are_reported(
    paths: dict[str, list[str]], tmp_path: Path
) -> None:
    report = scored(paths["references"], paths["estimates"], channels="each")
    report.scores.loc[0, "clearance"] = 0.5
    results = load_results(report.save(tmp_path / "results"))
    assert any("records, mixture" in difference for difference in verify(results).differences)


def test_no_table_of_channels_of_a_downmix(paths: dict[str, list[str]], tmp_path: Path) -> None:
    report = scored(paths["references"], paths["estimates"])
    results = load_results(report.save(tmp_path / "results"))
    assert results.channels.empty
    assert not (tmp_path / "results" / "channels.csv").exists()


def test_console(
    paths: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["score", "--references", *paths["references"], "--estimates", *paths["estimates"]]
    assert cli.main([*arguments, "--channels", "each", "--measures", "decomposition"]) == 0
    printed = capsys.readouterr().out
    lines = printed[printed.index("By channel") :].splitlines()
    assert lines[2].split()[:4] == ["source", "channel", "clearance", "fidelity"]
    clearances = [float(line.split()[2]) for line in lines[4:8]]
    assert clearances[0] > clearances[1] + 0.1
    assert clearances[2] > clearances[3] + 0.1
    assert "over channels" in printed
    assert cli.main([*arguments, "--measures", "decomposition"]) == 0
    assert "By channel" not in capsys.readouterr().out


def test_console_of_a_set(
    paths: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"mixture_id": "m", "references": paths["references"]}
    entry |= {"systems": {"one": paths["estimates"]}}
    (tmp_path / "set.json").write_text(json.dumps([entry]))
    arguments = ["evaluate", str(tmp_path / "set.json"), "--measures", "decomposition", "--out"]
    for channels, is_told in (("each", True), ("mean", False)):
        out = str(tmp_path / channels)
        assert cli.main([*arguments, out, "--channels", channels]) == 0
        assert ("channels.csv has the scores of each" in capsys.readouterr().out) == is_told


def test_page(paths: dict[str, list[str]], tmp_path: Path) -> None:
    report = scored(paths["references"], paths["estimates"], channels="each")
    results = load_results(report.save(tmp_path / "results"))
    content = page_content(results, str(tmp_path / "page.html"), 0)
    assert content["channels"]["numbers"] == [1, 2]
    left, right = content["channels"]["means"]
    assert left["clearance"] > right["clearance"] + 0.1
    assert [channel["channel"] for channel in content["rows"][0]["channels"]] == [1, 2]


def test_warnings_do_not_advise_options_already_set() -> None:
    """Where every channel is scored a silent one is told, without the advice to score each."""
    references, estimates = stereo_with_a_bad_right_channel()
    estimates[:, RIGHT] = 0.0
    with pytest.warns(UserWarning, match="channel 2 is silent") as warned:
        scored(references, estimates, channels="each")
    assert not any("channels each" in str(warning.message) for warning in warned)


def test_samples_as_channels_are_refused() -> None:
    """The order of museval is (sources, samples, channels)."""
    references, estimates = stereo_with_a_bad_right_channel()
    message = (
        "arrays are \\(sources, samples\\) or \\(sources, channels, samples\\); got 12800 channels"
    )
    orders = references.transpose(1, 2), estimates.transpose(1, 2)
    with pytest.raises(ValueError, match=message):
        scored(*orders, channels="each")
    with pytest.raises(ValueError, match=message):
        scored([*orders[0]], [*orders[1]], channels="each")


@pytest.mark.parametrize("channels", ["mean", "each"])
def test_swapped_sides_are_not_the_same_as_the_reference(tmp_path: Path, channels: str) -> None:
    """Only their mean over channels is."""
    left, right = tones(2, 0.8, seed=1), tones(2, 0.8, seed=2)
    references = files(tmp_path / "references", torch.stack([left, right], 1))
    estimates = files(tmp_path / "estimates", torch.stack([right, left], 1))
    with pytest.warns(UserWarning, match="its sides may be swapped"):
        report = scored(references, estimates, channels=channels)
    assert {finding.kind for finding in report.findings} == {"same mean"}
    with pytest.warns(UserWarning, match="the same as the reference, sample by sample"):
        report = scored(references, references, channels=channels)
    assert {finding.kind for finding in report.findings} == {"same"}


def test_fault_of_one_file_is_reported_in_its_row(tmp_path: Path) -> None:
    references, estimates = stereo_with_a_bad_right_channel()
    estimates[1, RIGHT] = 0.0
    truth, outputs = files(tmp_path / "references", references), files(tmp_path / "s", estimates)
    entry = {"mixture_id": "m", "references": truth, "systems": {"s": outputs, "t": truth}}
    rows = score_mixture(entry, encoder="mel", measures="decomposition")
    intact, dead, *same = [row["warnings"] for row in rows]
    assert intact == ""
    assert "channel 2 is silent" in dead
    assert all("the same as the reference" in text for text in same)  # it is about both


def test_a_comparison_names_systems_with_faulty_channels(tmp_path: Path) -> None:
    references, estimates = stereo_with_a_bad_right_channel()
    truth, intact = files(tmp_path / "references", references), files(tmp_path / "s", estimates)
    estimates[1, RIGHT] = 0.0
    systems = {"dead": files(tmp_path / "dead", estimates), "intact": intact}
    entry = {"mixture_id": "song", "references": truth, "systems": systems}
    settings = {"encoder": "mel", "measures": "decomposition", "channels": "each"}
    with pytest.warns(UserWarning, match="channel 2 is silent"):
        results = evaluate_set([entry], out=tmp_path / "results", **settings)
    notes = compare(results).notes()
    assert any(note.startswith("Faulty channels: dead in song (dead channel).") for note in notes)
    notes = compare(results, systems=["intact"]).notes()
    assert not any("Faulty channels" in note for note in notes)

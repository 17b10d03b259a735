"""The logging recipe, run small: what it writes for TensorBoard and for Weights & Biases."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_scripts import recipe

from torch_mapss import Scores

log_scores = recipe("log_scores")
SMALL = ["--steps=4", "--every=2", "--batch=2", "--validate=2", "--seconds=0.8"]
SCALARS = {
    *("train/loss", "train/clearance_loss", "train/fidelity_loss", "train/si_sdr_loss"),
    *("val/clearance", "val/fidelity", "val/bleed_db", "val/si_sdr", "worst fidelity/mean"),
}
SOUNDS = {"worst fidelity/estimate", "worst fidelity/reference"}


def test_tensorboard_has_scores_losses_and_sounds(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("matplotlib")
    history = log_scores.main(["--out", str(tmp_path), *SMALL])
    assert len(history) == 3
    log = events.EventAccumulator(str(tmp_path), size_guidance={"audio": 0, "images": 0})
    log.Reload()
    tags = log.Tags()
    assert set(tags["scalars"]) == SCALARS
    assert set(tags["audio"]) == SOUNDS
    assert tags["images"] == ["worst fidelity/curve"]
    fidelity = log.Scalars("val/fidelity")
    assert [event.step for event in fidelity] == [0, 2, 4]
    values = [event.value for event in fidelity]
    assert values == pytest.approx([scores["fidelity"] for scores in history])
    assert [event.step for event in log.Scalars("train/loss")] == [0, 1, 2, 3]
    sound = log.Audio("worst fidelity/estimate")[-1]
    assert sound.sample_rate == 16000
    assert sound.length_frames == 8000


class Run:
    """What a run of wandb is asked for."""

    def __init__(self) -> None:
        self.logged: dict[str, list[tuple[int, Any]]] = {}
        self.finished = False

    def log(self, values: dict[str, Any], step: int) -> None:
        for name, value in values.items():
            self.logged.setdefault(name, []).append((step, value))

    def finish(self) -> None:
        self.finished = True


def test_wandb_is_given_the_same_names(tmp_path, monkeypatch):
    """Of a stand-in for the package; it has been run with the real one, offline."""
    pytest.importorskip("matplotlib")
    run, started = Run(), {}
    wandb = types.ModuleType("wandb")
    wandb.init = lambda **options: started.update(options) or run
    wandb.Audio = lambda wave, sample_rate: ("audio", len(wave), sample_rate)
    wandb.Image = lambda figure: ("image", figure)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    history = log_scores.main(["--out", str(tmp_path), "--to", "wandb", *SMALL])
    assert started["mode"] == "offline"
    assert Path(started["dir"]) == tmp_path
    assert run.finished
    assert set(run.logged) == SCALARS | SOUNDS | {"worst fidelity/curve"}
    assert run.logged["val/fidelity"] == [
        (step, scores["fidelity"]) for step, scores in zip((0, 2, 4), history)
    ]
    assert run.logged["worst fidelity/estimate"][0][1] == ("audio", 8000, 16000)


def frame_scores(values: list[float]) -> Scores:
    """Fidelity of one estimate, in frames 0.1 s apart, NaN where undefined."""
    fidelity = torch.tensor([[values]])
    defined = ~fidelity.isnan()
    times = 0.05 + 0.1 * torch.arange(len(values))
    return Scores(
        defined,
        times,
        ("decomposition",),
        fidelity=fidelity.nan_to_num(0.0),
        fidelity_defined=defined,
    )


def test_the_worst_moment_is_the_lowest_span_that_is_half_defined():
    scores = frame_scores([0.9, 0.8, 0.2, 0.3, 0.9, math.nan, math.nan, 0.1, math.nan, math.nan])
    moment = log_scores.worst_moment(scores, "fidelity", seconds=0.2)
    # 0.1 alone in a span of two frames is half of it.
    assert (moment.item, moment.source) == (0, 0)
    assert moment.mean == pytest.approx(0.1)
    assert moment.start_seconds == pytest.approx(0.6)
    wider = log_scores.worst_moment(scores, "fidelity", seconds=0.4)
    assert wider.mean == pytest.approx((0.2 + 0.3 + 0.9) / 3)
    assert log_scores.worst_moment(frame_scores([math.nan] * 4), "fidelity") is None

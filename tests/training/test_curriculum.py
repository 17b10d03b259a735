"""The trigger: when it fires, when it must not, what it remembers and what it says."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_mapss.pipeline.scores import Scores
from torch_mapss.training.curriculum import Fraction, FrameTrigger, Quantile, Trend

NAN = math.nan


def run(trigger: FrameTrigger, levels, measure: str = "ps") -> list[int]:
    """Epochs (from 1) at which a trigger fires when all frames of an epoch score one level."""
    fired = [trigger.update({measure: [level] * 3}) is not None for level in levels]
    return [epoch for epoch, yes in enumerate(fired, 1) if yes]


def median(**options) -> FrameTrigger:
    return FrameTrigger(Quantile("ps", 0.5, above=0.7), **options)


RUN = [0.8, 0.8, 0.6, 0.8, 0.8, 0.8, 0.8, 0.8]


@pytest.mark.parametrize(
    ("options", "levels", "fired"),
    [
        ({}, [0.5, 0.69, 0.7, 0.71], [3, 4]),
        ({"patience": 1}, RUN, [1, 2, 4, 5, 6, 7, 8]),
        ({"patience": 2}, RUN, [2, 5, 7]),
        ({"patience": 3}, RUN, [6]),
        ({"patience": 3}, [0.72, 0.66, 0.68], []),
        ({"patience": 3, "hysteresis": 0.05}, [0.72, 0.66, 0.68], [3]),
        ({"patience": 3, "hysteresis": 0.05}, [0.72, 0.64, 0.72], []),
        # Below the level but within the hysteresis is not enough to start with, nor after a firing.
        ({"hysteresis": 0.05}, [0.66, 0.66, 0.71, 0.66], [3]),
        ({"cooldown": 2}, [0.8] * 7, [1, 4, 7]),
        ({"smoothing": 0.5}, [0.4, 0.8, 1.0], [3]),  # means of 0.4, 0.6 and 0.8
        ({"smoothing": 0.9}, [0.9, 0.1, 0.9], [1]),  # the mean starts over after a firing
    ],
)
def test_when_it_fires(options, levels, fired):
    assert run(median(**options), levels) == fired


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0, 1), st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_statistics_are_those_of_numpy_in_any_shape_and_order(values, q, seed):
    trigger = FrameTrigger(Quantile("ps", q, above=1.0), Fraction("ps", q, above=1.0))
    order = np.random.default_rng(seed).permutation(len(values))
    trigger.observe({"ps": torch.tensor(values, dtype=torch.float64)[order].reshape(1, -1)})
    trigger.observe({"ps": np.array([[NAN]])})
    trigger.step()
    quantile, share = trigger.statistics.values()
    assert quantile == pytest.approx(np.quantile(values, q), abs=1e-12)
    assert share == pytest.approx(np.mean(np.array(values) > q), abs=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8))
@settings(max_examples=50, deadline=None)
def test_trend_is_the_slope_of_the_fitted_line(values):
    trigger = FrameTrigger(Trend("ps", span=len(values), above=100.0))
    run(trigger, values)
    expected = np.polyfit(np.arange(len(values)), values, 1)[0]
    assert next(iter(trigger.statistics.values())) == pytest.approx(expected, abs=1e-9)


def test_a_plateau_fires_once_there_are_enough_epochs():
    trigger = FrameTrigger(Trend("ps", span=3, below=0.01))
    assert run(trigger, [0.1, 0.3, 0.5, 0.505, 0.507]) == [5]
    assert str(trigger.events[0]).startswith("epoch 5, firing 1: slope of mean PS over 3 epochs is")


def test_all_and_any():
    conditions = Quantile("ps", 0.5, above=0.7), Fraction("pm", 0.5, above=0.5)
    good, bad = [0.9, 0.9], [0.1, 0.1]
    all_of_them, either = FrameTrigger(*conditions), FrameTrigger(*conditions, require="any")
    assert all_of_them.update({"ps": good, "pm": bad}) is None
    assert all_of_them.update({"ps": bad, "pm": good}) is None
    event = either.update({"ps": good, "pm": bad})
    assert event.reasons == ("50 % quantile of PS is 0.9 >= 0.7",)
    event = all_of_them.update({"ps": good, "pm": good})
    assert (len(event.reasons), event.frames) == (2, {"ps": 2, "pm": 2})


@pytest.mark.parametrize("at", range(5))
def test_undefined_epochs_change_nothing_but_the_count(at):
    levels = [0.8, 0.72, 0.9, 0.75]
    plain, holed = median(patience=3, smoothing=0.3), median(patience=3, smoothing=0.3)
    fired = run(plain, levels)
    assert run(holed, [*levels[:at], NAN, *levels[at:]]) == [e + (e > at) for e in fired]
    assert (holed.best, holed.held, holed.epoch) == (plain.best, plain.held, plain.epoch + 1)


def test_an_undefined_epoch_is_never_the_best_and_shows_as_nan():
    trigger = median()
    run(trigger, [NAN])
    assert trigger.best == {str(trigger.conditions[0]): None}
    assert math.isnan(trigger.statistics[str(trigger.conditions[0])])
    assert trigger.step() is None  # an epoch without any batch
    run(trigger, [0.3, NAN, 0.2])
    assert trigger.best == {str(trigger.conditions[0]): pytest.approx(0.3)}


def test_too_few_frames():
    trigger = median(min_frames=4)
    assert run(trigger, [0.9, 0.9]) == []
    trigger.observe({"ps": [0.9, 0.9]})
    assert trigger.update({"ps": [0.9, NAN, 0.9]}) is not None
    trigger.update({"ps": [math.inf, 0.9, 0.9, 0.9]})  # infinite frames are undefined
    assert all(math.isnan(value) for value in trigger.statistics.values())
    either = FrameTrigger(*[Quantile(n, 0.5, above=0.7) for n in ("ps", "pm")], require="any")
    assert either.update({"ps": [0.9], "pm": [NAN]}) is None  # one makes the epoch undefined
    assert either.held == 0


def test_reads_the_active_frames_of_a_record_and_leaves_its_graph_alone():
    ps = torch.tensor([[[0.9, 0.0, 0.5]]], requires_grad=True)
    scores = Scores(ps != 0.0, torch.arange(3), ("separation",), ps=ps * 1.0)
    event = FrameTrigger(Fraction("ps", 0.7, above=0.5)).update(scores)
    assert (event.frames, [*event.statistics.values()]) == ({"ps": 2}, [0.5])


def test_every_field_counts_where_it_is_defined():
    assert Quantile("log_pm", 0.5, above=-3.0).level == -3.0
    assert median(patience=np.int64(2)).patience == 2
    active = torch.tensor([[[True, True, False, False]]])
    values = {"clearance": [0.9, 0.05, 0.0, 0.0], "fidelity": [0.8, 0.0, 0.0, 0.0]}
    values |= {"bleed_db": [NAN, NAN, -20.0, NAN]}
    fields = {name: torch.tensor([[levels]]) for name, levels in values.items()}
    fields["clearance_defined"] = active
    fields["fidelity_defined"] = active & (fields["fidelity"] > 0.0)
    fields["bleed_defined"] = ~fields["bleed_db"].isnan()
    scores = Scores(active, torch.arange(4), ("decomposition", "bleed"), **fields)
    rules = Quantile("clearance", 0.0, below=0.1), Quantile("fidelity", 0.5, above=0.7)
    trigger = FrameTrigger(*rules, Trend("bleed_db", span=2, below=0.5))
    assert trigger.update(scores) is None  # no slope yet
    event = trigger.update(scores)
    assert event.frames == {"clearance": 2, "fidelity": 1, "bleed_db": 1}
    assert "slope of mean bleed (dB) over 2 epochs is" in str(event)
    with pytest.raises(ValueError, match="not computed"):
        median().update(scores)


@pytest.mark.parametrize("at", range(1, 9))
def test_a_saved_trigger_goes_on_as_if_never_stopped(at):
    def make() -> FrameTrigger:
        rules = Quantile("ps", 0.25, above=0.6), Trend("ps", span=2, above=-0.2)
        return FrameTrigger(*rules, patience=2, hysteresis=0.05, cooldown=1, smoothing=0.2)

    levels = [0.5, 0.65, 0.58, 0.7, NAN, 0.9, 0.92, 0.93, 0.95, 0.94]
    uninterrupted = make()
    fired = run(uninterrupted, levels)
    assert len(fired) >= 2  # else the test says little
    stopped, resumed = make(), make()
    before = run(stopped, levels[:at])
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert before + [at + epoch for epoch in run(resumed, levels[at:])] == fired
    assert resumed.events == uninterrupted.events
    assert resumed.state_dict() == uninterrupted.state_dict()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quantile("sdr", 0.5, above=1.0), "measure"),
        (lambda: Quantile("ps", 1.5, above=1.0), "q must"),
        (lambda: Quantile("ps", 0.5), "above and below"),
        (lambda: Quantile("ps", 0.5, above=0.1, below=0.2), "above and below"),
        (lambda: Quantile("ps", 0.5, above=NAN), "level"),
        (lambda: Quantile("clearance", 0.25, above=80.0), "level"),
        (lambda: Fraction("ps", 0.5, above=50), "level"),
        (lambda: Fraction("ps", 80.0, above=0.5), "over"),
        (lambda: Trend("ps", span=1, above=0.0), "span"),
        *((lambda n=n: median(patience=n), "patience") for n in (0, 1.5)),
        *((lambda x=x: median(hysteresis=x), "hysteresis") for x in (-0.1, "a")),
        (lambda: median(smoothing=1.0), "smoothing"),
        (lambda: median(require="most"), "require"),
        (lambda: FrameTrigger(*[Quantile("ps", 0.5, above=a) for a in (0.1, 0.2)]), "same statist"),
        (lambda: FrameTrigger(), "Quantile, Fraction or Trend"),
        (lambda: FrameTrigger("ps > 0.7"), "Quantile, Fraction or Trend"),
        (
            lambda: median(patience=2).load_state_dict(median().state_dict()),
            "a trigger with patience=1; this one has patience=2. All other settings match",
        ),
        (lambda: median().load_state_dict({}), "must be what"),
        *((lambda x=x: median().update(x), "scores") for x in (None, [{}], torch.ones(3))),
    ],
)
def test_invalid_settings_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_refused_batch_leaves_nothing_behind():
    trigger = FrameTrigger(Quantile("ps", 0.5, above=0.5), Quantile("pm", 0.5, above=0.5))
    with pytest.raises(KeyError, match="pm"):
        trigger.observe({"ps": [0.9] * 10})
    trigger.observe({"ps": [0.1], "pm": [0.9]})
    assert trigger.step() is None


def test_epochs_of_the_cooldown_are_forgotten():
    """Two epochs after the cooldown make a slope."""
    trigger = FrameTrigger(Trend("ps", span=2, above=0.05), cooldown=2)
    fired = [trigger.update({"ps": [v]}) is not None for v in (0.1, 0.2, 0.3, 0.5, 0.6, 0.7)]
    assert fired == [False, True, False, False, False, True]

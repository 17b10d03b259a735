"""Plots of metrics."""

from __future__ import annotations

import math

import pytest
from stub_scorers import leaking_pair, stub_scorer

from torch_mapss import Clearance, PerceptualMatch, PerceptualSeparation, SourceScores


def test_plots() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = dict(matplotlib.rcParams)
    mapss, (preds, target) = stub_scorer(), leaking_pair(1)
    target[0, :, 2400:] = 0.0
    plotted = {}
    for name, metric in {
        "pair": Clearance(mapss),
        "frames": PerceptualSeparation(mapss, reduction="none"),
        "log": PerceptualMatch(mapss, log=True),
        "pesq": PerceptualSeparation(mapss, reduction="pesq"),
        "source": PerceptualSeparation(mapss, reduction="source"),
    }.items():
        value = metric(preds.requires_grad_(), target)
        figure, plotted[name] = metric.plot()
        assert isinstance(figure, pyplot.Figure)
        axes = pyplot.subplots()[1]
        assert name == "frames" or metric.plot([value, value], axes)[1] is axes
    assert plotted["pair"].get_ylabel() == "clearance"
    assert plotted["pair"].get_ylim() == (0.0, 1.0)
    axes = plotted["frames"]
    assert (axes.get_xlabel(), axes.get_ylim()) == ("time (s)", (0.0, 1.0))
    times, values = axes.lines[0].get_data()
    assert times[0] == pytest.approx(0.05)  # the middle of the first 100 ms
    assert math.isnan(values[-1])
    assert plotted["log"].get_ylabel() == "log PM"
    assert plotted["log"].get_ylim()[1] == 0.0
    log = PerceptualMatch(mapss, log=True)
    assert (log.plot_lower_bound, log.plot_upper_bound) == (None, 0.0)
    assert plotted["pesq"].get_ylim() == (1.085, 1.315)
    legend = plotted["source"].get_legend().get_texts()
    assert [t.get_text() for t in legend] == ["Source 0", "Source 1"]
    scores = SourceScores(mapss)
    means = [scores(preds, target) for _ in range(3)]
    axes = scores.plot(means)[1]
    assert axes.get_ylim() == (0.0, 1.0)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["clearance", "fidelity", "PS", "PM"]
    assert len(axes.lines[0].get_xdata()) == 3
    pyplot.close("all")
    assert dict(matplotlib.rcParams) == style

"""Plots and documentation.

Shapes stated in the documentation: test_docs. No display, nothing global: test_plots.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from edge import leaky, voices
from separations import environment

import torch_mapss
from torch_mapss import PerceptualMatch, PerceptualSeparation, evaluate
from torch_mapss.evaluation import plots

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure


@pytest.mark.parametrize("metric_class", [PerceptualSeparation, PerceptualMatch])
def test_a_metric_plots_one_value_a_list_and_a_given_axis(mapss, metric_class):
    import matplotlib

    matplotlib.use("Agg")
    before = dict(matplotlib.rcParams)
    metric = metric_class(mapss)
    metric.update(leaky(voices()), voices())
    given = Figure().subplots()
    for values in (None, torch.tensor(0.4), [torch.tensor(0.4), torch.tensor(0.6)]):
        _, ax = metric.plot(values)
        assert "0 to 1" in ax.get_ylabel() + ax.get_title()
        low, high = ax.get_ylim()
        assert low <= 0.0
        assert high >= 1.0
    _, ax = metric.plot(torch.tensor(0.4), ax=given)
    assert ax is given
    assert dict(matplotlib.rcParams) == before
    matplotlib.pyplot.close("all")


def test_frame_scores_with_a_graph_and_gaps():
    values = torch.rand(6).requires_grad_() * 1.0
    holes = values.masked_fill(torch.tensor([0, 0, 1, 0, 0, 0]).bool(), torch.nan)
    ax = plots.plot_scores(0.0125 + 0.02 * torch.arange(6), holes)
    (line,) = [line for line in ax.lines if len(line.get_xdata()) == 6]
    assert line.get_ydata()[2] != line.get_ydata()[2]
    assert "(s)" in ax.get_xlabel()
    assert ax.get_ylim() == (0.0, 1.0)


def test_docstrings_state_range_direction_meaning_shapes_and_rate():
    for metric in (PerceptualSeparation, PerceptualMatch):
        assert metric.higher_is_better is True
        assert (metric.plot_lower_bound, metric.plot_upper_bound) == (0.0, 1.0)
        text = metric.__doc__ or ""
        assert "[0, 1]" in text
        assert "higher is better" in text
    assert "leakage" in (PerceptualSeparation.__doc__ or "")
    assert "undistorted" in (PerceptualMatch.__doc__ or "")
    for thing in (torch_mapss.MAPSS.forward, torch_mapss.MAPSSLoss.forward, PerceptualSeparation):
        text = thing.__doc__ or ""
        assert "(B, S', T)" in text
        assert "(B, S, T)" in text
    assert "16 kHz" in (PerceptualSeparation.__doc__ or "")


def test_help_states_range_direction_and_meaning():
    done = subprocess.run(
        [sys.executable, "-m", "torch_mapss", "score", "--help"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    text = " ".join(done.stdout.split())
    for words in ("0 to 1", "higher is better", "leakage", "--references", "--estimates", "mean"):
        assert words in text


def test_the_summary_states_counts_and_is_made_of_the_table(mapss):
    references = voices(1, 3)[0]
    references[2] = 0.0
    report = evaluate(estimates=leaky(voices(1, 3)[0]), references=references, mapss=mapss)
    rows = report.table()
    defined = [row["ps"] for row in rows if row["ps"] == row["ps"]]
    assert len(defined) == 2
    assert report.means()["ps"] == pytest.approx(sum(defined) / 2)
    summary = report.summary()
    assert "2 of 3 estimates have scored frames" in summary
    frames = report.ps[0][report.active[0]]
    assert rows[0]["ps"] == pytest.approx(float(frames.double().mean()), abs=1e-6)
    assert rows[0]["frames"] == len(frames)

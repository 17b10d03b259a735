"""Figures: axes, units, limits, gaps, and nothing global touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from separations import environment, leaky, small_mapss, sources

from torch_mapss import Report, evaluate
from torch_mapss.evaluation import plots

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

TIMES = 0.0125 + 0.02 * torch.arange(8)


@pytest.fixture(scope="module")
def report() -> Report:
    truth = sources(seconds=1.0)
    truth[1, 6000:9000] = 0.0  # frames in the middle in which the second source is silent
    return evaluate(
        estimates=leaky(truth),
        references=truth,
        mixture=truth.sum(0),
        names=["low", "high"],
        mapss=small_mapss(),
        bounds=True,
    )


def score_axes(figure: Figure) -> list[Any]:
    return [ax for ax in figure.axes if "0 to 1" in ax.get_ylabel()]


def test_frame_scores_with_gaps_and_gradients() -> None:
    values = torch.rand(8, requires_grad=True) * 0.5
    active = torch.tensor([1, 1, 0, 1, 1, 1, 0, 1], dtype=torch.bool)
    holes = values.clone()
    holes[4] = torch.nan
    ax = plots.plot_scores(TIMES, values, holes, active=active)
    ps, pm = (line for line in ax.lines if line.get_label() in ("PS", "PM"))
    np.testing.assert_allclose(ps.get_xdata(), TIMES.numpy())
    np.testing.assert_array_equal(np.isnan(ps.get_ydata()), ~active.numpy())
    assert np.isnan(pm.get_ydata()[4])
    # A frame between two gaps would be invisible as a line: it gets a dot.
    dots = [line for line in ax.lines if line.get_marker() == "."]
    assert [list(np.round(line.get_xdata(), 4)) for line in dots] == [
        [0.1525],
        [0.0725, 0.1125, 0.1525],
    ]
    assert ax.get_ylim() == (0.0, 1.0)
    assert "PS, PM" in ax.get_ylabel()
    assert ax.get_xlabel() == "time (s)"


def test_a_given_axis_is_used() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plots.plot_scores(TIMES, torch.rand(8), ax=right) is right
    assert plots.plot_values(0.5, "PM", ax=left) is left
    assert len(figure.axes) == 2
    assert right.lines
    assert left.lines


@pytest.mark.parametrize("values", [0.4, torch.tensor(0.4), [0.1, 0.4], torch.tensor([0.1, 0.4])])
def test_values_alone_or_in_a_list(values: Any) -> None:
    ax = plots.plot_values(values, "PM")
    drawn = ax.lines[0].get_ydata()
    assert list(drawn) == pytest.approx([0.4] if np.ndim(values) == 0 else [0.1, 0.4])
    assert ax.get_ylim() == (0.0, 1.0)
    assert "PM" in ax.get_ylabel()
    assert ax.get_xlabel() == ("" if np.ndim(values) == 0 else "step")


def test_bands_stay_within_the_range() -> None:
    ax = plots.plot_scores(TIMES, torch.full((8,), 0.9), ps_total=torch.full((8,), 0.3))
    outline = ax.collections[0].get_paths()[0].vertices
    assert outline[:, 1].min() == pytest.approx(0.6)
    assert outline[:, 1].max() == 1.0


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"PS must have one value per frame, shape \(8,\)"):
        plots.plot_scores(TIMES, torch.rand(2, 8))


def test_report_has_scores_above_the_spectrogram_of_each_source(report: Report) -> None:
    figure = report.plot(title="A mixture")
    above = score_axes(figure)
    assert [ax.get_title("left") for ax in above] == ["low", "high"]
    assert figure.axes[0].get_title("left") == "mixture"
    pictures = [ax for ax in figure.axes if ax.images]
    assert len(pictures) == 3
    assert all(ax.get_ylabel() == "kHz" for ax in pictures)
    limits = {ax.get_xlim() for ax in figure.axes}
    assert limits == {(0.0, 1.0)}
    assert figure.axes[-1].get_xlabel() == "time (s)"
    for ax in above:
        assert ax.get_ylim() == (0.0, 1.0)
        line = next(line for line in ax.lines if line.get_label() == "PS")
        gap = np.isnan(line.get_ydata())
        assert gap[(times_in(line) > 0.40) & (times_in(line) < 0.54)].all()
        assert not gap.all()
        assert len(ax.collections) == 2  # a band each
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["PS: 1 = no leakage", "PM: 1 = undistorted"]


def times_in(line: Any) -> Any:
    return np.asarray(line.get_xdata())


def test_spectrogram_and_scores_share_the_time_axis() -> None:
    wave = torch.zeros(16_000)
    wave[8000:8160] = 1.0  # at 0.5 s
    ax = Figure().add_subplot()
    plots.draw_spectrogram(ax, wave, 16_000)
    picture = ax.images[0]
    left, right, bottom, top = picture.get_extent()
    data = np.asarray(picture.get_array())
    column = data.max(0).argmax()
    width = (right - left) / data.shape[1]
    assert left + (column + 0.5) * width == pytest.approx(0.505, abs=0.01)
    assert (bottom + top) / 2 == pytest.approx(4.0, abs=0.05)
    assert data.min() >= -70.0
    assert data.max() == 0.0


def test_several_reports_side_by_side(report: Report) -> None:
    figure = plots.plot_reports([report, report], titles=["one", "two $x$"])
    assert len(score_axes(figure)) == 2  # labelled once, in the first column
    assert len(figure.axes) == 10
    texts = [child.get_text() for ax in figure.axes for child in ax.texts]
    assert texts == ["one", r"two \$x\$"]
    other = evaluate(
        estimates=sources(seconds=0.1), references=sources(seconds=0.1), mapss=small_mapss(2)
    )
    with pytest.raises(ValueError, match="same sources"):
        plots.plot_reports([report, other])


def test_figures_are_written_by_suffix(tmp_path: Path, report: Report) -> None:
    figure = report.plot(tmp_path / "new" / "a.pdf")
    assert (tmp_path / "new" / "a.pdf").read_bytes().startswith(b"%PDF")
    plots.save_figure(figure, tmp_path / "plain")
    assert (tmp_path / "plain.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="'wav'"):
        plots.save_figure(figure, tmp_path / "a.wav")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "plain.png"]


def test_a_given_figure_is_filled(report: Report) -> None:
    figure = Figure(figsize=(4, 4))
    assert report.plot(figure=figure) is figure
    assert len(figure.axes) == 5


@pytest.mark.slow
def test_nothing_global_changes_and_no_display_is_needed(tmp_path: Path) -> None:
    code = (
        "import sys, torch, matplotlib\n"
        "before = dict(matplotlib.rcParams)\n"
        "from torch_mapss.evaluation import plots\n"
        "ax = plots.plot_scores(torch.arange(3.0), torch.rand(3))\n"
        "plots.save_figure(ax.figure, sys.argv[1])\n"
        "assert dict(matplotlib.rcParams) == before\n"
        "print('matplotlib.pyplot' in sys.modules)\n"
    )
    # A backend that needs a display which is not there.
    env = environment(MPLBACKEND="TkAgg", DISPLAY="")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.png")],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "False", done.stderr
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_without_matplotlib_the_plot_names_the_extra(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install torch_mapss\[plot\]"):
        report.plot()
    with pytest.raises(ImportError, match=r"pip install torch_mapss\[plot\]"):
        plots.plot_values([0.5])


def test_no_report_is_told() -> None:
    with pytest.raises(ValueError, match="at least one"):
        plots.plot_reports([])


def test_a_long_name_leaves_room_for_the_means() -> None:
    ax = plots.new_figure(4.0, 2.0).add_subplot()
    plots._name(ax, "folder/" * 20 + "the end", 40)
    title = ax.get_title(loc="left")
    assert len(title) == 40
    assert title.endswith("the end")

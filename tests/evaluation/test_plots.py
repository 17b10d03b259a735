"""Figures: axes, units, limits, gaps, shown in notebooks, and nothing global touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from separations import environment, python, small_mapss, write_manifest
from waveforms import leaky, tones

from torch_mapss import Report, evaluate, evaluate_set
from torch_mapss.evaluation import plots
from torch_mapss.evaluation.correlate import correlate_table
from torch_mapss.evaluation.report import plot_reports

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnchoredOffsetbox

TIMES = 0.0125 + 0.02 * torch.arange(8)


@pytest.fixture(scope="module")
def report() -> Report:
    truth = tones(seconds=1.0)
    truth[1, 6000:9000] = 0.0  # frames in the middle in which the second source is silent
    options = {"references": truth, "mixture": truth.sum(0), "names": ["low", "high"]}
    return evaluate(estimates=leaky(truth), **options, mapss=small_mapss(), bounds=True)


def score_axes(figure: Figure) -> list[Any]:
    return [ax for ax in figure.axes if "PS" in ax.get_ylabel()]


def means_above(ax: Any) -> list[str]:
    """The names and means written above the axes of scores."""
    boxes = [artist for artist in ax.artists if isinstance(artist, AnchoredOffsetbox)]
    return [area.get_text() for box in boxes for area in box.get_child().get_children()]


def ranking_of(values: pandas.DataFrame, measure: str) -> pandas.DataFrame:
    """The columns that the figures of a comparison read."""
    means = values.mean()
    columns = {"measure": measure, "system": values.columns, "n": len(values), "mean": means}
    columns |= {"low": means - 0.01, "high": means + 0.01, "group": "a", "note": ""}
    return pandas.DataFrame(columns)


def test_axes_are_where_the_points_are():
    near = pandas.DataFrame({"a": [0.91, 0.93], "b": [0.95, 0.96]})
    low, high = (
        plots.system_boxes({"ps": near}, ranking_of(near, "ps"), "ps", "95 %").axes[0].get_ylim()
    )
    assert 0.88 < low < 0.91
    assert 0.96 < high < 1.02
    ceiling = pandas.DataFrame({"a": [1.0, 1.0]})
    figure = plots.system_boxes({"ps": ceiling}, ranking_of(ceiling, "ps"), "ps", "95 %")
    low, high = figure.axes[0].get_ylim()
    assert low < 1.0 < high < 1.02
    tables = {"ps": near, "log_pm": pandas.DataFrame({"a": [-8.0, -9.0], "b": [-11.0, -12.0]})}
    ranking = pandas.concat([ranking_of(table, name) for name, table in tables.items()])
    (ax,) = plots.system_scatter(tables, ranking, "ps", "log_pm", "95 %").axes
    assert ax.get_yscale() == "linear"  # one decade has enough labels
    assert -13.0 < ax.get_ylim()[0] < -12.0
    assert not any(line.get_visible() for line in [*ax.get_xgridlines(), *ax.get_ygridlines()])
    tables["log_pm"] *= [1.0, 1000.0]
    (ax,) = plots.system_scatter(tables, ranking, "ps", "log_pm", "95 %").axes
    assert ax.get_yscale() == "symlog"


def test_a_column_without_a_mixture_has_no_empty_axes(report):
    figure = plot_reports([report, replace(report, mixture=None)], ["one", "two"])
    assert [ax.axison for ax in figure.axes[:2]] == [True, False]


def test_tracks_of_a_correlation_have_a_legend():
    rated = pandas.DataFrame({"track": ["t1"] * 3 + ["t2"] * 3, "system": [*"abc"] * 2})
    rated = rated.assign(rating=[1, 2, 3, 2, 1, 3], ps=[0.91, 0.93, 0.95, 0.92, 0.9, 0.96])
    figure = correlate_table(rated, draws=0).plot()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["t1", "t2"]
    assert figure.axes[0].get_xlim()[0] > 0.85
    colors = {line.get_color() for line in figure.axes[0].lines}
    assert len(colors) == 2


def test_frame_scores_with_gaps_bands_and_gradients():
    values = torch.rand(8, requires_grad=True) * 0.5
    holes = values.masked_fill(torch.tensor([0, 0, 1, 0, 1, 0, 1, 0]).bool(), torch.nan)
    ax, ax_of_gradients = Figure().subplots(1, 2)
    widths = {"ps": torch.full((8,), 0.7)}
    plots.plot_scores(ax, TIMES, {"ps": values, "pm": holes}, widths)
    unbroken, broken = ax.lines
    np.testing.assert_allclose(unbroken.get_xdata(), TIMES.numpy())
    np.testing.assert_array_equal(np.isnan(broken.get_ydata()), holes.isnan().numpy())
    assert broken.get_marker() == "."  # a frame between two gaps would be invisible as a line
    outline = ax.collections[0].get_paths()[0].vertices  # a band stays within the range
    assert (outline[:, 1].min(), outline[:, 1].max() <= 1.0) == (0.0, True)
    assert (ax.get_ylim(), ax.get_ylabel(), ax.get_xlabel()) == ((0, 1), "PS\nPM", "time (s)")
    plots.plot_scores(ax_of_gradients, TIMES, {"pm": holes})  # alone it keeps its colour
    assert ax_of_gradients.lines[0].get_color() == broken.get_color() != unbroken.get_color()


def test_report_has_scores_above_the_spectrogram_of_each_source(report):
    figure = report.plot(title="A mixture")
    titles = [ax.get_title("left") for ax in figure.axes]
    assert [title for title in titles if title] == ["low", "high"]
    names = [text.get_text() for ax in figure.axes if ax.images for text in ax.texts[:1]]
    assert names == ["mixture", "estimate", "estimate"]
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [
        "leakage, 1 is best: clearance, PS",
        "distortion, 1 is best: fidelity, PM; gaps: not defined",
    ]
    assert [ax.get_ylabel() for ax in figure.axes if ax.images] == ["kHz"] * 3
    assert {ax.get_xlim() for ax in figure.axes} == {(0.0, 1.0)}
    assert figure.axes[-1].get_xlabel() == "time (s)"
    for ax in score_axes(figure):
        line = next(line for line in ax.lines if line.get_label() == "PS")
        gap = np.isnan(line.get_ydata())
        assert 0 < gap.sum() < len(gap) / 2
        assert ax.collections  # bounds are drawn as bands
    row = report.rows[0]
    assert means_above(figure.axes[2]) == [f"PS {row.ps:.3f}", f"PM {row.pm:.3f}"]
    prepared = Figure(figsize=(4, 4))
    assert report.plot(figure=prepared) is prepared
    assert len(prepared.axes) == len(figure.axes)


def test_the_spectrogram_lies_where_the_sound_is():
    wave = torch.zeros(16_000)
    wave[8000:8160] = 1.0  # at 0.5 s
    ax = Figure().add_subplot()
    plots.draw_spectrogram(ax, wave, 16_000)
    left, right, bottom, top = ax.images[0].get_extent()
    data = np.asarray(ax.images[0].get_array())
    width = (right - left) / data.shape[1]
    assert left + (data.max(0).argmax() + 0.5) * width == pytest.approx(0.505, abs=0.01)
    assert (bottom + top) / 2 == pytest.approx(4.0, abs=0.05)
    assert -70.0 <= data.min() < data.max() == 0.0


def test_several_reports_side_by_side(report):
    figure = plot_reports([report, report], ["one", "two $x$"])
    assert len(score_axes(figure)) == 2  # labelled once, in the first column
    texts = [text.get_text() for ax in figure.axes[:2] for text in ax.texts]
    assert [text for text in texts if text != "mixture"] == ["one", r"two \$x\$"]
    name = "folder/" * 20 + "the end"  # leaves room for the means
    references = [clip._replace(name=name) for clip in report.references]
    figure = replace(report, references=references).plot()
    title = figure.axes[1].get_title(loc="left")
    assert (len(title), title[-7:]) == (40, "the end")


def test_figures_are_written_by_suffix(tmp_path, report):
    figure = report.plot(tmp_path / "new" / "a.pdf", figure=Figure(figsize=(2.0, 2.0)))
    plots.save_figure(figure, tmp_path / "plain")
    with pytest.raises(ValueError, match="'wav'"):
        plots.save_figure(figure, tmp_path / "a.wav")
    files = {path.name: path.read_bytes()[:4] for path in tmp_path.rglob("*.p*")}
    assert files == {"a.pdf": b"%PDF", "plain.png": b"\x89PNG"}


@pytest.mark.slow
def test_nothing_global_changes_and_no_display_is_needed(tmp_path):
    code = (
        "import sys, torch, matplotlib\nbefore = dict(matplotlib.rcParams)\n"
        "from torch_mapss.evaluation import plots\nfigure = plots.new_figure(4, 2)\n"
        "plots.plot_scores(figure.subplots(), torch.arange(3.0), {'ps': torch.rand(3)})\n"
        "plots.save_figure(figure, sys.argv[1])\nassert dict(matplotlib.rcParams) == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    env = {"MPLBACKEND": "TkAgg", "DISPLAY": ""}  # needs a display which is not there
    python("-c", code, str(tmp_path / "a.png"), changes=env)
    assert (tmp_path / "a.png").stat().st_size > 1000


CELLS = """
import torch, torch_mapss
waves = torch.randn(2, 8000, generator=torch.Generator().manual_seed(0))
torch_mapss.evaluate(estimates=waves.flip(0) + waves, references=waves, encoder="mel").plot()
---
torch_mapss.compare({folder!r}).plot("ps")
"""


@pytest.mark.slow
def test_a_notebook_shows_the_picture(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    evaluate_set(write_manifest(tmp_path, 2), out=tmp_path / "out", mapss=small_mapss())
    texts = CELLS.format(folder=str(tmp_path / "out")).split("---")
    cells = [nbformat.v4.new_code_cell(text) for text in texts]
    book = nbformat.v4.new_notebook(cells=cells)
    client.NotebookClient(book, kernel_name="python3", timeout=120).execute(env=environment())
    for cell in book.cells:
        shown = [output for output in cell.outputs if output["output_type"] == "execute_result"]
        assert [bool(output["data"].get("image/png")) for output in shown] == [True]

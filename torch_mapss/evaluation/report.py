"""Files or arrays -> a report of one mixture: to print, to save, to plot.

From frames to one number, in this order:

1. *frame*: PS and PM of every estimate, defined where its source and at least one other is active;
2. *source*: the mean over the defined frames of one estimate (PS also in the paper's pooling);
3. *item*: the mean over the estimates of one mixture;
4. *set*: the mean over mixtures, see :mod:`torch_mapss.evaluation.manifest`.

An undefined number (no defined frame) is NaN where it stands, left out of the next mean, and
counted.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss.evaluation import files
from torch_mapss.evaluation.clips import Clip
from torch_mapss.evaluation.inspection import Finding
from torch_mapss.evaluation.measures import RANK, columns_of, rank_meaning
from torch_mapss.pipeline.scores import ScoreBounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torch_mapss.evaluation.plots import Panel

MEANINGS = (
    "PS, Perceptual Separation: 0..1, higher is better, 1 = no leakage from the other sources.",
    "PM, Perceptual Match: 0..1, higher is better, 1 = undistorted. log PM <= 0 keeps ranking "
    "where PM is 0.",
    "PS pooled: the paper's PESQ-like pooling of PS over time, 1.085..1.315.",
)
_FRAME_COLUMNS = ("source", "frame", "time_s", "active")
_BOUNDS = ("radius", "tail", "total")


class SourceRow(NamedTuple):
    """One estimate in numbers; NaN where undefined."""

    source: str  # name of the reference it was scored against
    source_index: int  # which reference that is
    estimate: str  # path, or a name if it came as an array
    reference: str
    ps: float  # mean over its scored frames, [0, 1]
    pm: float  # the same
    log_pm: float  # mean of logs, <= 0
    log_pm_median: float  # median over its scored frames: a few dead frames do not move it
    ps_pesq: float  # paper's pooling, [1.085, 1.315]
    attributed_distance: float  # mean A, to the source's own cluster (PS graph)
    foreign_distance: float  # mean B, to the closest other one
    log_foreign_distance: float  # mean log B
    frames: int  # scored
    total_frames: int
    muted_frames: int  # of the scored ones: the estimate lies 80 dB below its peak throughout
    silent: bool  # the estimate holds no sound at all
    lag_ms: float  # how late the estimate is, by cross-correlation; NaN: cannot be told
    shift_ms: float  # how much of that was removed, see ``align``
    estimate_rate: int  # Hz, as handed over
    reference_rate: int
    estimate_bandwidth: float  # Hz, where its spectrum ends, at most half the encoder's rate
    reference_bandwidth: float
    ps_radius: float | None = None  # of ps: truncation error; None: bounds not asked for
    ps_tail: float | None = None  # of ps: half-width at the confidence asked for
    pm_radius: float | None = None
    pm_tail: float | None = None
    ps_pesq_radius: float | None = None
    ps_pesq_tail: float | None = None
    pm_rank: float | None = None  # mean rank form of PM, (0, 1]; None unless conformal
    separation_dimension: float | None = None  # mean d of PS's maps over the scored frames
    match_dimension: float | None = None  # the same of PM's


@dataclass(frozen=True, eq=False)  # two reports hold tensors, which have no one truth
class Report:
    """Scores of one mixture and everything needed to read, redo and plot them.

    Per frame: S' estimates, F frames. Numbers are NaN in frames that are not scored (the source
    is silent, or no other source is active).
    """

    estimates: tuple[Clip, ...]  # S', waveforms at ``sample_rate``
    references: tuple[Clip, ...]  # S
    attributed: tuple[int, ...]  # S', which reference each estimate was scored against
    times: Tensor  # (F,) seconds, centre of the encoder's receptive field
    active: Tensor  # (S', F) bool: the frame is scored
    ps: Tensor  # (S', F) in [0, 1], 1: no leakage
    pm: Tensor  # (S', F) in [0, 1], 1: undistorted
    log_pm: Tensor  # (S', F) <= 0
    attributed_distance: Tensor  # (S', F) A of PS = B/(A + B)
    foreign_distance: Tensor  # (S', F) B
    rows: tuple[SourceRow, ...]  # utterance scores, one per estimate
    sample_rate: int  # Hz, of the waveforms that were scored
    settings: Mapping[str, Any]  # all that the scores depend on
    versions: Mapping[str, str]  # of the packages that made them
    notes: tuple[str, ...] = ()  # what was done to the input: downmix, resampling, trimming
    findings: tuple[Finding, ...] = ()  # what a reader of the scores must know
    device: str = "cpu"  # that it was computed on
    bounds: ScoreBounds | None = field(default=None, repr=False)  # (1, S', F), if asked for
    mixture: Clip | None = field(default=None, repr=False)  # for the plot, if given
    pm_rank: Tensor | None = None  # (S', F) in (0, 1], rank form of PM; None unless conformal

    @property
    def sources(self) -> tuple[str, ...]:
        """(S',) name of the source of each estimate: of its reference."""
        return tuple(self.references[index].name for index in self.attributed)

    def table(self) -> list[dict[str, Any]]:
        """One row per estimate as dictionaries, e.g. for ``pandas.DataFrame``.

        ``pm_rank`` is in them in the conformal convention alone.
        """
        rows = [row._asdict() for row in self.rows]
        columns = columns_of(SourceRow._fields, rows)
        return [{name: row[name] for name in columns} for row in rows]

    def means(self) -> dict[str, float]:
        """The item's scores: means (medians of medians) over the estimates with one, else NaN."""
        names = MEANS if self.pm_rank is None else (*MEANS, RANK)
        found = {name: mean([getattr(row, name) for row in self.rows]) for name in names}
        return found | {name: median([getattr(row, name) for row in self.rows]) for name in MEDIANS}

    def summary(self) -> str:
        """A table to print, with counts, what the numbers mean, and what was done to the input."""
        lines = [files.text_table(*_summary_table(self)), "", _counts(self), *MEANINGS]
        if self.pm_rank is not None:
            lines += files.wrapped(rank_meaning(self.settings))
        if self.bounds is not None:
            lines += half_widths(self.bounds.confidence)
            if self.pm_rank is not None:
                lines.append("PM has no ±: its rank needs no half-width, and none is stated.")
        lines += [f"Warning: {finding.text}." for finding in self.findings]
        lines += [f"Note: {note}." for note in self.notes]
        return "\n".join([*lines, f"Computed on {self.device}."])

    def meanings(self) -> tuple[str, ...]:
        """What its measures mean, a sentence each."""
        ranked = self.pm_rank is not None
        return (*MEANINGS, rank_meaning(self.settings)) if ranked else MEANINGS

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        """Five lines: what was scored, the means, what to know, where to go on."""
        means = self.means()
        known = ", ".join(dict.fromkeys(finding.kind for finding in self.findings)) or "none"
        return (
            f"Report({len(self.rows)} estimates, {len(self.references)} references, "
            f"{len(self.times)} frames at {self.sample_rate} Hz)\n"
            f"  mean over estimates: PS {number(means['ps'])}, PM {number(means['pm'])}, "
            f"log PM {number(means['log_pm'], '.2f')}\n"
            f"  scored: {sum(row.frames > 0 for row in self.rows)} of {len(self.rows)} estimates\n"
            f"  warnings: {known}\n"
            "  print(report), report.table(), .means(), .save(folder), .plot()"
        )

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        columns, rows, left = _summary_table(self)

        def line(cells: Sequence[str], tag: str) -> str:
            made = (
                f'<{tag} align="{"left" if k < left else "right"}">{escape(cell)}</{tag}>'
                for k, cell in enumerate(cells)
            )
            return f"<tr>{''.join(made)}</tr>"

        body = "".join(line(row, "td") for row in rows)
        told = "".join(f"<p>Warning: {escape(finding.text)}.</p>" for finding in self.findings)
        head = f"<thead>{line(columns, 'th')}</thead>"
        return f"<table>{head}<tbody>{body}</tbody></table><p>{escape(_counts(self))}</p>{told}"

    def save(self, folder: str | os.PathLike[str]) -> str:
        """Write ``scores.csv``, ``ps.csv``, ``pm.csv`` and ``report.json`` to a folder.

        ``ps.csv`` and ``pm.csv`` have one row per source and frame: time, score, active, and
        bounds if there are any; ``pm.csv`` log PM and, if conformal, PM's rank as well. Each file
        is replaced in one step; UTF-8, ``nan`` for undefined (``null`` in the JSON).

        Args:
            folder: is created with its parents if need be.

        Returns:
            The folder.

        Raises:
            ValueError: ``folder`` is a file, or cannot be made.
        """
        folder = files.make_folder(folder)
        rows = self.table()
        columns = columns_of(SourceRow._fields, rows)
        files.write_csv(os.path.join(folder, "scores.csv"), columns, rows)
        for measure in ("ps", "pm"):
            files.write_csv(os.path.join(folder, f"{measure}.csv"), *self.frame_table(measure))
        files.write_json(os.path.join(folder, "report.json"), self.as_dict())
        return folder

    def frame_table(self, measure: str) -> tuple[list[str], list[dict[str, Any]]]:
        """Columns and rows of ``"ps"`` or ``"pm"``, one row per source and frame."""
        if measure not in ("ps", "pm"):
            raise ValueError(f"measure must be 'ps' or 'pm', got {measure!r}.")
        extra = ["attributed_distance", "foreign_distance"]
        if measure == "pm":
            extra = ["log_pm"] if self.pm_rank is None else ["log_pm", RANK]
        values = {name: getattr(self, name).tolist() for name in (measure, *extra)}
        if self.bounds is not None:
            part = getattr(self.bounds, measure)
            for name in _BOUNDS:
                hidden = torch.where(self.active, getattr(part, name)[0], torch.nan)
                values[f"{measure}_{name}"] = hidden.tolist()
        times, active = self.times.tolist(), self.active.tolist()
        rows = [
            {"source": name, "frame": frame, "time_s": time, "active": active[place][frame]}
            | {column: numbers[place][frame] for column, numbers in values.items()}
            for place, name in enumerate(self.sources)
            for frame, time in enumerate(times)
        ]
        return [*_FRAME_COLUMNS, *values], rows

    def as_dict(self) -> dict[str, Any]:
        """Everything but the frames, in plain types."""
        return {
            "scores": self.table(),
            "means": self.means(),
            "settings": dict(self.settings),
            "versions": dict(self.versions),
            "notes": list(self.notes),
            "warnings": [finding._asdict() for finding in self.findings],
            "device": self.device,
            "measures": list(self.meanings()),
        }

    def panel(self, title: str = "") -> Panel:
        """What :meth:`plot` draws, as arrays and names: reports side by side are drawn of these."""
        from torch_mapss.evaluation.plots import AXES, Panel

        labels = {name: label for names in AXES for name, label in names.items()}
        scores = {
            name: found for name in labels if (found := getattr(self, name, None)) is not None
        }
        parts = {name: getattr(self.bounds, name, None) for name in scores}
        captions = [
            ", ".join(f"{labels[name]} {getattr(row, name):.2f}" for name in scores)
            if row.frames
            else "not scored"
            for row in self.rows
        ]
        return Panel(
            sources=self.sources,
            times=self.times,
            scores=scores,
            half_widths={name: part.total[0] for name, part in parts.items() if part is not None},
            waves=[clip.wave for clip in self.estimates],
            sample_rate=self.sample_rate,
            captions=captions,
            mixture=None if self.mixture is None else self.mixture.wave,
            title=title,
        )

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        figure: Figure | None = None,
        title: str | None = None,
    ) -> Figure:
        """PS and PM of every source over time, above the spectrogram of its estimate.

        Frames that are not scored stay blank; bounds, if there are any, are bands. Needs
        matplotlib (``pip install torch_mapss[plot]``), but no display, and leaves its global
        state alone.

        Args:
            path: write the figure there (PNG, PDF, SVG, by suffix).
            figure: draw into this empty figure (or subfigure) instead of a new one.
            title: of the figure.

        Returns:
            The figure.

        Raises:
            ImportError: matplotlib is missing.
        """
        from torch_mapss.evaluation.plots import plot_panels, save_figure

        drawn = plot_panels([self.panel(title or "")], figure=figure)
        if path is not None:
            save_figure(drawn, path)
        return drawn


#: The columns that are averaged from estimates to items, and from items to the set.
MEANS = ("ps", "pm", "log_pm", "ps_pesq", "foreign_distance", "log_foreign_distance")
#: Those of which the median is taken instead, at each of these steps.
MEDIANS = ("log_pm_median",)


def half_widths(confidence: float) -> list[str]:
    """What ± means, and what it does not."""
    return [
        "±: a bound of the error of the frame scores, averaged: truncation radius + half-width at "
        f"{100 * confidence:g} % confidence,",
        "as clusters are made of a limited number of distortions. It is no sampling error over "
        "files.",
        "± of the means is the mean of those above: all are compared with the same distortions, so "
        "that their errors may go together.",
    ]


def median(values: Sequence[float]) -> float:
    """Median of the defined ones of ``values``, NaN if there is none."""
    found = [value for value in values if value == value]
    return statistics.median(found) if found else float("nan")


def mean(values: Sequence[float]) -> float:
    """Mean of the defined ones of ``values``, NaN if there is none."""
    found = [value for value in values if value == value]
    return sum(found) / len(found) if found else float("nan")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages at work; transformers only if it was used."""
    from importlib.metadata import PackageNotFoundError, version

    from torch_mapss import __version__

    found = {"torch_mapss": __version__, "python": sys.version.split()[0]}
    found["torch"] = str(torch.__version__)
    for name in ("torchaudio", "transformers"):
        if name in sys.modules:
            try:
                found[name] = version(name)
            except PackageNotFoundError:  # on the path, but not installed
                found[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    return found


# ------------------------------------------------------------------------------------------------
# Words
# ------------------------------------------------------------------------------------------------


def number(value: float | None, form: str = ".3f") -> str:
    """A score for people: a dash where it is undefined."""
    return "-" if value is None or value != value else format(value, form)


def _summary_table(report: Report) -> tuple[list[str], list[list[str]], int]:
    columns = ["source", "estimate", "PS", "PM", "log PM", "median", "PS pooled", "frames"]
    rows = [
        [row.source, clip.name, *score_cells(row._asdict()), f"{row.frames}/{row.total_frames}"]
        for row, clip in zip(report.rows, report.estimates)
    ]
    rows.append(["mean", "", *score_cells(report.means()), ""])
    if report.pm_rank is not None:
        ranks = [*(row.pm_rank for row in report.rows), report.means()[RANK]]
        _insert(columns, rows, "log PM", "PM rank", ranks)
    if report.bounds is not None:
        # The conformal convention states no half-width of PM.
        for name in ("PS", "PM") if report.pm_rank is None else ("PS",):
            found = [half_range(row, name.lower()) for row in report.rows]
            _insert(columns, rows, name, "±", [*found, mean(found)])
    return columns, rows, 2


def _insert(
    columns: list[str], rows: list[list[str]], behind: str, name: str, values: Sequence[Any]
) -> None:
    """Put a column of numbers behind another one."""
    place = columns.index(behind) + 1
    columns.insert(place, name)
    for row, value in zip(rows, values):
        row.insert(place, number(value))


def score_cells(values: Mapping[str, Any]) -> list[str]:
    """The scores of one line of a table for people: PS, PM, log PM, its median, PS pooled."""
    logs = (number(values[name], ".2f") for name in ("log_pm", "log_pm_median"))
    return [number(values["ps"]), number(values["pm"]), *logs, number(values["ps_pesq"])]


def half_range(row: SourceRow, measure: str) -> float:
    """± of ``"ps"`` or ``"pm"`` of an estimate: radius + half-width, NaN where undefined."""
    radius, tail = (getattr(row, f"{measure}_{part}") for part in ("radius", "tail"))
    return float("nan") if radius is None or tail is None else float(radius + tail)


def _counts(report: Report) -> str:
    defined = sum(row.frames > 0 for row in report.rows)
    text = (
        f"Means over frames, then over sources: {defined} of {len(report.rows)} estimates have "
        "scored frames"
    )
    silent = sum(row.silent for row in report.rows)
    if silent:
        text += f", {silent} {'is' if silent == 1 else 'are'} silent"
    sample = report.settings.get("sample_frames")
    return text + ("." if sample is None else f"; at most {sample} frames drawn at random.")

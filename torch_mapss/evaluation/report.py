"""Scores of one mixture: to print, to save, to plot.

From frames to one number, in this order:

1. *frame*: the scores of every estimate, defined where its source and at least one other is active
   (bleed: where its source is inactive and another one active);
2. *source*: pooled over the defined frames of one estimate;
3. *item*: the mean over the estimates of one mixture;
4. *set*: the mean over mixtures, see :mod:`torch_mapss.evaluation.run`.

An undefined number (no defined frame) is NaN where it stands, left out of the next mean, and
counted.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_mapss.evaluation import io, measures
from torch_mapss.evaluation.audio_input import Clip
from torch_mapss.evaluation.input_checks import Finding
from torch_mapss.evaluation.measures import COLUMNS, FRAME_SCORES
from torch_mapss.pipeline.scores import ScoreBounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torch_mapss.evaluation.plots import Panel

_BOUNDS = ("radius", "tail", "total")


class SourceRow(dict[str, Any]):
    """One estimate in numbers, NaN where undefined; ``row["ps"]`` or ``row.ps``.

    ``source`` (name of its reference), ``source_index``, ``estimate`` and ``reference`` (paths, or
    names of arrays); the scores of :data:`~torch_mapss.evaluation.measures.COLUMNS` that were
    computed, with ``_se`` (standard error over excerpts), ``_radius`` and ``_tail`` (of bounds)
    behind their names; ``separation_dimension``, ``match_dimension`` (mean d of the maps);
    ``frames`` (scored), ``total_frames``, ``muted_frames`` (scored ones in which the estimate lies
    80 dB below its peak); ``silent`` (bool); ``lag_ms`` (by cross-correlation), ``shift_ms`` (of
    it removed); ``estimate_rate``, ``reference_rate`` (Hz, as handed over);
    ``estimate_bandwidth``, ``reference_bandwidth`` (Hz, where the spectrum ends).
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{name!r} is no column; there are {', '.join(self)}") from None


@dataclass(frozen=True, eq=False)  # two reports hold tensors, which have no one truth
class Report:
    """Scores of one mixture and everything needed to read, redo and plot them.

    Per frame: S' estimates, F frames. Numbers are NaN in frames in which they are not defined;
    None stands for what was not computed.
    """

    estimates: tuple[Clip, ...]  # S', waveforms at ``sample_rate``
    references: tuple[Clip, ...]  # S
    attributed: tuple[int, ...]  # S', which reference each estimate was scored against
    times: Tensor  # (F,) seconds, centre of the encoder's receptive field
    active: Tensor  # (S', F) bool: the frame is scored
    rows: tuple[SourceRow, ...]  # utterance scores, one per estimate
    sample_rate: int  # Hz, of the waveforms that were scored
    settings: Mapping[str, Any]  # all that the scores depend on
    versions: Mapping[str, str]  # of the packages that made them
    clearance: Tensor | None = None  # (S', F) in [0, 1], 1: no leakage
    fidelity: Tensor | None = None  # (S', F) in [0, 1], 1: undistorted
    ps: Tensor | None = None  # (S', F) in [0, 1], 1: no leakage
    pm: Tensor | None = None  # (S', F) in [0, 1], 1: undistorted
    log_pm: Tensor | None = None  # (S', F) <= 0
    bleed_db: Tensor | None = None  # (S', F) dB, where the own source is silent and another is not
    attributed_distance: Tensor | None = None  # (S', F) A of PS = B/(A + B)
    foreign_distance: Tensor | None = None  # (S', F) B
    notes: tuple[str, ...] = ()  # what was done to the input: downmix, resampling, trimming
    findings: tuple[Finding, ...] = ()  # what a reader of the scores must know
    device: str = "cpu"  # that it was computed on
    bounds: ScoreBounds | None = field(default=None, repr=False)  # (1, S', F), if asked for
    mixture: Clip | None = field(default=None, repr=False)  # for the plot, if given
    errors: Mapping[str, float] = field(default_factory=dict)  # of the means, over excerpts

    @property
    def sources(self) -> tuple[str, ...]:
        """(S',) name of the source of each estimate: of its reference."""
        return tuple(self.references[index].name for index in self.attributed)

    @property
    def frames(self) -> dict[str, Tensor]:
        """The frame scores that were computed, by name."""
        found = {name: getattr(self, name) for name in FRAME_SCORES}
        return {name: values for name, values in found.items() if values is not None}

    def table(self) -> list[dict[str, Any]]:
        """One row per estimate as dictionaries, e.g. for ``pandas.DataFrame``."""
        return [dict(row) for row in self.rows]

    def means(self) -> dict[str, float]:
        """The item's scores: means over the estimates that have one, else NaN."""
        names = [name for name in COLUMNS if name in self.rows[0]]
        return {name: _mean([row[name] for row in self.rows]) for name in names}

    def summary(self) -> str:
        """A table to print, with counts, what the numbers mean, and what was done to the input."""
        lines = [io.text_table(*_summary_table(self)), "", _counts(self), *self.meanings()]
        if self.bounds is not None:
            lines += half_widths(self.bounds.confidence)
        lines += [f"Warning: {finding.text}." for finding in self.findings]
        lines += [f"Note: {note}." for note in self.notes]
        return "\n".join([*lines, f"Computed on {self.device}."])

    def meanings(self) -> list[str]:
        """What its scores mean, a sentence each."""
        names = measures.present(self.rows[0], ranked=True)
        return [f"{COLUMNS[name].meaning}." for name in names]

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        """Five lines: what was scored, the means, what to know, where to go on."""
        means, named = self.means(), measures.present(self.rows[0], ranked=True)
        told = ", ".join(f"{measures.label(n)} {measures.text(n, means[n])}" for n in named)
        known = ", ".join(dict.fromkeys(finding.kind for finding in self.findings)) or "none"
        return (
            f"Report({len(self.rows)} estimates, {len(self.references)} references, "
            f"{len(self.times)} frames at {self.sample_rate} Hz)\n"
            f"  mean over estimates: {told}\n"
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
        """Write ``scores.csv``, ``frames.csv`` and ``report.json`` to a folder.

        ``frames.csv`` has one row per source and frame: time, whether it is scored, the scores,
        and bounds if there are any. Each file is replaced in one step; UTF-8, ``nan`` for
        undefined (``null`` in the JSON).

        Args:
            folder: is created with its parents if need be.

        Returns:
            The folder.

        Raises:
            ValueError: ``folder`` is a file, or cannot be made.
        """
        folder = io.make_folder(folder)
        io.write_table(os.path.join(folder, "scores.csv"), self.table())
        columns, rows = self.frame_table()
        io.write_table(os.path.join(folder, "frames.csv"), rows, columns)
        io.write_json(os.path.join(folder, "report.json"), self.as_dict())
        return folder

    def frame_table(self) -> tuple[list[str], list[dict[str, Any]]]:
        """Columns and rows of the frame scores, one row per source and frame."""
        values = {name: tensor.tolist() for name, tensor in self.frames.items()}
        for name in self.frames if self.bounds is not None else ():
            part = self.bounds.of(name) if self.bounds is not None else None
            for kind in _BOUNDS if part is not None else ():
                hidden = torch.where(self.active, getattr(part, kind)[0], torch.nan)
                values[f"{name}_{kind}"] = hidden.tolist()
        times, active = self.times.tolist(), self.active.tolist()
        rows = [
            {"source": name, "frame": frame, "time_s": time, "active": active[place][frame]}
            | {column: numbers[place][frame] for column, numbers in values.items()}
            for place, name in enumerate(self.sources)
            for frame, time in enumerate(times)
        ]
        return ["source", "frame", "time_s", "active", *values], rows

    def as_dict(self) -> dict[str, Any]:
        """Everything but the frames, in plain types."""
        return {
            "scores": self.table(),
            "means": self.means(),
            "standard_errors": dict(self.errors),
            "settings": dict(self.settings),
            "versions": dict(self.versions),
            "notes": list(self.notes),
            "warnings": [finding._asdict() for finding in self.findings],
            "device": self.device,
            "measures": self.meanings(),
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
        """The scores of every source over time, above the spectrogram of its estimate.

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


def half_widths(confidence: float) -> list[str]:
    """What ± means, and what it does not."""
    return [
        "±: a bound of the error of the frame scores, averaged: truncation radius + half-width at "
        f"{100 * confidence:g} % confidence,",
        "as clusters are made of a limited number of distortions. It is no sampling error over "
        "files.",
    ]


def _mean(values: Sequence[float]) -> float:
    """Mean of the defined ones of ``values``, NaN if there is none."""
    found = [value for value in values if not math.isnan(value)]
    return sum(found) / len(found) if found else math.nan


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


def _summary_table(report: Report) -> tuple[list[str], list[list[str]], int]:
    """Columns, rows and the number of columns of words."""
    names, means = measures.present(report.rows[0], ranked=True), report.means()
    columns, cells = ["source", "estimate"], [list[str]() for _ in range(len(report.rows) + 1)]
    for name in names:
        columns.append(measures.label(name))
        for own, row in zip(cells, (*report.rows, means)):
            own.append(measures.text(name, row[name]))
        if f"{name}_tail" in report.rows[0]:
            columns.append("±")
            found = [row[f"{name}_radius"] + row[f"{name}_tail"] for row in report.rows]
            for own, value in zip(cells, (*found, _mean(found))):
                own.append(measures.text(name, value))
    rows = [
        [row.source, clip.name, *own, f"{row.frames}/{row.total_frames}"]
        for row, clip, own in zip(report.rows, report.estimates, cells)
    ]
    rows.append(["mean", "", *cells[-1], ""])
    if report.errors:
        errors = [measures.text(name, report.errors[name]) for name in names]
        rows.append(["std. error", "", *errors, ""])
    return [*columns, "frames"], rows, 2


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
    if sample is not None:
        text += f"; at most {sample} frames drawn at random"
    if report.errors:
        text += f"; {report.settings['excerpts']} excerpts drawn, standard errors over them"
    return text + "."

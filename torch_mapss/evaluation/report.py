"""Scores of one mixture, for printing, saving and plotting.

From frames to one number, in this order:

1. *frame*: the scores of every estimate, defined where its source and at least one other are active
(clearance: wherever another one is active; bleed: only where its own source pauses while another
one is active; fidelity: only where clearance is at least 0.1);
2. *source*: the defined frames of one estimate, pooled as :data:`torch_mapss.score_table.SCORES`
says;
3. *item*: the mean over the estimates of one mixture;
4. *set*: the mean over mixtures, see :mod:`torch_mapss.evaluation.run`.

An undefined number (no defined frame) is NaN at its level, left out of the next mean, and counted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torch_mapss.evaluation import io, plots, results_folder
from torch_mapss.evaluation.audio_input import Clip
from torch_mapss.evaluation.channel_checks import Finding
from torch_mapss.evaluation.manifest import Mixture
from torch_mapss.evaluation.protocol import versions
from torch_mapss.evaluation.records import (
    FileHashes,
    MixtureScores,
    Record,
    SystemFrames,
    file_states,
    paths_of,
    record_of,
)
from torch_mapss.evaluation.results import load_results, write_tables
from torch_mapss.evaluation.text_page import Page, Table
from torch_mapss.score_table import FRAME_SCORES, SCORES, score_label, score_text, scores_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


_NAMES: Mapping[str, Any] = {"loc": "left", "fontsize": "medium", "fontweight": "bold"}


@dataclass(frozen=True, eq=False)  # compared by identity, since tensors have no single truth value
class Report:
    """Scores of one mixture, with everything needed to read, reproduce and plot them.

    ``scores`` has a row per estimate, NaN where undefined: ``source`` (name of its reference),
    ``source_index``, ``estimate`` and ``reference`` (paths, or names of arrays); the scores of
    :data:`~torch_mapss.score_table.SCORES` that were computed, with ``_se`` (standard error over
    excerpts), ``_radius`` and ``_tail`` (of bounds) behind their names; ``separation_dimension``,
    ``match_dimension`` (mean d of the maps); ``frames`` (scored), ``total_frames``,
    ``muted_frames`` (scored frames in which the estimate stays 80 dB below its peak); ``silent``
    (bool); ``estimate_level_db`` (relative to the sum of the references); ``lag_ms`` (by
    cross-correlation), ``shift_ms`` (the part that was removed); ``estimate_rate``,
    ``reference_rate`` (Hz, of the originals); ``estimate_bandwidth``, ``reference_bandwidth`` (Hz,
    where the spectrum ends). ``rows`` are the same rows one by one, :meth:`table` the same as plain
    dictionaries.

    ``channels`` has a row per estimate and channel where each channel is scored (``channels=
    "each"``), with ``source``, ``source_index``, ``channel`` (counted from 1) and the scores;
    those in ``scores`` are their means. Else it is None.

    Per frame, S' estimates and F frames, NaN where undefined, None where not computed:
    ``clearance``, ``fidelity``, ``ps``, ``pm`` (in [0, 1]), ``log_pm`` (<= 0), ``bleed_db`` (where
    the own source is silent and another is not), ``attributed_distance`` and ``foreign_distance``
    (A and B of PS = B/(A + B)), (S', F) each; those computed are in ``frames``.

    A report can be sent between processes: it is pickled as arrays, each waveform once. For very
    many mixtures keep only :meth:`table`, or use :func:`torch_mapss.score_mixture`.
    """

    estimates: tuple[Clip, ...]  # S', waveforms at ``sample_rate``
    references: tuple[Clip, ...]  # S
    attributed: tuple[int, ...]  # S', index of the reference of each estimate
    times: Tensor  # (F,) seconds, centre of the encoder's receptive field
    active: Tensor  # (S', F) bool: whether the frame is scored
    frames: Mapping[str, Tensor]  # (S', F) each, the scores of every frame
    scores: DataFrame  # a row per estimate
    sample_rate: int  # Hz, of the waveforms that were scored
    settings: Mapping[str, Any]  # everything that the scores depend on
    channels: DataFrame | None = None  # a row per estimate and channel, where each is scored
    bounds: Mapping[str, Tensor] = field(default_factory=dict, repr=False)  # as ``ps_tail`` (S', F)
    errors: Mapping[str, float] = field(default_factory=dict)  # of the means, over excerpts
    notes: tuple[str, ...] = ()  # changes made to the input: downmix, resampling, trimming
    findings: tuple[Finding, ...] = ()  # facts for readers of the scores
    versions: Mapping[str, str] = field(default_factory=versions)  # versions of the packages in use
    device: str = "cpu"  # device of the computation
    mixture: Clip | None = field(default=None, repr=False)  # for the plot, if there is one
    mixture_id: str = ""  # name of the mixture in a saved report
    grid_rate: int = 0  # Hz, rate of the encoder of PS and PM

    def __getattr__(self, name: str) -> Any:
        if name not in FRAME_SCORES:
            raise AttributeError(f"Report has no attribute {name!r}")
        return self.frames.get(name)

    def __reduce__(self) -> Any:
        # As arrays, because torch would send every tensor as shared memory, which keeps a file
        # open.
        state = {f.name: _as_arrays(getattr(self, f.name)) for f in fields(self)}
        return _report_of, (state,)

    @cached_property
    def rows(self) -> tuple[Any, ...]:
        """The rows of ``scores``, one per estimate: ``row["ps"]`` or ``row.ps``."""
        return tuple(row for _, row in self.scores.iterrows())

    @property
    def sources(self) -> tuple[str, ...]:
        """(S',) name of the source of each estimate, from its reference."""
        return tuple(self.references[index].name for index in self.attributed)

    def table(self) -> list[dict[str, Any]]:
        """One row per estimate as dictionaries."""
        return [{str(k): v for k, v in row.items()} for row in self.scores.to_dict("records")]

    def means(self) -> dict[str, float]:
        """Scores of the item: means over the estimates that have a score, else NaN."""
        return {name: float(self.scores[name].mean()) for name in scores_in(self.scores)}

    def summary(self) -> str:
        """Table to print, with counts, the meaning of the numbers, and notes on the input."""
        return self._page().text(wrap=False)

    def meanings(self) -> list[str]:
        """Meaning of its scores, one sentence each."""
        return [f"{SCORES[name].meaning}." for name in scores_in(self.scores, ranked=True)]

    __str__ = summary

    def __repr__(self) -> str:
        """Five lines: signals, means, counts, warnings, and methods to continue with."""
        names = scores_in(self.scores, ranked=True)
        means = {name: score_text(name, self.scores[name].mean()) for name in names}
        texts = (f"{score_label(name)} {mean}" for name, mean in means.items())
        kinds = ", ".join(dict.fromkeys(finding.kind for finding in self.findings)) or "none"
        return (
            f"Report({len(self.scores)} estimates, {len(self.references)} references, "
            f"{len(self.times)} frames at {self.sample_rate} Hz)\n"
            f"  mean over estimates: {', '.join(texts)}\n"
            f"  scored: {(self.scores['frames'] > 0).sum()} of {len(self.scores)} estimates\n"
            f"  warnings: {kinds}\n"
            "  print(report), report.table(), .means(), .save(folder), .plot()"
        )

    def _repr_html_(self) -> str:
        return self._page().html()

    def _page(self) -> Page:
        notes = [self._counts(), *self.meanings()]
        if self.bounds:
            share = self.settings["confidence"]
            notes.append(
                "±: mean error bound of the frame scores: truncation radius + half-width at "
                f"{100 * share:g} % confidence, since clusters have a limited number of "
                "distortions. It is not a sampling error over files."
            )
        notes += [f"Warning: {finding.text}." for finding in self.findings]
        notes += [*(f"Note: {note}." for note in self.notes), f"Computed on {self.device}."]
        return Page("", [self._cells(), *self._channel_cells()], notes)

    def _cells(self) -> Table:
        below = ["mean", "std. error"][: 1 + bool(self.errors)]
        blank = [""] * len(below)
        columns = [["source", *self.sources, *below]]
        columns.append(["estimate", *(clip.name for clip in self.estimates), *blank])
        for name in scores_in(self.scores, ranked=True):
            shown = {score_label(name): self.scores[name]}
            if f"{name}_tail" in self.scores:
                shown["±"] = self.scores[f"{name}_radius"] + self.scores[f"{name}_tail"]
            # Bleed and SI-SDR are of the whole signal and have no error over excerpts.
            error = [self.errors.get(name, np.nan)] if self.errors else []
            for label, values in shown.items():
                cells = [*values, values.mean(), *error]
                columns.append([label, *(score_text(name, x) for x in cells)])
        counts = (f"{row.frames}/{row.total_frames}" for row in self.rows)
        header, *rows = zip(*columns, ["frames", *counts, *blank])
        return Table(header, rows, left=2)

    def _channel_cells(self) -> list[Table]:
        """The table of the channels, where each is scored."""
        if self.channels is None:
            return []
        table = self.channels
        columns = [["source", *table["source"]], ["channel", *table["channel"].map(str)]]
        for name in scores_in(table, ranked=True):
            columns.append([score_label(name), *(score_text(name, x) for x in table[name])])
        header, *rows = zip(*columns)
        return [Table(header, rows, title="By channel")]

    def _counts(self) -> str:
        scored, silent = (self.scores["frames"] > 0).sum(), self.scores["silent"].sum()
        over_channels = "" if self.channels is None else "over channels, "
        text = (
            f"Means over frames, {over_channels}then over sources: {scored} of "
            f"{len(self.scores)} estimates have scored frames"
        )
        if silent:
            text += f", {silent} {'is' if silent == 1 else 'are'} silent"
        if self.settings.get("sample_frames") is not None:
            text += f"; at most {self.settings['sample_frames']} frames drawn at random"
        if self.errors:
            text += f"; {self.settings['excerpts']} excerpts drawn, standard errors over them"
        return text + "."

    def record(self, mixture: Mixture, system: str) -> Record:
        """Record for a folder of results, with the names and paths of a manifest."""
        clips = (*self.references, *self.estimates)
        return record_of(
            mixture,
            system,
            self.scores,
            channels=self.channels,
            findings=self.findings,
            notes=self.notes,
            errors=self.errors,
            seconds=min(len(clip.wave) for clip in clips) / self.sample_rate,
        )

    def system_frames(self) -> SystemFrames:
        """Frame scores as arrays."""
        scores = {name: values.float().numpy() for name, values in self.frames.items()}
        attributed = np.array(self.attributed, dtype=np.int64)
        return SystemFrames(self.active.numpy(), attributed, scores)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        system: str = "estimates",
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Write a folder of results with one mixture and system, like ``torch-mapss evaluate``.

        A folder that holds results of the same settings gains the system.
        :func:`torch_mapss.compare` and the commands read it. Files are listed with their paths;
        arrays have none, so commands that need audio cannot be used with them.

        Args:
            folder: path of the folder, created with its parents if need be.
            system: name of the system that made the estimates.
            options: options that reproduce the scores (``torch-mapss verify``).

        Returns:
            The folder.

        Raises:
            ValueError: ``folder`` is a file, cannot be made, or holds results made with
                different settings.
        """
        folder = io.make_folder(folder)
        mixture = self._as_mixture(system)
        results_folder.claim(folder, self.settings, self.grid_rate, options)
        (mixture,) = results_folder.with_stored_spelling(folder, [mixture])
        (system,) = mixture.systems
        mixtures, _ = results_folder.add_mixtures(folder, [mixture])
        hashes = FileHashes(mixture)
        in_order = self._in_order_of_sources()
        record = in_order.record(mixture, system)
        paths = paths_of(mixture, system)
        states = file_states(paths, mixture)
        record["files"] = [[*state, hashes.of(path)] for state, path in zip(states, paths)]
        times, frames = self.times.double().numpy(), {system: in_order.system_frames()}
        scores = MixtureScores(mixture, {system: record}, times, frames, 0.0)
        results_folder.write_scores(folder, scores, [*mixtures[mixture.name].systems])
        write_tables(load_results(folder))
        return folder

    def _in_order_of_sources(self) -> Report:
        """Copy with the estimates in the order of a manifest.

        This is the order of the sources; estimates matched by SI-SDR keep their order.
        """
        order = [*range(len(self.estimates))]
        if not self.settings.get("permute"):
            order.sort(key=lambda estimate: self.attributed[estimate])
        return replace(
            self,
            estimates=tuple(self.estimates[k] for k in order),
            attributed=tuple(self.attributed[k] for k in order),
            active=self.active[order],
            frames={name: values[order] for name, values in self.frames.items()},
            bounds={name: values[order] for name, values in self.bounds.items()},
            scores=self.scores.iloc[order].reset_index(drop=True),
        )

    def _as_mixture(self, system: str) -> Mixture:
        """The mixture as an entry of a manifest, paths relative to the working folder."""
        estimates: list[str | None] = [None] * len(self.references)
        for index, clip in enumerate(self.estimates):
            source = index if self.settings.get("permute") else self.attributed[index]
            estimates[source] = clip.path or clip.name
        return Mixture(
            name=self.mixture_id or "mixture",
            references=tuple(clip.path or clip.name for clip in self.references),
            systems={system: tuple(estimates)},
            folder="",
            mixture=self.mixture.path if self.mixture is not None else None,
            sources=tuple(clip.name for clip in self.references),
        )

    def frame_table(self) -> DataFrame:
        """Frame scores and their bounds, one row per source and frame."""
        import pandas

        sources, frames = self.active.shape
        index = {"source": np.repeat(self.sources, frames)}
        index |= {"frame": np.tile(np.arange(frames), sources)}
        times = self.times.expand(sources, frames)
        values = {"time_s": times, "active": self.active, **self.frames, **self.bounds}
        return pandas.DataFrame(index | {name: x.flatten() for name, x in values.items()})

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        figure: Figure | None = None,
        title: str | None = None,
    ) -> Figure:
        """Plot the scores of every source over time, above the spectrogram of its estimate.

        Frames that are not scored stay blank; bounds, if there are any, are bands. Needs
        matplotlib (``pip install torch_mapss[plot]``), but no display, and leaves its global
        state alone.

        Args:
            path: file to write the figure to (PNG, PDF, SVG, by suffix).
            figure: empty figure or subfigure to draw into instead of a new one.
            title: title of the figure.

        Returns:
            The figure.

        Raises:
            ImportError: matplotlib is missing.
        """
        drawn = plot_reports([self], [title or ""], figure=figure)
        if path is not None:
            plots.save_figure(drawn, path)
        return drawn


def _as_arrays(value: Any) -> Any:
    """Convert tensors to arrays, also in tuples and mappings; each waveform of a clip once."""
    if isinstance(value, Clip):
        averaged = len(value.parts) == 1
        channels: Any = None if averaged else value.parts.numpy()
        wave: Any = value.wave.numpy()
        return value._replace(wave=wave, parts=channels, native=None)
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, Mapping):
        return {key: _as_arrays(item) for key, item in value.items()}
    if type(value) is tuple:
        return tuple(map(_as_arrays, value))
    return value


def _report_of(state: Mapping[str, Any]) -> Report:
    """Rebuild the report that was pickled as ``state``."""
    return Report(**{name: _as_tensors(value) for name, value in state.items()})


def _as_tensors(value: Any) -> Any:
    if isinstance(value, Clip):
        wave = torch.from_numpy(value.wave)
        averaged = value.parts is None
        channels = wave.unsqueeze(0) if averaged else torch.from_numpy(value.parts)
        return value._replace(wave=wave, parts=channels)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, Mapping):
        return {key: _as_tensors(item) for key, item in value.items()}
    if type(value) is tuple:
        return tuple(map(_as_tensors, value))
    return value


def plot_reports(
    reports: Sequence[Report], titles: Sequence[str], *, figure: Figure | None = None
) -> Figure:
    """Plot several separations of the same sources side by side, one column each, on common axes.

    For every source its scores over time, above the spectrogram of its estimate; drawn into an
    empty ``figure`` if there is one.
    """
    sources, mixed = reports[0].sources, any(report.mixture is not None for report in reports)
    pairs = [names for names in plots.AXES if {*names} & {*reports[0].frames}]
    ratios = [0.9] * mixed + [*[1.2] * len(pairs), 0.9] * len(sources)
    if figure is None:
        width = 9.0 if len(reports) == 1 else 1.0 + 4.2 * len(reports)
        figure = plots.new_figure(width, 0.8 + 1.05 * sum(ratios))
    shared_axes: dict[str, Any] = {"sharex": True, "sharey": "row", "squeeze": False}
    axes = figure.subplots(len(ratios), len(reports), height_ratios=ratios, **shared_axes)
    longest = 40 if len(reports) == 1 else 16  # number of characters that fit next to mean scores
    for column, report, title in zip(axes.T, reports, titles):
        if mixed:
            if report.mixture is None:
                column[0].set_axis_off()
            else:
                wave = report.mixture.wave
                plots.draw_spectrogram(column[0], wave, report.sample_rate, "mixture")
        for index, source_axes in enumerate(np.split(column[int(mixed) :], len(sources))):
            _draw_source(source_axes, report, index, pairs, longest)
        if title:
            placement: dict[str, Any] = {"xy": (0.5, 1.0), "xycoords": "axes fraction"}
            placement |= {"xytext": (0, 26), "textcoords": "offset points", "ha": "center"}
            column[0].annotate(title.replace("$", r"\$"), **placement, fontsize="large")
    for ax in axes.flat:
        ax.label_outer()
    if pairs:
        plots.add_legend(figure, pairs)
    figure.align_ylabels()
    return figure


def _draw_source(
    axes: Any, report: Report, index: int, pairs: Sequence[Sequence[str]], longest: int
) -> None:
    length, row = min(len(clip.wave) for clip in report.estimates), report.rows[index]
    for ax, names in zip(axes, pairs):
        scores = {name: report.frames[name][index] for name in names if name in report.frames}
        widths = {name: report.bounds.get(f"{name}_total") for name in scores}
        bands = {name: values[index] for name, values in widths.items() if values is not None}
        means = {name: row[name] for name in scores if row.frames}
        plots.plot_scores(ax, report.times, scores, bands, means)
    wave = report.estimates[index].wave[:length]
    plots.draw_spectrogram(axes[-1], wave, report.sample_rate, "estimate")
    axes[0].set_title(plots.short_name(report.sources[index], longest), **_NAMES)
    if not row.frames:
        axes[0].set_title("not scored", loc="right", fontsize="small", color="#444444")
    axes[-1].set_xlim(0.0, length / report.sample_rate)

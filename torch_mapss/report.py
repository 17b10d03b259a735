"""Files or arrays -> a report of one mixture: to print, to save, to plot.

From frames to one number, in this order:

1. *frame*: PS and PM of every estimate, defined where its source and at least one other is active;
2. *source*: the mean over the defined frames of one estimate (PS also in the paper's pooling);
3. *item*: the mean over the estimates of one mixture;
4. *set*: the mean over mixtures, see :mod:`torch_mapss.manifest`.

An undefined number (no defined frame) is NaN where it stands, left out of the next mean, and
counted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import _checks, _clips, _files, audio
from torch_mapss._clips import Clip
from torch_mapss.aggregate import masked_mean
from torch_mapss.bounds import check_confidence
from torch_mapss.records import ReferenceBank, ScoreBounds, Scores
from torch_mapss.utterance import pool_match_bounds, pool_separation_bounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torch_mapss.pipeline import MAPSS

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
    ps_pesq: float  # paper's pooling, [1.085, 1.315]
    attributed_distance: float  # mean A, to the source's own cluster (PS graph)
    foreign_distance: float  # mean B, to the closest other one
    frames: int  # scored
    total_frames: int
    estimate_rate: int  # Hz, as handed over
    reference_rate: int
    ps_radius: float | None = None  # of ps: truncation error; None: bounds not asked for
    ps_tail: float | None = None  # of ps: half-width at the confidence asked for
    pm_radius: float | None = None
    pm_tail: float | None = None
    ps_pesq_radius: float | None = None
    ps_pesq_tail: float | None = None


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
    bounds: ScoreBounds | None = field(default=None, repr=False)  # (1, S', F), if asked for
    mixture: Clip | None = field(default=None, repr=False)  # for the plot, if given

    @property
    def sources(self) -> tuple[str, ...]:
        """(S',) name of the source of each estimate: of its reference."""
        return tuple(self.references[index].name for index in self.attributed)

    def table(self) -> list[dict[str, Any]]:
        """One row per estimate as dictionaries, e.g. for ``pandas.DataFrame``."""
        return [row._asdict() for row in self.rows]

    def means(self) -> dict[str, float]:
        """The item's scores: means over the estimates whose score is defined, else NaN."""
        return {name: mean([getattr(row, name) for row in self.rows]) for name in MEANS}

    def summary(self) -> str:
        """A table to print, with counts, what the numbers mean, and what was done to the input."""
        lines = [_files.text_table(*_summary_table(self)), "", _counts(self), *MEANINGS]
        if self.bounds is not None:
            lines.append(
                "±: truncation radius + half-width at "
                f"{100 * self.bounds.confidence:g} % confidence, of the mean over frames."
            )
        lines += [f"Note: {note}." for note in self.notes]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()

    def save(self, folder: str | os.PathLike[str]) -> str:
        """Write ``scores.csv``, ``ps.csv``, ``pm.csv`` and ``report.json`` to a folder.

        ``ps.csv`` and ``pm.csv`` have one row per source and frame: time, score, active, and
        bounds if there are any. Each file is replaced in one step; UTF-8, ``nan`` for undefined
        (``null`` in the JSON).

        Args:
            folder: is created with its parents if need be.

        Returns:
            The folder.

        Raises:
            ValueError: ``folder`` is a file, or cannot be made.
        """
        folder = _files.make_folder(folder)
        rows = self.table()
        _files.write_csv(os.path.join(folder, "scores.csv"), SourceRow._fields, rows)
        for measure in ("ps", "pm"):
            columns, frames = self.frame_table(measure)
            _files.write_csv(os.path.join(folder, f"{measure}.csv"), columns, frames)
        _files.write_json(os.path.join(folder, "report.json"), self.as_dict())
        return folder

    def frame_table(self, measure: str) -> tuple[list[str], list[dict[str, Any]]]:
        """Columns and rows of ``"ps"`` or ``"pm"``, one row per source and frame."""
        if measure not in ("ps", "pm"):
            raise ValueError(f"measure must be 'ps' or 'pm', got {measure!r}.")
        extra = ["attributed_distance", "foreign_distance"] if measure == "ps" else ["log_pm"]
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
            "measures": list(MEANINGS),
        }

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
        from torch_mapss.plots import plot_report, save_figure

        drawn = plot_report(self, figure=figure, title=title)
        if path is not None:
            save_figure(drawn, path)
        return drawn


#: The columns that are averaged from estimates to items, and from items to the set.
MEANS = ("ps", "pm", "log_pm", "ps_pesq")


def mean(values: Sequence[float]) -> float:
    """Mean of the defined ones of ``values``, NaN if there is none."""
    found = [value for value in values if value == value]
    return sum(found) / len(found) if found else float("nan")


# ------------------------------------------------------------------------------------------------
# The call
# ------------------------------------------------------------------------------------------------


def evaluate(
    *,
    estimates: Any,
    references: Any,
    mixture: Any = None,
    names: Sequence[str] | None = None,
    sample_rate: int | None = None,
    attributed: Sequence[int] | None = None,
    permute: bool = False,
    trim: bool = False,
    bounds: bool = False,
    confidence: float = 0.95,
    sample_frames: int | None = None,
    device: torch.device | str | None = None,
    mapss: MAPSS | None = None,
    prepared: PreparedOnce | None = None,
    on_stage: Callable[[str], object] | None = None,
    **options: Any,
) -> Report:
    """Score the separated sources of one mixture against their references.

    PS (Perceptual Separation, leakage) and PM (Perceptual Match, distortion) lie in [0, 1], higher
    is better. Files may differ in rate and channels: each is mixed down to the mean of its
    channels and resampled to the encoder's rate, and the report says so.

    Args:
        estimates: what a separator made: a list of paths (any format libsndfile reads), or an
            (S', T) array or tensor, or a list of (T,) ones. In the order of the references. None
            in a list: the source was not estimated.
        references: the true sources, S of them, at least two; as ``estimates``, without None.
        mixture: path or (T,) signal, for the plot alone.
        names: one name per reference, for tables and plots; made of the file names otherwise.
        sample_rate: of arrays, in Hz; the encoder's by default. Files know theirs.
        attributed: which reference each estimate belongs to, e.g. ``(0,)`` to score the first
            source alone; all in order by default.
        permute: find out which reference each estimate belongs to, by SI-SDR.
        trim: cut all signals to the shortest instead of refusing different lengths. The cut is at
            the end: nothing is aligned.
        bounds: compute error radius and half-width of every frame as well (takes longer).
        confidence: of the half-widths.
        sample_frames: score at most so many frames, drawn at random with a fixed seed: quicker,
            and means stay unbiased. All by default.
        device: to compute on; where a given ``mapss`` is, else the CPU.
        mapss: a :class:`~torch_mapss.MAPSS` to use, shared by many calls.
        prepared: shared by the calls for several systems on one mixture: its references are then
            distorted and encoded once, ``prepared = PreparedOnce(mapss)``.
        on_stage: told the name of each stage as it begins, for a progress display.
        options: of :class:`~torch_mapss.MAPSS` otherwise: ``encoder="wav2vec2-large"`` (the
            default; ``"mel"`` needs no download), ``layer``, ``seed``, ``convention``, ...

    Returns:
        A :class:`Report`.

    Raises:
        TypeError, ValueError: input that cannot be scored; the message says what to do.
        FileNotFoundError: no such file.
        ImportError: a package needed for it is missing; the message names it.
    """
    if sample_rate is not None:
        sample_rate = _checks.check_whole(sample_rate, "sample_rate", 1)
    check_confidence(confidence)
    scorer = make_scorer(mapss, device, options)
    place = device_of(scorer, device)
    stage = on_stage or _silent
    stage("reading files")
    clips = _clips.read_set(references, "references", scorer.sample_rate, sample_rate)
    true = _complete(clips, names)
    found = _clips.read_set(estimates, "estimates", scorer.sample_rate, sample_rate)
    request = Request(permute, trim, bounds, confidence, sample_frames)
    mixed = _read_mixture(mixture, scorer.sample_rate, sample_rate)
    _check_sample_rate(sample_rate, [*found, *true, mixed])
    report = score_clips(
        scorer,
        found,
        true,
        request,
        attributed=attributed,
        device=place,
        prepared=prepared,
        on_stage=stage,
    )
    return report if mixed is None else replace(report, mixture=mixed)


class PreparedOnce:
    """Remembers the last references and their bank.

    Args:
        mapss: prepares the banks.
    """

    def __init__(self, mapss: MAPSS) -> None:
        self.mapss = mapss
        self._last: tuple[Tensor, ReferenceBank] | None = None

    def __call__(self, references: Tensor) -> ReferenceBank:
        """The bank of (S, T) references, prepared only if they are not the last ones."""
        if self._last is not None:
            known, bank = self._last
            if known.device == references.device and torch.equal(known, references):
                return bank
        self._last = None  # frees the old bank before the new one is made
        bank = self.mapss.prepare(references)
        self._last = references, bank
        return bank


class Request(NamedTuple):
    """What is asked of a scoring, beside the scorer's own settings."""

    permute: bool = False
    trim: bool = False
    bounds: bool = False
    confidence: float = 0.95
    sample_frames: int | None = None


def make_scorer(
    mapss: MAPSS | None, device: torch.device | str | None, options: Mapping[str, Any]
) -> MAPSS:
    """The MAPSS given, or one of the options.

    Raises:
        ValueError: both are given.
    """
    if mapss is not None:
        if options:
            raise ValueError(
                f"{', '.join(sorted(options))} cannot be applied to a MAPSS that is already made. "
                "Set it there, or leave mapss out."
            )
        return mapss if device is None else mapss.to(device)
    from torch_mapss.pipeline import MAPSS as Scorer

    if isinstance(options.get("encoder", ""), str | os.PathLike):
        return Scorer(device=device, **options)
    made = Scorer(**options)  # of an encoder that is there already, and moves
    return made if device is None else made.to(device)


def device_of(scorer: MAPSS, device: torch.device | str | None) -> torch.device:
    """Where the waveforms belong: ``device``, or where the encoder's weights are."""
    if device is not None:
        return torch.device(device)
    weights = [*scorer.encoder.parameters(), *scorer.encoder.buffers()]
    return weights[0].device if weights else torch.device("cpu")


def _complete(clips: Sequence[Clip | None], names: Sequence[str] | None) -> tuple[Clip, ...]:
    """References, none of them missing, named."""
    found = [clip for clip in clips if clip is not None]
    if len(found) < len(clips):
        raise ValueError(
            "references must all be there, got None for one of them: PS compares an estimate with "
            "every source of the mixture."
        )
    if names is None:
        return tuple(found)
    names = names if isinstance(names, str) else list(names)
    blank = any(not str(name).strip() for name in names)
    if isinstance(names, str) or len(names) != len(found) or blank:
        raise ValueError(
            f"names must be one name for each of the {len(found)} references, got {names!r}."
        )
    return tuple(clip for clip in _clips.renamed(found, names) if clip is not None)


def _silent(stage: str) -> None:
    del stage


def score_clips(
    scorer: MAPSS,
    estimates: Sequence[Clip | None],
    references: Sequence[Clip],
    request: Request,
    *,
    device: torch.device,
    attributed: Sequence[int] | None = None,
    prepared: Callable[[Tensor], ReferenceBank] | None = None,
    on_stage: Callable[[str], object] = _silent,
) -> Report:
    """Score clips that are read already.

    Args:
        scorer: of equal rate as the clips.
        estimates: one per reference with None for those not estimated, or as ``attributed`` says.
        references: the sources of the mixture.
        request: what is wanted.
        device: to compute on.
        attributed: the reference of each estimate.
        prepared: turns reference waveforms (S, T) into a bank, e.g. from a cache.
        on_stage: told the name of each stage as it begins.
    """
    given, index = _present(estimates, len(references), attributed)
    if len(references) < 2:
        raise ValueError(
            f"at least two references are needed, got {len(references)}: PS compares an estimate "
            "with the other sources of the mixture."
        )
    samples = _clips.common_length(given, references, request.trim)
    outputs = _clips.stack(given, samples, device)
    truth = _clips.stack(references, samples, device)
    if request.permute:
        index = _matched(outputs, truth, attributed)
    on_stage("encoding references and distortions")
    bank = (prepared or scorer.prepare)(truth)
    on_stage("scoring frames and their bounds" if request.bounds else "scoring frames")
    options: dict[str, Any] = {"attributed": index, "frames": request.sample_frames}
    bounds = None
    if request.bounds:  # which reads the scores off the same maps
        bounds = scorer.bounds(outputs, bank, confidence=request.confidence, **options)
        assert bounds.scores is not None
        scores = bounds.scores
    else:
        with torch.no_grad():
            scores = scorer(outputs, bank, **options)
    return _assembled(scorer, given, references, index, samples, scores, bounds, request)


def _present(
    estimates: Sequence[Clip | None], sources: int, attributed: Sequence[int] | None
) -> tuple[tuple[Clip, ...], tuple[int, ...] | None]:
    """The estimates there are, and the reference of each (None: all in order)."""
    given = tuple(clip for clip in estimates if clip is not None)
    if len(given) == len(estimates):
        index = None if attributed is None else _checks.whole_numbers(attributed, "attributed")
        return given, index
    if attributed is not None:
        raise ValueError(
            "estimates hold None and attributed is given: say it in one of the two ways only."
        )
    if len(estimates) != sources:
        raise ValueError(
            f"estimates hold None, so there must be one entry per reference ({sources}), got "
            f"{len(estimates)}."
        )
    return given, tuple(place for place, clip in enumerate(estimates) if clip is not None)


def _matched(outputs: Tensor, truth: Tensor, attributed: object) -> tuple[int, ...]:
    if attributed is not None:
        raise ValueError(
            "permute and attributed exclude each other: the one looks for what the other states."
        )
    return tuple(audio.match_sources(outputs, truth).tolist())


def _assembled(
    scorer: MAPSS,
    estimates: tuple[Clip, ...],
    references: Sequence[Clip],
    attributed: tuple[int, ...] | None,
    samples: int,
    scores: Scores,
    bounds: ScoreBounds | None,
    request: Request,
) -> Report:
    index = tuple(range(len(references))) if attributed is None else attributed
    active = scores.active[0].cpu()

    def frames(name: str) -> Tensor:
        return torch.where(active, getattr(scores, name)[0].cpu(), torch.nan)

    rate = scorer.sample_rate
    notes = _clips.remarks([*references, *estimates], rate, samples)
    if request.permute:
        pairs = (f"{e.name} -> {references[i].name}" for e, i in zip(estimates, index))
        notes.append(f"attributed by SI-SDR: {', '.join(pairs)}")
    return Report(
        estimates=estimates,
        references=tuple(references),
        attributed=index,
        times=scores.times.cpu(),
        active=active,
        ps=frames("ps"),
        pm=frames("pm"),
        log_pm=frames("log_pm"),
        attributed_distance=frames("attributed_distance"),
        foreign_distance=frames("foreign_distance"),
        rows=_source_rows(estimates, references, index, scores, bounds),
        sample_rate=rate,
        settings={**scorer.describe(), **request._asdict()},
        versions=versions(),
        notes=tuple(notes),
        bounds=None if bounds is None else _on_cpu(bounds),
    )


def _on_cpu(bounds: ScoreBounds) -> ScoreBounds:
    ps, pm = (type(part)(*(tensor.cpu() for tensor in part)) for part in (bounds.ps, bounds.pm))
    return bounds._replace(ps=ps, pm=pm, active=bounds.active.cpu(), scores=None)


def _source_rows(
    estimates: Sequence[Clip],
    references: Sequence[Clip],
    index: Sequence[int],
    scores: Scores,
    bounds: ScoreBounds | None,
) -> tuple[SourceRow, ...]:
    pooled, active = scores.utterance(), scores.active
    columns = {
        "ps": pooled.ps,
        "pm": pooled.pm,
        "log_pm": pooled.log_pm,
        "ps_pesq": pooled.ps_pesq,
        "attributed_distance": masked_mean(scores.attributed_distance, active),
        "foreign_distance": masked_mean(scores.foreign_distance, active),
    }
    if bounds is not None:
        columns |= _utterance_bounds(scores, bounds)
    numbers = {name: values[0].tolist() for name, values in columns.items()}
    rows = []
    for place, (estimate, source) in enumerate(zip(estimates, index)):
        reference = references[source]
        rows.append(
            SourceRow(
                source=reference.name,
                source_index=source,
                estimate=estimate.path or estimate.name,
                reference=reference.path or reference.name,
                frames=int(pooled.frames[0, place]),
                total_frames=active.shape[-1],
                estimate_rate=estimate.rate,
                reference_rate=reference.rate,
                **{name: values[place] for name, values in numbers.items()},
            )
        )
    return tuple(rows)


def _utterance_bounds(scores: Scores, bounds: ScoreBounds) -> dict[str, Tensor]:
    """Radius and half-width of each utterance score, (1, S') each."""
    active = scores.active
    found = {
        "ps": pool_match_bounds(bounds.ps.radius, bounds.ps.tail, active),  # of a plain mean
        "pm": pool_match_bounds(bounds.pm.radius, bounds.pm.tail, active),
        "ps_pesq": pool_separation_bounds(scores.ps, bounds.ps.radius, bounds.ps.tail, active),
    }
    return {
        f"{name}_{part}": getattr(pooled, part)
        for name, pooled in found.items()
        for part in ("radius", "tail")
    }


def _read_mixture(mixture: Any, rate: int, sample_rate: int | None) -> Clip | None:
    if mixture is None:
        return None
    return _clips.read_set([mixture], "mixture", rate, sample_rate)[0]


def _check_sample_rate(sample_rate: int | None, clips: Sequence[Clip | None]) -> None:
    if sample_rate is not None and all(clip is None or clip.path is not None for clip in clips):
        raise ValueError(
            f"sample_rate={sample_rate} was passed, but all input are files, which state their "
            "own rate. Leave sample_rate out; it is for arrays."
        )


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
    bounded = report.bounds is not None
    columns = ["source", "estimate", "PS", "PM", "log PM", "PS pooled", "frames"]
    if bounded:
        columns[3:3], columns[5:5] = ["±"], ["±"]
    rows = []
    for row, clip in zip(report.rows, report.estimates):
        cells = [row.source, clip.name, number(row.ps), number(row.pm), number(row.log_pm, ".2f")]
        cells += [number(row.ps_pesq), f"{row.frames}/{row.total_frames}"]
        if bounded:
            cells[3:3] = [_half_range(row.ps_radius, row.ps_tail)]
            cells[5:5] = [_half_range(row.pm_radius, row.pm_tail)]
        rows.append(cells)
    means = report.means()
    last = ["mean", "", number(means["ps"]), number(means["pm"]), number(means["log_pm"], ".2f")]
    last += [number(means["ps_pesq"]), ""]
    if bounded:
        last[3:3], last[5:5] = [""], [""]
    return columns, [*rows, last], 2


def _half_range(radius: float | None, tail: float | None) -> str:
    return number(None if radius is None or tail is None else radius + tail)


def _counts(report: Report) -> str:
    defined = sum(row.frames > 0 for row in report.rows)
    text = (
        f"Means over frames, then over sources: {defined} of {len(report.rows)} estimates have "
        "scored frames"
    )
    sample = report.settings.get("sample_frames")
    return text + ("." if sample is None else f"; at most {sample} frames drawn at random.")

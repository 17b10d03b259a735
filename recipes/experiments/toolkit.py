"""What the experiments share: mixtures of a manifest, scores, resumable rows, progress, tables.

Every script of this folder reads mixtures with `load_mixtures`, keeps each finished number in
`Rows`, so that a run that was stopped goes on where it was, and writes its page with `write_page`.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, ReferenceBank
from torch_mapss.audio import estimate_lag, load_audio, resample, shift, to_mono

RESULTS = Path(__file__).parent / "results"
MEASURES = ("ps", "pm", "log_pm", "foreign_distance", "log_foreign_distance", "ps_pesq")
LABELS = {
    "ps": "PS",
    "ps_pesq": "PS (PESQ-like pooling)",
    "pm": "PM",
    "log_pm": "log PM",
    "foreign_distance": "B",
    "log_foreign_distance": "log B",
}
LEVEL = 0.05  # RMS of the talkers of a made-up mixture
_T = TypeVar("_T")


# ------------------------------------------------------------------------------------------------
# Command line
# ------------------------------------------------------------------------------------------------


def parser(doc: str | None, manifest: bool = True) -> argparse.ArgumentParser:
    """A parser with the options that all experiments share; its text is the module's."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if manifest:
        made.add_argument("--manifest", type=Path, required=True, help="JSON, see load_mixtures")
        made.add_argument("--mixtures", type=int, metavar="N", help="only N of them, evenly spaced")
        made.add_argument("--seconds", type=float, help="only the first so many of each")
    made.add_argument("--out", type=Path, required=True, help="folder of the results")
    return made


def add_scoring(made: argparse.ArgumentParser, encoders: Sequence[str] = ("mel",)) -> None:
    """Options of the scorer."""
    group = made.add_argument_group("scoring")
    group.add_argument("--encoders", nargs="+", default=list(encoders), metavar="NAME")
    group.add_argument("--layer", type=int)
    group.add_argument("--convention", choices=("paper", "reference"), default="paper")
    group.add_argument("--every", type=int, default=1, metavar="N", help="score one frame in N")
    group.add_argument("--bank-size", type=int, metavar="N", help="distortions of each measure")
    group.add_argument("--device", help="default: cpu")


def scorer(options: argparse.Namespace, encoder: str, **more: Any) -> MAPSS:
    """The MAPSS that the options ask for."""
    if options.bank_size is not None:
        for kind in ("separation", "match"):
            more.setdefault(f"{kind}_bank", DistortionBank(kind, size=options.bank_size))
    return MAPSS(
        encoder, options.layer, convention=options.convention, device=options.device, **more
    )


def settings_of(options: argparse.Namespace, *leave_out: str) -> dict[str, Any]:
    """The options as plain values that a row depends on."""
    without = {"out", "device", *leave_out}
    return {k: _plain(v) for k, v in sorted(vars(options).items()) if k not in without}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | bool | type(None)) else str(value)


# ------------------------------------------------------------------------------------------------
# Mixtures
# ------------------------------------------------------------------------------------------------


class Mixture(NamedTuple):
    """One mixture, read and brought to one rate."""

    name: str
    scenario: str  # a column of the paper's tables
    sources: tuple[str, ...]  # S names
    references: Tensor  # (S, T)
    systems: Mapping[str, tuple[Tensor | None, ...]]  # outputs (T,) of each; None: not estimated


def load_mixtures(
    path: Path,
    rate: int,
    *,
    seconds: float | None = None,
    limit: int | None = None,
    systems: bool = False,
) -> Iterator[Mixture]:
    """The mixtures of a manifest, one after the other.

    Args:
        path: a JSON file in one of three layouts: the manifest of ``torch-mapss evaluate`` (a
            list; an entry may have ``scenario`` and ``sources``); an object whose ``items`` hold
            ``references`` and ``outputs`` by source; or one whose ``items`` are single utterances
            with ``path``, ``speaker`` and ``language``: each is then the target of a mixture
            with an utterance of another speaker, both at one level, and its language the scenario.
        rate: in Hz, to which everything is resampled.
        seconds: keep the beginning only.
        limit: at most so many mixtures, evenly spaced over the list.
        systems: read the outputs as well.

    Raises:
        SystemExit: another layout.
    """
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    entries = _entries(content, path)
    for entry in _spread(entries, limit):
        yield _mixture(entry, Path(path).parent, rate, seconds, systems)


def _entries(content: Any, path: Path) -> list[dict[str, Any]]:
    """Entries of any of the three layouts in that of ``torch-mapss evaluate``."""
    if isinstance(content, list) and content:
        return content
    items = content.get("items") if isinstance(content, dict) else None
    if items and all("references" in item for item in items):
        return [_by_source(item) for item in items]
    if items and all("path" in item and "speaker" in item for item in items):
        return list(_pairs(items))
    raise SystemExit(
        f"{path} is no manifest: expected a JSON list of mixtures, or an object with items that "
        "have references, or path and speaker."
    )


def _by_source(item: dict[str, Any]) -> dict[str, Any]:
    names = list(item["references"])
    return {
        "mixture_id": item["id"],
        "scenario": item.get("scenario", "all"),
        "sources": names,
        "references": [item["references"][name] for name in names],
        "systems": {
            system: [files.get(name) for name in names]
            for system, files in item.get("outputs", {}).items()
        },
    }


def _pairs(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every utterance once as the target, the others of other speakers taking turns beside it."""
    for place, item in enumerate(items):
        others = [other for other in items if other["speaker"] != item["speaker"]]
        if not others:
            raise SystemExit("mixtures need two speakers, but all items have the same one.")
        other = others[(7 * place) % len(others)]  # 7: over the languages, not one after the other
        yield {
            "mixture_id": f"{item['id']}+{other['id']}",
            "scenario": item.get("language", "all"),
            "sources": [item["id"], other["id"]],
            "references": [item["path"], other["path"]],
            "systems": {},
            "level": LEVEL,
        }


def _spread(entries: list[_T], limit: int | None) -> list[_T]:
    if limit is None or limit >= len(entries):
        return entries
    return [entries[(2 * i + 1) * len(entries) // (2 * limit)] for i in range(limit)]


def _mixture(
    entry: dict[str, Any], folder: Path, rate: int, seconds: float | None, systems: bool
) -> Mixture:
    samples = None if seconds is None else round(seconds * rate)
    waves = [read(folder / path, rate)[:samples] for path in entry["references"]]
    length = min(map(len, waves))
    references = torch.stack([wave[:length] for wave in waves])
    if "level" in entry:
        references = references * (entry["level"] / references.square().mean(-1, True).sqrt())
    outputs: dict[str, tuple[Tensor | None, ...]] = {}
    if systems:
        for name, paths in entry["systems"].items():
            outputs[name] = tuple(
                None if path is None else read(folder / path, rate)[:length] for path in paths
            )
    stems = entry.get("sources") or [Path(path).stem for path in entry["references"]]
    scenario = entry.get("scenario", "all")
    return Mixture(entry["mixture_id"], scenario, tuple(stems), references, outputs)


def read(path: Path, rate: int) -> Tensor:
    """(T,) a file mixed down and at ``rate``."""
    wave, original = load_audio(path)
    return resample(to_mono(wave), original, rate)


def aligned(estimate: Tensor, reference: Tensor, rate: int, longest: float = 0.2) -> Tensor:
    """(T,) the estimate without its lag behind the reference: the peak of their correlation.

    Args:
        estimate, reference: (T,).
        rate: in Hz.
        longest: seconds, either way, that are looked at.
    """
    lag = int(estimate_lag(estimate, reference, round(longest * rate)).samples)
    return shift(estimate, lag)


# ------------------------------------------------------------------------------------------------
# Scores
# ------------------------------------------------------------------------------------------------


def frames_of(bank: ReferenceBank, every: int) -> int | None:
    """How many frames to draw for one in ``every``; None for all."""
    return None if every <= 1 else max(1, bank.frames // every)


@torch.no_grad()
def target_scores(
    mapss: MAPSS, bank: ReferenceBank, estimate: Tensor, *, source: int = 0, every: int = 1
) -> dict[str, float]:
    """What one estimate (T,) of one source scores: the names of `MEASURES`, each a mean."""
    found = mapss(estimate[None, None], bank, attributed=(source,), frames=frames_of(bank, every))
    utterance = found.utterance()
    active = found.active[0, 0]
    distance = found.foreign_distance[0, 0][active].double()
    return {
        "ps": float(utterance.ps[0, 0]),
        "pm": float(utterance.pm[0, 0]),
        "log_pm": float(utterance.log_pm[0, 0]),
        "foreign_distance": float(distance.mean()),
        "log_foreign_distance": float(distance.log().mean()),
        "ps_pesq": float(utterance.ps_pesq[0, 0]),
        "frames": int(active.sum()),
    }


FRAME_FIELDS = ("times", "ps", "pm", "log_pm", "attributed_distance", "foreign_distance")
BOUND_FIELDS = ("ps_radius", "ps_tail", "pm_radius", "pm_tail")


class Frames(NamedTuple):
    """The scored frames of one output."""

    scenario: str
    mixture: str
    system: str
    source: str
    values: Mapping[str, Any]  # field -> NumPy array (frames,); bounds only if asked for


def frame_scores(options: argparse.Namespace, encoder: str, bounds: bool) -> Iterator[Frames]:
    """Frame scores of every output of a manifest, kept in ``out/frames`` from one run to the next.

    Where a mixture lists no system, its references leak into each other at -10 dB.
    """
    mapss = scorer(options, encoder)
    folder = options.out / "frames"
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder / "settings.json", {**settings_of(options, *_NOT_FRAMES), "bounds": bounds})
    found = load_mixtures(
        options.manifest,
        mapss.sample_rate,
        seconds=options.seconds,
        limit=options.mixtures,
        systems=True,
    )
    for mixture in progress(list(found), f"{encoder}, mixtures"):
        outputs = _outputs(mixture)
        names = {
            key: folder / f"{_safe(encoder, mixture.name, *map(str, key))}.npz" for key in outputs
        }
        bank = None
        for (system, place), output in outputs.items():
            path = names[system, place]
            if not path.exists():
                bank = mapss.prepare(mixture.references[None]) if bank is None else bank
                _keep(path, _scored_frames(mapss, bank, output, place, options.every, bounds))
            values = _load(path)
            yield Frames(mixture.scenario, mixture.name, system, mixture.sources[place], values)


_NOT_FRAMES = ("encoders", "mixtures", "bins", "draws")


def _outputs(mixture: Mixture) -> dict[tuple[str, int], Tensor]:
    found = {
        (system, place): output
        for system, given in mixture.systems.items()
        if not system.startswith("control:")
        for place, output in enumerate(given)
        if output is not None
    }
    if found:
        return found
    leak = mixture.references + 10 ** (-10 / 20) * mixture.references.roll(1, 0)
    return {("leaking", place): leak[place] for place in range(len(leak))}


def _safe(*parts: str) -> str:
    return "__".join("".join(c if c.isalnum() or c in "-+." else "_" for c in p) for p in parts)


@torch.no_grad()
def _scored_frames(
    mapss: MAPSS, bank: ReferenceBank, output: Tensor, place: int, every: int, bounds: bool
) -> dict[str, Tensor]:
    count = frames_of(bank, every)
    if bounds:
        found = mapss.bounds(output[None, None], bank, attributed=(place,), frames=count)
        scores = found.scores
        assert scores is not None  # the convention of the scores is that of the bounds
    else:
        scores = mapss(output[None, None], bank, attributed=(place,), frames=count)
    active = scores.active[0, 0]
    values = {name: getattr(scores, name)[..., :].reshape(-1)[active] for name in FRAME_FIELDS}
    if bounds:
        pairs = (("ps", found.ps), ("pm", found.pm))
        for measure, bound in pairs:
            values[f"{measure}_radius"] = bound.radius[0, 0][active]
            values[f"{measure}_tail"] = bound.tail[0, 0][active]
    return values


def _keep(path: Path, values: Mapping[str, Tensor]) -> None:
    import numpy as np

    part = path.with_name(f".{path.name}.part")
    with open(part, "wb") as file:
        np.savez_compressed(file, **{k: v.float().cpu().numpy() for k, v in values.items()})
    os.replace(part, path)


def _load(path: Path) -> dict[str, Any]:
    import numpy as np

    with np.load(path) as stored:
        return {name: stored[name].astype(float) for name in stored.files}


# ------------------------------------------------------------------------------------------------
# Rows that survive a kill
# ------------------------------------------------------------------------------------------------


class Rows:
    """A CSV file that grows by one flushed line for each finished step.

    Args:
        folder: of the results; made if missing.
        keys: columns that name a step.
        values: the other columns.
        settings: what the rows depend on; a folder of other settings is refused.
        name: of the file.

    Raises:
        SystemExit: the folder holds rows of other settings.
    """

    def __init__(
        self,
        folder: Path,
        keys: Sequence[str],
        values: Sequence[str],
        settings: Mapping[str, Any],
        name: str = "rows",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.keys, self.columns = tuple(keys), (*keys, *values)
        self.path = folder / f"{name}.csv"
        _claim(folder / f"{name}.json", dict(settings))
        self._rows: dict[tuple[str, ...], dict[str, str]] = {}
        if self.path.exists():
            self._recover()
        else:
            self._append(self.columns)

    def _recover(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]  # what follows was cut off by a kill
        if whole != content:
            self.path.write_bytes(whole)
        for row in csv.DictReader(whole.decode().splitlines()):
            self._rows[tuple(row[key] for key in self.keys)] = row
        if not whole:
            self._append(self.columns)

    def _append(self, cells: Iterable[Any]) -> None:
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([_cell(cell) for cell in cells])
            file.flush()
            os.fsync(file.fileno())

    def has(self, *key: Any) -> bool:
        """Whether this step is done."""
        return tuple(map(_cell, key)) in self._rows

    def add(self, **row: Any) -> None:
        """Keep a finished step."""
        cells = {column: _cell(row.get(column)) for column in self.columns}
        self._append(cells.values())
        self._rows[tuple(cells[key] for key in self.keys)] = cells

    def __len__(self) -> int:
        return len(self._rows)

    def where(self, **wanted: Any) -> list[dict[str, str]]:
        """The rows with these values, in the order they were made."""
        texts = {column: _cell(value) for column, value in wanted.items()}
        return [
            row for row in self._rows.values() if all(row[c] == text for c, text in texts.items())
        ]

    def numbers(self, column: str, **wanted: Any) -> list[float]:
        """The defined numbers of a column in the rows with these values."""
        found = [float(row[column]) for row in self.where(**wanted) if row[column]]
        return [value for value in found if math.isfinite(value)]

    def mean(self, column: str, **wanted: Any) -> float:
        """Mean of :meth:`numbers`, NaN without any."""
        found = self.numbers(column, **wanted)
        return sum(found) / len(found) if found else math.nan

    def distinct(self, column: str) -> list[str]:
        """The values of a column in order of appearance."""
        return list(dict.fromkeys(row[column] for row in self._rows.values()))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return format(value, ".9g") if isinstance(value, float) else str(value)


def _claim(path: Path, settings: dict[str, Any]) -> None:
    if path.exists():
        there = json.loads(path.read_text(encoding="utf-8"))
        unlike = [k for k in {*there, *settings} if there.get(k) != settings.get(k)]
        if unlike:
            told = "; ".join(
                f"{k}: {there.get(k)} there, {settings.get(k)} now" for k in sorted(unlike)
            )
            raise SystemExit(
                f"{path.parent} holds results of other settings ({told}). Name another --out."
            )
        return
    write_page(path, json.dumps(settings, indent=2, sort_keys=True))


# ------------------------------------------------------------------------------------------------
# Progress
# ------------------------------------------------------------------------------------------------


def progress(
    items: Iterable[_T], what: str, *, seconds: float = 20.0, clock: Callable[[], float] = time.time
) -> Iterator[_T]:
    """``items``, with a line on the error stream at least every ``seconds``: done, left, time."""
    items = list(items) if not isinstance(items, Sized) else items
    start = told = clock()
    count = len(items)  # type: ignore[arg-type]
    for done, item in enumerate(items, 1):
        yield item
        now = clock()
        if now - told >= seconds or (done == count and now - start >= seconds):
            left = (now - start) / done * (count - done)
            print(f"{what}: {done} of {count}, {left:.0f} s left", file=sys.stderr, flush=True)
            told = now


# ------------------------------------------------------------------------------------------------
# Pages
# ------------------------------------------------------------------------------------------------


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [list(header), ["---"] * len(header), *[[str(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float, digits: int = 2) -> str:
    """A number of a table; a dash where there is none."""
    return "–" if not math.isfinite(value) else f"{value:.{digits}f}"


def percent(value: float) -> str:
    """A correlation as the paper prints it."""
    if not math.isfinite(value):
        return "–"
    return f"{100 * value:.2f}" if abs(value) < 10.0 else f"{100 * value:.0e}"


def latex(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A tabular in LaTeX (booktabs)."""
    body = [" & ".join(_tex(cell) for cell in row) + r" \\" for row in rows]
    head = " & ".join(rf"\textbf{{{_tex(cell)}}}" for cell in header) + r" \\"
    columns = "l" + "c" * (len(header) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex(cell: Any) -> str:
    text = str(cell).replace("–", "--")
    for sign in ("&", "%", "_", "#"):
        text = text.replace(sign, "\\" + sign)
    return text


def write_page(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    os.replace(part, path)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of rows that have the same columns."""
    import io

    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(rows[0] if rows else ())
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    write_page(path, buffer.getvalue())


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches, without pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


# ------------------------------------------------------------------------------------------------
# Correlation with ratings
# ------------------------------------------------------------------------------------------------


def correlations(
    rows: Iterable[Mapping[str, str]],
    ratings: Path,
    *,
    measures: Sequence[str] = MEASURES,
    sources: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> dict[tuple[str, str, str], dict[str, Any]]:
    """SRCC and PCC, over the systems of a track and source, averaged: no intervals.

    Args:
        rows: of `Rows`, with ``mixture``, ``system``, ``source`` and the measures.
        ratings: the table of ``torch-mapss correlate``.
        measures: the columns to correlate.
        sources, columns: as there.

    Returns:
        (scenario, question, measure) -> row of ``correlations.csv``.
    """
    from pandas import DataFrame

    from torch_mapss.evaluation.correlate import Options, correlate_stimuli
    from torch_mapss.evaluation.ratings import join, load_ratings

    outputs = DataFrame(
        {"track": row["mixture"], "system": row["system"], "source": row["source"]}
        | {name: float(row[name] or "nan") for name in measures}
        for row in rows
    )
    joined = join(outputs, load_ratings(ratings, columns), sources=sources)
    found = correlate_stimuli(joined, measures, Options(draws=0))
    return {
        (row["scenario"], row["question"], row["measure"]): row
        for row in found.rows.to_dict("records")
        if row["pooling"] == "per_track"
    }


def add_ratings(made: argparse.ArgumentParser, required: bool) -> None:
    """Options that say what listeners said."""
    group = made.add_argument_group("ratings")
    group.add_argument("--ratings", type=Path, required=required, help="CSV file")
    group.add_argument("--columns", nargs="+", type=pair, default=[], metavar="COLUMN=NAME")
    group.add_argument("--source-map", nargs="+", type=pair, default=[], metavar="FOUND=RATED")


def pair(text: str) -> tuple[str, str]:
    """``a=b`` as two words."""
    one, sign, other = text.partition("=")
    if not (one and sign and other):
        raise argparse.ArgumentTypeError(f"expected NAME=NAME, got {text!r}")
    return one, other

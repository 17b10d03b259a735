"""What the experiments share: mixtures of a manifest, scores, resumable rows, pages.

Most scripts of this folder read mixtures with `load_mixtures`, store every result in `Rows`, so
that a run that was stopped goes on from there, and write a page that begins with `page_head`: the
command, the version, the data and the subset.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

import torch_mapss
from torch_mapss import MAPSS, DistortionBank, ReferenceBank
from torch_mapss.audio import load_audio, resample, to_mono
from torch_mapss.encoders import Encoder, load_encoder
from torch_mapss.encoders.custom import CustomEncoder
from torch_mapss.encoders.mel import mel_on_grid

if TYPE_CHECKING:
    from hidden_states import SharedPass

LABELS = {
    "clearance": "clearance",
    "fidelity": "fidelity",
    "ps": "PS",
    "ps_pesq": "PS (PESQ-like pooling)",
    "pm": "PM",
    "log_pm": "log PM",
    "log_pm_compressed": "log PM (compressed)",
    "log_foreign_distance": "log B",
}
MEASURES = tuple(LABELS)
LEVEL = 0.05  # RMS of each talker in a mixture of single utterances
ENCODED = ("decomposition", "separation", "match")  # families of scores that compare embeddings
SEED = 0  # of random frames, noise and random weights


# ------------------------------------------------------------------------------------------------
# Command line
# ------------------------------------------------------------------------------------------------


def parser(
    doc: str | None,
    *,
    manifest: bool = True,
    scoring: bool = True,
    ratings: bool = False,
    without: Collection[str] = (),
) -> argparse.ArgumentParser:
    """A parser with the options that the experiments share.

    Args:
        doc: docstring of the script, the description.
        manifest: add the options that choose mixtures.
        scoring: add the encoders and the options of scoring.
        ratings: add the file of ratings.
        without: options that the script does not read, which are left out.
    """
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def add(option: str, **settings: Any) -> None:
        if option not in without:
            made.add_argument(option, **settings)

    add("--out", type=Path, required=True, help="folder of the results")
    add("--page", type=Path, help="file to write the page to as well")
    if manifest:
        add("--manifest", type=Path, required=True, help="JSON file of mixtures")
        add("--mixtures", type=int, metavar="N", help="only N of them, evenly spaced")
        add("--seconds", type=float, help="only the beginning of each mixture")
    if scoring:
        encoders = {"default": ["mel"], "help": "names, folders or hub ids (default: mel)"}
        add("--encoders", nargs="+", metavar="NAME[@LAYER]", **encoders)
        conventions = {"choices": ("paper", "reference"), "default": "paper"}
        about = "of PS and PM: as in the paper, or as in its released code (default: paper)"
        add("--convention", **conventions, help=about)
        add("--sample-frames", type=int, metavar="N", help="random frames a clip (default: all)")
        add("--bank-size", type=int, metavar="N", help="distortions for PS and PM (default: all)")
        add("--device", help="of encoders and scores, e.g. cuda")
    if ratings:
        add("--ratings", type=Path, required=True, help="CSV file, as for torch-mapss correlate")
    return made


def scorer(
    options: argparse.Namespace,
    encoder: str,
    shared: Mapping[str, SharedPass] | None = None,
    **banks: DistortionBank,
) -> MAPSS:
    """The MAPSS that the options ask for, all of whose scores read ``encoder``.

    Args:
        options: with ``device``, ``bank_size`` and ``convention``.
        encoder: as for `load`.
        shared: as for `load`.
        banks: arguments of `MAPSS`, in place of banks of ``bank_size``.
    """
    loaded = load(encoder, options.device, shared)
    if options.bank_size is not None:
        for kind in ("separation", "match"):
            banks.setdefault(f"{kind}_bank", DistortionBank(kind, size=options.bank_size))
    pair_encoder = pair_encoder_of(encoder, loaded)
    return MAPSS(loaded, decomposition_encoder=pair_encoder, convention=options.convention, **banks)


def pair_encoder_of(encoder: str, loaded: Encoder) -> Encoder | str:
    """The encoder of clearance and fidelity; for ``mel`` their own default, with its window."""
    return encoder if encoder == "mel" else loaded


def shown(encoder: str) -> str:
    """The name of an encoder in rows and tables: the last component of a folder or hub id."""
    return "+".join(Path(name).name for name in encoder.split("+"))


def model_and_layer(encoder: str) -> tuple[str, int | None]:
    """Name and layer of ``NAME@LAYER``; None where no layer is named."""
    name, _, layer = encoder.rpartition("@")
    return (name, int(layer)) if name and layer.isdigit() else (encoder, None)


def load(
    encoder: str, device: str | None = None, shared: Mapping[str, SharedPass] | None = None
) -> Encoder:
    """An encoder by its name, a folder or hub id; ``NAME@LAYER`` names its layer.

    Front ends made of encoders (`front_ends.py`) are ``NAME@LAYER:KIND`` and ``NAME+NAME``.

    Args:
        encoder: its name.
        device: of its weights.
        shared: model -> the pass that its layers are read from (`hidden_states.py`).

    Raises:
        SystemExit: its weights are not available.
    """
    import front_ends

    if "+" in encoder:
        left, right = (
            None if name == "mel" else load(name, device, shared) for name in encoder.split("+")
        )
        grid = left or right
        if grid is None:
            raise SystemExit(f"{encoder} should join mel and another encoder.")
        mel = mel_on_grid(grid.sample_rate, grid.hop, grid.receptive_field)
        return CustomEncoder(front_ends.Joined(left or mel, right or mel))
    plain, _, kind = encoder.rpartition(":")
    if kind in front_ends.FRONT_ENDS:
        layers = None if kind == "local" else shared  # local attention is another pass
        return CustomEncoder(front_ends.FRONT_ENDS[kind](load(plain, device, layers)))
    name, layer = model_and_layer(encoder)
    if layer is not None and shared and name in shared:
        return shared[name].layer(layer)
    try:
        return load_encoder(name, layer=layer, device=device)
    except OSError as error:
        raise SystemExit(f"{error} `untrained.py` makes its shape with random weights.") from error


def settings_of(options: argparse.Namespace, *leave_out: str) -> dict[str, Any]:
    """The options that a row depends on, as values that JSON can hold."""
    without = {"out", "page", "device", "encoders", "mixtures", *leave_out}
    names = sorted(set(vars(options)) - without)
    return {name: _plain(getattr(options, name)) for name in names}


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

    def outputs(self, controls: bool = False) -> Iterator[tuple[str, int, Tensor]]:
        """System, source index and waveform (T,) of every output."""
        for system, outputs in self.systems.items():
            if controls or not system.startswith("control:"):
                for source_index, output in enumerate(outputs):
                    if output is not None:
                        yield system, source_index, output


def load_mixtures(
    options: argparse.Namespace, rate: int, *, systems: bool = False, talkers: int = 2
) -> Iterator[Mixture]:
    """The mixtures of ``options.manifest``, one after the other, with a progress bar.

    Args:
        options: ``manifest`` is a JSON file in one of two layouts: the manifest of ``torch-mapss
            evaluate`` (a list; an entry may have ``scenario`` and ``sources``); or an object whose
            ``items`` are single utterances with ``path``, ``speaker`` and ``language``: each is
            then the target of a mixture with utterances of other speakers, all at one level, and
            its language the scenario. ``seconds`` keeps only the beginning of each mixture, and
            ``mixtures`` only so many mixtures, evenly spaced.
        rate: Hz, to which all waveforms are resampled.
        systems: read the outputs as well.
        talkers: in each mixture of single utterances.

    Raises:
        SystemExit: the file has neither layout.
    """
    path = options.manifest
    content = json.loads(path.read_text(encoding="utf-8"))
    items = content.get("items") if isinstance(content, dict) else None
    if items and all("path" in item and "speaker" in item for item in items):
        content = list(_talking(items, talkers))
    if not isinstance(content, list) or not content:
        raise SystemExit(
            f"{path} is not a manifest: expected a JSON list of mixtures, or an object with items "
            "that have a path and a speaker."
        )
    limit = options.mixtures or len(content)
    if limit < len(content):
        indices = [(2 * i + 1) * len(content) // (2 * limit) for i in range(limit)]
        content = [content[index] for index in indices]
    for entry in tqdm(content, "mixtures", mininterval=20.0, disable=len(content) < 3):
        yield _mixture(entry, path.parent, rate, options.seconds, systems)


def _talking(items: list[dict[str, Any]], talkers: int) -> Iterator[dict[str, Any]]:
    """Entries of a manifest: each utterance once the target, mixed with those of other speakers."""
    for index, item in enumerate(items):
        utterances = [item]
        while len(utterances) < talkers:
            speakers = {utterance["speaker"] for utterance in utterances}
            candidates = [item for item in items if item["speaker"] not in speakers]
            if not candidates:
                raise SystemExit(f"mixtures need {talkers} speakers, there are {len(speakers)}.")
            # Steps of 7 spread the interferers over the languages, which follow one another.
            utterances.append(candidates[(7 * index) % len(candidates)])
        yield {
            "mixture_id": "+".join(utterance["id"] for utterance in utterances),
            "scenario": item.get("language", "all"),
            "sources": [utterance["id"] for utterance in utterances],
            "references": [utterance["path"] for utterance in utterances],
            "level": LEVEL,
        }


def _mixture(
    entry: dict[str, Any], folder: Path, rate: int, seconds: float | None, systems: bool
) -> Mixture:
    samples = None if seconds is None else round(seconds * rate)
    waves = [read(folder / path, rate)[:samples] for path in entry["references"]]
    length = min(len(wave) for wave in waves)
    references = torch.stack([wave[:length] for wave in waves])
    if "level" in entry:
        references = references * (entry["level"] / references.square().mean(-1, True).sqrt())
    outputs: dict[str, tuple[Tensor | None, ...]] = {}
    for name, paths in entry.get("systems", {}).items() if systems else ():
        outputs[name] = tuple(
            None if path is None else read(folder / path, rate)[:length] for path in paths
        )
    stems = entry.get("sources") or [Path(path).stem for path in entry["references"]]
    scenario = entry.get("scenario", "all")
    return Mixture(entry["mixture_id"], scenario, tuple(stems), references, outputs)


def read(path: Path, rate: int) -> Tensor:
    """A file mixed down and resampled to ``rate``, (T,)."""
    wave, original = load_audio(path)
    return resample(to_mono(wave), original, rate)


# ------------------------------------------------------------------------------------------------
# Scores
# ------------------------------------------------------------------------------------------------


@torch.no_grad()
def target_scores(
    mapss: MAPSS,
    bank: ReferenceBank,
    estimate: Tensor,
    source: int = 0,
    frames: int | None = None,
) -> dict[str, float]:
    """Scores of one estimate (T,) of a source: `MEASURES`, bleed, and the number of frames.

    Args:
        mapss: the scorer.
        bank: prepared references, whose measures are computed.
        estimate: waveform.
        source: index of the reference that it estimates.
        frames: random frames to score; None: all.
    """
    frame_scores = mapss(
        estimate[None, None], bank, attributed=(source,), frames=frames, measures=bank.measures
    )
    utterance = frame_scores.utterance()
    scores = {
        name: float(getattr(utterance, name)[0, 0])
        for name in (*MEASURES, "bleed_db")
        if getattr(utterance, name, None) is not None
    }
    if frame_scores.foreign_distance is not None:
        distance = frame_scores.foreign_distance[0, 0][frame_scores.active[0, 0]].double()
        scores["log_foreign_distance"] = float(distance.log().mean())
    return {**scores, "frames": int(frame_scores.active[0, 0].sum())}


def add_scores(
    rows: Rows,
    prefix: Sequence[str],
    mapss: MAPSS,
    mixture: Mixture,
    outputs: Iterable[tuple[str, int, Tensor]],
    measures: Sequence[str],
    frames: int | None,
) -> None:
    """Score the outputs of a mixture that have no row yet; its references are prepared once.

    Args:
        rows: rows whose key is ``prefix``, mixture, system and source.
        prefix: first columns of the key.
        mapss: the scorer.
        mixture: the mixture.
        outputs: system, index of the source, and waveform (T,) of each output.
        measures: measures to prepare.
        frames: random frames to score; None: all.
    """
    bank = None
    for system, source_index, output in outputs:
        key = *prefix, mixture.name, system, mixture.sources[source_index]
        if rows.has(*key):
            continue
        bank = bank or mapss.prepare(mixture.references[None], measures=measures)
        rows.add(*key, **target_scores(mapss, bank, output, source_index, frames))


# ------------------------------------------------------------------------------------------------
# Resumable rows
# ------------------------------------------------------------------------------------------------


class Rows:
    """A CSV file that grows by one line for each finished step, at once on the disk.

    Args:
        folder: of the results; made if missing.
        keys: columns that identify a step.
        values: the remaining columns.
        settings: what the rows depend on; a folder with rows of different settings is refused.
        name: of the file, without its suffix.

    Raises:
        SystemExit: the folder holds rows of different settings.
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
        content = self.path.read_bytes() if self.path.exists() else b""
        lines = content[: content.rfind(b"\n") + 1]  # an incomplete last line is dropped
        self.path.write_bytes(lines)
        for row in csv.DictReader(lines.decode().splitlines()):
            self._rows[tuple(row[key] for key in self.keys)] = row
        if not lines:
            self._append(self.columns)

    def _append(self, cells: Iterable[Any]) -> None:
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([_cell(cell) for cell in cells])
            file.flush()
            os.fsync(file.fileno())

    def has(self, *key: Any) -> bool:
        """Whether this step is done."""
        return tuple(map(_cell, key)) in self._rows

    def add(self, *key: Any, **values: Any) -> None:
        """Store a finished step."""
        row = {**dict(zip(self.keys, key)), **values}
        cells = {column: _cell(row.get(column)) for column in self.columns}
        self._append(cells.values())
        self._rows[tuple(cells[key] for key in self.keys)] = cells

    def __len__(self) -> int:
        return len(self._rows)

    def where(self, **values: Any) -> list[dict[str, str]]:
        """The rows with these values, in the order they were made."""
        cells = {column: _cell(value) for column, value in values.items()}
        rows = []
        for row in self._rows.values():
            if all(row[column] == cell for column, cell in cells.items()):
                rows.append(row)
        return rows

    def numbers(self, column: str, **values: Any) -> list[float]:
        """The defined numbers of a column in the rows with these values."""
        numbers = [float(row[column]) for row in self.where(**values) if row[column]]
        return [number for number in numbers if math.isfinite(number)]

    def mean(self, column: str, **values: Any) -> float:
        """Mean of :meth:`numbers`, NaN without any."""
        return finite_mean(self.numbers(column, **values))

    def distinct(self, column: str) -> list[str]:
        """The values of a column in order of appearance."""
        return list(dict.fromkeys(row[column] for row in self._rows.values()))


def finite_mean(values: Iterable[float]) -> float:
    """Mean of the finite values, NaN without any."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return format(value, ".9g") if isinstance(value, float) else str(value)


def _claim(path: Path, settings: dict[str, Any]) -> None:
    if not path.exists():
        write_page(path, json.dumps(settings, indent=2, sort_keys=True))
        return
    present = json.loads(path.read_text(encoding="utf-8"))
    names = {*present, *settings}
    changed = sorted(name for name in names if present.get(name) != settings.get(name))
    if changed:
        changes = "; ".join(f"{k}: {present.get(k)} there, {settings.get(k)} now" for k in changed)
        raise SystemExit(
            f"{path.parent} holds results of other settings ({changes}). Choose another --out."
        )


# ------------------------------------------------------------------------------------------------
# Pages
# ------------------------------------------------------------------------------------------------


def page_head(
    title: str,
    script: str,
    arguments: Sequence[str] | None,
    text: str,
    seeds: Sequence[int] = (SEED,),
) -> list[str]:
    """First lines of a page: title, command, version, commit and seeds, introduction.

    Args:
        title: of the page.
        script: ``__file__`` of the script.
        arguments: of its main; None: those of the command line.
        text: the introduction, which names data and subset.
        seeds: of what the page shows.
    """
    words = _shown_words(sys.argv[1:] if arguments is None else list(arguments))
    command = shlex.join(["python", f"recipes/experiments/{Path(script).name}", *words])
    listed = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    made = f"torch_mapss {torch_mapss.__version__}, commit {commit()}, {listed}."
    return [f"# {title}", "", f"    {command}", "", made, "", text]


def subset(options: argparse.Namespace, rows: Rows, column: str = "mixture") -> str:
    """Data and subset as a sentence."""
    phrases = [f"{len(rows.distinct(column))} mixtures of `{options.manifest.parent.name}`"]
    if options.seconds:
        phrases.append(f"the first {options.seconds:g} s of each")
    count = options.sample_frames
    phrases.append(f"{count} frames each, drawn at random" if count else "every frame")
    phrases.append(f"`{options.convention}` convention")
    return ", ".join(phrases) + "."


def commit() -> str:
    """The commit of the checkout that this file is in, or "unknown"."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=10", "HEAD"]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return finished.stdout.strip()


def _shown_words(words: list[str]) -> list[str]:
    """The command line for a page: of paths a file and its folder, no --page, ``--out OUT`` last.

    Every script requires --out, so the command needs it. --page-only is left out, since it does not
    make the rows that the page is about.
    """
    shown_words: list[str] = []
    skip = False
    for word in words:
        if word == "--page-only":
            continue
        if skip or word in ("--out", "--page"):
            skip = not skip
        elif "/" in word:
            path = Path(word)
            is_file = path.suffix in (".json", ".csv")
            shown_words.append(str(Path(*path.parts[-2:])) if is_file else shown(word))
        else:
            shown_words.append(word)
    return [*shown_words, "--out", "OUT"]


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = []
    for cells in (header, ["---"] * len(header), *rows):
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def number(value: float, digits: int = 2) -> str:
    """A number in a table; a dash where it is not finite."""
    return "–" if not math.isfinite(value) else f"{value:.{digits}f}"


def finish(options: argparse.Namespace, name: str, text: Sequence[str]) -> None:
    """Write the page into the results, and where --page says, and print it."""
    joined = "\n".join(text)
    for path in (options.out / f"{name}.md", options.page):
        if path is not None:
            write_page(path, joined)
    print(joined)


def write_page(path: Path, text: str) -> None:
    """Write a text file, or replace it in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    os.replace(unfinished, path)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows that have the same columns as a CSV file."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(rows[0] if rows else ())
    for row in rows:
        writer.writerow([_cell(value) for value in row.values()])
    write_page(path, buffer.getvalue())


def new_figure(width: float, height: float) -> Any:
    """An empty figure of a size in inches, made without pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)

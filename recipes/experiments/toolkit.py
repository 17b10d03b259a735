"""What the experiments share: mixtures of a manifest, scores, resumable rows, pages.

Every script of this folder reads mixtures with `load_mixtures`, keeps each finished number in
`Rows`, so that a run that was stopped goes on where it was, and writes its page with `page_head`,
which states the command, the version, the data and the subset.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
LEVEL = 0.05  # RMS of the talkers of a made-up mixture
ENCODED = ("decomposition", "separation", "match")  # measures that compare embeddings
SEED = 0  # of the frames drawn, of noise and of random weights


# ------------------------------------------------------------------------------------------------
# Command line
# ------------------------------------------------------------------------------------------------


def parser(doc: str | None, *, manifest: bool = True, scoring: bool = True, ratings: bool = False):
    """A parser with the options that the experiments share; its text is the module's."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--out", type=Path, required=True, help="folder of the results")
    made.add_argument("--page", type=Path, help="also write the page here")
    if manifest:
        made.add_argument("--manifest", type=Path, required=True, help="JSON, see load_mixtures")
        made.add_argument("--mixtures", type=int, metavar="N", help="only N of them, evenly spaced")
        made.add_argument("--seconds", type=float, help="only the first so many of each")
    if scoring:
        made.add_argument("--encoders", nargs="+", default=["mel"], metavar="NAME[@LAYER]")
        made.add_argument("--convention", choices=("paper", "reference"), default="paper")
        made.add_argument(
            "--sample-frames", type=int, metavar="N", help="of each clip; default all"
        )
        made.add_argument("--bank-size", type=int, metavar="N", help="distortions of PS and PM")
        made.add_argument("--device")
    if ratings:
        made.add_argument(
            "--ratings", type=Path, required=True, help="CSV of torch-mapss correlate"
        )
    return made


def scorer(
    options: argparse.Namespace,
    encoder: str,
    shared: Mapping[str, SharedPass] | None = None,
    **more: Any,
) -> MAPSS:
    """The MAPSS that the options ask for, all of whose measures read ``encoder``."""
    loaded = load(encoder, options.device, shared)
    if options.bank_size is not None:
        for kind in ("separation", "match"):
            more.setdefault(f"{kind}_bank", DistortionBank(kind, size=options.bank_size))
    pair_encoder = pair_encoder_of(encoder, loaded)
    return MAPSS(loaded, decomposition_encoder=pair_encoder, convention=options.convention, **more)


def pair_encoder_of(encoder: str, loaded: Encoder) -> Encoder | str:
    """What clearance and fidelity read: of ``mel`` the default, whose window is their own."""
    return encoder if encoder == "mel" else loaded


def shown(encoder: str) -> str:
    """An encoder in rows and tables: folders and hub ids by their last part."""
    return "+".join(Path(part).name for part in encoder.split("+"))


def model_and_layer(encoder: str) -> tuple[str, int | None]:
    """Name and layer of ``NAME@LAYER``; None where no layer is named."""
    name, _, layer = encoder.rpartition("@")
    return (name, int(layer)) if name and layer.isdigit() else (encoder, None)


def load(
    encoder: str, device: str | None = None, shared: Mapping[str, SharedPass] | None = None
) -> Encoder:
    """An encoder by its name, a folder or hub id; ``NAME@LAYER`` names its layer.

    Front ends made of others (`front_ends.py`): ``NAME@LAYER:KIND`` and ``NAME+NAME``.

    Args:
        encoder: its name.
        device: of its weights.
        shared: model -> the pass that its layers are read from (`hidden_states.py`).

    Raises:
        SystemExit: its weights are not at hand.
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
    """The options as plain values that a row depends on."""
    without = {"out", "page", "device", "encoders", "mixtures", *leave_out}
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

    def outputs(self, controls: bool = False) -> Iterator[tuple[str, int, Tensor]]:
        """System, source and wave (T,) of every output."""
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
            its language the scenario. ``seconds`` keeps the beginning, ``mixtures`` so many.
        rate: in Hz, to which everything is resampled.
        systems: read the outputs as well.
        talkers: in each mixture of single utterances.

    Raises:
        SystemExit: another layout.
    """
    path = options.manifest
    content = json.loads(path.read_text(encoding="utf-8"))
    items = content.get("items") if isinstance(content, dict) else None
    if items and all("path" in item and "speaker" in item for item in items):
        content = list(_talking(items, talkers))
    if not isinstance(content, list) or not content:
        raise SystemExit(
            f"{path} is no manifest: expected a JSON list of mixtures, or an object with items "
            "that have path and speaker."
        )
    limit = options.mixtures or len(content)
    if limit < len(content):
        content = [content[(2 * i + 1) * len(content) // (2 * limit)] for i in range(limit)]
    for entry in tqdm(content, "mixtures", mininterval=20.0, disable=len(content) < 3):
        yield _mixture(entry, path.parent, rate, options.seconds, systems)


def _talking(items: list[dict[str, Any]], talkers: int) -> Iterator[dict[str, Any]]:
    """Every utterance once as the target, those of other speakers taking turns beside it."""
    for index, item in enumerate(items):
        utterances = [item]
        while len(utterances) < talkers:
            speakers = {utterance["speaker"] for utterance in utterances}
            candidates = [item for item in items if item["speaker"] not in speakers]
            if not candidates:
                raise SystemExit(f"mixtures need {talkers} speakers, there are {len(speakers)}.")
            # 7: over the languages, not one after the other
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
    length = min(map(len, waves))
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
    """(T,) a file mixed down and at ``rate``."""
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
    """What one estimate (T,) of one source scores: the names of `MEASURES`, bleed and frames."""
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
        content = self.path.read_bytes() if self.path.exists() else b""
        lines = content[: content.rfind(b"\n") + 1]  # what follows was cut off by a kill
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
        """Keep a finished step."""
        row = {**dict(zip(self.keys, key)), **values}
        cells = {column: _cell(row.get(column)) for column in self.columns}
        self._append(cells.values())
        self._rows[tuple(cells[key] for key in self.keys)] = cells

    def __len__(self) -> int:
        return len(self._rows)

    def where(self, **values: Any) -> list[dict[str, str]]:
        """The rows with these values, in the order they were made."""
        texts = {column: _cell(value) for column, value in values.items()}
        return [
            row for row in self._rows.values() if all(row[c] == text for c, text in texts.items())
        ]

    def numbers(self, column: str, **values: Any) -> list[float]:
        """The defined numbers of a column in the rows with these values."""
        numbers = [float(row[column]) for row in self.where(**values) if row[column]]
        return [number for number in numbers if math.isfinite(number)]

    def mean(self, column: str, **values: Any) -> float:
        """Mean of :meth:`numbers`, NaN without any."""
        numbers = self.numbers(column, **values)
        return sum(numbers) / len(numbers) if numbers else math.nan

    def distinct(self, column: str) -> list[str]:
        """The values of a column in order of appearance."""
        return list(dict.fromkeys(row[column] for row in self._rows.values()))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return format(value, ".9g") if isinstance(value, float) else str(value)


def _claim(path: Path, settings: dict[str, Any]) -> None:
    if not path.exists():
        write_page(path, json.dumps(settings, indent=2, sort_keys=True))
        return
    present = json.loads(path.read_text(encoding="utf-8"))
    changed = sorted(k for k in {*present, *settings} if present.get(k) != settings.get(k))
    if changed:
        changes = "; ".join(f"{k}: {present.get(k)} there, {settings.get(k)} now" for k in changed)
        raise SystemExit(
            f"{path.parent} holds results of other settings ({changes}). Name another --out."
        )


# ------------------------------------------------------------------------------------------------
# Pages
# ------------------------------------------------------------------------------------------------


def page_head(title: str, script: str, arguments: Sequence[str] | None, text: str) -> list[str]:
    """First lines of a page: title, command, version and commit, seed, what it is.

    Args:
        title: of the page.
        script: ``__file__`` of the script.
        arguments: of its main; None: those of the command line.
        text: data, subset, and what else there is to know.
    """
    words = _without_paths(sys.argv[1:] if arguments is None else list(arguments))
    command = shlex.join(["python", f"recipes/experiments/{Path(script).name}", *words])
    made = f"torch_mapss {torch_mapss.__version__}, commit {commit()}, seed {SEED}."
    return [f"# {title}", "", f"    {command}", "", made, "", text]


def subset(options: argparse.Namespace, rows: Rows, column: str = "mixture") -> str:
    """Data and subset in words."""
    parts = [f"{len(rows.distinct(column))} mixtures of `{options.manifest.parent.name}`"]
    parts += [f"the first {options.seconds:g} s of each"] if options.seconds else []
    count = options.sample_frames
    parts += [f"{count} frames each, drawn at random" if count else "every frame"]
    return ", ".join([*parts, f"`{options.convention}` convention"]) + "."


def commit() -> str:
    """The commit that this folder is of, and whether it was changed since."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=10", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _without_paths(words: list[str]) -> list[str]:
    """Command line whose files are named by their folder alone; where results went is left out."""
    shown_words: list[str] = []
    skip = False
    for word in words:
        if skip or word in ("--out", "--page"):
            skip = not skip
        elif "/" in word:
            path = Path(word)
            is_file = path.suffix in (".json", ".csv")
            shown_words.append(str(Path(*path.parts[-2:])) if is_file else shown(word))
        else:
            shown_words.append(word)
    return shown_words


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [list(header), ["---"] * len(header), *[[str(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float, digits: int = 2) -> str:
    """A number of a table; a dash where there is none."""
    return "–" if not math.isfinite(value) else f"{value:.{digits}f}"


def finish(options: argparse.Namespace, name: str, text: Sequence[str]) -> None:
    """Write the page, and print it."""
    joined = "\n".join(text)
    for path in (options.out / f"{name}.md", options.page):
        if path is not None:
            write_page(path, joined)
    print(joined)


def write_page(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    os.replace(part, path)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of rows that have the same columns."""
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
    figure.savefig(path, dpi=100)

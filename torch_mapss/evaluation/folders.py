"""Folders of audio as test sets use them -> the mixtures of a manifest.

Two layouts, in any depth:

* *mixture*: a folder per mixture with a file per source, ``song/vocals.wav`` (MUSDB);
* *source*: a folder per source with a file per mixture, ``s1/0001.wav`` (WSJ0-2mix, LibriMix).

Either is a grid of mixtures and sources, so the tree alone does not say which is which. Names
decide (``s1``, ``spk2``, ``vocals``, ... are sources, ``song12`` and numbers are mixtures, and
beside the sources lies a ``mix``), else the shorter side of the grid is taken for the sources;
where that does not decide either, the two readings are told and one must be chosen. Nothing is
guessed in silence: what was understood is told, and ``--write-manifest``
keeps it.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch_mapss.evaluation import files
from torch_mapss.evaluation.manifest import ManifestError, Mixture

LAYOUTS = ("mixture", "source")
_SUFFIXES = frozenset(
    (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf")
    + (".w64", ".rf64")
)
# Beside the sources, but none of them: mix, mixture, mix_clean, mix_both, ...
_MIXTURE = re.compile(r"(.*[_-])?mix(ture)?([_-].*)?", re.IGNORECASE)
_SOURCE = re.compile(
    r"(s|src|source|spk|speaker|ref|reference|est|estimate|talker|voice)[ _-]?\d+"
    r"|(clean|speech|noise|music|vocals?|voice|singing|accompaniment|other)[ _-]?\d*"
    r"|[ae]?(bass|drums?|piano|guitar|keys|strings|brass|wind|violin|cello|flute)[ _-]?\d*",
    re.IGNORECASE,
)
_ITEM = re.compile(
    r"(m|mix|mixture|song|track|utt|utterance|item|ex|example|clip|scene|test)?[ _-]?\d+",
    re.IGNORECASE,
)
_MOST_SOURCES = 12  # more on the shorter side are no sources of one mixture

Key = tuple[str, ...]  # of a file: its folders below the root, and its stem
Grid = dict[str, dict[str, str]]  # mixture -> source -> path


class Corpus(NamedTuple):
    """What was understood of the folders."""

    mixtures: tuple[Mixture, ...]
    layout: str  # of the references: "mixture" or "source"
    sources: tuple[str, ...]  # in the order of the references
    notes: tuple[str, ...]  # in words, to be told


def read_folders(
    references: str,
    systems: Mapping[str, str],
    layout: str | None = None,
    sources: Sequence[str] | None = None,
) -> Corpus:
    """Pair the files of a folder of references with those of the systems' folders, by name.

    Args:
        references: the folder of the true sources.
        systems: folder of each system, by its name. Its layout may be the other one.
        layout: ``"mixture"`` (a folder per mixture) or ``"source"`` (a folder per source) of the
            references; None: found out.
        sources: names of the sources to take, in this order; None: all, in the order of their
            names. A file or folder called mix or mixture is no source.

    Returns:
        A :class:`Corpus`. A system without any file for a source has None in its place throughout.

    Raises:
        ManifestError: all that does not fit: folders without audio, files without partner, a source
            that no system estimates, layouts that can be read either way.
    """
    problems: list[str] = []
    truth = _tree(references, "references", problems)
    if problems:
        raise ManifestError(references, problems)
    grid = _Grid.of(truth, _reference_position(truth, references, layout))
    wanted = _wanted_sources(grid, sources, references)
    problems += _gaps(grid, wanted, "the references")
    found = {name: _system_grid(name, root, grid, problems) for name, root in systems.items()}
    taken = {
        name: tuple(source for source in wanted if source in own.sources)
        for name, own in found.items()
    }
    for name, own in found.items():
        problems += _system_gaps(name, own, grid, taken[name])
    problems += _never_estimated(wanted, taken, sources is None)
    if problems:
        raise ManifestError(references, problems)
    default = os.path.basename(os.path.abspath(references))
    mixtures = tuple(
        _mixture(mixture, default, grid, wanted, found, taken) for mixture in grid.rows
    )
    return Corpus(mixtures, grid.layout, wanted, _notes(grid, wanted, found, taken))


class _Grid(NamedTuple):
    """A tree read in one of the layouts."""

    layout: str
    rows: Grid
    mixes: Grid  # mixture -> name -> path of what is called mix
    sources: tuple[str, ...]  # those that occur, in the order of their names

    @classmethod
    def of(cls, tree: Mapping[Key, str], position: int) -> _Grid:
        rows: Grid = {}
        mixes: Grid = {}
        for key, path in tree.items():
            if len(key) + min(position, 0) < 0 or position >= len(key):
                continue
            source = key[position]
            rest = list(key)
            del rest[position]
            place = mixes if _MIXTURE.fullmatch(source) else rows
            place.setdefault("/".join(rest), {})[source] = path
        names = {source for row in rows.values() for source in row}
        ordered = {name: rows[name] for name in sorted(rows, key=_natural)}
        layout = LAYOUTS[position != -1]
        return cls(layout, ordered, mixes, tuple(sorted(names, key=_natural)))

    def fits(self, most: float) -> bool:
        """Whether its columns can be the sources of mixtures."""
        return 2 <= len(self.sources) <= most

    @property
    def of_sources(self) -> bool:
        """Whether all its columns have names that sources have."""
        return all(_SOURCE.fullmatch(name) for name in self.sources)

    @property
    def of_mixtures(self) -> bool:
        """Whether all its rows have names that mixtures have, or a mix lies among the columns."""
        return bool(self.mixes) or all(
            _ITEM.fullmatch(name.rsplit("/", 1)[-1]) for name in self.rows
        )

    def told(self) -> str:
        """The grid in words."""
        folder = f"a folder per {self.layout}"
        names = files.listed(map(repr, self.sources))
        return f"{folder}: {len(self.rows)} mixtures of the {len(self.sources)} sources {names}"


def _tree(root: str, whose: str, problems: list[str]) -> dict[Key, str]:
    """Every audio file below ``root`` by its key; what is wrong goes to ``problems``."""
    if not os.path.isdir(root):
        there = "is no folder" if os.path.exists(root) else "does not exist"
        problems.append(f"{whose}: {files.shown(root)!r} {there}")
        return {}
    found: dict[Key, str] = {}
    for path in _audio_files(root):
        stem = os.path.splitext(os.path.relpath(path, root))[0]
        key = tuple(files.written(part) for part in stem.split(os.sep))
        if key in found:
            both = f"{files.shown(found[key])!r} and {files.shown(path)!r}"
            problems.append(f"{whose}: {both} have one name, so one of them must go")
        found[key] = path
    if not found:
        known = ", ".join(sorted(_SUFFIXES))
        problems.append(f"{whose}: no audio file ({known}) below {files.shown(root)!r}")
    return found


def _audio_files(root: str) -> Iterable[str]:
    seen = set()
    for folder, below, names in os.walk(root, followlinks=True):
        place = os.path.realpath(folder)
        if place in seen:  # a link to a folder above
            below.clear()
            continue
        seen.add(place)
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in _SUFFIXES:
                yield os.path.join(folder, name)


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sorts s2 before s10."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts if part)


def _reference_position(tree: Mapping[Key, str], root: str, layout: str | None) -> int:
    """Which part of a file's key is its source; -1: the file's own name.

    Raises:
        ManifestError: neither reading fits, or both do.
    """
    positions = {"mixture": (-1,), "source": (0, -2)}
    allowed = positions[layout] if layout is not None else (-1, 0, -2)
    most = _MOST_SOURCES if layout is None else math.inf
    readings: dict[int, _Grid] = {}
    for position in allowed:
        if position != -1 and any(len(key) < 2 for key in tree):
            continue
        grid = _Grid.of(tree, position)
        if grid.fits(most) and all(grid.rows != other.rows for other in readings.values()):
            readings[position] = grid
    left = list(readings)
    for told in ("of_sources", "of_mixtures"):
        left = [place for place in left if getattr(readings[place], told)] or left
    left.sort(key=lambda place: len(readings[place].sources))
    sizes = [len(readings[place].sources) for place in left]
    if len(left) == 1 or (len(left) > 1 and sizes[0] < sizes[1]):
        return left[0]
    raise ManifestError(files.shown(root), [_unclear(readings, tree, layout)])


def _unclear(readings: Mapping[int, _Grid], tree: Mapping[Key, str], layout: str | None) -> str:
    if readings:
        told = "; or as ".join(grid.told() for grid in readings.values())
        return (
            f"can be read as {told}. Say which: --layout mixture (a folder per mixture) or "
            "--layout source (a folder per source)"
        )
    example = files.listed((repr("/".join(key)) for key in tree), 3)
    wanted = "a folder per mixture with a file per source, or a folder per source with a file per "
    asked = "" if layout is None else f" as --layout {layout}"
    return (
        f"cannot be read{asked}: expected {wanted}mixture, with 2 to {_MOST_SOURCES} sources, got "
        f"{example}. Write a manifest for sets that are laid out otherwise"
    )


def _wanted_sources(grid: _Grid, asked: Sequence[str] | None, root: str) -> tuple[str, ...]:
    if asked is None:
        return grid.sources
    unknown = [name for name in asked if name not in grid.sources]
    if unknown or len(set(asked)) < len(asked) or len(asked) < 2:
        raise ManifestError(
            files.shown(root),
            [
                "--sources must name at least two different ones of "
                f"{', '.join(map(repr, grid.sources))}, got {', '.join(map(repr, asked))}"
            ],
        )
    return tuple(asked)


def _gaps(grid: _Grid, wanted: Sequence[str], whose: str) -> list[str]:
    """Sources that a mixture lacks and others have."""
    return [
        f"{whose} of mixture {mixture!r} lack {', '.join(map(repr, missing))}"
        for mixture, row in grid.rows.items()
        if (missing := [source for source in wanted if source not in row])
    ]


def _system_grid(name: str, root: str, truth: _Grid, problems: list[str]) -> _Grid:
    """A system's files, in the layout in which most of them have the name of a reference."""
    before = len(problems)
    tree = _tree(root, f"system {name!r}", problems)
    empty = _Grid(truth.layout, {}, {}, ())
    if len(problems) > before:
        return empty
    readings = [_Grid.of(tree, position) for position in (-1, 0, -2)]
    best = max(readings, key=lambda grid: _shared(grid, truth))
    if _shared(best, truth):
        return best
    mixture, row = next(iter(truth.rows.items()))
    problems.append(
        f"system {name!r}: no file below {files.shown(root)!r} is named as a reference is: "
        f"expected e.g. mixture {mixture!r} with {', '.join(map(repr, row))}, found e.g. "
        f"{files.listed((repr('/'.join(key)) for key in tree), 2)}"
    )
    return empty


def _shared(grid: _Grid, truth: _Grid) -> int:
    return sum(
        len(row.keys() & truth.rows[mixture].keys())
        for mixture, row in grid.rows.items()
        if mixture in truth.rows
    )


def _system_gaps(name: str, own: _Grid, truth: _Grid, taken: Sequence[str]) -> list[str]:
    """Mixtures that a system has not, or not all of its sources of."""
    if not own.rows:  # told already
        return []
    found = []
    for mixture in truth.rows:
        if mixture not in own.rows:
            close = difflib.get_close_matches(mixture, list(own.rows), n=1, cutoff=0.8)
            hint = f" (but has {close[0]!r})" if close and close[0] not in truth.rows else ""
            found.append(f"system {name!r} lacks mixture {mixture!r}{hint}")
            continue
        missing = [source for source in taken if source not in own.rows[mixture]]
        if missing:
            found.append(
                f"system {name!r}, mixture {mixture!r}: lacks {', '.join(map(repr, missing))}, "
                "which it has elsewhere"
            )
    return found


def _never_estimated(
    wanted: Sequence[str], taken: Mapping[str, Sequence[str]], refuse: bool
) -> list[str]:
    """Sources that are in the way by accident, as LibriMix's noise, unless they were asked for."""
    if not refuse or not any(taken.values()):
        return []
    never = [source for source in wanted if not any(source in own for own in taken.values())]
    rest = [source for source in wanted if source not in never]
    return [
        f"no system estimates {source!r}. Say whether it is part of the mixtures: --sources "
        f"{' '.join(rest)} leaves it out, --sources {' '.join(wanted)} keeps it as a reference"
        for source in never
    ]


def _mixture(
    name: str,
    default: str,
    truth: _Grid,
    wanted: Sequence[str],
    systems: Mapping[str, _Grid],
    taken: Mapping[str, Sequence[str]],
) -> Mixture:
    mixes = list(truth.mixes.get(name, {}).values())
    return Mixture(
        name=name or default,
        references=tuple(files.written(truth.rows[name][source]) for source in wanted),
        systems={
            system: tuple(
                files.written(own.rows[name][source]) if source in taken[system] else None
                for source in wanted
            )
            for system, own in systems.items()
        },
        folder="",
        mixture=files.written(mixes[0]) if len(mixes) == 1 else None,
        sources=tuple(wanted),
    )


def _notes(
    truth: _Grid,
    wanted: Sequence[str],
    systems: Mapping[str, _Grid],
    taken: Mapping[str, Sequence[str]],
) -> tuple[str, ...]:
    notes = [f"references: {truth.told()}"]
    left = [source for source in truth.sources if source not in wanted]
    if left:
        notes.append(f"references: left out {', '.join(map(repr, left))}, as --sources says")
    for name, own in systems.items():
        words = [f"a folder per {own.layout}"]
        lacking = [source for source in wanted if source not in taken[name]]
        if lacking:
            words.append(f"no estimate of {', '.join(map(repr, lacking))}")
        extra = [source for source in own.sources if source not in wanted]
        if extra:
            words.append(f"left out, as no reference: {files.listed(map(repr, extra))}")
        more = [mixture for mixture in own.rows if mixture not in truth.rows]
        if more:
            words.append(f"{len(more)} mixtures without references left out")
        notes.append(f"system {name!r}: {'; '.join(words)}")
    return tuple(notes)


def write_manifest(path: str, corpus: Corpus) -> None:
    """Keep what was understood as a manifest, its paths relative to it, with forward slashes.

    Raises:
        ValueError: the folder cannot be written to.
    """
    folder = os.path.dirname(path) or "."
    files.make_folder(folder)

    def relative(found: str | None) -> str | None:
        if found is None:
            return None
        try:
            near = os.path.relpath(files.native(found), folder)
        except ValueError:  # on another drive of Windows
            near = os.path.abspath(files.native(found))
        return files.written(near).replace(os.sep, "/")

    entries = []
    for mixture in corpus.mixtures:
        entry: dict[str, Any] = {"mixture_id": mixture.name}
        if mixture.mixture is not None:
            entry["mixture"] = relative(mixture.mixture)
        entry["sources"] = list(corpus.sources)
        entry["references"] = [relative(found) for found in mixture.references]
        entry["systems"] = {
            name: [relative(found) for found in paths] for name, paths in mixture.systems.items()
        }
        entries.append(entry)
    files.write_paths_json(path, entries)

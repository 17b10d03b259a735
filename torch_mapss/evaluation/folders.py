"""Folders of audio as test sets use them -> the mixtures of a manifest, by templates.

A template is a path with ``{mixture}`` and ``{source}`` in the places of their names, and ``*`` for
what does not matter: ``refs/{mixture}/{source}.wav`` (MUSDB), ``refs/{source}/{mixture}.wav``
(WSJ0-2mix, LibriMix), ``out/{mixture}_{source}.wav``, ``ex/{mixture}/{source}_estimate.wav``. Of a
plain folder the usual layouts are tried. What was understood is told.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torch_mapss.evaluation import io
from torch_mapss.evaluation.io import same_name
from torch_mapss.evaluation.manifest import ManifestError, Mixture

_SUFFIXES = frozenset(
    (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf")
    + (".w64", ".rf64")
)
# Of a plain folder, without suffixes. Those of references come first, in order of preference.
_LAYOUTS = (
    *("{mixture}/{source}", "{source}/{mixture}", "{folder}/{source}/{mixture}"),
    *("{mixture}_{source}", "{source}"),
)
_OF_OUTPUTS = (*_LAYOUTS, "{mixture}/{source}_estimate", "{mixture}/{source}_est")
# Beside the sources, but none of them.
_MIXTURE = re.compile(r"(.*[_-])?mix(ture)?([_-].*)?|noisy", re.IGNORECASE)
_ESTIMATE = re.compile(r".+_est(imate)?", re.IGNORECASE)
_NOISE = re.compile(r"noise([_-].*)?", re.IGNORECASE)
_SOURCE = re.compile(
    r"(s|src|source|spk|speaker|ref|reference|talker|voice)[ _-]?\d+"
    r"|(clean|speech|noise|music|vocals?|voice|singing|accompaniment|other)[ _-]?\d*"
    r"|[ae]?(bass|drums?|piano|guitar|keys|strings|brass|wind|violin|cello|flute)[ _-]?\d*",
    re.IGNORECASE,
)
_ITEM = re.compile(
    r"(m|mix|mixture|song|track|utt|utterance|item|ex|example|clip|scene|test)?[ _-]?\d+",
    re.IGNORECASE,
)
_MOST_SOURCES = 12  # more are no sources of one mixture
_ONLY = "speech"  # the source of a template without {source}

Grid = dict[str, dict[str, str]]  # mixture -> source -> path, names as same_name gives them


class Corpus(NamedTuple):
    """What was understood of the folders."""

    mixtures: tuple[Mixture, ...]
    notes: tuple[str, ...]  # in words, to be told


def read_folders(
    references: str,
    systems: Mapping[str, str],
    sources: Sequence[str] | None = None,
    noisy: str | None = None,
    derived: str | None = None,
) -> Corpus:
    """Pair the files of references with those of the systems, by name.

    Args:
        references: template or folder of the true sources. Without ``{source}``: one clean source.
        systems: template or folder of each system, by its name; its layout may be another one.
        sources: names of the sources to take, in this order; None: all, in the order of their
            names, but for those called mix or noisy, and for noise that no system estimates.
        noisy: template or folder of the mixtures with noise; noise = noisy - clean becomes the
            second reference of every mixture.
        derived: folder that these noise files are written to.

    Returns:
        A :class:`Corpus`. Mixtures may have sources of their own; a system without any file for a
        source has None in its place.

    Raises:
        ManifestError: all that does not fit: folders without audio, files without partner, mixtures
            with a single source, layouts that can be read in two ways.
    """
    problems: list[str] = []
    names = None if sources is None else list(map(same_name, sources))
    tree = _Tree(references, "references", problems)
    if problems:
        raise ManifestError(references, problems)
    grid, layout = _reference_grid(tree, names, noisy is not None)
    grid, aside, mixes = _sources_only(grid, names)
    if noisy is not None:
        mixes = _found(_Tree(noisy, "--noisy", problems), {m: {_ONLY} for m in grid}, problems)
        grid = _with_noise(grid, mixes, derived or "", problems)
    taken = {
        name: _found(_Tree(given, f"system {name!r}", problems), grid, problems)
        for name, given in systems.items()
    }
    if problems:
        raise ManifestError(references, problems)
    if names is None and noisy is None:
        aside += _unestimated_noise(grid, taken)
    for name, own in taken.items():
        problems += _gaps(name, own, grid)
    lonely = [mixture for mixture, row in grid.items() if len(row) < 2]
    if lonely:
        problems.append(
            f"at least two sources are needed, but {io.listed(map(repr, lonely), 3)} "
            f"{'has' if len(lonely) == 1 else 'have'} {_shown(grid[lonely[0]]) or 'none'}. Check "
            "the template; of clean speech and its noisy mixture, add --noisy TEMPLATE"
        )
    if problems:
        raise ManifestError(references, problems)
    order = _order(grid, names)
    default = os.path.basename(os.path.abspath(references))
    mixtures = tuple(
        _mixture(mixture, mixture or default, grid[mixture], order, taken, mixes.get(mixture, {}))
        for mixture in sorted(grid, key=_natural)
    )
    return Corpus(mixtures, tuple(_notes(layout, grid, order, aside, taken)))


# ------------------------------------------------------------------------------------------------
# Files
# ------------------------------------------------------------------------------------------------


class _Tree:
    """The audio files below a folder, or below the fixed part of a template."""

    def __init__(self, given: str, whose: str, problems: list[str]) -> None:
        self.given, self.whose = given, whose
        self.template = "{mixture}" in given or "{source}" in given
        root, pattern = given, ""
        if self.template:
            fixed = re.split(r"[{*]", given)[0]
            root, pattern = os.path.dirname(fixed), given[len(os.path.dirname(fixed)) :]
        self.pattern = same_name(pattern.replace(os.sep, "/").lstrip("/"))
        self.files: dict[str, str] = {}  # path below the root, in one Unicode form -> path
        root = root or "."
        if not os.path.isdir(root):
            there = "is no folder" if os.path.exists(root) else "does not exist"
            problems.append(f"{whose}: {io.shown(root)!r} {there}")
            return
        for path in _audio_files(root):
            key = same_name(io.written(os.path.relpath(path, root)).replace(os.sep, "/"))
            if not self.template:
                key = os.path.splitext(key)[0]
            if key in self.files:
                both = f"{io.shown(self.files[key])!r} and {io.shown(path)!r}"
                problems.append(f"{whose}: {both} have one name, so one of them must go")
            self.files[key] = path
        if not self.files:
            known = ", ".join(sorted(_SUFFIXES))
            problems.append(f"{whose}: no audio file ({known}) below {io.shown(root)!r}")

    def grid(self, pattern: str, sources: Iterable[str] | None = None) -> Grid:
        """The files that match a pattern, by mixture and source."""
        found: Grid = {}
        matches = re.compile(_expression(pattern, sources)).fullmatch
        for key, path in self.files.items():
            if match := matches(key):
                parts = match.groupdict()
                name = "/".join(filter(None, map(parts.get, ("folder", "mixture"))))
                row = found.setdefault(name, {})
                row[parts.get("source", _ONLY)] = path
        return found

    def examples(self) -> str:
        return io.listed(map(repr, self.files), 3)


def _audio_files(root: str) -> Iterator[str]:
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


def _expression(pattern: str, sources: Iterable[str] | None) -> str:
    """A pattern as a regular expression with groups ``mixture`` and ``source``."""
    # The shortest name before {mixture}, the longest mixture: song_1_vocals is song_1, vocals.
    one = "[^/]+?" if pattern.find("{source}") < pattern.find("{mixture}") else "[^/]+"
    if sources is not None:
        one = "|".join(map(re.escape, sorted(sources, key=len, reverse=True)))
    kinds = {"{mixture}": "(?P<mixture>.+)", "{source}": f"(?P<source>{one})", "*": "[^/]*"}
    kinds["{folder}"] = "(?P<folder>.+)"
    text = ""
    for part in re.split(r"(\{mixture\}|\{source\}|\{folder\}|\*)", pattern):
        text += kinds.get(part, re.escape(part))
        if part in ("{mixture}", "{source}"):
            kinds[part] = f"(?P={part[1:-1]})"  # the same name again
    return text


# ------------------------------------------------------------------------------------------------
# References
# ------------------------------------------------------------------------------------------------


def _reference_grid(tree: _Tree, names: Sequence[str] | None, single: bool) -> tuple[Grid, str]:
    """Mixtures and sources of the references, and the layout that was read.

    Raises:
        ManifestError: no file matches, or two layouts do.
    """
    if tree.template or single:
        if grid := tree.grid(tree.pattern or "{mixture}", names):
            return grid, tree.given
        text = f"no audio file matches the template; there is {tree.examples()}"
        raise ManifestError(io.shown(tree.given), [text])
    readings: dict[str, Grid] = {}
    for pattern in _LAYOUTS:
        grid = tree.grid(pattern)
        if 2 <= len(_columns(grid)) <= _MOST_SOURCES and grid not in readings.values():
            readings[pattern] = grid
    left = list(readings)
    for told in (_of_sources, _of_items):
        left = [p for p in left if told(readings[p])] or left
    if "{source}" in left and len(left) > 1 and "{mixture}_{source}" in left:
        left.remove("{source}")
    left.sort(key=lambda p: len(_columns(readings[p])))
    sizes = [len(_columns(readings[p])) for p in left]
    if len(left) == 1 or (len(left) > 1 and sizes[0] < sizes[1]):
        return readings[left[0]], left[0]
    if left:
        both = " or ".join(f"{p!r} ({_size(readings[p])})" for p in left)
        text = f"can be read as {both}. Say which with a template: --references 'DIR/{left[0]}.wav'"
    else:
        text = (
            "cannot be read as a folder per mixture with a file per source, nor as a folder per "
            f"source with a file per mixture (2 to {_MOST_SOURCES} sources), got {tree.examples()}."
            " Say where the names are: --references 'DIR/{mixture}/{source}.wav'"
        )
    raise ManifestError(io.shown(tree.given), [text])


def _columns(grid: Grid) -> list[str]:
    """Sources that occur, none that is called mix, in the order of their names."""
    names = {source for row in grid.values() for source in row if not _MIXTURE.fullmatch(source)}
    return sorted(names, key=_natural)


def _of_sources(grid: Grid) -> bool:
    return all(_SOURCE.fullmatch(name) for name in _columns(grid))


def _of_items(grid: Grid) -> bool:
    mixes = any(_MIXTURE.fullmatch(source) for row in grid.values() for source in row)
    return mixes or all(_ITEM.fullmatch(name.rsplit("/", 1)[-1]) for name in grid)


def _size(grid: Grid) -> str:
    return f"{len(grid)} mixtures of the sources {io.listed(map(repr, _columns(grid)))}"


def _sources_only(grid: Grid, names: Sequence[str] | None) -> tuple[Grid, list[str], Grid]:
    """The sources that are meant, the names of what is set aside, and the mixtures' own files.

    Raises:
        ManifestError: names that do not occur.
    """
    every = {source for row in grid.values() for source in row}
    unknown = [name for name in names or () if name not in every]
    if unknown or len(set(names or ())) < len(names or ()):
        given, there = ", ".join(map(repr, names or ())), _shown(sorted(every, key=_natural))
        text = f"--sources must name different ones of {there}, got {given}"
        raise ManifestError("the references", [text])
    if names is not None:
        keep = set(names)
    else:
        twins = {s for s in every if _ESTIMATE.fullmatch(s) and s.rsplit("_", 1)[0] in every}
        keep = {source for source in every if not _MIXTURE.fullmatch(source)} - twins
    called = {
        mixture: [path for source, path in row.items() if _MIXTURE.fullmatch(source)]
        for mixture, row in grid.items()
    }
    mixes = {mixture: {_ONLY: own[0]} for mixture, own in called.items() if len(own) == 1}
    kept = {
        mixture: {source: path for source, path in row.items() if source in keep}
        for mixture, row in grid.items()
    }
    kept = {mixture: row for mixture, row in kept.items() if row}
    return kept, sorted(every - keep, key=_natural), mixes


def _unestimated_noise(grid: Grid, taken: Mapping[str, Grid]) -> list[str]:
    """Noise that no system estimates is set aside, as in LibriMix, if two sources are left."""
    estimated = {source for own in taken.values() for row in own.values() for source in row}
    aside = [s for s in _columns(grid) if _NOISE.fullmatch(s) and s not in estimated]
    if any(len(row.keys() - set(aside)) < 2 for row in grid.values()):
        return []
    for row in grid.values():
        for source in aside:
            row.pop(source, None)
    return aside


def _with_noise(grid: Grid, mixes: Grid, folder: str, problems: list[str]) -> Grid:
    """The clean source of every mixture and noise = noisy - clean, written to ``folder``."""
    from torch_mapss import audio

    found: Grid = {}
    for mixture, row in grid.items():
        if len(row) != 1 or mixture not in mixes:
            problems.append(
                f"mixture {mixture!r}: --noisy needs one clean source and one noisy file, got "
                f"{_shown(row)} and {len(mixes.get(mixture, {}))}"
            )
            continue
        ((source, clean),) = row.items()
        noisy = mixes[mixture][_ONLY]
        path = os.path.join(io.make_folder(folder), f"{io.native(io.file_name(mixture))}.wav")
        found[mixture] = {source: clean, "noise": path}
        if os.path.exists(path) and os.path.getmtime(path) > max(
            map(os.path.getmtime, (clean, noisy))
        ):
            continue
        (whole, rate), (part, other) = audio.load_audio(noisy), audio.load_audio(clean)
        if rate != other or whole.shape != part.shape:
            problems.append(
                f"mixture {mixture!r}: noisy and clean differ, {tuple(whole.shape)} at {rate} Hz "
                f"and {tuple(part.shape)} at {other} Hz (channels, samples)"
            )
            continue
        io.write_wave(path, (whole - part).T, rate)
    return found


# ------------------------------------------------------------------------------------------------
# Systems
# ------------------------------------------------------------------------------------------------


def _found(tree: _Tree, grid: Mapping[str, Iterable[str]], problems: list[str]) -> Grid:
    """The files of a system, in the layout in which most have the name of a reference."""
    if not tree.files:  # told already
        return {}
    names = {source for row in grid.values() for source in row}
    patterns = (tree.pattern,) if tree.template else _OF_OUTPUTS
    if not tree.template and sum(not _NOISE.fullmatch(name) for name in names) == 1:
        patterns = (*patterns, "{mixture}")
    readings = []
    for pattern in patterns:
        known = names if "{source}" in pattern else None
        readings.append(
            {
                mixture: {
                    (source if "{source}" in pattern else min(names, key=_noise_last)): path
                    for source, path in row.items()
                }
                for mixture, row in tree.grid(pattern, known).items()
            }
        )
    best = max(
        readings, key=lambda own: sum(m in grid and s in grid[m] for m in own for s in own[m])
    )
    if any(mixture in grid for mixture in best):
        return best
    mixture = next(iter(grid))
    problems.append(
        f"{tree.whose}: no file of {io.shown(tree.given)!r} is named as a reference is: expected "
        f"e.g. mixture {mixture!r} with {_shown(grid[mixture])}, found {tree.examples()}. Say "
        "where the names are with a template: 'DIR/{mixture}/{source}.wav'"
    )
    return {}


def _noise_last(name: str) -> tuple[bool, str]:
    return bool(_NOISE.fullmatch(name)), name


def _gaps(name: str, own: Grid, grid: Grid) -> Iterator[str]:
    """Mixtures that a system has not, and sources that it has elsewhere."""
    missing = [mixture for mixture in grid if mixture not in own]
    if missing:
        spare = [mixture for mixture in own if mixture not in grid]
        close = [c for m in missing[:20] for c in difflib.get_close_matches(m, spare, 1, 0.8)]
        hint = f" (but has {close[0]!r})" if close else ""
        lacks = io.listed(map(repr, missing), 3)
        yield f"system {name!r} lacks {len(missing)} of {len(grid)} mixtures: {lacks}{hint}"
    estimated = {source for row in own.values() for source in row}
    gaps = [
        f"{source!r} of {mixture!r}"
        for mixture, row in grid.items()
        for source in row
        if mixture in own and source in estimated and source not in own[mixture]
    ]
    if gaps:
        yield f"system {name!r} lacks {io.listed(gaps, 3)}, which it has of other mixtures"


# ------------------------------------------------------------------------------------------------
# What comes out
# ------------------------------------------------------------------------------------------------


def _order(grid: Grid, names: Sequence[str] | None) -> list[str]:
    every = sorted({source for row in grid.values() for source in row}, key=_natural)
    if names is not None:
        return [*names, *(name for name in every if name not in names)]
    return sorted(every, key=lambda name: bool(_NOISE.fullmatch(name)))


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sorts s2 before s10."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts if part)


def _mixture(
    key: str,
    name: str,
    row: Mapping[str, str],
    order: Sequence[str],
    systems: Mapping[str, Grid],
    mixes: Mapping[str, str],
) -> Mixture:
    own = [source for source in order if source in row]

    def paths(found: Mapping[str, str]) -> tuple[str | None, ...]:
        return tuple(io.written(found[s]) if s in found else None for s in own)

    estimated = {system: paths(grid.get(key, {})) for system, grid in systems.items()}
    return Mixture(
        name=name,
        references=tuple(io.written(row[source]) for source in own),
        systems={n: found for n, found in estimated.items() if any(found)},
        folder="",
        mixture=io.written(mixes[_ONLY]) if mixes else None,
        sources=tuple(own),
    )


def _notes(
    layout: str,
    grid: Grid,
    order: Sequence[str],
    aside: Sequence[str],
    systems: Mapping[str, Grid],
) -> Iterator[str]:
    names = _shown(order)
    yield f"references: {len(grid)} mixtures of the {len(order)} sources {names} ({layout})"
    if aside:
        keep = " ".join([*order, *aside])
        yield f"set aside: {_shown(aside)}; --sources {keep} would take all"
    counts = Counter(source for row in grid.values() for source in row)
    some = [f"{source!r} in {counts[source]}" for source in order if counts[source] < len(grid)]
    if some:
        common = [source for source in order if counts[source] == len(grid)]
        yield (
            f"some mixtures lack sources ({', '.join(some)} of {len(grid)}): each is scored with "
            f"its own; all have {_shown(common) or 'none in common'}"
        )
    for name, own in systems.items():
        estimated = {source for row in own.values() for source in row}
        lacking = [source for source in order if source not in estimated]
        more = sum(mixture not in grid for mixture in own)
        words = [f"no estimate of {_shown(lacking)}"] if lacking else []
        words += [f"{more} mixtures without references left out"] if more else []
        if words:
            yield f"system {name!r}: {'; '.join(words)}"


def _shown(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))

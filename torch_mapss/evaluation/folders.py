"""Folders of audio as test sets use them -> the mixtures of a manifest, by templates.

A template is a path with ``{mixture}`` and ``{source}`` in the places of their names, and ``*`` for
what does not matter: ``refs/{mixture}/{source}.wav`` (MUSDB), ``refs/{source}/{mixture}.wav``
(WSJ0-2mix, LibriMix), ``out/{mixture}_{source}.wav``, ``ex/{mixture}/{source}_estimate.wav``. It is
a regular expression over the names of the files; of a plain folder the usual layouts are tried.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pandas import DataFrame, Series

from torch_mapss.evaluation import io
from torch_mapss.evaluation.io import same_name
from torch_mapss.evaluation.manifest import ManifestError, Mixture

_SUFFIXES = (
    *(".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf"),
    *(".w64", ".rf64"),
)
# Of a plain folder, names without suffixes.
_LAYOUTS = (
    *("{mixture}/{source}", "{source}/{mixture}", "{folder}/{source}/{mixture}"),
    *("{mixture}_{source}", "{source}"),
)
_OF_OUTPUTS = (*_LAYOUTS, "{mixture}/{source}_estimate", "{mixture}/{source}_est")
# Names of files that are no sources, and of sources and mixtures where a layout is in doubt.
_MIXTURE, _ESTIMATE, _NOISE, _SOURCE, _ITEM = (
    re.compile(pattern, re.IGNORECASE).fullmatch
    for pattern in (
        r"(.*[_-])?mix(ture)?([_-].*)?|noisy",
        r"(.+)_est(imate)?",
        r"noise([_-].*)?",
        r"(s|src|source|spk|speaker|ref|reference|talker|voice)[ _-]?\d+"
        r"|(clean|speech|noise|music|vocals?|voice|singing|accompaniment|other)[ _-]?\d*"
        r"|[ae]?(bass|drums?|piano|guitar|keys|strings|brass|wind|violin|cello|flute)[ _-]?\d*",
        r"(m|mix|mixture|song|track|utt|utterance|item|ex|example|clip|scene|test)?[ _-]?\d+",
    )
)
_MOST_SOURCES = 12  # more are no sources of one mixture
_ONLY = "speech"  # the source of a template without {source}

# A table of files has a row per mixture and a column per source, both in order, and in its cells
# paths as io.written gives them, NaN where there is none; names are as io.same_name gives them.


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
    allow_missing: bool = False,
) -> Corpus:
    """Pair the files of references with those of the systems, by name.

    Args:
        references: template or folder of the true sources. Without ``{source}``: one clean source.
        systems: template or folder of each system, by its name; its layout may be another one.
        sources: names of the sources to take, in this order; None: all, in the order of their
            names, but for those called mix or noisy, and for noise that no system estimates.
        noisy: template or folder of the mixtures with noise; noise = noisy - clean, written to the
            folder ``derived``, becomes the second reference of every mixture.
        allow_missing: what a system lacks is named in the notes, and scored as not estimated.

    Returns:
        A :class:`Corpus`. Mixtures may have sources of their own; a system without any file for a
        source has None in its place.

    Raises:
        ManifestError: all that does not fit: folders without audio, files without partner, mixtures
            with a single source, layouts that can be read in two ways.
    """
    names = [same_name(name) for name in sources or ()]
    every, layout = _read_references(references, names, noisy is not None)
    truth = _chosen(every, names)
    if noisy is None:
        mixed = every[[*filter(_MIXTURE, _names(every))]].stack().dropna().droplevel(1)
        mixes = mixed[~mixed.index.duplicated(keep=False)]
    else:
        like = DataFrame({_ONLY: ""}, truth.index)
        mixes = _read_estimates(noisy, "--noisy", like)[_ONLY]
        truth = _with_noise(truth, mixes, derived or "")
    found = {
        name: _read_estimates(given, f"system {name!r}", truth) for name, given in systems.items()
    }
    if not names and noisy is None:  # noise that no system estimates, as in LibriMix
        estimated = set().union(*found.values())
        left = truth[[name for name in _names(truth) if name in estimated or not _NOISE(name)]]
        truth = left if (left.count(axis=1) > 1).all() else truth
    problems = [problem for name, files in found.items() for problem in _gaps(name, files, truth)]
    gaps = [problem.partition(". Check")[0] for problem in problems] if allow_missing else []
    problems = [] if allow_missing else problems
    lonely = truth[truth.count(axis=1) < 2]
    if len(lonely):
        problems.append(
            f"at least two sources are needed, but {_shown(lonely.index, 3)} have only "
            f"{_shown(lonely.iloc[0].dropna().index)}. Check the template; of clean speech and its "
            "noisy mixture, add --noisy TEMPLATE"
        )
    if problems:
        raise ManifestError(io.shown(references), problems)
    folder = os.path.abspath(re.split(r"[{*]", references)[0])  # which a single mixture is named by
    alike = {n: files.reindex_like(truth).replace({math.nan: None}) for n, files in found.items()}
    mixtures = []
    for mixture, row in truth.iterrows():
        own = row.dropna()
        made = {name: tuple(files.loc[mixture, [*own.index]]) for name, files in alike.items()}
        entry = Mixture(
            name=str(mixture) or io.written(os.path.basename(folder)),
            references=tuple(own),
            systems={name: paths for name, paths in made.items() if any(paths)},
            folder="",
            mixture=mixes.get(mixture),
            sources=tuple(own.index),
        )
        mixtures.append(entry)
    return Corpus(tuple(mixtures), (*_notes(layout, every, truth, found), *gaps))


# ------------------------------------------------------------------------------ Files and templates


def _readings(
    given: str, whose: str, layouts: Sequence[str], known: Sequence[str] = (), only: str = _ONLY
) -> tuple[dict[str, DataFrame], str]:
    """The files that match a template, or each of the layouts in a plain folder, by layout.

    And the names of some, for messages, as ``whose`` is. ``known``: names that a source may have,
    any if empty; ``only``: the source of a template without ``{source}``.
    """
    root, template = given, _is_template(given)
    if template:
        root = os.path.dirname(re.split(r"[{*]", given)[0]) or "."
        layouts = [same_name(io.written(os.path.relpath(given, root)).replace(os.sep, "/"))]
    names: dict[str, str] = {}  # by path: the path below the folder
    seen: set[str] = set()
    for folder, below, files in os.walk(root, followlinks=True):
        new = os.path.realpath(folder) not in seen  # else a link to a folder above
        seen.add(os.path.realpath(folder))
        below[:] = sorted(name for name in below if new and name[0] != ".")
        for name in sorted(name for name in files if new and name[0] != "."):
            path = os.path.join(folder, name)
            stem, suffix = os.path.splitext(path)
            if suffix.lower() in _SUFFIXES:
                name = io.written(os.path.relpath(path if template else stem, root))
                names[io.written(path)] = same_name(name.replace(os.sep, "/"))
    if not names:
        none = f"no audio file ({', '.join(sorted(_SUFFIXES))}) below"
        none = none if os.path.isdir(root) else "there is no folder"
        raise ManifestError(whose, [f"{none} {io.shown(root)!r}"])
    found = {layout: _matching(names, layout, whose, known, only) for layout in layouts}
    return found, _shown(names.values(), 3)


def _is_template(given: str) -> bool:
    return "{mixture}" in given or "{source}" in given


def _matching(
    names: Mapping[str, str], layout: str, whose: str, known: Sequence[str], only: str
) -> DataFrame:
    """The files whose names (by path) match a layout as a whole; see :func:`_readings`."""
    # The shortest name before {mixture}, the longest mixture: song_1_vocals is song_1, vocals.
    one = "[^/]+?" if layout.find("{source}") < layout.find("{mixture}") else "[^/]+"
    if known:
        one = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    kinds = {"{mixture}": "(?P<mixture>.+)", "{source}": f"(?P<source>{one})", "*": "[^/]*"}
    kinds["{folder}"] = "(?P<folder>.+)"
    expression = ""
    for part in re.split(r"(\{\w+\}|\*)", layout):
        expression += kinds.get(part, re.escape(part))
        if part in ("{mixture}", "{source}"):
            kinds[part] = f"(?P={part[1:-1]})"  # the same name again
    rows = []
    for path, name in names.items():
        if match := re.fullmatch(expression, name):
            parts = match.groupdict()
            mixture = "/".join(filter(None, map(parts.get, ("folder", "mixture"))))
            rows.append((mixture, parts.get("source", only), path))
    table = DataFrame(rows, columns=["mixture", "source", "path"], dtype=object)
    twice = table[table.duplicated(["mixture", "source"], keep=False)]
    if len(twice):
        first = twice[twice["source"].eq(twice["source"].iloc[0])]["path"]
        text = f"{first.iloc[0]!r} and {first.iloc[1]!r} have one name, so one of them must go"
        raise ManifestError(whose, [text])
    files = table.pivot(index="mixture", columns="source", values="path")
    sources = sorted(_names(files), key=lambda name: (bool(_NOISE(name)), _natural(name)))
    return files.loc[sorted(map(str, files.index), key=_natural), sources]


# --------------------------------------------------------------------------------------- References


def _read_references(given: str, names: Sequence[str], single: bool) -> tuple[DataFrame, str]:
    """The files of the references, and the only layout that they can be read in."""
    one = single or _is_template(given)  # way to read them: no doubt
    layouts = ["{mixture}"] if single else _LAYOUTS
    readings, examples = _readings(given, "references", layouts, names if one else ())
    doubts = {
        layout: _doubt(layout, files)
        for layout, files in readings.items()
        if (len(files) if one else 2 <= len(_sources(files)) <= _MOST_SOURCES)
    }
    best = [layout for layout in doubts if doubts[layout] == min(doubts.values())]
    if len(best) == 1:
        return readings[best[0]], best[0]
    text = f"cannot be read as {_shown(readings)}, there is {examples}"
    if best:
        both = " or ".join(f"{x!r} (sources {_shown(_sources(readings[x]))})" for x in best)
        text = f"can be read as {both}"
    text += f". Say where the names are: --references 'DIR/{[*best, *_LAYOUTS][0]}.wav'"
    raise ManifestError(io.shown(given), [text])


def _doubt(layout: str, files: DataFrame) -> tuple[bool, bool, bool, int]:
    """How unlike a reading is to the names of test sets: the least is the one that is meant."""
    sources = _sources(files)
    items = all(_ITEM(mixture.rsplit("/", 1)[-1]) for mixture in files.index)
    odd = not all(map(_SOURCE, sources))  # of odd names the fewer are sources
    known = items or len(sources) < files.shape[1]  # or there are files called mix
    return odd, not known, layout == "{source}", len(sources) if odd else 0


def _chosen(files: DataFrame, names: Sequence[str]) -> DataFrame:
    """The sources that are meant, in order.

    These are ``names``; without, all but what is called mix or noisy, and but estimates that lie
    with their sources.
    """
    if {*names} - {*files} or len({*names}) < len(names):
        text = f"--sources must name different ones of {_shown(files)}, got {_shown(names)}"
        raise ManifestError("the references", [text])
    twins = {name for name in _names(files) if (match := _ESTIMATE(name)) and match[1] in files}
    sources = names or [name for name in _sources(files) if name not in twins]
    if not sources:
        text = f"{_shown(files)} are mixtures by their names: name the sources with --sources"
        raise ManifestError("the references", [text])
    return files[sources].dropna(how="all")


def _with_noise(truth: DataFrame, mixes: Series[Any], folder: str) -> DataFrame:
    """The clean source of every mixture and noise = noisy - clean, written to ``folder``."""
    from torch_mapss import audio

    found, problems = {}, []
    for mixture, row in truth.iterrows():
        own, noisy = row.dropna(), mixes.get(mixture)
        if noisy is None or len(own) > 1:
            problems.append(
                f"mixture {mixture!r}: --noisy needs one clean source and one noisy file, got "
                f"{len(own)} and {int(noisy is not None)}"
            )
            continue
        path = os.path.join(io.make_folder(folder), f"{io.native(io.file_name(str(mixture)))}.wav")
        found[mixture] = {**own, "noise": io.written(path)}
        given = io.native(noisy), io.native(own.iloc[0])
        if os.path.exists(path) and os.path.getmtime(path) > max(map(os.path.getmtime, given)):
            continue
        (whole, rate), (part, other) = map(audio.load_audio, given)
        if rate == other and whole.shape == part.shape:
            io.write_wave(path, (whole - part).T, rate)
        else:
            problems.append(
                f"mixture {mixture!r}: noisy and clean differ, {tuple(whole.shape)} at {rate} Hz "
                f"and {tuple(part.shape)} at {other} Hz (channels, samples)"
            )
    if problems:
        raise ManifestError("--noisy", problems)
    return DataFrame.from_dict(found, orient="index")


# ------------------------------------------------------------------------------------------ Systems


def _read_estimates(given: str, whose: str, truth: DataFrame) -> DataFrame:
    """The files of a system, in the layout in which most have the name of a reference."""
    names = sorted(_names(truth))
    speech = [name for name in names if not _NOISE(name)] or names
    layouts = (*_OF_OUTPUTS, *["{mixture}"] * (len(speech) == 1))
    readings, examples = _readings(given, whose, layouts, names, speech[0])

    def paired(files: DataFrame) -> int:
        return int((files.reindex_like(truth).notna() & truth.notna()).to_numpy().sum())

    best = max(readings.values(), key=paired)
    if best.index.intersection(truth.index).empty:
        text = (
            f"no file of {io.shown(given)!r} is named as a reference is: expected e.g. mixture "
            f"{truth.index[0]!r} with {_shown(names)}, found {examples}. Say "
            "where the names are with a template: 'DIR/{mixture}/{source}.wav'"
        )
        raise ManifestError(whose, [text])
    return best


def _gaps(name: str, files: DataFrame, truth: DataFrame) -> Iterator[str]:
    """Mixtures that a system has not, and sources that it has elsewhere."""
    both = truth.loc[truth.index.isin(files.index), truth.columns.isin(files.columns)]
    if missing := [mixture for mixture in truth.index if mixture not in both.index]:
        spare = {*files.index} - {*both.index}
        close = [c for m in missing[:20] for c in difflib.get_close_matches(m, spare, 1, 0.8)]
        hint = f" (but has {close[0]!r})" if close else ""
        yield (
            f"system {name!r} lacks {len(missing)} of {len(truth)} mixtures: {_shown(missing, 3)}"
            f"{hint}. Check its template; where it failed, write a manifest with null"
        )
    lacks = (both.notna() & files.reindex_like(both).isna()).stack()
    if lacks.any():
        gaps = [f"{source!r} of {mixture!r}" for mixture, source in lacks[lacks].index]
        yield f"system {name!r} lacks {io.listed(gaps, 3)}, which it has of other mixtures"


# -------------------------------------------------------------------------------------------- Words


def _notes(
    layout: str, every: DataFrame, truth: DataFrame, systems: Mapping[str, DataFrame]
) -> Iterator[str]:
    counts, of = truth.count(), len(truth)
    mixtures = f"{of} mixture{'' if of == 1 else 's'}"
    yield f"references: {mixtures} of the {len(counts)} sources {_shown(truth)} ({layout})"
    if aside := [name for name in _names(every) if name not in truth]:
        keep = " ".join([*_names(truth), *aside])
        yield f"set aside: {_shown(aside)}; --sources {keep} would take all"
    if some := [f"{source!r} in {count}" for source, count in counts.items() if count < of]:
        common = _shown(counts[counts == of].index)
        yield (
            f"some mixtures lack sources ({', '.join(some)} of {of}): each is scored with its "
            f"own; all have {common or 'none in common'}"
        )
    for name, files in systems.items():
        lacking = _shown(source for source in truth if source not in files)
        words = [f"no estimate of {lacking}"] if lacking else []
        if more := (~files.index.isin(truth.index)).sum():
            words.append(f"{more} mixtures without references left out")
        if words:
            yield f"system {name!r}: {'; '.join(words)}"


def _sources(files: DataFrame) -> list[str]:
    """All but what is called mix."""
    return [name for name in _names(files) if not _MIXTURE(name)]


def _names(files: DataFrame) -> list[str]:
    return [*map(str, files.columns)]


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Key that sorts s2 before s10."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts if part)


def _shown(names: Iterable[object], most: int = 99) -> str:
    return io.listed(map(repr, names), most)

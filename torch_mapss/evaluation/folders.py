"""Folders of audio as test sets use them -> the mixtures of a manifest, by templates.

A template is a path with ``{mixture}`` and ``{source}`` in the places of their names, and ``*`` for
what does not matter: ``refs/{mixture}/{source}.wav`` (MUSDB), ``refs/{source}/{mixture}.wav``
(WSJ0-2mix, LibriMix), ``out/{mixture}_{source}.wav``, ``ex/{mixture}/{source}_estimate.wav``. It is
a regular expression over the names of the files; of a plain folder the usual layouts are tried.
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

# Mixture -> source -> path: names as io.same_name gives them, paths as io.written does.
Files = dict[str, dict[str, str]]


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
    names = [same_name(name) for name in sources or ()]
    every, layout = _read_references(references, names, noisy is not None)
    truth = _chosen(every, names)
    if noisy is None:
        mixed = {m: [own[s] for s in own if _MIXTURE(s)] for m, own in every.items()}
        mixes = {mixture: paths[0] for mixture, paths in mixed.items() if len(paths) == 1}
    else:
        given = _read_estimates(noisy, "--noisy", {mixture: {_ONLY: ""} for mixture in truth})
        mixes = {mixture: own[_ONLY] for mixture, own in given.items()}
        truth = _with_noise(truth, mixes, derived or "")
    found = {
        name: _read_estimates(given, f"system {name!r}", truth) for name, given in systems.items()
    }
    if not names and noisy is None:  # noise that no system estimates, as in LibriMix
        estimated = _names(*found.values())
        left = _picked(truth, [s for s in _sources(truth) if s in estimated or not _NOISE(s)])
        if [mixture for mixture in left if len(left[mixture]) > 1] == [*truth]:
            truth = left
    problems = [problem for name, files in found.items() for problem in _gaps(name, files, truth)]
    if lonely := [mixture for mixture in truth if len(truth[mixture]) < 2]:
        problems.append(
            f"at least two sources are needed, but {_shown(lonely, 3)} have only "
            f"{_shown(truth[lonely[0]])}. Check the template; of clean speech and its noisy "
            "mixture, add --noisy TEMPLATE"
        )
    if problems:
        raise ManifestError(io.shown(references), problems)
    folder = os.path.abspath(re.split(r"[{*]", references)[0])  # which a single mixture is named by
    mixtures = [
        Mixture(
            name=mixture or io.written(os.path.basename(folder)),
            references=tuple(truth[mixture].values()),
            systems={
                name: tuple(map(files[mixture].get, truth[mixture]))
                for name, files in found.items()
                if files[mixture].keys() & truth[mixture].keys()
            },
            folder="",
            mixture=mixes.get(mixture),
            sources=tuple(truth[mixture]),
        )
        for mixture in sorted(truth, key=_natural)
    ]
    order = [*names, *(source for source in _sources(truth) if source not in names)]
    return Corpus(tuple(mixtures), tuple(_notes(layout, every, truth, order, found)))


# ------------------------------------------------------------------------------------------------
# Files and templates
# ------------------------------------------------------------------------------------------------


def _readings(
    given: str, whose: str, layouts: Sequence[str], known: Sequence[str] = (), only: str = _ONLY
) -> tuple[dict[str, Files], str]:
    """The files that match a template, or each of the layouts in a plain folder.

    Args:
        given: template or folder.
        whose: for messages.
        layouts: templates without suffixes.
        known: names that a source may have; any if empty.
        only: the source of a template without ``{source}``.

    Returns:
        The files by layout, and the names of some, for messages.
    """
    root, template = given, None
    if _is_template(given):
        root = os.path.dirname(re.split(r"[{*]", given)[0]) or "."
        template = same_name(io.written(os.path.relpath(given, root)).replace(os.sep, "/"))
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
    patterns = layouts if template is None else [template]
    found = {pattern: _matching(names, pattern, whose, known, only) for pattern in patterns}
    return found, _shown(names.values(), 3)


def _is_template(given: str) -> bool:
    return "{mixture}" in given or "{source}" in given


def _matching(
    names: Mapping[str, str], pattern: str, whose: str, known: Sequence[str], only: str
) -> Files:
    """The files whose names (by path) match a pattern as a whole; see :func:`_readings`."""
    # The shortest name before {mixture}, the longest mixture: song_1_vocals is song_1, vocals.
    one = "[^/]+?" if pattern.find("{source}") < pattern.find("{mixture}") else "[^/]+"
    if known:
        one = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    kinds = {"{mixture}": "(?P<mixture>.+)", "{source}": f"(?P<source>{one})", "*": "[^/]*"}
    kinds["{folder}"] = "(?P<folder>.+)"
    expression = ""
    for part in re.split(r"(\{\w+\}|\*)", pattern):
        expression += kinds.get(part, re.escape(part))
        if part in ("{mixture}", "{source}"):
            kinds[part] = f"(?P={part[1:-1]})"  # the same name again
    matches, found = re.compile(expression).fullmatch, Files()
    for path, name in names.items():
        if match := matches(name):
            parts = match.groupdict()
            mixture = "/".join(filter(None, map(parts.get, ("folder", "mixture"))))
            other = found.setdefault(mixture, {}).setdefault(parts.get("source", only), path)
            if other != path:
                text = f"{other!r} and {path!r} have one name, so one of them must go"
                raise ManifestError(whose, [text])
    return found


# ------------------------------------------------------------------------------------------------
# References
# ------------------------------------------------------------------------------------------------


def _read_references(given: str, names: Sequence[str], single: bool) -> tuple[Files, str]:
    """The files of the references, and the layout that was read.

    Raises:
        ManifestError: no file matches, or two layouts do.
    """
    one = single or _is_template(given)  # way to read them: no doubt
    layouts = ["{mixture}"] if single else _LAYOUTS
    readings, examples = _readings(given, "references", layouts, names if one else ())
    doubts = {
        layout: _doubt(layout, files)
        for layout, files in readings.items()
        if (files if one else 2 <= len(_sources(files)) <= _MOST_SOURCES)
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


def _doubt(layout: str, files: Files) -> tuple[bool, bool, bool, int]:
    """How unlike a reading is to the names of test sets: the least is the one that is meant."""
    sources = _sources(files)
    items = all(_ITEM(mixture.rsplit("/", 1)[-1]) for mixture in files)
    mixed = any(map(_MIXTURE, _names(files)))
    odd = not all(map(_SOURCE, sources))  # of odd names the fewer are sources
    return odd, not (items or mixed), layout == "{source}", len(sources) if odd else 0


def _chosen(files: Files, names: Sequence[str]) -> Files:
    """The sources that are meant, in order.

    These are ``names``; without, all but what is called mix or noisy, and but estimates that lie
    with their sources.
    """
    every = _names(files)
    if set(names) - every or len(set(names)) < len(names):
        known = _shown(sorted(every, key=_natural))
        text = f"--sources must name different ones of {known}, got {_shown(names)}"
        raise ManifestError("the references", [text])
    twins = {name for name in every if (match := _ESTIMATE(name)) and match[1] in every}
    return _picked(files, names or [name for name in _sources(files) if name not in twins])


def _picked(files: Files, sources: Sequence[str]) -> Files:
    """These sources, in this order, of the mixtures that have any."""
    picked = {
        mixture: {source: own[source] for source in sources if source in own}
        for mixture, own in files.items()
    }
    return {mixture: own for mixture, own in picked.items() if own}


def _with_noise(truth: Files, mixes: Mapping[str, str], folder: str) -> Files:
    """The clean source of every mixture and noise = noisy - clean, written to ``folder``."""
    from torch_mapss import audio

    found, problems = Files(), []
    for mixture, own in truth.items():
        noisy, (source, clean) = mixes.get(mixture), next(iter(own.items()))
        if noisy is None or len(own) > 1:
            problems.append(
                f"mixture {mixture!r}: --noisy needs one clean source and one noisy file, got "
                f"{len(own)} and {int(noisy is not None)}"
            )
            continue
        path = os.path.join(io.make_folder(folder), f"{io.native(io.file_name(mixture))}.wav")
        found[mixture] = {source: clean, "noise": io.written(path)}
        given = io.native(noisy), io.native(clean)
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
    return found


# ------------------------------------------------------------------------------------------------
# Systems
# ------------------------------------------------------------------------------------------------


def _read_estimates(given: str, whose: str, truth: Files) -> Files:
    """The files of a system, in the layout in which most have the name of a reference."""
    names = sorted(_names(truth))
    speech = [name for name in names if not _NOISE(name)] or names
    layouts = (*_OF_OUTPUTS, *["{mixture}"] * (len(speech) == 1))
    readings, examples = _readings(given, whose, layouts, names, speech[0])

    def paired(files: Files) -> int:
        return sum(len(own.keys() & truth[m].keys()) for m, own in files.items() if m in truth)

    best = max(readings.values(), key=paired)
    if not best.keys() & truth.keys():
        text = (
            f"no file of {io.shown(given)!r} is named as a reference is: expected e.g. mixture "
            f"{next(iter(truth))!r} with {_shown(names)}, found {examples}. Say "
            "where the names are with a template: 'DIR/{mixture}/{source}.wav'"
        )
        raise ManifestError(whose, [text])
    return best


def _gaps(name: str, files: Files, truth: Files) -> Iterator[str]:
    """Mixtures that a system has not, and sources that it has elsewhere."""
    if missing := [mixture for mixture in truth if mixture not in files]:
        spare = files.keys() - truth.keys()
        close = [c for m in missing[:20] for c in difflib.get_close_matches(m, spare, 1, 0.8)]
        hint = f" (but has {close[0]!r})" if close else ""
        yield (
            f"system {name!r} lacks {len(missing)} of {len(truth)} mixtures: {_shown(missing, 3)}"
            f"{hint}. Check its template; where it failed, write a manifest with null"
        )
    estimated = _names(files)
    gaps = [
        f"{source!r} of {mixture!r}"
        for mixture, own in truth.items()
        for source in own
        if mixture in files and source in estimated - files[mixture].keys()
    ]
    if gaps:
        yield f"system {name!r} lacks {io.listed(gaps, 3)}, which it has of other mixtures"


# ------------------------------------------------------------------------------------------------
# Words
# ------------------------------------------------------------------------------------------------


def _notes(
    layout: str, every: Files, truth: Files, order: Sequence[str], systems: Mapping[str, Files]
) -> Iterator[str]:
    count = len(truth)
    mixtures = f"{count} mixture{'' if count == 1 else 's'}"
    yield f"references: {mixtures} of the {len(order)} sources {_shown(order)} ({layout})"
    if aside := sorted(_names(every).difference(order), key=_natural):
        keep = " ".join([*order, *aside])
        yield f"set aside: {_shown(aside)}; --sources {keep} would take all"
    counts = Counter(source for own in truth.values() for source in own)
    if some := [f"{source!r} in {counts[source]}" for source in order if counts[source] < count]:
        common = _shown(source for source in order if counts[source] == count)
        yield (
            f"some mixtures lack sources ({', '.join(some)} of {count}): each is scored with its "
            f"own; all have {common or 'none in common'}"
        )
    for name, files in systems.items():
        lacking = _shown(source for source in order if source not in _names(files))
        words = [f"no estimate of {lacking}"] if lacking else []
        if more := len(files.keys() - truth.keys()):
            words.append(f"{more} mixtures without references left out")
        if words:
            yield f"system {name!r}: {'; '.join(words)}"


def _names(*given: Files) -> set[str]:
    return set().union(*(own for files in given for own in files.values()))


def _sources(files: Files) -> list[str]:
    """Sources that occur, none that is called mix: s2 before s10, noise last."""
    names = sorted(_names(files), key=lambda name: (bool(_NOISE(name)), _natural(name)))
    return [name for name in names if not _MIXTURE(name)]


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts if part)


def _shown(names: Iterable[str], most: int = 99) -> str:
    return io.listed(map(repr, names), most)

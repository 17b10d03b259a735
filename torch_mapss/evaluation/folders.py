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
from typing import Any, NamedTuple

from torch_mapss.evaluation import io
from torch_mapss.evaluation.io import same_name
from torch_mapss.evaluation.manifest import ManifestError, Mixture

_SUFFIXES = frozenset(
    (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf")
    + (".w64", ".rf64")
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

Files = dict[tuple[str, str], str]  # (mixture, source) -> path, names as same_name gives them


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
    truth, layout = _read_references(references, names, noisy is not None)
    truth, mixes, aside = _set_aside(truth, names)
    if noisy is not None:
        mixes = _read_estimates(noisy, "--noisy", {(mixture, _ONLY): "" for mixture, _ in truth})
        truth = _with_noise(truth, mixes, derived or "")
    found = {
        name: _read_estimates(given, f"system {name!r}", truth) for name, given in systems.items()
    }
    if not names and noisy is None:
        truth, noise = _without_unestimated_noise(truth, found.values())
        aside += noise
    problems = [problem for name, own in found.items() for problem in _gaps(name, own, truth)]
    counts = Counter(mixture for mixture, _ in truth)
    if lonely := [mixture for mixture in counts if counts[mixture] < 2]:
        problems.append(
            f"at least two sources are needed, but {io.listed(map(repr, lonely), 3)} have only "
            f"{_shown(source for mixture, source in truth if mixture == lonely[0])}. Check the "
            "template; of clean speech and its noisy mixture, add --noisy TEMPLATE"
        )
    if problems:
        raise ManifestError(io.shown(references), problems)
    order = [*names, *(name for name in _sources(truth) if name not in names)]
    order.sort(key=lambda name: name not in names and bool(_NOISE(name)))
    mixtures = []
    for key in sorted(counts, key=_natural):
        own = tuple(source for source in order if (key, source) in truth)
        estimates = {
            name: tuple(io.written(files[key, s]) if (key, s) in files else None for s in own)
            for name, files in found.items()
        }
        mixtures.append(
            Mixture(
                name=key or os.path.basename(os.path.abspath(references)),
                references=tuple(io.written(truth[key, source]) for source in own),
                systems={name: paths for name, paths in estimates.items() if any(paths)},
                folder="",
                mixture=io.written(mixes[key, _ONLY]) if (key, _ONLY) in mixes else None,
                sources=own,
            )
        )
    return Corpus(tuple(mixtures), tuple(_notes(layout, truth, order, aside, found)))


# ------------------------------------------------------------------------------------------------
# Files and templates
# ------------------------------------------------------------------------------------------------


def _listed(given: str, whose: str) -> tuple[str | None, dict[str, str]]:
    """The pattern of a template (None of a plain folder), and its audio files.

    The files by their names below the folder, in one Unicode form; of a plain folder without
    suffix.
    """
    root, pattern = given, None
    if "{mixture}" in given or "{source}" in given:
        root = os.path.dirname(re.split(r"[{*]", given)[0])
        pattern = same_name(given[len(root) :].replace(os.sep, "/").lstrip("/"))
    paths: dict[str, str] = {}
    if not os.path.isdir(root := root or "."):
        raise ManifestError(whose, [f"there is no folder {io.shown(root)!r}"])
    for path in _audio_files(root):
        name = same_name(io.written(os.path.relpath(path, root)).replace(os.sep, "/"))
        name = os.path.splitext(name)[0] if pattern is None else name
        _add(paths, name, path, whose)
    if not paths:
        suffixes = ", ".join(sorted(_SUFFIXES))
        raise ManifestError(whose, [f"no audio file ({suffixes}) below {io.shown(root)!r}"])
    return pattern, paths


def _audio_files(root: str) -> Iterator[str]:
    seen = set()
    for folder, below, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link to a folder above
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in _SUFFIXES:
                yield os.path.join(folder, name)


def _add(found: dict[Any, str], key: Any, path: str, whose: str) -> None:
    if key in found:
        both = f"{io.shown(found[key])!r} and {io.shown(path)!r}"
        raise ManifestError(whose, [f"{both} have one name, so one of them must go"])
    found[key] = path


def _matching(
    paths: Mapping[str, str],
    pattern: str,
    whose: str,
    known: Sequence[str] = (),
    only: str = _ONLY,
) -> Files:
    """The files whose names match a pattern as a whole.

    Args:
        paths: by name.
        pattern: of a template, or of the usual layouts.
        whose: for messages.
        known: names that a source may have; any if empty.
        only: the source of a pattern without ``{source}``.
    """
    # The shortest name before {mixture}, the longest mixture: song_1_vocals is song_1, vocals.
    one = "[^/]+?" if pattern.find("{source}") < pattern.find("{mixture}") else "[^/]+"
    if known:
        one = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    kinds = {"{mixture}": "(?P<mixture>.+)", "{source}": f"(?P<source>{one})", "*": "[^/]*"}
    kinds["{folder}"] = "(?P<folder>.+)"
    text = ""
    for part in re.split(r"(\{\w+\}|\*)", pattern):
        text += kinds.get(part, re.escape(part))
        if part in ("{mixture}", "{source}"):
            kinds[part] = f"(?P={part[1:-1]})"  # the same name again
    matches, found = re.compile(text).fullmatch, Files()
    for name, path in paths.items():
        if match := matches(name):
            parts = match.groupdict()
            mixture = "/".join(filter(None, map(parts.get, ("folder", "mixture"))))
            _add(found, (mixture, parts.get("source", only)), path, whose)
    return found


# ------------------------------------------------------------------------------------------------
# References
# ------------------------------------------------------------------------------------------------


def _read_references(given: str, names: Sequence[str], single: bool) -> tuple[Files, str]:
    """The files of the references, and the layout that was read.

    Raises:
        ManifestError: no file matches, or two layouts do.
    """
    pattern, paths = _listed(given, "references")
    examples = io.listed(map(repr, paths), 3)
    if pattern is not None or single:
        found = _matching(paths, pattern or "{mixture}", "references", names)
        if not found:
            text = f"no audio file matches the template; there is {examples}"
            raise ManifestError(io.shown(given), [text])
        return found, given
    readings = {layout: _matching(paths, layout, "references") for layout in _LAYOUTS}
    doubts = {
        layout: _doubt(layout, files)
        for layout, files in readings.items()
        if 2 <= len(_sources(files)) <= _MOST_SOURCES
    }
    best = [layout for layout in doubts if doubts[layout] == min(doubts.values())]
    if len(best) == 1:
        return readings[best[0]], best[0]
    text = (
        "cannot be read as a folder per mixture with a file per source, nor as a folder per "
        f"source with a file per mixture (2 to {_MOST_SOURCES} sources), got {examples}. Say where "
        "the names are: --references 'DIR/{mixture}/{source}.wav'"
    )
    if best:
        both = " or ".join(f"{x!r} (sources {_shown(_sources(readings[x]))})" for x in best)
        text = f"can be read as {both}. Say which with a template: --references 'DIR/{best[0]}.wav'"
    raise ManifestError(io.shown(given), [text])


def _doubt(layout: str, files: Files) -> tuple[bool, bool, bool, int]:
    """How unlike a reading is to the names of test sets: the least is the one that is meant."""
    sources = _sources(files)
    items = all(_ITEM(mixture.rsplit("/", 1)[-1]) for mixture, _ in files)
    mixed = any(_MIXTURE(source) for _, source in files)
    return not all(map(_SOURCE, sources)), not (mixed or items), layout == "{source}", len(sources)


def _set_aside(truth: Files, names: Sequence[str]) -> tuple[Files, Files, list[str]]:
    """The files of the sources that are meant, those of mixtures, and what else is set aside.

    Meant are ``names``; without these, all but what is called mix or noisy, and but estimates that
    lie with their sources.
    """
    every = {source for _, source in truth}
    if set(names) - every or len(set(names)) < len(names):
        known = _shown(sorted(every, key=_natural))
        text = f"--sources must name different ones of {known}, got {_shown(names)}"
        raise ManifestError("the references", [text])
    twins = {name for name in every if (match := _ESTIMATE(name)) and match[1] in every}
    meant = set(names) or set(_sources(truth)) - twins
    counts = Counter(mixture for mixture, source in truth if _MIXTURE(source))
    mixes = {(m, _ONLY): path for (m, s), path in truth.items() if _MIXTURE(s) and counts[m] == 1}
    left = {key: path for key, path in truth.items() if key[1] in meant}
    return left, mixes, sorted(every - meant, key=_natural)


def _without_unestimated_noise(truth: Files, systems: Iterable[Files]) -> tuple[Files, list[str]]:
    """Noise that no system estimates is set aside, as in LibriMix, if two sources are left."""
    estimated = {source for files in systems for _, source in files}
    noise = [name for name in _sources(truth) if _NOISE(name) and name not in estimated]
    left = {key: path for key, path in truth.items() if key[1] not in noise}
    counts = Counter(mixture for mixture, _ in left)
    enough = all(counts[mixture] >= 2 for mixture, _ in truth)
    return (left, noise) if enough else (truth, [])


def _with_noise(truth: Files, mixes: Files, folder: str) -> Files:
    """The clean source of every mixture and noise = noisy - clean, written to ``folder``."""
    from torch_mapss import audio

    found, problems = dict(truth), []
    counts = Counter(mixture for mixture, _ in truth)
    for (mixture, _), clean in truth.items():
        noisy = mixes.get((mixture, _ONLY))
        if noisy is None or counts[mixture] > 1:
            problems.append(
                f"mixture {mixture!r}: --noisy needs one clean source and one noisy file, got "
                f"{counts[mixture]} and {int(noisy is not None)}"
            )
            continue
        path = os.path.join(io.make_folder(folder), f"{io.native(io.file_name(mixture))}.wav")
        found[mixture, "noise"] = path
        if os.path.exists(path):
            made, *read = map(os.path.getmtime, (path, clean, noisy))
            if made > max(read):
                continue
        (whole, rate), (part, other) = audio.load_audio(noisy), audio.load_audio(clean)
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
    pattern, paths = _listed(given, whose)
    names = sorted({source for _, source in truth})
    speech = [name for name in names if not _NOISE(name)] or names
    layouts = (*_OF_OUTPUTS, *["{mixture}"] * (len(speech) == 1)) if pattern is None else [pattern]
    readings = [_matching(paths, layout, whose, names, speech[0]) for layout in layouts]
    best = max(readings, key=lambda files: len(files.keys() & truth.keys()))
    if not {mixture for mixture, _ in best} & {mixture for mixture, _ in truth}:
        mixture = next(iter(truth))[0]
        text = (
            f"no file of {io.shown(given)!r} is named as a reference is: expected e.g. mixture "
            f"{mixture!r} with {_shown(names)}, found {io.listed(map(repr, paths), 3)}. Say where "
            "the names are with a template: 'DIR/{mixture}/{source}.wav'"
        )
        raise ManifestError(whose, [text])
    return best


def _gaps(name: str, own: Files, truth: Files) -> Iterator[str]:
    """Mixtures that a system has not, and sources that it has elsewhere."""
    mixtures, sources = ({key[place] for key in own} for place in (0, 1))
    every = list(dict.fromkeys(mixture for mixture, _ in truth))
    if missing := [mixture for mixture in every if mixture not in mixtures]:
        spare = mixtures.difference(every)
        close = [c for m in missing[:20] for c in difflib.get_close_matches(m, spare, 1, 0.8)]
        hint = f" (but has {close[0]!r})" if close else ""
        lacks = io.listed(map(repr, missing), 3)
        yield f"system {name!r} lacks {len(missing)} of {len(every)} mixtures: {lacks}{hint}"
    gaps = [
        f"{source!r} of {mixture!r}"
        for mixture, source in truth
        if mixture in mixtures and source in sources and (mixture, source) not in own
    ]
    if gaps:
        yield f"system {name!r} lacks {io.listed(gaps, 3)}, which it has of other mixtures"


# ------------------------------------------------------------------------------------------------
# Words
# ------------------------------------------------------------------------------------------------


def _notes(
    layout: str,
    truth: Files,
    order: Sequence[str],
    aside: Sequence[str],
    systems: Mapping[str, Files],
) -> Iterator[str]:
    mixtures = {mixture for mixture, _ in truth}
    count, names = len(mixtures), _shown(order)
    yield f"references: {count} mixtures of the {len(order)} sources {names} ({layout})"
    if aside:
        keep = " ".join([*order, *aside])
        yield f"set aside: {_shown(aside)}; --sources {keep} would take all"
    counts = Counter(source for _, source in truth)
    if some := [f"{source!r} in {counts[source]}" for source in order if counts[source] < count]:
        common = _shown(source for source in order if counts[source] == count)
        yield (
            f"some mixtures lack sources ({', '.join(some)} of {count}): each is scored with its "
            f"own; all have {common or 'none in common'}"
        )
    for name, own in systems.items():
        lacking = _shown(s for s in order if s not in {source for _, source in own})
        more = len({mixture for mixture, _ in own} - mixtures)
        words = [f"no estimate of {lacking}"] if lacking else []
        words += [f"{more} mixtures without references left out"] if more else []
        if words:
            yield f"system {name!r}: {'; '.join(words)}"


def _sources(files: Files) -> list[str]:
    """Sources that occur, none that is called mix, s2 before s10."""
    return sorted({source for _, source in files if not _MIXTURE(source)}, key=_natural)


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts if part)


def _shown(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))

"""Manifests: what a test set consists of, read and checked as a whole."""

from __future__ import annotations

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch_mapss.evaluation import io

Record = dict[str, Any]  # of a pair: mixture_id, system, rows, reason, files, written
#: Of a folder of results; a reader refuses others.
FORMAT = 2
#: Hidden references and anchors are named so.
CONTROL = "control:"


class ManifestError(ValueError):
    """A manifest that cannot be run; ``problems`` lists all that is wrong with it."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        if len(problems) == 1:
            super().__init__(f"{path}: {problems[0]}")
        else:
            listed = "".join(f"\n  - {problem}" for problem in problems)
            super().__init__(f"{path} has {len(problems)} problems:{listed}")


class Mixture(NamedTuple):
    """One entry of a manifest."""

    name: str  # its mixture_id
    references: tuple[str, ...]  # as written
    systems: Mapping[str, tuple[str | None, ...]]  # as written; None: not estimated
    folder: str  # paths are relative to it
    mixture: str | None = None  # as written, if named
    sources: tuple[str, ...] = ()  # names of the references, if given

    def locate(self, path: str) -> str:
        """The path to open; of a name in another Unicode form, that of the file that is there."""
        made = os.path.join(self.folder, path)
        forms = (made, *(unicodedata.normalize(form, made) for form in ("NFC", "NFD")))
        found = map(io.native, forms)
        return next((name for name in found if os.path.exists(name)), io.native(made))

    @property
    def source_names(self) -> tuple[str, ...]:
        """A name for every reference: the manifest's, else made of the files'."""
        return self.sources or io.display_names(self.references)


def load_manifest(path: str | os.PathLike[str]) -> tuple[Mixture, ...]:
    """Read and check a manifest as a whole.

    A JSON list of ``{"mixture_id": …, "references": […], "systems": {name: […]}}``: one path per
    source and in each system one per reference, ``null`` for a source it does not estimate. Paths
    are relative to the manifest. ``"mixture": path`` and ``"sources": [name, …]``, one name per
    reference for tables and plots, may be added; further keys are ignored.

    Args:
        path: of the JSON file, UTF-8.

    Returns:
        The mixtures, in order.

    Raises:
        ManifestError: everything that is wrong with it, missing files included.
    """
    name = io.shown(path)
    try:
        with open(path, encoding="utf-8-sig") as file:
            entries = json.load(file, object_pairs_hook=_unique_keys)
    except OSError as error:
        raise ManifestError(name, [f"cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        # An entry a line, as Lhotse and others write them.
        lines = "Extra data" in str(error)
        hint = f". One object per line is no manifest. {_EXAMPLE}" if lines else ""
        raise ManifestError(name, [f"is no valid JSON in UTF-8 ({error}){hint}"]) from None
    return read_entries(entries, name, os.path.dirname(os.fspath(path)))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(io.same_name(key) for key, _ in pairs)
    if len(counts) < len(pairs):
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return dict(pairs)


# The shortest manifest that there can be, on one line.
_EXAMPLE = (
    'The least that is valid: [{"mixture_id": "song1", "references": ["a.wav", "b.wav"], '
    '"systems": {"mine": ["a_est.wav", "b_est.wav"]}}]'
)


def read_entries(entries: Any, name: str, folder: str) -> tuple[Mixture, ...]:
    """The mixtures of a manifest's content.

    Args:
        entries: the list.
        name: of the manifest, for messages.
        folder: that paths are relative to.

    Raises:
        ManifestError: everything that is wrong with it, missing files included.
    """
    if not isinstance(entries, list) or not entries:
        text = f"must be a JSON list of mixtures, got {short(entries)}. {_EXAMPLE}"
        raise ManifestError(name, [text])
    problems: list[str] = []
    spelled: dict[str, str] = {}  # names of systems that are one text in two Unicode forms
    mixtures = [
        _read_entry(entry, f"entry {place}", folder, spelled, problems)
        for place, entry in enumerate(entries)
    ]
    counts = Counter(io.same_name(mixture.name) for mixture in mixtures)
    problems += [f"mixture_id {n!r} is used {k} times" for n, k in counts.items() if k > 1]
    problems += [problem for mixture in mixtures for problem in _missing_files(mixture)]
    if not problems and not any(mixture.systems for mixture in mixtures):
        problems.append("lists no system in any of its mixtures, so there is nothing to score")
    if problems:
        raise ManifestError(name, problems)
    return tuple(mixtures)


def _is_name(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and bool(str(value).strip())


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_paths(value: Any, least: int = 2, null: bool = False) -> bool:
    listed = isinstance(value, list | tuple) and len(value) >= least
    return listed and all(_is_path(path) or (null and path is None) for path in value)


# Key, whether it is there always, what it must be, in a function and in words.
_KEYS: tuple[tuple[str, bool, Callable[[Any], bool], str], ...] = (
    ("mixture_id", True, _is_name, "a name"),
    ("references", True, _are_paths, "a list of at least two paths"),
    ("systems", True, lambda value: isinstance(value, dict), "an object of name: list of paths"),
    ("mixture", False, _is_path, "a path"),
    ("sources", False, _are_paths, "one name per reference, each another"),
)


def _read_entry(
    entry: Any, where: str, folder: str, spelled: dict[str, str], problems: list[str]
) -> Mixture:
    """An entry as far as it can be read; what is wrong goes to ``problems``."""
    if not isinstance(entry, dict):
        problems.append(f"{where} must be an object, got {short(entry)}")
        return Mixture(where, (), {}, folder)
    name = entry.get("mixture_id")
    label = str(name) if _is_name(name) else where
    where = f"mixture {label!r}" if _is_name(name) else where
    if missing := [repr(key) for key, needed, *_ in _KEYS if needed and key not in entry]:
        problems.append(f"{where} lacks {', '.join(missing)}")
    found: dict[str, Any] = {}
    for key, needed, fits, expected in _KEYS:
        value = entry.get(key)
        if value is not None and fits(value):
            found[key] = value
        elif key in entry and (needed or value is not None):
            problems.append(f"{where}: {key} must be {expected}, got {short(value)}")
    references, sources = (tuple(found.get(key, ())) for key in ("references", "sources"))
    count, systems = len(references), {}
    if count and sources and len({*sources}) != count:
        problems.append(
            f"{where}: sources must be one name per reference, each another, got {short(sources)}"
        )
    for system, paths in found.get("systems", {}).items():
        if not _are_paths(paths, null=True) or (count and len(paths) != count):
            problems.append(
                f"{where}, system {system!r}: must have one path per reference ({count}), null "
                f"where it estimates none, got {short(paths)}"
            )
        elif not any(paths):
            problems.append(f"{where}, system {system!r}: estimates no source at all; leave it out")
        else:
            one = spelled.setdefault(io.same_name(system), system)
            if one in systems:
                problems.append(f"{where}, system {system!r}: the name is there twice")
            systems[one] = tuple(paths)
    return Mixture(label, references, systems, folder, found.get("mixture"), sources)


def _missing_files(mixture: Mixture) -> Iterator[str]:
    listed: list[tuple[str, str | None]] = [("references", path) for path in mixture.references]
    listed += [(f"system {s!r}", path) for s, paths in mixture.systems.items() for path in paths]
    for whose, path in (*listed, ("mixture", mixture.mixture)):
        if path is None or os.path.isfile(mixture.locate(path)):
            continue
        hint, turned = "", path.replace("\\", "/")
        if turned != path and os.sep == "/":
            there = "is there" if os.path.isfile(mixture.locate(turned)) else "is not there either"
            hint = f" (backslashes do not separate folders here; {turned!r} {there})"
        name = os.path.join(mixture.folder, path)
        yield f"mixture {mixture.name!r}, {whose}: no file {name!r}{hint}"


def short(value: Any) -> str:
    """A value for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def of_one_folder(mixtures: Sequence[Mixture]) -> Sequence[Mixture]:
    """Mixtures whose paths are relative to one folder, which their results name."""
    if len({mixture.folder for mixture in mixtures}) == 1:
        return mixtures

    def absolute(mixture: Mixture, *paths: str | None) -> tuple[Any, ...]:
        folder = os.path.abspath(mixture.folder)
        return tuple(None if path is None else os.path.join(folder, path) for path in paths)

    return [
        one._replace(
            references=absolute(one, *one.references),
            systems={name: absolute(one, *paths) for name, paths in one.systems.items()},
            mixture=absolute(one, one.mixture)[0],
            folder="",
        )
        for one in mixtures
    ]


def listed(mixtures: Sequence[Mixture], folder: str) -> dict[str, Any]:
    """The ``mixtures.json`` of results in ``folder``: what was scored, and where it lies."""
    root = os.path.abspath(mixtures[0].folder)
    try:
        relative: str | None = io.shown(os.path.relpath(root, folder))
    except ValueError:  # on another drive
        relative = None
    entries = [
        {
            "mixture_id": mixture.name,
            "references": mixture.references,
            "sources": mixture.source_names,
            "mixture": mixture.mixture,
            "systems": mixture.systems,
        }
        for mixture in mixtures
    ]
    shown = io.shown(root)
    return {"format": FORMAT, "root": shown, "relative": relative, "mixtures": entries}

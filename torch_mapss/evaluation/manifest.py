"""Manifests, which list the files of a test set; read and checked as a whole."""

from __future__ import annotations

import json
import operator
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from torch_mapss.evaluation import io

#: Prefix of the names of hidden references and anchors.
CONTROL = "control:"


class ManifestError(ValueError):
    """An invalid manifest; ``problems`` lists everything that is wrong with it."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        self.path = path
        self.problems = tuple(problems)
        if len(problems) == 1:
            super().__init__(f"{path}: {problems[0]}")
        else:
            lines = "".join(f"\n  - {problem}" for problem in problems)
            super().__init__(f"{path} has {len(problems)} problems:{lines}")

    def __reduce__(self) -> Any:  # by default only the text would survive pickling
        return type(self), (self.path, self.problems)


class Mixture(NamedTuple):
    """One entry of a manifest."""

    name: str  # its mixture_id
    references: tuple[str, ...]  # as written
    systems: Mapping[str, tuple[str | None, ...]]  # as written; None: not estimated
    folder: str  # paths are relative to it
    mixture: str | None = None  # as written, if named
    sources: tuple[str, ...] = ()  # names of the references, if given

    def locate(self, path: str) -> str:
        """Path to open for a path of the manifest."""
        return io.located(self.folder, path)

    @property
    def source_names(self) -> tuple[str, ...]:
        """Name of each reference, from the manifest or made from its file name."""
        return self.sources or io.display_names(self.references)

    def only(self, systems: Sequence[str]) -> Mixture:
        """The mixture with only these systems."""
        return self._replace(systems={name: self.systems[name] for name in systems})

    def entry(self) -> dict[str, Any]:
        """The mixture as an entry of ``mixtures.json``."""
        return {
            "mixture_id": self.name,
            "references": list(self.references),
            "sources": list(self.source_names),
            "mixture": self.mixture,
            "systems": {name: list(paths) for name, paths in self.systems.items()},
        }


def load_manifest(path: str | os.PathLike[str]) -> tuple[Mixture, ...]:
    """Read and check a manifest as a whole.

    A JSON list of ``{"mixture_id": …, "references": […], "systems": {name: […]}}``: one path per
    source and in each system one per reference, ``null`` for a source it does not estimate. Paths
    are relative to the manifest. ``"mixture": path`` and ``"sources": [name, …]``, one name per
    reference for tables and plots, may be added; further keys are ignored.

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
        # One entry per line, as Lhotse and others write them.
        lines = "Extra data" in str(error)
        hint = f". A file with one object per line is not a manifest. {_EXAMPLE}" if lines else ""
        raise ManifestError(name, [f"is not valid JSON in UTF-8 ({error}){hint}"]) from None
    return read_entries(entries, name, os.path.dirname(os.fspath(path)))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(io.same_name(key) for key, _ in pairs)
    if len(counts) < len(pairs):
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return dict(pairs)


# The shortest valid manifest, on one line.
_EXAMPLE = (
    'Minimal example: [{"mixture_id": "song1", "references": ["a.wav", "b.wav"], '
    '"systems": {"mine": ["a_est.wav", "b_est.wav"]}}]'
)


def as_mixtures(manifest: Any) -> tuple[Mixture, ...]:
    """Mixtures from a manifest's path or entries; mixtures are returned as they are.

    Raises:
        ManifestError: everything that is wrong with them, missing files included.
    """
    if isinstance(manifest, str | os.PathLike):
        return load_manifest(manifest)
    if isinstance(manifest, Mapping):
        raise TypeError(
            "the manifest must be a path or a list of entries, got a single entry. Pass [entry]."
        )
    entries = [*manifest]
    if entries and all(isinstance(entry, Mixture) for entry in entries):
        return tuple(entries)
    return read_entries(entries, "the manifest", "")


def as_mixture(entry: Any) -> Mixture:
    """Check one entry of a manifest; its files need not exist.

    Raises:
        ManifestError: what is wrong with it.
    """
    if isinstance(entry, Mixture):
        return entry
    (mixture,) = read_entries([entry], "the entry", "", need_files=False)
    return mixture


def read_entries(
    entries: Any, name: str, folder: str, need_files: bool = True
) -> tuple[Mixture, ...]:
    """Mixtures from the content of a manifest.

    Args:
        entries: content of the manifest.
        name: name of the manifest, for messages.
        folder: folder that its paths are relative to.
        need_files: whether a missing file is a problem.

    Raises:
        ManifestError: everything that is wrong with it.
    """
    if not isinstance(entries, list) or not entries:
        text = f"must be a JSON list of mixtures, got {short(entries)}. {_EXAMPLE}"
        raise ManifestError(name, [text])
    problems: list[str] = []
    mixtures: list[Mixture] = []
    spelling: dict[str, str] = {}  # names of systems that differ only in their Unicode form
    for index, raw_entry in enumerate(entries):
        entry = _plain(raw_entry)
        problems += _problems(entry, f"entry {index}")
        if not isinstance(entry, dict):
            continue
        mixtures.append(_mixture(entry, index, folder, spelling, valid=not problems))
        problems += _missing_files(mixtures[-1]) if need_files else ()
    counts = Counter(io.same_name(mixture.name) for mixture in mixtures)
    problems += [f"mixture_id {n!r} is used {k} times" for n, k in counts.items() if k > 1]
    if not problems and not any(mixture.systems for mixture in mixtures):
        problems.append("lists no system in any of its mixtures, so there is nothing to score")
    if problems:
        raise ManifestError(name, problems)
    return tuple(mixtures)


def _mixture(
    entry: dict[str, Any], index: int, folder: str, spelling: dict[str, str], valid: bool
) -> Mixture:
    systems: dict[str, tuple[str | None, ...]] = {}
    if isinstance(entry.get("systems"), dict):
        for system, paths in entry["systems"].items():
            name = spelling.setdefault(io.same_name(system), system)
            systems[name] = _paths(paths, null=True)
    return Mixture(
        name=str(entry.get("mixture_id", f"entry {index}")),
        references=_paths(entry.get("references")),
        systems=systems,
        folder=folder,
        mixture=entry["mixture"] if _is_path(entry.get("mixture")) else None,
        sources=tuple(entry.get("sources") or ()) if valid else (),
    )


def _plain(value: Any) -> Any:
    """Convert an entry from pathlib, NumPy or pandas types to JSON types."""
    if isinstance(value, os.PathLike):
        return io.written(os.fspath(value))
    if hasattr(value, "to_dict"):
        value = value.to_dict()  # a row of a table
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if not isinstance(value, str | bytes) and hasattr(value, "tolist"):
        return _plain(value.tolist())  # an array, or a scalar of NumPy
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, bool):
        with suppress(TypeError):
            return operator.index(value)
    return value


def _is_name(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and bool(str(value).strip())


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_paths(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 1 and all(map(_is_path, value))


def _paths(value: Any, null: bool = False) -> tuple[Any, ...]:
    """Paths in a list, optionally with its nulls; :func:`_problems` reports anything else."""
    entries = value if isinstance(value, list | tuple) else ()
    return tuple(path for path in entries if _is_path(path) or (null and path is None))


def _problems(entry: Any, where: str) -> Iterator[str]:
    """Yield everything that is wrong with an entry, apart from missing files."""
    if not isinstance(entry, dict):
        yield f"{where} must be an object, got {short(entry)}"
        return
    keys = ("mixture_id", "references", "systems", "mixture", "sources")
    values: list[Any] = [*map(entry.get, keys)]
    name, references, systems, mixture, sources = values
    count = len(references) if _are_paths(references) else 0
    named = _are_paths(sources) and len({*sources}) == len(sources) == (count or len(sources))
    where = f"mixture {str(name)!r}" if _is_name(name) else where
    for key, right, expected in (
        ("mixture_id", _is_name(name), "a name"),
        ("references", count > 0, "a list of at least two paths"),
        ("systems", isinstance(systems, dict), "an object of name: list of paths"),
        ("mixture", mixture is None or _is_path(mixture), "a path"),
        ("sources", sources is None or named, "one name per reference, all different"),
    ):
        if not right:
            got = short(entry[key]) if key in entry else "nothing"
            yield f"{where}: {key} must be {expected}, got {got}"
    systems = systems if isinstance(systems, dict) else {}
    for system, paths in systems.items():
        complete = isinstance(paths, list | tuple) and len(paths) == (count or len(paths))
        if not complete or not all(path is None or _is_path(path) for path in paths):
            yield (
                f"{where}, system {system!r}: must have one path per reference ({count}), null "
                f"where it estimates none, got {short(paths)}"
            )
        elif not any(paths):
            yield f"{where}, system {system!r}: estimates no source at all; leave it out"
    if len({*map(io.same_name, systems)}) < len(systems):
        yield f"{where}: a system name appears twice"


def _missing_files(mixture: Mixture) -> Iterator[str]:
    named: list[tuple[str, str | None]] = [("references", path) for path in mixture.references]
    named += [(f"system {s!r}", path) for s, paths in mixture.systems.items() for path in paths]
    for whose, path in (*named, ("mixture", mixture.mixture)):
        if path is not None and not os.path.isfile(mixture.locate(path)):
            name = os.path.join(mixture.folder, path)
            yield f"mixture {mixture.name!r}, {whose}: no file {name!r}"


def short(value: Any) -> str:
    """Shorten a value for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def rebased(mixtures: Sequence[Mixture]) -> tuple[Mixture, ...]:
    """Mixtures with paths relative to one absolute folder, which is named in their results.

    An engine may open them from another working folder.
    """
    folders = {os.path.abspath(mixture.folder) for mixture in mixtures}
    if len(folders) == 1:
        (folder,) = folders
        return tuple(mixture._replace(folder=folder) for mixture in mixtures)
    return tuple(map(absolute, mixtures))


def absolute(mixture: Mixture) -> Mixture:
    """The mixture with absolute paths."""
    folder = os.path.abspath(mixture.folder)

    def path(relative: Any) -> Any:
        return relative and os.path.join(folder, relative)

    systems = {name: tuple(map(path, paths)) for name, paths in mixture.systems.items()}
    return mixture._replace(
        references=tuple(map(path, mixture.references)),
        systems=systems,
        folder="",
        mixture=path(mixture.mixture),
    )

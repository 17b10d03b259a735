"""Manifests: what a test set consists of, read and checked as a whole."""

from __future__ import annotations

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch_mapss.evaluation import io

Record = dict[str, Any]  # of a pair: mixture_id, system, rows, reason, files, written
#: Of a folder of results; a reader refuses others.
FORMAT = 2


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
    return read_entries(_read_json(path, name), name, os.path.dirname(os.fspath(path)))


def read_entries(entries: Any, name: str, folder: str) -> tuple[Mixture, ...]:
    """The mixtures of a manifest's content.

    Args:
        entries: the list.
        name: of the manifest, for messages.
        folder: that paths are relative to.

    Raises:
        ManifestError: everything that is wrong with it, missing files included.
    """
    if not isinstance(entries, list):
        raise ManifestError(name, [_no_list(entries)])
    if not entries:
        raise ManifestError(name, ["lists no mixture"])
    problems: list[str] = []
    mixtures = [_read_entry(entry, k, folder, problems) for k, entry in enumerate(entries)]
    problems += _duplicates([mixture.name for mixture in mixtures])
    mixtures = _spelled_alike(mixtures)
    for mixture in mixtures:
        problems += _missing_files(mixture)
    if not problems and not any(mixture.systems for mixture in mixtures):
        problems.append("lists no system in any of its mixtures, so there is nothing to score")
    if problems:
        raise ManifestError(name, problems)
    return tuple(mixtures)


def _spelled_alike(mixtures: Sequence[Mixture]) -> list[Mixture]:
    """One spelling for names of systems that are the same text in two Unicode forms."""
    first: dict[str, str] = {}
    return [
        one._replace(
            systems={
                first.setdefault(io.same_name(n), n): paths for n, paths in one.systems.items()
            }
        )
        for one in mixtures
    ]


def _no_list(content: Any) -> str:
    """Why a manifest that is no list is none, with what one looks like."""
    if isinstance(content, dict) and {"references", "systems"} <= content.keys():
        return "must be a JSON list of mixtures, got a single one: put it in [ ]"
    found = short(content)
    if isinstance(content, dict):
        found = f"an object with {io.listed(map(repr, content), 3)}"
    return f"must be a JSON list of mixtures, got {found}. {_EXAMPLE}"


# The shortest manifest that there can be, on one line.
_EXAMPLE = (
    'The least that is valid: [{"mixture_id": "song1", "references": ["a.wav", "b.wav"], '
    '"systems": {"mine": ["a_est.wav", "b_est.wav"]}}]'
)


def _read_json(path: str | os.PathLike[str], name: str) -> Any:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return json.load(file, object_pairs_hook=_unique_keys)
    except FileNotFoundError:
        raise ManifestError(name, ["there is no such file"]) from None
    except OSError as error:
        raise ManifestError(name, [f"cannot be read: {error.strerror}"]) from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        lines = error.msg == "Extra data"  # an entry a line, as Lhotse and others write them
        hint = f". One object per line is no manifest. {_EXAMPLE}" if lines else ""
        raise ManifestError(name, [f"is no valid JSON ({place}: {error.msg}){hint}"]) from None
    except UnicodeDecodeError as error:
        raise ManifestError(name, [f"is no UTF-8 text (byte {error.start})"]) from None
    except _RepeatedKey as error:
        raise ManifestError(name, [f"has the key {error} twice in one object"]) from None


class _RepeatedKey(Exception):
    pass


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedKey(repr(key))
        found[key] = value
    return found


def _read_entry(entry: Any, place: int, folder: str, problems: list[str]) -> Mixture:
    """An entry as far as it can be read; what is wrong goes to ``problems``."""
    where = f"entry {place}"
    if not isinstance(entry, dict):
        problems.append(f"{where} must be an object, got {type(entry).__name__}")
        return Mixture(where, (), {}, folder)
    name = entry.get("mixture_id")
    if isinstance(name, str | int) and not isinstance(name, bool) and str(name).strip():
        where = f"mixture {str(name)!r}"
    missing = [key for key in ("mixture_id", "references", "systems") if key not in entry]
    if missing:
        problems.append(f"{where} lacks {', '.join(map(repr, missing))}")
    elif where.startswith("entry"):
        problems.append(f"{where}: mixture_id must be a name, got {name!r}")
    references = _read_references(entry.get("references", ()), where, problems)
    systems = _read_systems(entry.get("systems", {}), where, len(references), problems)
    mixture, sources = _read_extras(entry, where, len(references), problems)
    label = where if where.startswith("entry") else str(name)
    return Mixture(label, references, systems, folder, mixture, sources)


def _read_extras(
    entry: Mapping[str, Any], where: str, count: int, problems: list[str]
) -> tuple[str | None, tuple[str, ...]]:
    """The keys that may be left out: ``mixture`` and ``sources``."""
    mixture, sources = entry.get("mixture"), entry.get("sources")
    if mixture is not None and not (isinstance(mixture, str) and mixture):
        problems.append(f"{where}: mixture must be a path, got {short(mixture)}")
        mixture = None
    if sources is None:
        return mixture, ()
    named = isinstance(sources, list) and all(isinstance(s, str) and s.strip() for s in sources)
    if not named or len(set(sources)) < len(sources) or (count and len(sources) != count):
        problems.append(
            f"{where}: sources must be one name per reference ({count}), each another, got "
            f"{short(sources)}"
        )
        return mixture, ()
    return mixture, tuple(sources)


def _read_references(given: Any, where: str, problems: list[str]) -> tuple[str, ...]:
    given = list(given) if isinstance(given, tuple) and given else given
    if given == ():  # the key is missing, which is told already
        return ()
    if not isinstance(given, list) or not all(isinstance(path, str) and path for path in given):
        problems.append(f"{where}: references must be a list of paths, got {short(given)}")
        return ()
    if len(given) < 2:
        problems.append(f"{where}: references must be at least two, got {len(given)}")
    return tuple(given)


def _read_systems(
    given: Any, where: str, sources: int, problems: list[str]
) -> dict[str, tuple[str | None, ...]]:
    if not isinstance(given, dict):
        problems.append(
            f"{where}: systems must be an object of name: list of paths, got {short(given)}"
        )
        return {}
    found: dict[str, tuple[str | None, ...]] = {}
    for name, paths in given.items():
        problem = _system_problem(paths, sources)
        if problem:
            problems.append(f"{where}, system {name!r}: {problem}")
        else:
            found[name] = tuple(paths)
    return found


def _system_problem(paths: Any, sources: int) -> str | None:
    kinds = isinstance(paths, list) and all(
        path is None or (isinstance(path, str) and path) for path in paths
    )
    if not kinds:
        return f"must be a list of paths or null, got {short(paths)}"
    if sources and len(paths) != sources:
        return (
            f"must have one path per reference ({sources}), null where it estimates none, got "
            f"{len(paths)}"
        )
    if all(path is None for path in paths):
        return "estimates no source at all; leave it out"
    return None


def short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def of_one_folder(mixtures: Sequence[Mixture]) -> Sequence[Mixture]:
    """Mixtures whose paths are relative to one folder, which their results name."""
    if len({mixture.folder for mixture in mixtures}) == 1:
        return mixtures

    def absolute(mixture: Mixture, path: str) -> str:
        return os.path.abspath(os.path.join(mixture.folder, path))

    return [
        one._replace(
            references=tuple(absolute(one, path) for path in one.references),
            systems={
                name: tuple(None if path is None else absolute(one, path) for path in paths)
                for name, paths in one.systems.items()
            },
            mixture=None if one.mixture is None else absolute(one, one.mixture),
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


def _duplicates(names: Sequence[str]) -> list[str]:
    counts = Counter(map(io.same_name, names))
    return [
        f"mixture_id {name!r} is used {counts[name]} times" for name in counts if counts[name] > 1
    ]


def _missing_files(mixture: Mixture) -> list[str]:
    listed = [("references", path) for path in mixture.references]
    for system, paths in mixture.systems.items():
        listed += [(f"system {system!r}", path) for path in paths if path is not None]
    listed += [] if mixture.mixture is None else [("mixture", mixture.mixture)]
    return [
        f"mixture {mixture.name!r}, {whose}: no file {os.path.join(mixture.folder, path)!r}"
        + _slashes(mixture, path)
        for whose, path in listed
        if not os.path.isfile(mixture.locate(path))
    ]


def _slashes(mixture: Mixture, path: str) -> str:
    """A hint for paths of a system that separates folders in another way than this one."""
    if "\\" not in path or os.sep == "\\":
        return ""
    turned = path.replace("\\", "/")
    there = "is there" if os.path.isfile(mixture.locate(turned)) else "is not there either"
    return f" (backslashes do not separate folders here; {turned!r} {there})"

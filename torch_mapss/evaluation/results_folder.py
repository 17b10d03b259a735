"""Writing of results: one file of records and one of frame scores per mixture.

Records are the source of truth, and tables are exports of them. Every file is replaced in one step,
and there are no locks: work interrupted by a kill is done again, and if two processes score the
same mixture, the later (equal) result stays.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_mapss.evaluation import io
from torch_mapss.evaluation.manifest import Mixture, absolute, as_mixture, short
from torch_mapss.evaluation.protocol import protocol_id, versions
from torch_mapss.evaluation.records import (
    FileHashes,
    MixtureScores,
    Record,
    SystemFrames,
    files_agree,
    has_failed,
    paths_of,
)
from torch_mapss.score_table import FRAME_SCORES

#: Format of a folder of results; readers refuse any other.
FORMAT = 3


class MixtureFrames(NamedTuple):
    """Frame scores of one mixture."""

    times: NDArray[np.float64]  # (F,) seconds, centre of the encoder's receptive field
    systems: Mapping[str, SystemFrames]  # by name


# ------------------------------------------------------------------------------------------- Frames


def frames_path(folder: str, mixture: str) -> str:
    """Path of the frame scores of a mixture in a results folder."""
    return os.path.join(folder, "frames", io.native(f"{io.file_name(mixture)}.npz"))


def write_frames(folder: str, scores: MixtureScores, order: Sequence[str]) -> None:
    """Add the frame scores of systems to a mixture's file; drop those of systems that failed.

    NumPy's format, no pickles, replaced in one step; F frames and S' estimates of system i:

    * ``times`` (F,) float64: seconds, centre of the encoder's receptive field, in the whole signal;
    * ``systems`` (number,) str: names, in the order i = 0, 1, ...;
    * ``"{i}.ps"`` and all other frame scores that were computed, (S', F) float32, NaN where
      undefined;
    * ``"{i}.active"`` (S', F) bool: whether the frame is scored;
    * ``"{i}.attributed"`` (S',) int64: index of the reference of each estimate.

    Raises:
        WriteError: the file cannot be written.
    """
    path = frames_path(folder, scores.mixture.name)
    try:
        stored = read_frames(path)
    except ValueError:
        stored = MixtureFrames(np.empty(0), {})
    times = np.union1d(stored.times, scores.times)
    systems = {
        name: at_times(frames, stored.times, times)
        for name, frames in stored.systems.items()
        if name not in scores.records
    }
    for name, frames in scores.frames.items():
        systems[name] = at_times(frames, scores.times, times)
    systems = {name: systems[name] for name in dict.fromkeys([*order, *systems]) if name in systems}
    content: dict[str, Any] = {"times": times, "systems": np.array([*systems], str)}
    for index, (active, attributed, values_by_name) in enumerate(systems.values()):
        content[f"{index}.attributed"] = attributed
        content[f"{index}.active"] = active
        for name, values in values_by_name.items():
            content[f"{index}.{name}"] = values
    io.make_folder(os.path.dirname(path))
    io.write_with(path, lambda name: np.savez_compressed(name, **content))


def at_times(
    frames: SystemFrames, times: NDArray[np.float64], all_times: NDArray[np.float64]
) -> SystemFrames:
    """Frame scores at ``times`` (F,) put among ``all_times``, which contain these.

    With ``trim``, the systems of a mixture may differ in their frames: a shorter one lacks the
    last, and one that ends before all excerpts is scored as a whole. Frames of others are not
    active and NaN.
    """
    if len(times) == len(all_times):
        return frames
    positions = np.searchsorted(all_times, times)
    active = np.zeros((len(frames.active), len(all_times)), bool)
    active[:, positions] = frames.active
    scores = {}
    for name, values in frames.scores.items():
        scores[name] = np.full((len(values), len(all_times)), np.nan, values.dtype)
        scores[name][:, positions] = values
    return SystemFrames(active, frames.attributed, scores)


def read_frames(path: str) -> MixtureFrames:
    """Read a file of frame scores; ValueError if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            content = dict(file)
        systems = {}
        for index, name in enumerate(content["systems"].tolist()):
            names = [score for score in FRAME_SCORES if f"{index}.{score}" in content]
            values_by_name = {score: content[f"{index}.{score}"] for score in names}
            active, attributed = content[f"{index}.active"], content[f"{index}.attributed"]
            systems[name] = SystemFrames(active, attributed, values_by_name)
        return MixtureFrames(content["times"], systems)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{io.shown(path)!r} cannot be read as frame scores ({error}). Score the set again: "
            "`torch-mapss evaluate` makes what is missing."
        ) from None


# ------------------------------------------------------------------------------------------ Records


def record_path(folder: str, mixture: str) -> str:
    """Path of the records of a mixture in a results folder."""
    return os.path.join(folder, "records", io.native(f"{io.file_name(mixture)}.json"))


def read_records(folder: str, mixture: str) -> dict[str, Record]:
    """Read the records of a mixture by system; none if there is no file.

    Raises:
        ValueError: the file is damaged.
    """
    path = record_path(folder, mixture)
    try:
        content = json.loads(Path(path).read_bytes())
        records: dict[str, Record] = content["systems"]
        for record in records.values():
            _ = [record[key] for key in ("rows", "item", "findings", "files")]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{io.shown(path)!r} is damaged ({type(error).__name__}); its mixture {mixture!r} "
            "counts as not scored. `torch-mapss evaluate` scores it again."
        ) from None
    return records


def write_scores(folder: str, scores: MixtureScores, order: Sequence[str]) -> None:
    """Add the results of a mixture to its files, with systems in the given ``order``.

    Raises:
        WriteError: the files cannot be written.
    """
    # Frames before records, so that every finished pair has its frames on disk.
    write_frames(folder, scores, order)
    write_records(folder, scores.mixture.name, scores.records, order)


def write_records(
    folder: str, mixture: str, records: Mapping[str, Record], order: Sequence[str]
) -> None:
    """Add records of systems to the file of a mixture.

    Raises:
        WriteError: the file cannot be written.
    """
    try:
        stored = read_records(folder, mixture)
    except ValueError:
        stored = {}
    stored |= records
    systems = {name: stored[name] for name in dict.fromkeys([*order, *stored]) if name in stored}
    content = {"format": FORMAT, "mixture_id": mixture, "systems": systems}
    path = record_path(folder, mixture)
    io.make_folder(os.path.dirname(path))
    # ASCII escapes preserve names that are not valid UTF-8.
    io.write_bytes(path, json.dumps(io.plain(content)).encode())


def pending_systems(folder: str, mixture: Mixture) -> tuple[dict[str, Record], dict[str, str]]:
    """Up-to-date records of a mixture, and the reasons for scoring each of its other systems.

    The reasons are "new", "failed", "changed" (its files), "lost" (its frames), or the text of the
    error if the file of records is damaged.
    """
    try:
        stored = read_records(folder, mixture.name)
    except ValueError as error:
        return {}, dict.fromkeys(mixture.systems, str(error))
    try:
        frames = read_frames(frames_path(folder, mixture.name)).systems if stored else {}
    except ValueError:
        frames = {}
    hashes = FileHashes(mixture)
    finished: dict[str, Record] = {}
    reasons: dict[str, str] = {}
    for system in mixture.systems:
        if system not in stored:
            reasons[system] = "new"
        elif not files_agree(stored[system]["files"], paths_of(mixture, system), mixture, hashes):
            reasons[system] = "changed"
        elif has_failed(stored[system]):
            reasons[system] = "failed"
        elif system not in frames:
            reasons[system] = "lost"
        else:
            finished[system] = stored[system]
    return finished, reasons


# ---------------------------------------------------------------------------- Settings and mixtures


def claim(
    folder: str, settings: Mapping[str, Any], rate: int, options: Mapping[str, Any] | None
) -> None:
    """Claim ``folder`` for results of these settings.

    Args:
        folder: an existing folder.
        settings: everything that a score depends on.
        rate: sample rate of the encoder in Hz.
        options: options that reproduce the scores; None if unknown.

    Raises:
        ValueError: the folder holds results made with different settings, or unrelated tables.
    """
    path = os.path.join(folder, "settings.json")
    if not os.path.exists(path):
        if os.path.exists(os.path.join(folder, "scores.csv")):
            raise ValueError(
                f"{io.shown(folder)!r} holds a scores.csv that no run over a manifest wrote. "
                "Choose another folder."
            )
        content = {"protocol": protocol_id(settings), "settings": settings, "rate": rate}
        stated = {} if options is None else {"options": options}
        io.write_json(path, {**content, "versions": versions(), **stated})
        return
    from torch_mapss.core.checks import differing  # late: the command line imports this module

    stored = io.read_json(path, "settings")
    differences = [
        f"{key}: {short(stored_value)} there, {short(value)} now"
        for key, stored_value, value in differing(stored["settings"], settings)
    ]
    if differences:
        source = "--config settings.json of that folder" if "options" in stored else "its mapss="
        raise ValueError(
            f"{io.shown(folder)!r} holds results made with different settings "
            f"({'; '.join(differences)}). Scores made with different settings cannot share a "
            f"table: choose another folder, or use the same settings ({source})."
        )


def read_mixtures(folder: str) -> tuple[Mixture, ...]:
    """Read the mixtures of a results folder, with their paths and root.

    Raises:
        ValueError: the file is damaged, or of another format.
    """
    path = os.path.join(folder, "mixtures.json")
    content = io.read_json(path, "format", "root", "relative", "mixtures")
    if content["format"] != FORMAT:
        raise ValueError(
            f"{io.shown(folder)!r} holds results of format {content['format']!r}, this version "
            f"reads {FORMAT}. Score the set again."
        )
    root = _root(folder, content)
    try:
        return tuple(
            as_mixture(entry)._replace(folder=root, sources=tuple(entry["sources"]))
            for entry in content["mixtures"]
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{io.shown(path)!r} is damaged ({error}). Score the set again, or choose another "
            "folder."
        ) from None


def _root(folder: str, content: Mapping[str, Any]) -> str:
    """Folder of the audio: the original one, unless it was moved together with the results."""
    root, relative = io.native(content["root"]), content["relative"]
    new_root = os.path.normpath(os.path.join(folder, io.native(relative or ".")))
    was_moved = relative and not os.path.isdir(root) and os.path.isdir(new_root)
    return new_root if was_moved else root


def with_stored_spelling(folder: str, mixtures: Sequence[Mixture]) -> tuple[Mixture, ...]:
    """Mixtures whose names, and those of their systems, are spelled as in the list in ``folder``.

    Names that differ only in their Unicode form are the same.
    """
    path = os.path.join(folder, "mixtures.json")
    stored = read_mixtures(folder) if os.path.exists(path) else ()
    mixture_names = {io.same_name(mixture.name): mixture.name for mixture in stored}
    system_names: dict[str, str] = {}
    for mixture in stored:
        system_names |= {io.same_name(name): name for name in mixture.systems}
    respelled = []
    for mixture in mixtures:
        systems = {
            system_names.get(io.same_name(name), name): paths
            for name, paths in mixture.systems.items()
        }
        name = mixture_names.get(io.same_name(mixture.name), mixture.name)
        respelled.append(mixture._replace(name=name, systems=systems))
    return tuple(respelled)


def add_mixtures(folder: str, mixtures: Sequence[Mixture]) -> tuple[dict[str, Mixture], str]:
    """Add mixtures to the list in ``folder``, and write it.

    A stored mixture gains the new systems, and the paths of its known systems are replaced. Nothing
    that was scored is removed from the results.

    Args:
        folder: folder of results.
        mixtures: mixtures whose paths are relative to one folder.

    Returns:
        All mixtures by name, and a sentence about stored results beyond these; "" if there are
        none.

    Raises:
        ValueError: a stored mixture has other references, and scores of systems that are not in
            ``mixtures``.
    """
    path = os.path.join(folder, "mixtures.json")
    stored = read_mixtures(folder) if os.path.exists(path) else ()
    root = os.path.abspath(mixtures[0].folder)
    if any(os.path.abspath(mixture.folder) != root for mixture in stored):
        stored = tuple(map(absolute, stored))
    stored_by_name = {io.same_name(mixture.name): mixture for mixture in stored}
    by_name = {io.same_name(mixture.name): mixture for mixture in mixtures}
    # By system, the number of stored mixtures that the new list lacks.
    kept_counts: Counter[str] = Counter()
    for name, stored_mixture in stored_by_name.items():
        mixture = by_name.get(name, stored_mixture._replace(systems={}))
        only_stored = [system for system in stored_mixture.systems if system not in mixture.systems]
        kept_counts.update(only_stored)
        if only_stored and name in by_name:
            by_name[name] = _with_systems(folder, mixture, stored_mixture, only_stored)
    # A list that names every stored mixture gives their order as well.
    is_full = stored_by_name.keys() <= by_name.keys()
    in_order = by_name if is_full else {**stored_by_name, **by_name}
    merged = {mixture.name: mixture for mixture in in_order.values()}
    io.write_json(path, _content([*merged.values()], root, folder))
    if not kept_counts:
        return merged, ""
    counts = io.listed(f"system {system!r} of {n} mixtures" for system, n in kept_counts.items())
    return merged, (
        f"{io.shown(folder)!r} also holds {counts}, scored before; they stay in its tables. For "
        "tables of this set alone, choose another folder"
    )


def _with_systems(
    folder: str, mixture: Mixture, stored_mixture: Mixture, only_stored: Sequence[str]
) -> Mixture:
    """``mixture`` with systems scored earlier against the same references."""
    systems = {**stored_mixture.systems, **mixture.systems}
    try:
        records = read_records(folder, mixture.name)
    except ValueError:  # these systems are scored again if asked for
        records = {}
    hashes = FileHashes(mixture)
    for system in only_stored:
        files = records[system]["files"] if system in records else ()
        reference_files = files[: len(stored_mixture.references)]
        if files and not files_agree(reference_files, mixture.references, mixture, hashes):
            raise ValueError(
                f"{io.shown(folder)!r} holds mixture {mixture.name!r} with other references, and "
                f"scores of {io.listed(map(repr, only_stored), 3)} against them. Choose another "
                "folder, or give the mixture another mixture_id."
            )
    return mixture._replace(systems=systems)


def _content(mixtures: Sequence[Mixture], root: str, folder: str) -> dict[str, Any]:
    """Content of ``mixtures.json``."""
    try:
        relative: str | None = io.shown(os.path.relpath(root, folder))
    except ValueError:  # on another drive
        relative = None
    entries = [mixture.entry() for mixture in mixtures]
    return {"format": FORMAT, "root": io.shown(root), "relative": relative, "mixtures": entries}

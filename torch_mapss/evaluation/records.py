"""Records: the stored result of one mixture and system, as plain dictionaries.

A record has ``rows`` (a dictionary per estimate: the rows of ``scores.csv``), ``item`` (values for
the mixture and system as a whole), ``findings`` (pairs of kind and text) and ``files`` (path, size,
modification time and SHA-256 of each reference and estimate that was scored). Where each channel
was scored it also has ``channels``, the rows of ``channels.csv``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.evaluation import io
from torch_mapss.evaluation.manifest import Mixture

if TYPE_CHECKING:
    from numpy import bool_, float32, float64, int64
    from numpy.typing import NDArray
    from pandas import DataFrame

    from torch_mapss.evaluation.channel_checks import Finding

Record = dict[str, Any]
# For these errors the message suffices; for any other, the type is reported too.
_SELF_EXPLANATORY = (str, ValueError, TypeError, OSError, RuntimeError, MemoryError)
_NO_FRAME = "no frame in which it and another source are active"


class SystemFrames(NamedTuple):
    """Frame scores of the S' estimates of one system."""

    active: NDArray[bool_]  # (S', F) the frame is scored
    attributed: NDArray[int64]  # (S',) index of the reference of each estimate
    scores: Mapping[str, NDArray[float32]]  # (S', F) by score computed; NaN where undefined


class MixtureScores(NamedTuple):
    """Everything computed for one mixture, as plain data that processes can exchange."""

    mixture: Mixture  # with only the systems that were scored
    records: Mapping[str, Record]  # by system
    times: NDArray[float64]  # (F,) times of the frames in seconds
    frames: Mapping[str, SystemFrames]  # by system, without those that failed
    seconds: float  # duration of scoring


def record_of(
    mixture: Mixture,
    system: str,
    table: DataFrame,
    *,
    channels: DataFrame | None = None,
    findings: Sequence[Finding],
    notes: Sequence[str],
    errors: Mapping[str, float],
    seconds: float,
) -> Record:
    """Record of a pair of mixture and system that was scored.

    Args:
        mixture: mixture with paths as in the manifest.
        system: name of the system.
        table: one row per estimate, as in a report.
        channels: one row per estimate and channel, where each channel was scored.
        findings: about one estimate (reported in its row) or about all.
        notes: changes made to the input.
        errors: standard errors of the means, by score.
        seconds: duration of the audio.
    """
    undefined = table["frames"] == 0
    warnings = []
    for index in range(len(table)):
        texts = [finding.text for finding in findings if finding.estimate in (None, index)]
        warnings.append("; ".join(texts))
    table = table.assign(
        silent=table["silent"].astype(int),
        status=undefined.map({True: "undefined", False: "ok"}),
        reason=undefined.map({True: _NO_FRAME, False: ""}),
        notes="; ".join(notes),
        warnings=warnings,
    )
    item: Record = {f"{name}_se": value for name, value in errors.items()}
    status = "undefined" if undefined.all() else "ok"
    item |= {"seconds": seconds, "status": status, "reason": ""}
    record = _record(
        mixture, system, table, item, [[finding.kind, finding.text] for finding in findings]
    )
    if channels is not None:
        record["channels"] = rows_of(channels.assign(mixture_id=mixture.name, system=system))
    return record


def failed_record(mixture: Mixture, system: str, error: BaseException | str) -> Record:
    """Record of a pair of mixture and system that could not be scored, with the reason."""
    import pandas

    text = str(error) or type(error).__name__
    if not isinstance(error, _SELF_EXPLANATORY):
        text = f"{type(error).__name__}: {error}"
    reason = " ".join(text.split())
    estimated = [k for k, path in enumerate(mixture.systems[system]) if path is not None]
    names = [mixture.source_names[k] for k in estimated]
    table = pandas.DataFrame({"source": names, "source_index": estimated, "frames": 0})
    table = table.assign(silent=0, status="failed", reason=reason, notes="", warnings="")
    return _record(
        mixture, system, table, {"seconds": None, "status": "failed", "reason": reason}, []
    )


def _record(
    mixture: Mixture, system: str, table: DataFrame, item: Record, findings: list[list[str]]
) -> Record:
    pair = {"mixture_id": mixture.name, "system": system}
    table = table.assign(
        **pair,
        estimate=[path for path in mixture.systems[system] if path is not None],
        reference=[mixture.references[index] for index in table["source_index"]],
    )
    counts = {
        "estimates": len(table),
        "undefined": int(table["status"].eq("undefined").sum()),
        "silent": int(table["silent"].sum()),
        "references": len(mixture.references),
    }
    return {"rows": rows_of(table), "item": {**item, **counts}, "findings": findings, "files": []}


def rows_of(table: DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as dictionaries."""
    return [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]


def has_failed(record: Record) -> bool:
    """Whether scoring this mixture and system failed."""
    return bool(record["item"]["status"] == "failed")


# ------------------------------------------------------------------------------- Identity of files


def paths_of(mixture: Mixture, system: str) -> tuple[str | None, ...]:
    """Paths that the scores of a pair depend on: references, then estimates."""
    return (*mixture.references, *mixture.systems[system])


def file_states(paths: Sequence[str | None], mixture: Mixture) -> list[list[Any]]:
    """Path, size and modification time (ns) of files of a mixture; -1 for a missing file."""
    states = []
    for path in paths:
        try:
            state = os.stat("" if path is None else mixture.locate(path))
            states.append([path, state.st_size, state.st_mtime_ns])
        except OSError:  # null in the manifest, or a file that is gone
            states.append([path, -1, -1])
    return states


class FileHashes:
    """SHA-256 hashes of the files of a mixture by path; each file is read only once."""

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        self._digests: dict[str, str | None] = {}

    def of(self, path: str | None) -> str | None:
        """Hash of a file; None if it cannot be read."""
        if path is None:
            return None
        if path not in self._digests:
            try:
                self._digests[path] = io.sha256(self._mixture.locate(path))
            except OSError:  # scoring its pair will fail with this error
                self._digests[path] = None
        return self._digests[path]


def files_agree(
    scored: Sequence[Sequence[Any]],
    paths: Sequence[str | None],
    mixture: Mixture,
    hashes: FileHashes,
) -> bool:
    """Whether files are the same as those that were scored, wherever they lie now.

    They are if path, size and modification time agree. If only the size agrees, the hash decides,
    since a copy of a set has other times.

    Args:
        scored: path, size, time and hash of each file, as in a record.
        paths: current paths of the files.
        mixture: mixture that they belong to.
        hashes: hashes of the mixture's files.
    """
    if len(scored) != len(paths):
        return False
    for state, (*scored_state, digest) in zip(file_states(paths, mixture), scored):
        path, size, _ = state
        if state == scored_state or (path is None and scored_state[0] is None):
            continue
        if size != scored_state[1] or size < 0 or digest is None or hashes.of(path) != digest:
            return False
    return True

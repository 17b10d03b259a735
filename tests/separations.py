"""Small made-up separations on disk, for the tests of files, tables and commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from torch import Tensor
from waveforms import RATE, leaky, tones

from torch_mapss import MAPSS, DistortionBank


def write(path: Path, wave: Tensor, rate: int = RATE) -> str:
    """A float WAV of a (T,) or (C, T) waveform: samples survive exactly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:  # soundfile cannot open some names in the C locale
        soundfile.write(file, np.atleast_2d(wave).T, rate, format="WAV", subtype="FLOAT")
    return str(path)


def write_all(folder: Path, waves: Tensor, names: Sequence[str] = ("a", "b", "c")) -> list[str]:
    """One file per source."""
    return [write(folder / f"{name}.wav", wave) for name, wave in zip(names, waves)]


def small_mapss(size: int = 5, **options: Any) -> MAPSS:
    """The embedded encoder with small banks: quick, and otherwise the real thing."""
    kinds = "separation", "match"
    banks: dict[str, Any] = {f"{kind}_bank": DistortionBank(kind, size=size) for kind in kinds}
    return MAPSS("mel", **banks, **options)


def write_manifest(folder: Path, mixtures=3, systems=("good", "bad"), seconds=0.3) -> Path:
    """A test set of two sources with a manifest; systems leak more and more."""
    entries = []
    for k in range(mixtures):
        truth = tones(2, seconds, seed=k)
        write_all(folder / f"m{k}" / "truth", truth)
        references = [f"m{k}/truth/{name}.wav" for name in "ab"]
        entry: dict[str, Any] = {"mixture_id": f"m{k}", "references": references, "systems": {}}
        for position, system in enumerate(systems):
            write_all(folder / f"m{k}" / system, leaky(truth, 0.1 + 0.4 * position))
            entry["systems"][system] = [f"m{k}/{system}/{name}.wav" for name in "ab"]
        entries.append(entry)
    return save_manifest(folder, entries)


def score_set(path: Path, out: Path, mapss: MAPSS | None = None, **settings: Any) -> Any:
    """Results of a run over a manifest, with :func:`small_mapss` unless another is passed."""
    from torch_mapss.evaluation.manifest import load_manifest
    from torch_mapss.evaluation.run import score_mixtures
    from torch_mapss.evaluation.score_mixture import MixtureJob

    how = {name: settings.pop(name) for name in ("shard", "quiet", "map") if name in settings}
    job = MixtureJob(settings, mapss=mapss or small_mapss())
    return score_mixtures(load_manifest(path), out, job, **how)


def save_results(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """A results folder of made-up rows of ``scores.csv``, as if they had been scored."""
    from torch_mapss.evaluation.results_folder import FORMAT, write_records

    blank = {"source": "ref", "source_index": 0, "status": "ok", "reason": "", "silent": 0}
    blank |= {"frames": 1, "notes": "", "warnings": ""}
    records: dict[str, dict[str, Any]] = {}
    for row in ({**blank, **row} for row in rows):
        systems = records.setdefault(row["mixture_id"], {})
        record = systems.setdefault(row["system"], {"rows": [], "findings": [], "files": []})
        record["rows"].append(row)
        counts = {"estimates": len(record["rows"]), "references": 2, "silent": 0, "undefined": 0}
        record["item"] = {**counts, "seconds": 1.0, "status": row["status"], "reason": ""}
    entries = []
    for mixture, systems in records.items():
        write_records(str(folder), mixture, systems, [*systems])
        paths = {name: ["a.wav", "b.wav"][: len(r["rows"])] for name, r in systems.items()}
        padded = {name: [*paths_of_system, None][:2] for name, paths_of_system in paths.items()}
        entry = {"mixture_id": mixture, "references": ["a.wav", "b.wav"], "systems": padded}
        entries.append({**entry, "sources": ["ref", "other"], "mixture": None})
    content = {"format": FORMAT, "root": ".", "relative": ".", "mixtures": entries}
    (folder / "mixtures.json").write_text(json.dumps(content))
    (folder / "settings.json").write_text(json.dumps({"settings": {}, "versions": {}}))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files of results by their path, but for the list that says where the folder lies."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    by_name = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {name: content for name, content in by_name.items() if name != "mixtures.json"}


def save_manifest(folder: Path, entries: Any, name: str = "manifest.json") -> Path:
    """The entries as a manifest in ``folder``."""
    path = folder / name
    path.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")
    return path


def entries_of(path: Path) -> Any:
    """The entries of a manifest, or whatever a JSON file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def environment(**changes: str) -> dict[str, str]:
    """For a subprocess: this one's, one thread, the package of this checkout."""
    present = os.environ.get("PYTHONPATH"), str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, present))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **changes}


def python(*arguments: str, changes: Any = (), **options: Any) -> str:
    """What a process of Python's own prints; the test fails with its errors."""
    command, env = [sys.executable, *arguments], environment(**dict(changes))
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8", **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


WILD = "<script>alert('1')</script> \"é\" 声"


def wild_results(folder: Path) -> Path:
    """Results of two mixtures and systems; one name is a script, files have blanks and '#'."""
    entries = []
    for k in range(2):
        truth = tones(2, 1.0, seed=k)
        made = {"good": leaky(truth, 0.1), WILD: leaky(truth, 0.6)}
        names = [f"m{k} #{n}.wav" for n in range(2)]
        for name, wave in zip(names, truth):
            write(folder / "truth" / name, wave)
        entry: dict[str, Any] = {"mixture_id": f"m{k}", "sources": ["a & b", "<i>c</i>"]}
        entry |= {"references": [f"truth/{name}" for name in names], "systems": {}}
        for position, (system, waves) in enumerate(made.items()):
            for name, wave in zip(names, waves):
                write(folder / f"s{position}" / name, wave)
            entry["systems"][system] = [f"s{position}/{name}" for name in names]
        write(folder / f"mix{k}.wav", truth.sum(0))
        entries.append({**entry, "mixture": f"mix{k}.wav"})
    score_set(save_manifest(folder, entries), folder / "results")
    return folder / "results"

"""A small scorer, and one scored set for the tests of sets, results and shares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from separations import save_manifest, score_set, small_mapss, write, write_manifest
from waveforms import tones

from torch_mapss import MAPSS
from torch_mapss.evaluation.results import Results, load_results


@pytest.fixture(scope="session")
def mapss() -> MAPSS:
    return small_mapss()


@pytest.fixture(scope="session")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three mixtures, two systems; the first mixture names its sources and itself, has a null."""
    path = write_manifest(tmp_path_factory.mktemp("set"), 3)
    entries = json.loads(path.read_text(encoding="utf-8"))
    write(path.parent / "m0" / "mix.wav", tones(seconds=0.3).sum(0))
    entries[0] |= {"mixture": "m0/mix.wav", "sources": ["Größe", "<b>"]}
    entries[0]["systems"]["bad"][0] = None
    return save_manifest(path.parent, entries)


@pytest.fixture(scope="session")
def folder(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    score_set(manifest, out := tmp_path_factory.mktemp("scored"))
    return out


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    """Of the folder above, or of one that a module has in its place."""
    return load_results(folder)

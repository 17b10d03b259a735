"""One scored set for the tests of sets, results and shares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from separations import save_manifest, score_set, sources, write, write_manifest

from torch_mapss.evaluation.results import Results, load_results


@pytest.fixture(scope="session")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three mixtures, two systems; the first mixture names its sources and itself, has a null."""
    path = write_manifest(tmp_path_factory.mktemp("set"), 3)
    entries = json.loads(path.read_text(encoding="utf-8"))
    write(path.parent / "m0" / "mix.wav", sources(seconds=0.3).sum(0))
    entries[0] |= {"mixture": "m0/mix.wav", "sources": ["Größe", "<b>"]}
    entries[0]["systems"]["bad"][0] = None
    return save_manifest(path.parent, entries)


@pytest.fixture(scope="session")
def results(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("scored")
    score_set(manifest, out)
    return load_results(out)

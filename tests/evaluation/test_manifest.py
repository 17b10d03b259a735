"""Manifests: what is refused, all at once, and what is read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from pandas import DataFrame
from separations import entries_of, save_manifest, write, write_manifest

from torch_mapss.evaluation import cli
from torch_mapss.evaluation.manifest import ManifestError, load_manifest, read_entries


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("set"), 3)


SHOWN = "Minimal example"
BROKEN = (
    (None, "m.json: cannot be read: No such file"),
    ("{not json", "is not valid JSON in UTF-8"),
    ('[{"mixture_id": "x", "mixture_id": "y"}]', "an object has the key 'mixture_id' twice"),
    ('{"id": 1}\n{"id": 2}\n', f"A file with one object per line is not a manifest. {SHOWN}"),
    ("[]", "must be a JSON list of mixtures, got []"),
    ('{"x": 1}', f'must be a JSON list of mixtures, got {{"x": 1}}. {SHOWN}'),
    ("[3]", "entry 0 must be an object, got 3"),
    ('[{"references": ["a", "b"], "systems": {}}]', "entry 0: mixture_id must be a name, got noth"),
)


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_broken_manifests(tmp_path, text, message):
    path = tmp_path / "m.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError) as error:
        load_manifest(path)
    told = str(error.value)
    assert all(fragment in told for fragment in (message, "m.json"))
    if SHOWN in told:
        for name in ("a", "b", "a_est", "b_est"):
            write(tmp_path / f"{name}.wav", torch.zeros(800))
        path.write_text(told[told.index("[{") :], encoding="utf-8")
        assert len(load_manifest(path)) == 1  # what is shown is valid


def test_all_problems_are_listed_at_once(corpus, tmp_path, capsys):
    entries, out = entries_of(corpus), tmp_path / "out"
    entries[0]["references"][0] = "m0/truth/gone.wav"
    entries[1]["systems"]["bad"].append("m1/bad/c.wav")
    entries[1]["systems"]["none"] = [None, None]
    entries[2]["mixture_id"] = "m0"
    entries.append({"mixture_id": "late", "references": ["m0/truth/a.wav"], "systems": []})
    entries.append({"mixture_id": 7, "references": "m0/truth/a.wav"})
    path = save_manifest(corpus.parent, entries, "wrong.json")
    assert cli.main(["evaluate", str(path), "--out", str(out), "--encoder", "mel"]) == 2
    assert not out.exists()
    printed = capsys.readouterr().err
    for problem in (
        "wrong.json has 9 problems:",
        "mixture 'm0', references: no file",
        "gone.wav",
        "mixture 'm1', system 'bad': must have one path per reference (2)",
        "m1/bad/c.wav",
        "mixture 'm1', system 'none': estimates no source at all",
        "mixture_id 'm0' is used 2 times",
        "mixture 'late': references must be a list of at least two paths, got [",
        "mixture 'late': systems must be an object",
        "mixture '7': systems must be an object of name: list of paths, got nothing",
        "mixture '7': references must be a list of at least two paths",
    ):
        assert problem in printed
    assert len(printed.strip().splitlines()) == 10


def test_valid_manifests(corpus):
    """A byte order mark, further keys, a mixture without systems; not all without."""
    entries = entries_of(corpus)
    entries[0] |= {"remark": "anything", "systems": {}}
    path = corpus.parent / "bom.json"
    path.write_text(json.dumps(entries), encoding="utf-8-sig")
    assert len(load_manifest(path)) == 3
    for entry in entries:
        entry["systems"] = {}
    with pytest.raises(ManifestError, match="no system in any"):
        load_manifest(save_manifest(corpus.parent, entries, "none.json"))


def test_entries_of_python(corpus):
    """What pathlib, NumPy and pandas give is taken as it is meant; other objects are shown."""
    (entry, *_) = entries_of(corpus)
    (expected,) = read_entries([entry], "given", str(corpus.parent))
    for convert in (tuple, np.array, lambda paths: [Path(path) for path in paths]):
        systems = {name: convert(paths) for name, paths in entry["systems"].items()}
        converted = entry | {"references": convert(entry["references"]), "systems": systems}
        assert read_entries([converted], "given", str(corpus.parent)) == (expected,)
    frame = DataFrame([entry | {"mixture_id": 7}])
    (numbered,) = read_entries([frame.iloc[0]], "given", str(corpus.parent))
    assert numbered == expected._replace(name="7")
    (numbered,) = read_entries([entry | {"mixture_id": np.int64(7)}], "x", str(corpus.parent))
    assert numbered.name == "7"
    wrong = entry | {"references": [object(), "m0/truth/a.wav"]}
    with pytest.raises(ManifestError, match=r"references must be .* got .*object"):
        read_entries([wrong], "given", str(corpus.parent))


TWO_FORMS = {name: ["m0/good/a.wav"] * 2 for name in ("\u00c9quipe", "E\u0301quipe")}
WRONG = [
    ({"sources": ["a"]}, "sources must be one name per reference"),
    ({"sources": ["a", "a"]}, "one name per reference, all different"),
    ({"sources": ["a", " "]}, "sources must be one name"),
    ({"sources": "ab"}, "sources must be one name"),
    ({"mixture": 3}, "mixture must be a path, got 3"),
    ({"mixture": "gone.wav"}, "mixture: no file"),
    ({"systems": TWO_FORMS}, "twice"),
]


@pytest.mark.parametrize(("changed", "message"), WRONG)
def test_manifests_with_wrong_entries(corpus, changed, message):
    entries = [entries_of(corpus)[0] | changed]
    with pytest.raises(ManifestError, match=message):
        read_entries(entries, "given", str(corpus.parent))
    with pytest.raises(ManifestError, match=message):
        load_manifest(save_manifest(corpus.parent, entries, "wrong.json"))


def test_backslashes_separate_folders_as_well(tmp_path):
    path = write_manifest(tmp_path, 1, ("good",))
    path.write_text(path.read_text().replace("/", "\\\\"))
    (mixture,) = load_manifest(path)
    assert mixture.source_names == ("a", "b")
    assert os.path.isfile(mixture.locate(mixture.references[0]))


def test_an_id_used_twice_among_many(tmp_path):
    paths = [write(tmp_path / f"{name}.wav", torch.zeros(8)) for name in "ab"]
    entry = {"references": paths, "systems": {"x": paths}}
    entries = [entry | {"mixture_id": f"m{k}"} for k in range(2000)]
    assert len(read_entries(entries, "m", "")) == 2000
    entries.append(entries[7])
    with pytest.raises(ManifestError, match="'m7' is used 2 times"):
        read_entries(entries, "m", "")

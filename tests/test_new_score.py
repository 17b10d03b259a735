"""A made-up score: every consumer picks up a record and a result of a measure's function."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from separations import environment, write_manifest

import torch_mapss
from torch_mapss.pipeline.measures import MEASURES
from torch_mapss.score_table import SCORES


class Change(NamedTuple):
    """A change of the package's source."""

    path: str
    text: str  # occurs once
    replacement: str


RECORD = """
    Score(
        "closeness",
        "decomposition",
        "closeness",
        "closeness, 0 to 1: product of clearance and fidelity",
        limits=_SHARE,
        ranked=True,
        frame_field="closeness",
        defined_field="closeness_defined",
        pooling="masked_mean",
    ),
)

#: All scores"""
VALUES = """
        "distortion_ratio_defined": ratio_defined,
        "closeness": torch.where(fidelity_defined, clearance * fidelity, 0.0),
        "closeness_defined": fidelity_defined,
    }"""
IN_TABLE = Change("score_table.py", "\n)\n\n#: All scores", RECORD)
IN_FUNCTION = Change(
    "core/decomposition.py", '\n        "distortion_ratio_defined": ratio_defined,\n    }', VALUES
)
USES = """
import sys
import torch
from torch_mapss import MAPSS, SourceScores, compare, evaluate_set
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.worst import worst_segments

manifest, out = sys.argv[1:]
generator = torch.Generator().manual_seed(0)
references = torch.randn(1, 2, 8000, generator=generator)
estimates = references + 0.3 * references.flip(1)
mapss = MAPSS("mel", measures="closeness")
scores = mapss(estimates, references)
expected = scores.clearance * scores.fidelity
assert expected.min() < 1.0
torch.testing.assert_close(scores.closeness, expected)
assert torch.equal(scores.defined("closeness"), scores.defined("fidelity"))
pooled = scores.utterance()
torch.testing.assert_close(pooled.closeness, expected.mean(-1))
bounded = mapss.bounds(estimates, references)
torch.testing.assert_close(bounded.scores.closeness, expected)
metric = SourceScores(mapss)
torch.testing.assert_close(metric(estimates, references)["closeness"], pooled.closeness.mean())
results = evaluate_set(manifest, out=out, encoder="mel", measures="closeness", device="cpu")
assert results.scores["closeness"].between(0, 1).all()
assert "closeness" in results.frames("m0").systems["good"].scores
assert "closeness" in compare(results).ranking["measure"].unique()
assert len(worst_segments(results, 2, measures=["closeness"])) == 2
for command in (
    ["compare", out, "--out", out + "/compared", "--no-plots"],
    ["report", out, "--out", out + "/report.html"],
    ["verify", out, "--pairs", "0"],
):
    assert cli.main(command) == 0, command
"""


def with_changed_package(
    folder: Path, changes: Sequence[Change], code: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run code with a copy of the package that has some changes."""
    package = Path(torch_mapss.__file__).parent
    shutil.copytree(package, folder / "torch_mapss", ignore=shutil.ignore_patterns("__pycache__"))
    for path, text, replacement in changes:
        file = folder / "torch_mapss" / path
        source = file.read_text(encoding="utf-8")
        assert source.count(text) == 1, text
        file.write_text(source.replace(text, replacement), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment(PYTHONPATH=str(folder)),
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
    )


def test_a_record_and_a_result_are_all_that_a_score_needs(tmp_path):
    manifest = write_manifest(tmp_path / "set", 2)
    changes = (IN_TABLE, IN_FUNCTION)
    arguments = str(manifest), str(tmp_path / "results")
    done = with_changed_package(tmp_path / "package", changes, USES, *arguments)
    assert done.returncode == 0, done.stderr


SCORING = """
import torch
from torch_mapss import MAPSS
references = torch.randn(1, 2, 8000)
MAPSS("mel", measures="decomposition")(references, references)
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((IN_TABLE,), "measure 'decomposition' returned no 'closeness', which the table of scores"),
        (
            (IN_TABLE._replace(replacement=RECORD.replace('"decomposition",', '"closeness",')),),
            "score 'closeness' is of measure 'closeness', which is not in MEASURES",
        ),
        (
            (IN_TABLE._replace(replacement=RECORD.replace("masked_mean", "middle")),),
            "function of torch_mapss.core.pooling (pooling), got 'closeness' and 'middle'",
        ),
    ],
)
def test_missing_parts_of_a_new_score_are_reported(changes, message, tmp_path):
    done = with_changed_package(tmp_path, changes, SCORING)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]


def test_every_score_is_written_out_for_type_checkers():
    """Others would be added as the package is imported, and unknown to mypy and to editors."""
    source = Path(torch_mapss.__file__).parent / "pipeline" / "scores.py"
    declared: dict[str, set[str]] = {}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            annotated = [entry for entry in node.body if isinstance(entry, ast.AnnAssign)]
            declared[node.name] = {ast.unparse(entry.target) for entry in annotated}
    fields = {name for measure in MEASURES.values() for name in measure.fields}
    pooled = {name for name, score in SCORES.items() if score.frame_field is not None}
    assert fields - declared["Scores"] == set(), "write these fields out in class Scores"
    assert pooled - declared["UtteranceScores"] == set(), "write these out in UtteranceScores"

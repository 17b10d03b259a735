"""What the documentation says: its code runs, and every shape it states comes out."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import clouds
from small_scorers import small
from torch import Tensor
from waveforms import impaired, voices

import torch_mapss
from torch_mapss import MAPSS, SeparationLoss
from torch_mapss import functional as F

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PACKAGE = Path(torch_mapss.__file__).parent
EXAMPLES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


def run(page: Path) -> dict[str, Any]:
    """The namespace after all Python blocks of a page that are meant to run have run, in order."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python[^\n]*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    torch.manual_seed(0)
    for number, (info, code) in enumerate(blocks):
        if "no-run" not in info:
            exec(compile(code, f"{page.name}, block {number}", "exec"), namespace)
    return namespace


def test_shapes_that_the_readme_states() -> None:
    readme = run(README)
    stated = re.search(r"print\(scores\.ps\.shape.*# \((\d+), (\d+), (\d+)\)", README.read_text())
    assert stated is not None
    assert readme["scores"].ps.shape == tuple(int(n) for n in stated.groups())
    assert readme["references"].ndim == 3  # (batch, sources, samples)
    times = readme["scores"].times
    torch.testing.assert_close(times.diff(), torch.full((48,), 0.02).double())  # 50 a second
    assert readme["target_only"].ps.shape == (1, 1, 49)
    assert readme["bounds"].pm.total.shape == (1, 2, 49)
    assert readme["bank"].batch == 1


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("recipes/guide/*.md")), ids=lambda page: page.stem
)
def test_code_of_the_guide_runs(page: Path) -> None:
    run(page)


def test_calls_that_the_table_of_equations_lists_exist() -> None:
    rows = (F.__doc__ or "").split("list-table::")[1].split("   * - ")[2:]
    cells = [row.splitlines()[1] for row in rows]
    calls = [name for cell in cells for name in re.findall(r"``([A-Za-z_.]+)[(`]", cell)]
    assert len(calls) > 12
    home = ""
    for call in calls:
        home = call.rpartition(".")[0] or home
        module, name = importlib.import_module(f"torch_mapss.{home}"), call.rpartition(".")[2]
        assert hasattr(module, name) or hasattr(torch_mapss, call), call


def test_options_that_the_readme_names_exist() -> None:
    from torch_mapss.evaluation.cli import build_parser

    for block in re.findall(r"```bash\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            words = line.split("#")[0].split()
            if words[:1] == ["torch-mapss"]:
                build_parser().parse_args(words[1:])


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings_run(name: str) -> None:
    if name == "torch_mapss.lightning":
        pytest.importorskip("lightning")
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0


# What the letters of the documentation stand for in the calls below.
SIZES = {"B": 2, "S": 2, "T": 4000, "F": 12, "P": 6, "M": 8, "n": 2, "N": 14}
FIELD = re.compile(r"^    (\w+): [^#\n]*#(.*)$", re.MULTILINE)
SHAPE = re.compile(r"\((|(?:\.\.\.|[A-Za-z]'?)(?:, ?(?:\.\.\.|[A-Z]'?(?:-1)?))*),?\)")


def stated(text: str, lead: tuple[int, ...] = (), **sizes: int) -> tuple[int, ...]:
    """The first shape in a text, in numbers."""
    match = SHAPE.search(text)
    assert match is not None, text
    letters = match[1].replace("...", "*lead").replace("'", "").replace("b", "B")
    return tuple(eval(f"[{letters}]", {**SIZES, **sizes, "lead": lead}))


def said(thing: Any, of: str, lead: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The shape that a docstring states of an argument, or of what it returns."""
    mark = "Returns:\n" if of == "Returns" else f" {of}: "
    return stated((thing.__doc__ or "").split(mark)[1], lead)


def check_record(record: Any, lead: tuple[int, ...] = (), **sizes: int) -> int:
    """Compare every tensor of a record with the comment beside its field; how many there were."""
    source = inspect.getsource(type(record))
    fields = {n: (getattr(record, n), text) for n, text in FIELD.findall(source)}
    tensors = {
        n: tensors_of_field
        for n, tensors_of_field in fields.items()
        if isinstance(tensors_of_field[0], Tensor)
    }
    for name, (value, text) in tensors.items():
        assert value.shape == stated(text, lead, **sizes), name
    return len(tensors)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_shapes_of_functions_of_embeddings(lead: tuple[int, ...]) -> None:
    arguments = dict(zip(("outputs", "references", "distortions"), clouds(*lead, distortions=6)))
    for score in (F.perceptual_separation, F.clearance):
        assert all(x.shape == said(score, name, lead) for name, x in arguments.items())
        masks = {name: torch.ones(said(score, name, lead)).bool() for name in ("active", "mask")}
    for score in (F.perceptual_separation, F.perceptual_match, F.clearance, F.fidelity):
        assert score(**arguments, **masks, attributed=(1, 0)).shape == said(score, "Returns", lead)
    embeddings = tuple(arguments.values())
    assert check_record(F.separation_distances(*embeddings), lead) == 2
    for bounds in (F.separation_bounds, F.match_bounds):
        assert check_record(bounds(*embeddings), lead) >= 3
    points = torch.cat([embeddings[0], embeddings[1], embeddings[2].flatten(-3, -2)], -2)
    assert check_record(F.diffusion_map(points[..., : SIZES["N"], :]), lead) == 5


def test_shapes_of_the_pipeline() -> None:
    references = voices(2, samples=SIZES["T"])
    estimates, mapss = impaired(references), small(size=SIZES["P"])
    scores = mapss(estimates, references)
    for thing in (MAPSS.forward, SeparationLoss.forward):
        assert references.shape == said(thing, "estimates") == said(thing, "references")
    assert check_record(scores) == 16
    assert check_record(scores.utterance()) == 12
    bounds = mapss.bounds(estimates, references)
    assert check_record(bounds) >= 1
    for field in (bounds.clearance, bounds.fidelity, bounds.ps, bounds.pm):
        assert {x.shape for x in field} == {scores.ps.shape}
    encoded = mapss.prepare(references).groups[0].encoded["separation"]
    assert check_record(encoded, M=encoded.references.shape[-1]) >= 2
    assert mapss(estimates[0], references[0]).ps.shape == (1, 2, SIZES["F"])
    assert mapss(estimates[:, :1], references, (1,)).ps.shape == (2, 1, SIZES["F"])

"""The laws of the house: which wing may look at which, and what importing the package costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torch_mapss

PACKAGE = Path(torch_mapss.__file__).parent
HEAVY = ("transformers", "matplotlib", "torchaudio", "soundfile", "lightning", "torchmetrics")

# Imports go down only. Wings of one floor do not know each other, except as `BESIDE` says.
FLOORS = (
    ("core",),
    ("audio", "distortions", "encoders", "bounds"),
    ("functional", "pipeline"),
    ("metrics", "evaluation"),
    ("training",),
)
LEAF = "_lazy"
# Paths from before the wings: one re-export each.
OLD_PATHS = {
    "curriculum": "training",
    "lightning": "training",
}


def level(wing: str) -> int:
    return next(i for i, floor in enumerate(FLOORS) if wing in floor)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def wing_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imported(module: str, *, inside_functions: bool) -> Iterator[str]:
    """Modules of the package that a module imports, by their longest known name."""
    tree = ast.parse(MODULES[module].read_text("utf-8"))
    for node in ast.walk(tree) if inside_functions else top_level(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # Relative imports stay in their folder.
            home = f"torch_mapss.{wing_of(module)}." if node.level else ""
            source = (home + (node.module or "")).rstrip(".")
            below = [f"{source}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else source for name in below]
        else:
            continue
        yield from (name for name in names if name in MODULES)


def top_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements that run on import: not in functions, not under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from top_level(node)


def arrows(*, inside_functions: bool) -> dict[str, set[str]]:
    return {
        name: set(imported(name, inside_functions=inside_functions)) - {name} for name in MODULES
    }


EVERYWHERE = arrows(inside_functions=True)
ON_IMPORT = arrows(inside_functions=False)


def reachable(start: str, among: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = {start}
    while waiting:
        here = waiting.pop()
        if here not in seen:
            seen.add(here)
            waiting |= among[here]
    return seen


# ------------------------------------------------------------------------------------------------
# Law 1: down only
# ------------------------------------------------------------------------------------------------


def test_every_room_is_in_a_wing():
    wings = {wing for floor in FLOORS for wing in floor}
    known = wings | {*OLD_PATHS, LEAF, "__main__", ""}
    assert {wing_of(name) for name in MODULES} == known


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module):
    here = wing_of(module)
    if here in ("", "__main__", *OLD_PATHS):
        return
    for other in EVERYWHERE[module]:
        there = wing_of(other)
        if there in ("", here, LEAF):  # the front page gives the version
            continue
        assert there not in OLD_PATHS, f"{module} imports the old path {other}"
        assert here != LEAF
        assert level(there) < level(here), f"{module} imports {other}, which is not below it"


def test_no_circle_of_modules():
    for name in MODULES:
        behind = set().union(*(reachable(n, ON_IMPORT) for n in ON_IMPORT[name]))
        # A wing's front page imports its rooms, which name the wing only through its other rooms.
        assert name not in behind, f"{name} imports itself by way of others"


def test_only_rooms_of_one_wing_import_each_other_relatively():
    for name, path in MODULES.items():
        levels = {n.level for n in ast.walk(ast.parse(path.read_text())) if hasattr(n, "level")}
        assert levels <= ({0, 1} if path.parent != PACKAGE else {0}), name


@pytest.mark.parametrize("name", OLD_PATHS)
def test_an_old_path_is_one_re_export(name):
    assert {wing_of(other) for other in EVERYWHERE[f"torch_mapss.{name}"]} == {OLD_PATHS[name]}
    tree = ast.parse((PACKAGE / f"{name}.py").read_text("utf-8"))
    allowed = (ast.Expr, ast.ImportFrom, ast.Assign)
    assert all(isinstance(node, allowed) for node in tree.body)


# ------------------------------------------------------------------------------------------------
# Law 2: no gradient through a bound
# ------------------------------------------------------------------------------------------------


def test_losses_never_reach_bounds():
    for name in MODULES:
        if wing_of(name) == "training" and not name.endswith((".lightning", ".curriculum")):
            reached = reachable(name, ON_IMPORT)
            assert not [other for other in reached if wing_of(other) == "bounds"], name


def test_the_forward_of_the_pipeline_never_reaches_bounds():
    for name in MODULES:
        if wing_of(name) == "pipeline":
            reached = reachable(name, ON_IMPORT)
            assert not [other for other in reached if wing_of(other) == "bounds"], name


# ------------------------------------------------------------------------------------------------
# Law 3: nothing heavy
# ------------------------------------------------------------------------------------------------


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_the_package_loads_nothing_heavy():
    loaded = run(
        "import torch_mapss, sys; from torch_mapss import functional, MAPSS; "
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_the_package_imports_without_optional_packages():
    missing = ("matplotlib", "transformers", "soundfile", "lightning")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
        "import torch, torch_mapss\n"
        "scores = torch_mapss.MAPSS('mel')(torch.randn(2, 4000), torch.randn(2, 4000))\n"
        "print(tuple(scores.ps.shape))"
    )
    assert run(code).strip() == "(1, 2, 12)"


# ------------------------------------------------------------------------------------------------
# Law 4: public paths
# ------------------------------------------------------------------------------------------------


def test_every_public_name_exists():
    for name in torch_mapss.__all__:
        assert getattr(torch_mapss, name) is not None
    assert set(torch_mapss.__all__) <= set(dir(torch_mapss))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        torch_mapss.nothing  # noqa: B018


@pytest.mark.parametrize("wing", [wing for floor in FLOORS for wing in floor])
def test_every_public_name_of_a_wing_exists_and_says_what_it_is(wing):
    module = importlib.import_module(f"torch_mapss.{wing}")
    assert (module.__doc__ or "").strip()
    assert getattr(torch_mapss, wing) is module
    for name in module.__all__:
        value = getattr(module, name)
        if callable(value):
            assert (value.__doc__ or "").strip(), f"{wing}.{name}"


PATHS = {
    "functional": ("perceptual_separation", "perceptual_match", "diffusion_map", "gammaincc"),
    "encoders": ("load_encoder", "clear_encoder_cache", "MelEncoder"),
    "distortions": ("DistortionBank", "Distortion"),
    "curriculum": ("FrameTrigger", "Quantile", "Fraction", "Trend"),
    "lightning": ("CurriculumCallback",),
    "bounds": ("separation_bounds", "match_bounds", "Bounds", "truncation_bounds"),
}


@pytest.mark.parametrize("path", PATHS)
def test_documented_paths_keep_working(path):
    module = importlib.import_module(f"torch_mapss.{path}")
    assert all(hasattr(module, name) for name in PATHS[path])


def test_an_old_path_hands_on_the_very_objects():
    from torch_mapss import curriculum
    from torch_mapss.training import FrameTrigger

    assert curriculum.FrameTrigger is FrameTrigger is torch_mapss.FrameTrigger

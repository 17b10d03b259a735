"""How the package hangs together: which subpackage imports which, and what importing it costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

import torch_mapss

PACKAGE = Path(torch_mapss.__file__).parent
HEAVY = ("transformers", "matplotlib", "torchaudio", "soundfile", "lightning", "torchmetrics")
HEAVY += ("pandas", "yaml", "filelock", "safetensors", "huggingface_hub")
MISSING = ("matplotlib", "transformers", "soundfile", "lightning", "pandas", "yaml")

# Imports go down only; subpackages of one layer do not know each other.
LAYERS = (
    ("core",),
    ("audio", "distortions", "encoders", "bounds"),
    ("functional", "pipeline"),
    ("metrics", "evaluation"),
    ("training",),
)
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}
SUBPACKAGES = [*LEVEL]
SHORTCUTS = {"curriculum", "lightning"}  # public paths into training
OTHERS = {"", "__main__", "_lazy", "score_table", *SHORTCUTS}  # leaves and shortcuts


def module_name(path: Path) -> str:
    pieces = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(pieces[:-1] if pieces[-1] == "__init__" else pieces)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def subpackage(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(module: str, *, late: bool) -> set[str]:
    """Modules of the package that a module imports; ``late``: in functions and type hints, too."""
    path = MODULES[module]
    tree = ast.parse(path.read_text("utf-8"))
    home = module if path.name == "__init__.py" else module.rpartition(".")[0]
    actual: set[str] = set()
    for node in ast.walk(tree) if late else top_level(tree):
        if isinstance(node, ast.Import):
            actual |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), home)
            below = (f"{source}.{alias.name}" for alias in node.names)
            actual |= {name if name in MODULES else source for name in below}
    return (actual & MODULES.keys()) - {module}


def top_level(tree: ast.AST) -> list[ast.AST]:
    """Statements that run on import: not in functions, not under TYPE_CHECKING."""
    actual: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if not late and not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node)):
            actual += [node, *top_level(node)]
    return actual


ALL = {name: imports(name, late=True) for name in MODULES}
ON_IMPORT = {name: imports(name, late=False) for name in MODULES}


def reachable(module: str, among: dict[str, set[str]]) -> set[str]:
    seen, waiting = set[str](), set(among[module])
    while waiting:
        seen |= waiting
        waiting = set().union(*(among[present] for present in waiting)) - seen
    return seen


def test_every_module_is_in_a_subpackage() -> None:
    assert {subpackage(name) for name in MODULES} == {*SUBPACKAGES, *OTHERS}


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_imports_go_down(name: str) -> None:
    for module in MODULES:
        if subpackage(module) == name:
            for variant in ALL[module]:
                variant_package = subpackage(variant)
                assert variant_package not in SHORTCUTS, f"{module} imports the shortcut {variant}"
                if variant_package not in (name, *OTHERS):
                    assert LEVEL[variant_package] < LEVEL[name], (
                        f"{module} imports {variant}, not below it"
                    )


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Late imports and those for type hints included; an ``__init__`` only collects names."""
    collects = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    inner = {name: actual - collects for name, actual in ALL.items()}
    assert not [name for name in MODULES if name in reachable(name, inner)]
    assert not [name for name in MODULES if name in reachable(name, ON_IMPORT)]


@pytest.mark.parametrize("name", sorted(SHORTCUTS))
def test_shortcut_exports_the_same_objects(name: str) -> None:
    shortcut = importlib.import_module(f"torch_mapss.{name}")
    home = importlib.import_module(f"torch_mapss.training.{name}")
    for public in shortcut.__all__:
        assert getattr(shortcut, public) is getattr(home, public)


def test_losses_and_scores_never_reach_bounds() -> None:
    for name in MODULES:
        if subpackage(name) in ("training", "pipeline"):
            reached = reachable(name, ON_IMPORT)
            assert not [variant for variant in reached if subpackage(variant) == "bounds"], name


def test_importing_loads_nothing_heavy_and_a_call_needs_none_of_it() -> None:
    code = (
        "import sys, torch_mapss; from torch_mapss import MAPSS, audio, encoders, functional\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])\n"
        f"sys.modules.update(dict.fromkeys({MISSING!r}))\n"
        "import torch; print(tuple(MAPSS('mel')(*torch.randn(2, 2, 4000)).ps.shape))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "(1, 2, 12)"]


def test_every_public_name_exists() -> None:
    for name in torch_mapss.__all__:
        assert getattr(torch_mapss, name) is not None
    assert set(torch_mapss.__all__) <= set(dir(torch_mapss))
    with pytest.raises(AttributeError, match="nothing"):
        torch_mapss.nothing  # noqa: B018


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_public_names_of_a_subpackage_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(f"torch_mapss.{name}")
    assert (module.__doc__ or "").strip()
    assert getattr(torch_mapss, name) is module
    for public in module.__all__:
        value = getattr(module, public)
        assert not callable(value) or (value.__doc__ or "").strip(), f"{name}.{public}"

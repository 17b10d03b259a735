"""Public functions in a spawned process, and exceptions that cross the border between processes."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
from public_calls import CALLS, same

import torch_mapss
from torch_mapss.core.points import NonFiniteError
from torch_mapss.evaluation.csv_input import TableError
from torch_mapss.evaluation.io import WriteError
from torch_mapss.evaluation.manifest import ManifestError


def called(name: str) -> Any:
    """Run in the other process, which imports this file anew."""
    return CALLS[name]()


@pytest.mark.slow
def test_a_spawned_process_gives_the_same_numbers() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for name, call in CALLS.items():
            assert same(pool.submit(called, name).result(), call()), name


def exception_classes() -> set[type[BaseException]]:
    """Every exception class that the package defines."""
    classes: set[type[BaseException]] = set()
    for module in pkgutil.walk_packages(torch_mapss.__path__, "torch_mapss."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            is_ours = inspect.isclass(value) and value.__module__.startswith("torch_mapss")
            if is_ours and issubclass(value, BaseException):
                classes.add(value)
    return classes


EXCEPTIONS: dict[type[BaseException], tuple[Any, ...]] = {
    ManifestError: ("set.json", ["mixture 0: no file", "mixture 3: no references"]),
    NonFiniteError: ("the output of source 1", 4),
    TableError: ("ratings.csv, line 3: no number",),
}


def test_every_exception_class_has_arguments_here() -> None:
    named = {kind.__name__ for kind in exception_classes()}
    assert named <= {kind.__name__ for kind in EXCEPTIONS} | {"OutputError", "WriteError"}


@pytest.mark.parametrize("kind", EXCEPTIONS, ids=lambda kind: kind.__name__)
def test_an_exception_survives_pickling(kind: type[BaseException]) -> None:
    error = kind(*EXCEPTIONS[kind])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_an_error_of_writing_keeps_its_number() -> None:
    error = WriteError("'results' cannot be written", 28)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.errno, str(copy)) == (28, str(error))

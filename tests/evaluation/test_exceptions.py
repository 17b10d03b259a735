"""Every exception of the package survives its way between processes."""

from __future__ import annotations

import errno
import importlib
import inspect
import pickle
import pkgutil

import pytest

import torch_mapss
from torch_mapss.core.points import NonFiniteError
from torch_mapss.evaluation.console import OutputError
from torch_mapss.evaluation.csv_input import TableError
from torch_mapss.evaluation.io import WriteError
from torch_mapss.evaluation.manifest import ManifestError

MADE: dict[type[BaseException], BaseException] = {
    ManifestError: ManifestError("set.json", ["no file 'a.wav'", "no file 'b.wav'"]),
    WriteError: WriteError("'x' cannot be written", errno.ENOSPC),
    TableError: TableError("'ratings.csv' should be a table"),
    OutputError: OutputError("the output cannot be printed"),
    NonFiniteError: NonFiniteError("output 0", 3),
}


def classes() -> set[type[BaseException]]:
    """All exception classes that the modules of the package define."""
    exceptions = set()
    for module in pkgutil.walk_packages(torch_mapss.__path__, "torch_mapss."):
        try:
            members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        except ImportError:  # of a package that is optional
            continue
        defined = [cls for _, cls in members if cls.__module__ == module.name]
        exceptions |= {cls for cls in defined if issubclass(cls, BaseException)}
    return exceptions


def test_all_are_here():
    assert classes() == set(MADE)


@pytest.mark.parametrize("error", MADE.values(), ids=lambda error: type(error).__name__)
def test_it_is_the_same_afterwards(error):
    unpickled = pickle.loads(pickle.dumps(error))
    assert (type(unpickled), str(unpickled), vars(unpickled)) == (
        type(error),
        str(error),
        vars(error),
    )
    assert getattr(unpickled, "errno", None) == getattr(error, "errno", None)

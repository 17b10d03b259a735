"""A decorator for functions that run eagerly inside a compiled step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def eager(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run ``function`` eagerly: a compiled step breaks its graph here and resumes after the call.

    Eigenvectors, random draws and choices that depend on values do not compile, and the eager
    result is the one that counts.
    """

    @functools.wraps(function)
    def called(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        if not torch.compiler.is_compiling():
            return function(*arguments, **options)
        # Accessed here: importing the compiler would cost every eager user seconds.
        disabled: Callable[Arguments, Result] = torch.compiler.disable(function)
        return disabled(*arguments, **options)

    return called

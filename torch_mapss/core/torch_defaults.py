"""Calls run eagerly, and under torch's own defaults of dtype and device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def with_torch_defaults(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """``function``, run eagerly and under torch's own defaults of dtype and device.

    A compiled step breaks its graph at the call and goes on after it: eigenvectors, random members
    and choices that depend on values do not compile, and the result is defined as the eager one.

    Defaults of torch are global. Lightning's "bf16-true" sets the dtype to bfloat16 around every
    step, in which the constants made on the way (quantiles, lengths of resampled signals) would
    keep 8 bits; a default device would be asked of CPU generators, which cannot draw there.
    """

    @functools.wraps(function)
    def called(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():
            # Accessed here: importing the compiler would cost every eager user seconds.
            eager: Callable[Arguments, Result] = torch.compiler.disable(called)
            return eager(*arguments, **options)
        with _own_dtype(), _own_device():
            return function(*arguments, **options)

    return called


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Within, ``dtype`` is torch's default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _own_dtype() -> AbstractContextManager[None]:
    wide = torch.get_default_dtype().itemsize >= torch.float32.itemsize
    return nullcontext() if wide else default_dtype(torch.float32)  # float64 loses nothing


def _own_device() -> torch.device | nullcontext[None]:
    # Entered only where needed: as a mode it would see every call of torch.
    # Of torch 2.6 `get_default_device` fails after `set_default_device(None)`.
    plain = torch.empty(0).device.type == "cpu"
    return nullcontext() if plain else torch.device("cpu")

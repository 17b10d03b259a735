"""What lies around a call: a compiler's graph, and defaults of torch that others have set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def with_torch_defaults(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """``function``, run eagerly and under torch's own defaults of dtype and device.

    A step that is compiled leaves its graph at the call and goes on behind it: eigenvectors, random
    members and choices by value are not for a compiler, and the eager result is what is promised.

    Defaults of torch are global. Lightning's "bf16-true" sets the dtype to bfloat16 around every
    step, in which the constants made on the way (quantiles, lengths of resampled signals) would
    keep 8 bits; a default device would take CPU generators to where they cannot draw.
    """

    @functools.wraps(function)
    def called(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():
            # Looked up here: importing the compiler would cost every eager user seconds.
            eager: Callable[Arguments, Result] = torch.compiler.disable(called)
            return eager(*arguments, **options)
        with _own_dtype(), _own_device():
            return function(*arguments, **options)

    return called


@contextmanager
def _own_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    if before.itemsize >= torch.float32.itemsize:  # float64 constants harm nobody
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _own_device() -> torch.device | nullcontext[None]:
    # Entered only where needed: as a mode it would see every call of torch.
    plain = torch.get_default_device().type == "cpu"
    return nullcontext() if plain else torch.device("cpu")

"""Threads that have nothing to do: asleep, not spinning.

OpenMP's threads wait for their next task in a busy loop. On a machine that has other work as well
this takes processor time from the very threads that are waited for: with two cores under load the
same scoring took two to six times as long. What says otherwise is read once, when torch loads.
"""

from __future__ import annotations

import os
import sys

# Of the OpenMP standard, of GCC's runtime and of LLVM's: any of them is somebody's own choice.
_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def let_idle_threads_sleep() -> None:
    """Set ``OMP_WAIT_POLICY=passive`` for this process and those it starts, unless it is too late.

    Nothing happens where the environment already chooses, or where torch is loaded: a program
    that imports the package sets the variable itself, before it imports torch.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in _CHOICES):
        os.environ["OMP_WAIT_POLICY"] = "passive"

"""A worker of pytest-xdist, and what it starts, computes on one thread: they share the cores."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded, which reads it once

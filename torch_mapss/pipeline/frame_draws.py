"""Random frames and grids, drawn by seed and number: the same on every machine."""

from __future__ import annotations

import hashlib

import torch


def frame_generator(seed: int, draw: int) -> torch.Generator:
    """CPU generator for the ``draw``-th choice of frames under a seed.

    Seed and number are hashed together, since otherwise neighbouring seeds would share draws.
    """
    digest = hashlib.sha256(f"frames/{seed}/{draw}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:4], "big"))


def grid_shift(seed: int, draw: int) -> float:
    """Start of the ``draw``-th grid of frames under a seed, as a share of a hop in [0, 1)."""
    digest = hashlib.sha256(f"grid/{seed}/{draw}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48

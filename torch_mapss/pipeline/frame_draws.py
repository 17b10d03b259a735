"""Random frames: a generator for every draw, the same for equal seeds on every machine."""

from __future__ import annotations

import hashlib

import torch


def frame_generator(seed: int, draw: int) -> torch.Generator:
    """A CPU generator for the ``draw``-th choice of frames under a seed.

    Seed and number are hashed, since neighbouring seeds of one generator would share draws.
    """
    digest = hashlib.sha256(f"frames/{seed}/{draw}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:4], "big"))

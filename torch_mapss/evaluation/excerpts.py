"""Which passages of a mixture are scored where not all of it is: excerpts, drawn frames.

What is drawn depends on the references and the mixture's id alone: it is the same for all systems,
and another one for every mixture.
"""

from __future__ import annotations

import hashlib
import random

from torch import Tensor

from torch_mapss import audio


def seed_of(key: str) -> int:
    """A seed of 63 bits that a mixture's id stands for."""
    digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def excerpt_spans(
    references: Tensor,
    *,
    count: int,
    length: int,
    samples: int,
    block: int,
    activity: float,
    seed: int,
) -> list[tuple[int, int]]:
    """Begin and end, in samples, of each excerpt; of everything where excerpts would cover it.

    The time in which at least two sources are active is cut into as many equal sections as there
    are excerpts, and one moment is drawn in each, which the excerpt has in its middle, or at least
    within: it begins later where it would overlap the one before. There are fewer excerpts where
    the active passages have no room for so many.

    Args:
        references: (S, T) of the mixture.
        count: excerpts at most.
        length: samples of each.
        samples: of the shortest signal; an excerpt is cut there.
        block: samples by which activity is judged.
        activity: see :func:`torch_mapss.audio.source_activity`.
        seed: of the draw.
    """
    total = references.shape[-1]
    if count * length >= total:
        return [(0, samples)]
    active = audio.source_activity(references, block, block, activity)
    blocks = (active.sum(-2) >= 2).nonzero().squeeze(-1).tolist()
    chance = random.Random(seed)
    begins: list[int] = []
    for index in range(count):
        section = blocks[len(blocks) * index // count : len(blocks) * (index + 1) // count]
        if not section:
            continue
        middle = (chance.choice(section) + 0.5) * block
        earliest = begins[-1] + length if begins else 0
        begin = min(max(round(middle - length / 2), earliest), total - length)
        if earliest <= begin <= middle:
            begins.append(begin)
    usable = samples - length // 2  # of an excerpt that is cut at least half remains
    spans = [(begin, min(begin + length, samples)) for begin in begins if begin <= usable]
    return spans or [(0, samples)]

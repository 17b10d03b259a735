"""Random choice of the excerpts and frames of a mixture to score.

The draw depends only on the references and the mixture's id: it is the same for all systems, and
different for every mixture.
"""

from __future__ import annotations

import hashlib
import random

from torch import Tensor

from torch_mapss import audio
from torch_mapss.core.points import LEAST_ACTIVE


def seed_of(key: str) -> int:
    """63-bit seed derived from a mixture's id."""
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
    """Begin and end, in samples, of each excerpt; the whole range if excerpts would cover it.

    The time in which at least two sources are active is cut into equal sections, one per excerpt,
    and each excerpt is centred on a random moment of its section, or at least contains it: it
    starts later where it would overlap the previous one. There are fewer excerpts if the active
    passages have no room for all.

    Args:
        references: (S, T) of the mixture.
        count: largest number of excerpts.
        length: length of each in samples.
        samples: length of the shortest signal in samples; excerpts end there.
        block: samples per block of activity.
        activity: see :func:`torch_mapss.audio.source_activity`.
        seed: seed of the draw.
    """
    total = references.shape[-1]
    if count * length >= total:
        return [(0, samples)]
    active = audio.source_activity(references, block, block, activity)
    blocks = (active.sum(-2) >= LEAST_ACTIVE).nonzero().squeeze(-1).tolist()
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
    usable = samples - length // 2  # at least half of an excerpt remains if it is cut
    spans = [(begin, min(begin + length, samples)) for begin in begins if begin <= usable]
    return spans or [(0, samples)]

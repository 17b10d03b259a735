"""Excerpts of a mixture: drawn before anything is prepared, so that a song costs a fraction.

The time in which at least two sources are active is cut into as many equal parts as there are
excerpts, and one moment is drawn in each, which the excerpt has in its middle: stratified over the
song. What is drawn depends on the references and the mixture's id alone, so it is the same for all
systems. Each excerpt is scored as a clip of its own: loudness, activity and the parameters of
distortions are those of the excerpt.
"""

from __future__ import annotations

import hashlib
import random

from torch import Tensor

from torch_mapss import audio

_BLOCK_S = 0.1  # of activity


def draw(
    truth: Tensor, rate: int, count: int, seconds: float, activity: float, key: str
) -> list[tuple[int, int]]:
    """First and last sample (exclusive) of each excerpt, in order; they do not overlap.

    Args:
        truth: (S, T) references.
        rate: Hz.
        count: of excerpts; fewer where the signal is too short or too seldom active for so many.
        seconds: of each.
        activity: share of its RMS above which a source is active.
        key: what decides the draw, the mixture's id.

    Returns:
        One span of the whole signal where the excerpts would not be shorter, or none is active.
    """
    samples, length = truth.shape[-1], round(seconds * rate)
    block = round(_BLOCK_S * rate)
    if count * length >= samples:
        return [(0, samples)]
    active = audio.source_activity(truth, block, block, activity).sum(-2) >= 2
    blocks = active.nonzero().squeeze(-1).tolist()
    if not blocks:
        return [(0, samples)]
    chance = random.Random(int(hashlib.sha256(key.encode("utf-8", "replace")).hexdigest(), 16))
    spans: list[tuple[int, int]] = []
    for part in range(count):
        own = blocks[len(blocks) * part // count : len(blocks) * (part + 1) // count]
        if not own:
            continue
        middle = (chance.choice(own) + 0.5) * block
        last = samples - length * (count - part)  # room for those that follow
        start = min(max(round(middle - length / 2), spans[-1][1] if spans else 0), last)
        spans.append((start, start + length))
    return spans

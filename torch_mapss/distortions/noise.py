"""Standard normal numbers, by position: Philox4x32-10 in integer arithmetic, then Box-Muller.

A generator with a state gives different numbers on a GPU and on a CPU, and reaches the sample at
second 90 only after all samples before it. A counter-based generator (Salmon et al., *Parallel
random numbers: as easy as 1, 2, 3*, 2011) is a function: ten rounds of multiplication scramble
(key, position), so that any segment of a noise can be computed by itself on any device, with the
same result up to the rounding of logarithm and cosine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # of words 0 and 2
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key after every round
WORD = 0xFFFFFFFF
BLOCKS = 2**16  # counters scrambled at a time, so that their words stay in a CPU's cache


def scramble(counter: Sequence[Tensor], key: Sequence[Tensor]) -> list[Tensor]:
    """Philox4x32-10, elementwise.

    Args:
        counter: Four int64 tensors of words in [0, 2^32), broadcastable.
        key: Two tensors of the same kind.

    Returns:
        Four int64 tensors of random words in [0, 2^32).
    """
    c0, c1, c2, c3, *_ = (x.clone() for x in torch.broadcast_tensors(*counter, *key))
    k0, k1 = key
    p, q = torch.empty_like(c0), torch.empty_like(c0)
    for _ in range(ROUNDS):
        # Products of two words overflow int64, but wrap: their upper and lower halves are right.
        torch.mul(c0, MULTIPLIERS[0], out=p)
        torch.mul(c2, MULTIPLIERS[1], out=q)
        torch.bitwise_right_shift(q, 32, out=c0).bitwise_xor_(c1).bitwise_xor_(k0)
        torch.bitwise_right_shift(p, 32, out=c2).bitwise_xor_(c3).bitwise_xor_(k1)
        c0.bitwise_and_(WORD)  # words 1 and 3 keep their upper halves until they are read
        c2.bitwise_and_(WORD)
        c1, q = q, c1
        c3, p = p, c3
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return [c0, c1.bitwise_and_(WORD), c2, c3.bitwise_and_(WORD)]


def normals(
    seeds: Tensor, length: int, start: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normal numbers at positions start, start + 1, … of each seed's sequence.

    Args:
        seeds: (...) int64, not negative, one sequence each.
        length: Number of positions.
        start: First position, at least 0.
        dtype: Dtype of the result; the numbers are always drawn in float32.

    Returns:
        (..., length) on the device of `seeds`, from 24 bits each, so that |x| < 5.9.
    """
    first_block, end_block = start // 4, -(-(start + length) // 4)
    key = (seeds & WORD).unsqueeze(-1), (seeds >> 32).unsqueeze(-1)
    step = max(1, end_block - first_block)
    if seeds.device.type == "cpu":
        step = max(1, BLOCKS // max(1, seeds.numel()))
    zero = torch.zeros(1, dtype=torch.int64, device=seeds.device)
    shape = (*seeds.shape, 4 * (end_block - first_block))
    numbers = torch.empty(shape, dtype=torch.float32, device=seeds.device)
    for low in range(first_block, end_block, step):
        high = min(low + step, end_block)
        block = torch.arange(low, high, device=seeds.device)
        words = scramble((block & WORD, block >> 32, zero, zero), key)
        quadruples = numbers[..., 4 * (low - first_block) : 4 * (high - first_block)].unflatten(
            -1, (-1, 4)
        )
        for pair in (0, 2):  # Box and Muller: two uniform numbers make two independent normal ones
            # The upper 24 bits of a word (a float32's precision) plus ½ are a uniform number in
            # (0, 1], where the logarithm is finite.
            radius, angle = (
                (word >> 8).to(torch.float32).add_(0.5).mul_(2.0**-24)
                for word in (words[pair], words[pair + 1])
            )
            radius.log_().mul_(-2).sqrt_()
            angle.mul_(2 * math.pi)
            quadruples[..., pair] = radius * angle.cos()
            quadruples[..., pair + 1] = angle.sin_().mul_(radius)
    skip = start - 4 * first_block
    return numbers[..., skip : skip + length].to(dtype)

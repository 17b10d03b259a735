"""Counter-based normal numbers against the published test vectors and whole-number arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

from torch_mapss.distortions import noise

# Known answers of philox4x32-10 (Random123's kat_vectors): counter, key, words.
KNOWN = [
    ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (" ".join(["ffffffff"] * 4), "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def scrambled(counter: list[int], key: list[int]) -> list[int]:
    """Philox in Python's whole numbers, which do not overflow."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q % 2**32, (p >> 32) ^ c[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def expected_normals(seed: int, offset: int, length: int) -> list[float]:
    actual = []
    for block in range(offset // 4, (offset + length - 1) // 4 + 1):
        w = scrambled([block % 2**32, block >> 32, 0, 0], [seed % 2**32, seed >> 32])
        unit = [((word >> 8) + 0.5) / 2**24 for word in w]
        for u, v in (unit[:2], unit[2:]):
            radius = math.sqrt(-2 * math.log(u))
            actual += [radius * math.cos(2 * math.pi * v), radius * math.sin(2 * math.pi * v)]
    return actual[offset % 4 :][:length]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_words_are_the_published_ones(counter: str, key: str, answer: str) -> None:
    assert scrambled(words(counter), words(key)) == words(answer)  # the oracle itself
    actual = noise.scramble(*([torch.tensor([w]) for w in words(text)] for text in (counter, key)))
    assert [int(word) for word in actual] == words(answer)


@pytest.mark.parametrize("offset", [0, 3, 1022, 2**31 - 5, 2**34 - 2, 2**40 + 1])
def test_normals_are_a_function_of_seed_and_place(offset: int) -> None:
    seeds = [0, 1, 2**32, 0x7FFF_FFFF_FFFF_FFFF, 123456789012345678]
    actual = noise.normals(torch.tensor(seeds), 21, offset)
    assert actual.shape == (5, 21)
    assert actual.dtype == torch.float32
    for row, seed in zip(actual, seeds):
        np.testing.assert_allclose(row, expected_normals(seed, offset, 21), rtol=2e-5, atol=2e-6)


def test_a_part_is_the_same_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = torch.tensor([[5, 2**45], [7, 9]])
    full = noise.normals(seeds, 5000)
    assert torch.equal(noise.normals(seeds, 777, 1234), full[..., 1234:2011])
    assert torch.equal(noise.normals(seeds[0, 1], 400, 17), full[0, 1, 17:417])
    monkeypatch.setattr(noise, "BLOCKS", 64)
    assert torch.equal(noise.normals(seeds, 5000), full)


def test_normals_are_normal_and_independent() -> None:
    actual = noise.normals(torch.arange(4), 50_000).double()
    assert scipy.stats.kstest(actual.flatten().numpy(), "norm").pvalue > 1e-3
    between = torch.corrcoef(actual) - torch.eye(4, dtype=torch.float64)
    assert between.abs().max() < 0.02  # standard error 0.0045
    for lag in (1, 2, 3, 4):
        assert abs(float((actual[:, lag:] * actual[:, :-lag]).mean())) < 0.01  # 0.0022

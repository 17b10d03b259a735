"""Lengths at which Fourier transforms are fast."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1024)
def fast_length(minimum: int) -> int:
    """Smallest even 2^a 3^b 5^c that is at least ``minimum``: FFTs of such lengths are fast.

    Even, so that a real transform has a bin at half the rate.
    """
    from scipy.fft import next_fast_len

    return 2 * int(next_fast_len(max(1, -(-minimum // 2)), real=True))

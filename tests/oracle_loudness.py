"""Loudness of ITU-R BS.1770-4, independent of the code under test.

The published 48 kHz table run by scipy's recursion, and at other rates scipy's own bilinear
transform.
"""

from __future__ import annotations

import numpy as np
from scipy import signal

SHELF = (1.53512485958697, -2.69169618940638, 1.19839281085285)
TABLE_48K = (
    (SHELF, (1.0, -1.69065929318241, 0.73248077421585)),
    ((1.0, -2.0, 1.0), (1.0, -1.99004745483398, 0.99007225036621)),
)


def sections_at(rate: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Analogue zeros and poles read off the 48 kHz table, moved to `rate` by scipy.

    z = (1 + s) / (1 - s) inverts to s = (z - 1) / (z + 1); a section with natural frequency |p| at
    48 kHz belongs at tan(pi f0 / rate), f0 = atan(|p|) 48000 / pi. `bilinear_zpk` with fs = 1/2
    uses s = (z - 1) / (z + 1).
    """
    out = []
    for b, a in TABLE_48K:
        zeros, poles = ((np.roots(c) - 1) / (np.roots(c) + 1) for c in (b, a))
        gain = np.polyval(b, -1) / np.polyval(a, -1)  # response at s = infinity, as z -> -1
        corner = np.sqrt(np.prod(poles).real)
        scale = np.tan(np.arctan(corner) * 48000 / rate) / corner
        z, p, k = signal.bilinear_zpk(zeros * scale, poles * scale, gain, fs=0.5)
        out.append(signal.zpk2tf(z, p, k))
    return out


def k_weighted(x: np.ndarray, rate: int) -> np.ndarray:
    for b, a in TABLE_48K if rate == 48000 else sections_at(rate):
        x = signal.lfilter(b, a, x)
    return x


def lufs(power: np.ndarray) -> np.ndarray:
    return -0.691 + 10 * np.log10(power)

"""FFT-friendly lengths, and the number of frames in a waveform of a given length."""

from __future__ import annotations

from functools import lru_cache

from torch_mapss.core.checks import check_whole


@lru_cache(maxsize=1024)
def fast_length(minimum: int) -> int:
    """Smallest even 2^a 3^b 5^c that is at least ``minimum``: FFTs of such lengths are fast.

    Even, so that a real transform has a bin at half the rate.
    """
    from scipy.fft import next_fast_len

    return 2 * int(next_fast_len(max(1, -(-minimum // 2)), real=True))


def frame_count(samples: int, receptive_field: int, hop: int) -> int:
    """Number of frames in a waveform: (samples - receptive_field) // hop + 1, at least 0.

    Args:
        samples: length of the waveform in samples.
        receptive_field: samples that one frame depends on.
        hop: samples from one frame to the next.

    Returns:
        The number of frames; 0 if the waveform is shorter than one receptive field.

    Raises:
        TypeError, ValueError: an argument is not a whole number, or is negative; or one of the last
            two is zero.
    """
    samples, hop = check_whole(samples, "samples", 0), check_whole(hop, "hop", 1)
    receptive_field = check_whole(receptive_field, "receptive_field", 1)
    return max((samples - receptive_field) // hop + 1, 0)

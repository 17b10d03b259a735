"""Log-mel frames with context: an encoder without weights, for tests, demos, first looks."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from .base import MEMORY_BUDGET, Encoder

SAMPLE_RATE = 16_000
WINDOW = 400
HOP = 320
FFT = 512


class MelEncoder(Encoder):
    """log(mel energy + floor) of Hann-400 frames in a 512-point FFT, 50 frames a second at 16 kHz.

    The energies are |rfft|² (neither window nor FFT is normalised) through triangular Slaney mel
    bands of equal area. Nothing is padded: with `context` c, frame f concatenates the c spectra
    before it, its own and the c after it, so F shrinks by 2c and the receptive field grows to
    `400 + 2 * c * 320` samples.

    Args:
        bands: mel bands from 0 to 8 kHz.
        floor: added to every energy before the log. A low floor (1e-5) keeps deep spectral holes,
            which listeners hear as artefacts; a high one (1e-3) reacts to what is loud.
        context: spectra on either side of each frame. More makes frames longer and smoother.
        dtype: float32 or float64; None keeps the waveform's own (half precision becomes float32).
        memory_budget: see `Encoder`.

    Raises:
        ValueError: an argument is out of range, or there are so many bands that some hold no
            frequency of the FFT.
    """

    def __init__(
        self,
        bands: int = 80,
        floor: float = 1e-5,
        context: int = 0,
        dtype: torch.dtype | None = None,
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        _check_arguments(bands, floor, context)
        super().__init__(
            name="mel",
            sample_rate=SAMPLE_RATE,
            hop=HOP,
            receptive_field=WINDOW + 2 * context * HOP,
            feature_size=bands * (2 * context + 1),
            dtype=dtype,
            memory_budget=memory_budget,
        )
        self.local = True
        self.bands = bands
        self.floor = floor
        self.context = context

    def _encode(self, flat: Tensor) -> Tensor:
        energies = hann_energies(flat.unfold(-1, WINDOW, HOP), self.bands, SAMPLE_RATE, FFT)
        return _with_context((energies + self.floor).log(), self.context)

    def _item_bytes(self, samples: int) -> int:
        # Windowed frames, complex spectrum, squares, bands: counted in numbers of 8 bytes.
        frames = samples // HOP + 1
        return 8 * frames * (WINDOW + 4 * (FFT // 2 + 1) + 2 * (self.feature_size or 0))


def _with_context(frames: Tensor, context: int) -> Tensor:
    """(N, F, M) -> (N, F - 2c, (2c+1)M): frame f holds spectra f-c, …, f+c of the old count."""
    if context == 0:
        return frames
    return frames.unfold(-2, 2 * context + 1, 1).transpose(-1, -2).flatten(-2)


def hann_energies(frames: Tensor, bands: int, sample_rate: int, fft_size: int) -> Tensor:
    """Mel energies of pieces of a waveform under a Hann window.

    Args:
        frames: (..., F, W) pieces, W at most `fft_size`.
        bands: M, mel bands from 0 Hz to half the rate, see `mel_filterbank`.
        sample_rate: in Hz.
        fft_size: length of the transform.

    Returns:
        (..., F, M): |rfft|², neither window nor transform normalised, through the filters.
    """
    size, place = frames.shape[-1], (frames.dtype, frames.device)
    window, filters = _window_and_filters(size, bands, sample_rate, fft_size, *place)
    spectrum = torch.fft.rfft(frames * window, n=fft_size)
    # Squares of both parts, not abs(): the gradient of |0| is not defined, that of 0² is 0.
    power = spectrum.real.square() + spectrum.imag.square()
    return power @ filters


@lru_cache(maxsize=16)
def _window_and_filters(
    size: int, bands: int, rate: int, fft_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    # Kept across calls, so never as inference tensors: those cannot be used in a graph later on.
    with torch.inference_mode(False), torch.no_grad():
        window = torch.hann_window(size, dtype=torch.float64, device="cpu")
        filters = mel_filterbank(bands, rate, fft_size)
        return window.to(dtype).to(device), filters.to(dtype).to(device)


def mel_filterbank(bands: int, sample_rate: int, fft_size: int) -> Tensor:
    """Triangular mel filters on the Slaney scale, each of equal area, from 0 Hz to half the rate.

    Args:
        bands: M, number of filters.
        sample_rate: in Hz.
        fft_size: length of the transform.

    Returns:
        (fft_size // 2 + 1, M) float64 weights, to be applied to |rfft|².
    """
    frequencies = torch.linspace(
        0, sample_rate / 2, fft_size // 2 + 1, dtype=torch.float64, device="cpu"
    )
    edges = _mel_to_hertz(
        torch.linspace(
            0, _hertz_to_mel(sample_rate / 2), bands + 2, dtype=torch.float64, device="cpu"
        )
    )
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies[:, None] - left) / (centre - left)
    falling = (right - frequencies[:, None]) / (right - centre)
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return triangles * (2 / (right - left))  # a triangle of height h and base b has area hb/2


# Slaney's scale: linear up to 1 kHz (3 mel per 200 Hz), then 27 mel for each factor of 6.4.
_BREAK_HERTZ = 1000.0
_BREAK_MEL = 15.0
_LOG_STEP = math.log(6.4) / 27


def _hertz_to_mel(hertz: float) -> float:
    if hertz < _BREAK_HERTZ:
        return hertz * _BREAK_MEL / _BREAK_HERTZ
    return _BREAK_MEL + math.log(hertz / _BREAK_HERTZ) / _LOG_STEP


def _mel_to_hertz(mel: Tensor) -> Tensor:
    linear = mel * _BREAK_HERTZ / _BREAK_MEL
    return torch.where(
        mel < _BREAK_MEL, linear, _BREAK_HERTZ * torch.exp(_LOG_STEP * (mel - _BREAK_MEL))
    )


def _check_arguments(bands: int, floor: float, context: int) -> None:
    if bands < 1 or context < 0:
        raise ValueError(
            f"bands={bands} and context={context} were passed, but mel needs at least one band and "
            "cannot look at fewer than 0 neighbours. Leave them out for 80 bands and no context."
        )
    if not floor > 0:
        raise ValueError(
            f"floor={floor} should be positive: it is added before the log, and silence has no "
            "energy of its own. Use 1e-5, or less to keep deeper spectral holes."
        )
    empty = (mel_filterbank(bands, SAMPLE_RATE, FFT).sum(0) == 0).nonzero()
    if len(empty):
        raise ValueError(
            f"bands={bands} is too many: band {int(empty[0])} holds none of the {FFT // 2 + 1} "
            "frequencies of the FFT and would be constant. Use fewer bands; 80 is the default."
        )

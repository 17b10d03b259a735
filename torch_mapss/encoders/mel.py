"""Log-mel frames with context: an encoder without weights, on any frame grid."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torch_mapss.core.checks import check_real, check_whole
from torch_mapss.encoders.base import MEMORY_BUDGET, Encoder

WINDOW_SECONDS = 0.025
# Frames that are transformed at once on a CPU: their spectra fit its cache. Transforming many clips
# at once takes three times as long.
CACHED_FRAMES = 512


class MelEncoder(Encoder):
    """log(mel energy + floor) of Hann windows, by default 50 frames a second at 16 kHz.

    The energies are |rfft|² (neither window nor FFT is normalised) through triangular Slaney mel
    bands of equal area. The length of the FFT is the smallest power of two that covers the window
    and 25 ms, so that the lowest bands contain a frequency. Nothing is padded unless `margin` asks
    for it: with `context` c, frame f concatenates the c spectra before it, its own and the c after
    it, so F shrinks by 2c and the receptive field grows to `window + 2 * c * hop` samples.

    Args:
        bands: mel bands from 0 Hz to `highest`.
        floor: added to every energy before the log. A low floor (1e-5) shows deep spectral holes,
            audible as artefacts; a high one (1e-3) reacts only to loud parts.
        context: spectra on each side that a frame includes. More make frames longer and smoother.
        dtype: float32 or float64; None keeps the waveform's own (half precision becomes float32).
        memory_budget, activation_checkpointing: see `Encoder`.
        sample_rate: Hz.
        hop: samples between two frames.
        window: samples of a Hann window.
        highest: upper edge of the highest band, in Hz; None: half the rate.
        margin: unused samples of the receptive field on each side of the window, which put the
            frames on the grid of another encoder. If negative, the window exceeds the receptive
            field by as many samples, with zeros beyond the ends of the clip. See `mel_on_grid`.
        name: name in tables and messages.

    Raises:
        ValueError: an argument is out of range, or there are so many bands that some contain no
            frequency of the FFT.
    """

    settings = (*Encoder.settings, "bands", "floor", "context", "window", "margin", "highest")

    def __init__(
        self,
        bands: int = 80,
        floor: float = 1e-5,
        context: int = 0,
        dtype: torch.dtype | None = None,
        memory_budget: int = MEMORY_BUDGET,
        *,
        activation_checkpointing: bool = False,
        sample_rate: int = 16_000,
        hop: int = 320,
        window: int = 400,
        highest: float | None = None,
        margin: int = 0,
        name: str = "mel",
    ) -> None:
        super().__init__(
            name=name,
            sample_rate=sample_rate,
            hop=hop,
            receptive_field=window + 2 * (margin + context * hop),
            feature_size=bands * (2 * context + 1),
            dtype=dtype,
            memory_budget=memory_budget,
            activation_checkpointing=activation_checkpointing,
        )
        self.local = True
        self.overhang = max(0, -margin)
        self.bands = bands
        self.floor = floor
        self.context = context
        self.window = window
        self.margin = margin
        self.highest = sample_rate / 2 if highest is None else float(highest)
        self.fft_size = _fft_size(window, sample_rate)
        self._check_arguments()

    def _encode(self, flat: Tensor) -> Tensor:
        inner = torch.nn.functional.pad(flat, (-self.margin, -self.margin))  # cut if negative
        frames = inner.unfold(-1, self.window, self.hop)
        at_once = frames.shape[-2]
        if frames.device.type == "cpu":
            at_once = max(1, CACHED_FRAMES // max(1, len(frames)))
        energies = [
            hann_energies(block, self.bands, self.sample_rate, self.fft_size, self.highest)
            for block in frames.split(at_once, -2)
        ]
        spectra = (torch.cat(energies, -2) + self.floor).log().unfold(-2, 2 * self.context + 1, 1)
        return spectra.transpose(-1, -2).flatten(-2)

    def _item_bytes(self, samples: int) -> int:
        # Windowed frames, complex spectrum, squares and bands, at 8 bytes per number.
        frames = samples // self.hop + 1
        features = self.feature_size or 0
        return 8 * frames * (self.window + 4 * (self.fft_size // 2 + 1) + 2 * features)

    def _check_arguments(self) -> None:
        smallest_values = {"bands": 1, "sample_rate": 1, "hop": 1, "window": 2, "context": 0}
        # So that the receptive field has at least one sample.
        smallest_values["margin"] = (1 - self.window) // 2
        for name, lowest in smallest_values.items():
            check_whole(getattr(self, name), name, lowest)
        why = "It keeps the logarithm of silence finite: 1e-5, or less for deep spectral holes."
        check_real(self.floor, "floor", "(0, inf)", why)
        check_real(self.highest, "highest", f"(0, {self.sample_rate / 2}]", "It is in Hz.")
        filters = mel_filterbank(self.bands, self.sample_rate, self.fft_size, self.highest)
        empty = (filters.sum(0) == 0).nonzero()
        if len(empty):
            raise ValueError(
                f"bands={self.bands} is too many: band {int(empty[0])} holds none of the "
                f"{self.fft_size // 2 + 1} frequencies of the FFT and would be constant. Use "
                "fewer bands; 80 is the default."
            )


def mel_on_grid(sample_rate: int, hop: int, receptive_field: int) -> MelEncoder:
    """Mel encoder for clearance and fidelity, with the number and times of another one's frames.

    Its window is two and a half hops long, or 25 ms if that is longer, so that nothing falls
    between two frames: Hann windows of 400 samples every 320 hardly register a click in between,
    and the fidelity of a click varies by 0.28 with its position (by 0.09 with a window of two hops,
    by 0.04 with two and a half). The window is centred on the receptive field; where it is longer,
    the signal continues with zeros beyond its ends. The floor is the same power density on every
    grid: 1e-5 for a window of 400 samples in an FFT of 512, and proportional to both lengths (4e-5
    at 16 kHz with hop 320).

    Args:
        sample_rate: Hz.
        hop: samples between two frames.
        receptive_field: samples that a frame of the other encoder covers.

    Raises:
        ValueError: as `MelEncoder`.
    """
    window = max(5 * hop // 2, round(WINDOW_SECONDS * sample_rate))
    window += (window - receptive_field) % 2  # else the centres would be half a sample apart
    # For noise of a given density, the energy in a band grows with the window and with the FFT.
    floor = 1e-5 * (window / 400) * (_fft_size(window, sample_rate) / 512)
    margin = (receptive_field - window) // 2
    return MelEncoder(floor=floor, sample_rate=sample_rate, hop=hop, window=window, margin=margin)


def _fft_size(window: int, sample_rate: int) -> int:
    """Smallest power of two that covers both `window` and 25 ms."""
    longest = max(window, round(WINDOW_SECONDS * sample_rate), 1)
    return 1 << (longest - 1).bit_length()


def hann_energies(
    frames: Tensor, bands: int, sample_rate: int, fft_size: int, highest: float | None = None
) -> Tensor:
    """Mel energies of Hann-windowed pieces of a waveform.

    Args:
        frames: (..., F, W) pieces, W at most `fft_size`.
        bands: M, mel bands from 0 Hz to `highest`, see `mel_filterbank`.
        sample_rate: Hz.
        fft_size: length of the transform.
        highest: Hz; None: half the rate.

    Returns:
        (..., F, M): |rfft|², neither window nor transform normalised, through the filters.
    """
    bank = (bands, sample_rate, fft_size, highest)
    window, filters = _window_and_filters(frames.shape[-1], bank, frames.dtype, frames.device)
    spectrum = torch.fft.rfft(frames * window, n=fft_size)
    # Squares of both parts, not abs(): the gradient of |0| is undefined, that of 0² is 0.
    power = spectrum.real.square() + spectrum.imag.square()
    return power @ filters


@lru_cache(maxsize=16)
def _window_and_filters(
    size: int,
    bank: tuple[int, int, int, float | None],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    # Cached across calls, so they must not be inference tensors, which no later graph could use.
    with torch.inference_mode(False), torch.no_grad():
        window = torch.hann_window(size, dtype=torch.float64, device="cpu")
        return window.to(dtype).to(device), mel_filterbank(*bank).to(dtype).to(device)


# Slaney's scale: linear up to 1000 Hz, which is mel 15, and logarithmic above.
_LINEAR_HZ = 200.0 / 3.0  # per mel
_CORNER_HZ = 1000.0
_CORNER_MEL = _CORNER_HZ / _LINEAR_HZ
_LOG_STEP = math.log(6.4) / 27.0  # natural logarithm of the frequency ratio per mel


def mel_filterbank(
    bands: int, sample_rate: int, fft_size: int, highest: float | None = None
) -> Tensor:
    """Triangular mel filters on the Slaney scale, each of equal area, from 0 Hz to `highest`.

    Not taken from torchaudio, which computes them in torch's default dtype; in float32 the flanks
    of the triangles make single weights wrong by up to 2e-3.

    Args:
        bands: M, number of filters.
        sample_rate: Hz.
        fft_size: length of the transform.
        highest: Hz; None: half the rate, in whole hertz as in torchaudio.

    Returns:
        (fft_size // 2 + 1, M) float64 weights, to be applied to |rfft|².
    """
    # At odd rates the last bin lies half a hertz higher; bins and bands must agree on it.
    half_rate = float(sample_rate // 2)
    top = half_rate if highest is None else highest
    top_mel = top / _LINEAR_HZ
    if top >= _CORNER_HZ:
        top_mel = _CORNER_MEL + math.log(top / _CORNER_HZ) / _LOG_STEP
    options: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
    frequencies = torch.linspace(0.0, half_rate, fft_size // 2 + 1, **options)
    mel = torch.linspace(0.0, top_mel, bands + 2, **options)
    above_corner = _CORNER_HZ * (_LOG_STEP * (mel - _CORNER_MEL)).exp()
    edges = torch.where(mel < _CORNER_MEL, _LINEAR_HZ * mel, above_corner)
    lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies.unsqueeze(-1) - lower) / (centre - lower)
    falling = (upper - frequencies.unsqueeze(-1)) / (upper - centre)
    triangles = torch.minimum(rising, falling).clamp(min=0.0)
    return triangles * (2.0 / (upper - lower))

"""Sound in a page: WAV or FLAC as an address, the level to play it at, a spectrogram."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.evaluation.plots import spectrogram
from torch_mapss.evaluation.sounds import read_mono

# Pixels of a spectrogram: a line of the page, not a figure.
PICTURE = (600, 96)
# Loudness at which everything is played, as it is when scored.
_TARGET = -23.0
# Sample types that 16 bits hold without loss.
_SIXTEEN = {"PCM_16", "PCM_S8", "PCM_U8", "ULAW", "ALAW"}
# Up to so many samples sounds are WAV: Chromium fails to seek in short FLAC files without a seek
# table, which libsndfile does not write (seen up to 96,000 samples).
_SHORT = 2**18


class Sound(NamedTuple):
    """One audio file, mixed down as it is scored."""

    wave: Tensor  # (T,)
    rate: int  # Hz
    subtype: str  # "PCM_16" where that loses nothing, else "PCM_24"
    gain: float  # that brings it to the level it is scored at

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.wave) / self.rate


def read_sound(path: str) -> Sound:
    """A file as mono samples at its own rate.

    Raises:
        FileNotFoundError, ValueError: as :func:`torch_mapss.audio.load_audio`.
    """
    import soundfile

    wave, rate = read_mono(path)
    with open(path, "rb") as stream:
        kind = soundfile.info(stream)
    exact = kind.subtype in _SIXTEEN and kind.channels == 1  # a mean of channels has one more bit
    return Sound(wave, rate, "PCM_16" if exact else "PCM_24", playing_gain(wave, rate))


def playing_gain(wave: Tensor, rate: int) -> float:
    """Factor to −23 LUFS, 1 for silence and for rates too low to measure."""
    if bool(audio.is_silent(wave)) or rate < 8000:
        return 1.0
    loudness = float(audio.integrated_loudness(wave, rate))
    return 10.0 ** ((_TARGET - loudness) / 20.0)


def address(sound: Sound) -> str:
    """The sound as a data URI, to the last bit unless its peak exceeds full scale."""
    import soundfile

    wave = sound.wave.double()
    peak = float(wave.abs().max()) if len(wave) else 0.0
    # As whole numbers: libsndfile scales floats by another factor in WAV than in FLAC.
    bits = 16 if sound.subtype == "PCM_16" else 24
    most = 2.0 ** (bits - 1)
    whole = (wave / max(peak, 1.0) * most).round().clamp(-most, most - 1.0)
    samples = whole.mul(2 ** (32 - bits)).int().numpy()
    kind = "WAV" if len(wave) <= _SHORT else "FLAC"
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, sound.rate, format=kind, subtype=sound.subtype)
    return _data_uri(buffer.getvalue(), f"audio/{kind.lower()}")


def picture(sound: Sound) -> str:
    """Spectrogram of the sound as a small grey PNG in a data URI, low frequencies at the bottom.

    Raises:
        ImportError: Pillow is missing.
    """
    from PIL import Image

    level = spectrogram(sound.wave, 512)  # (bins, frames) in dB, 0 to -70
    # The loudest bin of a pixel, and its middle levels darker: a mean would grey out lines.
    size = PICTURE[1], min(PICTURE[0], level.shape[1])
    small = torch.nn.functional.adaptive_max_pool2d(level[None], size)[0]
    bright = 255.0 * (small / -70.0).pow(1.4)
    pixels = bright.flip(0).round().to(torch.uint8).contiguous().numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels).quantize(16).save(buffer, format="png", optimize=True)
    return _data_uri(buffer.getvalue(), "image/png")


def _data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"

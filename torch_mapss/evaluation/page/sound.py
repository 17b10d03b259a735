"""Audio files as a page holds them: FLAC, a level to play them at, a picture."""

from __future__ import annotations

import base64
import io
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.evaluation.plots import spectrogram

# Pixels of a spectrogram: a line of the page, not a figure.
PICTURE = (600, 96)
# Loudness at which everything is played, as it is when scored.
_TARGET = -23.0
# Sample types that 16 bits hold without loss.
_SIXTEEN = {"PCM_16", "PCM_S8", "PCM_U8", "ULAW", "ALAW"}


class Sound(NamedTuple):
    """One audio file, mixed down as it is scored."""

    wave: Tensor  # (T,)
    rate: int  # Hz
    subtype: str  # of FLAC: "PCM_16" where that loses nothing, else "PCM_24"
    gain: float  # that brings it to the level it is scored at


def read_sound(path: str) -> Sound:
    """A file as mono samples at its own rate.

    Raises:
        FileNotFoundError, ValueError: as :func:`torch_mapss.audio.load_audio`.
    """
    import soundfile

    samples, rate = audio.load_audio(path)
    wave = audio.to_mono(samples)
    with open(path, "rb") as stream:
        kind = soundfile.info(stream).subtype
    plain = kind in _SIXTEEN and len(samples) == 1  # a mean of channels has one more bit
    return Sound(wave, rate, "PCM_16" if plain else "PCM_24", playing_gain(wave, rate))


def playing_gain(wave: Tensor, rate: int) -> float:
    """Factor to −23 LUFS, 1 for silence and for rates too low to measure."""
    if bool(audio.is_silent(wave)) or rate < 8000:
        return 1.0
    loudness = float(audio.integrated_loudness(wave, rate))
    return 10.0 ** ((_TARGET - loudness) / 20.0)


def flac(sound: Sound, begin: float = 0.0, end: float = math.inf) -> bytes:
    """A stretch of the sound as FLAC, to the last bit unless its peak exceeds full scale.

    Args:
        sound: to cut from.
        begin, end: seconds.
    """
    import soundfile

    first = max(0, round(begin * sound.rate))
    last = len(sound.wave) if math.isinf(end) else min(len(sound.wave), round(end * sound.rate))
    wave = sound.wave[first:last].double()
    peak = float(wave.abs().max()) if len(wave) else 0.0
    if peak > 1.0:
        wave = wave / peak
    buffer = io.BytesIO()
    soundfile.write(buffer, wave.numpy(), sound.rate, format="FLAC", subtype=sound.subtype)
    return buffer.getvalue()


def data_uri(content: bytes, kind: str) -> str:
    """``content`` as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def picture(sound: Sound) -> bytes:
    """Spectrogram of the sound as a small grey PNG, low frequencies at the bottom.

    Raises:
        ImportError: Pillow is missing.
    """
    image = _pillow()
    level = spectrogram(sound.wave, 512)  # (bins, frames) in dB, 0 to -70
    dark = 255.0 * (level / -70.0)
    small = torch.nn.functional.adaptive_avg_pool2d(
        dark[None], (PICTURE[1], min(PICTURE[0], dark.shape[1]))
    )[0]
    pixels = small.flip(0).round().to(torch.uint8).contiguous().numpy()
    buffer = io.BytesIO()
    image.fromarray(pixels).quantize(16).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "the report's spectrograms need Pillow: pip install 'torch_mapss[report]'"
        ) from error
    return Image

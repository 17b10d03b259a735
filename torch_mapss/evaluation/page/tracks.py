"""The sounds of a page: spectrograms of all files, and as many sounds as a budget of bytes holds.

If everything fits, whole files are embedded. Else the worst segments come first, with half a second
around them; then whole files, those with worst segments first. A file that is not embedded is
linked by its path relative to the page.
"""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.evaluation.io import shown
from torch_mapss.evaluation.plots import spectrogram
from torch_mapss.evaluation.sounds import cut, read_mono
from torch_mapss.evaluation.worst import CONTEXT_S

if TYPE_CHECKING:
    from pandas import DataFrame

# (width, height) of a spectrogram in pixels: of a set of up to _MANY files, and of a larger one.
_PICTURE, _SMALL_PICTURE = (600, 96), (300, 48)
_MANY = 200
_JPEG_QUALITY = 50
# Loudness in LUFS at which everything is played, the same as when it is scored.
_TARGET = -23.0
# Rates (Hz) of MPEG-1 and MPEG-2 layer III. Those of MPEG 2.5 do not play in every browser.
_MP3_RATES = (16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
# Without MP3, sounds of up to this many samples are WAV: Chromium fails to seek in short FLAC files
# without a seek table, which libsndfile does not write (seen up to 96,000 samples).
_SHORT = 2**18


def make_tracks(
    paths: Sequence[str], segments: DataFrame, page: str, embed_bytes: int
) -> tuple[dict[str, dict[str, Any]], list[dict[str, str] | None], dict[str, str], str]:
    """Read audio files and embed as many as fit, in order; link the others relative to ``page``.

    Returns:
        * the files by path, each once however many rows play it, without those that cannot be read;
        * for each worst segment, its sounds by role, or None;
        * why a file cannot be read, by path;
        * a sentence on the number of embedded files, and how to embed all.
    """
    files: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    sounds: dict[str, str] = {}
    unique_paths = list(dict.fromkeys(paths))
    picture_size = _PICTURE if len(unique_paths) <= _MANY else _SMALL_PICTURE
    encoded_bytes, encoded_seconds, total_seconds = 0, 0.0, 0.0
    for path in unique_paths:
        try:
            wave, rate = read_mono(path)
        except (OSError, ValueError) as error:
            missing[path] = " ".join(str(error).split())
            continue
        seconds = len(wave) / rate
        total_seconds += seconds
        # Beyond the budget, encoding only serves to estimate the total size: 20 seconds suffice.
        if encoded_bytes <= embed_bytes or encoded_seconds < 20.0:
            sound = address(wave, rate)
            encoded_bytes += len(sound)
            encoded_seconds += seconds
            if encoded_bytes <= embed_bytes:
                sounds[path] = sound
        files[path] = {
            "name": os.path.basename(shown(path)),
            "src": _link(path, page),
            "embedded": False,
            "rate": rate,
            "seconds": seconds,
            "gain": playing_gain(wave, rate),
            "picture": picture(wave, picture_size),
        }
    clips, clip_bytes = _worst_clips(segments, files, sounds, embed_bytes)
    remaining = embed_bytes - clip_bytes
    for path, sound in sounds.items():
        if len(sound) <= remaining:
            files[path] |= {"src": sound, "embedded": True}
            remaining -= len(sound)
    count = sum(track["embedded"] for track in files.values())
    summary = f"{count} of {len(files)} audio files embedded"
    if count < len(files):
        bytes_for_all = encoded_bytes * total_seconds / max(encoded_seconds, 1e-9)
        summary = (
            f"{sum(map(bool, clips))} of {len(clips)} worst moments and {summary}, the others "
            f"linked; --embed-mb {math.ceil(1.1 * bytes_for_all / 1e6)} embeds all"
        )
    return files, clips, missing, summary


def _worst_clips(
    segments: DataFrame,
    files: dict[str, dict[str, Any]],
    sounds: dict[str, str],
    embed_bytes: int,
) -> tuple[list[dict[str, str] | None], int]:
    """The sounds of worst segments, None beyond the budget, and their size in bytes.

    None if every file is embedded whole.
    """
    if embed_bytes == 0 or len(sounds) == len(files):
        return [None] * len(segments), 0
    clips: list[dict[str, str] | None] = []
    used = 0
    for segment in segments.itertuples():
        clip = _clip(segment, files)
        size = sum(map(len, clip.values())) if clip else 0
        fits = used + size <= embed_bytes
        clips.append(clip if fits else None)
        used += size if fits else 0
    return clips, used


def _clip(segment: Any, files: dict[str, dict[str, Any]]) -> dict[str, str] | None:
    """The sounds of a worst segment; None if its files cannot be read."""
    paths = {role: getattr(segment, role) for role in ("reference", "estimate")}
    if not files.keys() >= {*paths.values()}:
        return None
    begin, end = segment.start - CONTEXT_S, segment.end + CONTEXT_S
    waves = {role: read_mono(path) for role, path in paths.items()}
    return {
        role: address(cut(wave, rate, begin, end), rate) for role, (wave, rate) in waves.items()
    }


def _link(path: str, page: str) -> str:
    absolute = os.path.abspath(path)
    try:
        relative = os.path.relpath(absolute, os.path.dirname(os.path.abspath(page)))
    except ValueError:  # another drive
        return PurePath(absolute).as_uri()
    return quote(os.fsencode(PurePath(relative).as_posix()))


def playing_gain(wave: Tensor, rate: int) -> float:
    """Factor to −23 LUFS, 1 for silence and for rates too low to measure."""
    if bool(audio.is_silent(wave)) or rate < 8000:
        return 1.0
    return float(10.0 ** ((_TARGET - audio.integrated_loudness(wave, rate)) / 20.0))


def address(wave: Tensor, rate: int) -> str:
    """A sound as a data URI: MP3 where it can be written and played everywhere, else lossless."""
    import soundfile

    if rate in _MP3_RATES and len(wave) and "MP3" in soundfile.available_formats():
        return _mp3_address(wave, rate)
    return lossless_address(wave, rate)


def _mp3_address(wave: Tensor, rate: int) -> str:
    """Variable bit rate at the encoder's best quality; its header keeps the exact length."""
    import soundfile

    peak = float(wave.abs().max())
    samples = (wave / max(peak, 1.0)).float().numpy()
    buffer = io.BytesIO()
    quality: dict[str, Any] = {"compression_level": 0.0, "bitrate_mode": "VARIABLE"}
    soundfile.write(buffer, samples, rate, format="MP3", subtype="MPEG_LAYER_III", **quality)
    return _data_uri(buffer, "audio/mpeg")


def lossless_address(wave: Tensor, rate: int) -> str:
    """A sound as a data URI of WAV (short sounds) or FLAC.

    Exact to the last bit unless it has more than 24 bits a sample or exceeds full scale.
    """
    import soundfile

    peak = float(wave.abs().max()) if len(wave) else 0.0
    scaled = wave.double() / max(peak, 1.0)
    bits = 16 if bool((scaled * 2.0**15).frac().eq(0.0).all()) else 24
    # As whole numbers: libsndfile scales floats by another factor in WAV than in FLAC.
    full_scale = 2.0 ** (bits - 1)
    integers = (scaled * full_scale).round().clamp(-full_scale, full_scale - 1.0)
    samples = integers.mul(2 ** (32 - bits)).int().numpy()
    kind = "WAV" if len(wave) <= _SHORT else "FLAC"
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, subtype=f"PCM_{bits}")
    return _data_uri(buffer, f"audio/{kind.lower()}")


def picture(wave: Tensor, size: tuple[int, int] = _PICTURE) -> str:
    """Spectrogram of a sound as a small grey JPEG in a data URI, low frequencies at the bottom.

    Args:
        wave: (T,).
        size: width and height in pixels; a short sound is narrower.
    """
    from PIL import Image

    level = spectrogram(wave, 512)  # (bins, frames) in dB, 0 to -70
    width, height = min(size[0], level.shape[1]), size[1]
    # The loudest bin of a pixel, and its middle levels darker: a mean would grey out lines.
    loudest = torch.nn.functional.adaptive_max_pool2d(level[None], (height, width))[0]
    bright = 255.0 * (loudest / -70.0).pow(1.4)
    pixels = bright.flip(0).round().to(torch.uint8).contiguous().numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="jpeg", quality=_JPEG_QUALITY, optimize=True)
    return _data_uri(buffer, "image/jpeg")


def _data_uri(content: io.BytesIO, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content.getvalue()).decode('ascii')}"

"""The sounds of a page: what is embedded within a budget of bytes, and links to all the rest.

If everything fits, whole files are embedded with their spectrograms. Else the worst segments come
first, with half a second around them; then whole files, those with worst segments first. A file
that is not embedded is linked by its path relative to the page.
"""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple
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

# Pixels of a spectrogram: a line of the page, not a figure.
_PICTURE = (600, 96)
# Loudness at which everything is played, as it is when scored.
_TARGET = -23.0
# Up to so many samples sounds are WAV: Chromium fails to seek in short FLAC files without a seek
# table, which libsndfile does not write (seen up to 96,000 samples).
_SHORT = 2**18


class Tracks(NamedTuple):
    """The audio files of a page, each once however many rows play it."""

    files: dict[str, dict[str, Any]]  # by path, for the page; without files that are gone
    clips: list[dict[str, str] | None]  # of every segment: the sound of its roles
    missing: dict[str, str]  # path -> why it cannot be read
    summary: str  # how many are embedded, and what embeds all


def make_tracks(paths: Sequence[str], segments: DataFrame, page: str, embed_bytes: int) -> Tracks:
    """Read audio files and embed what fits, the first ones first; link them as from ``page``."""
    files: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    embedded: dict[str, dict[str, str]] = {}
    total = 0
    for path in dict.fromkeys(paths):
        try:
            wave, rate = read_mono(path)
        except (OSError, ValueError) as error:
            missing[path] = " ".join(str(error).split())
            continue
        size = 4 * len(wave)  # at most: 24 bits a sample in base64
        if size <= embed_bytes:  # else it is not worth the time
            made = {"src": address(wave, rate), "picture": picture(wave)}
            size = _size(made)
        total += size
        if total <= embed_bytes:
            embedded[path] = made
        about = {"name": os.path.basename(shown(path)), "rate": rate}
        about |= {"seconds": len(wave) / rate, "gain": playing_gain(wave, rate)}
        files[path] = {"src": _link(path, page), "embedded": False, **about}
    left, clips = embed_bytes, []
    for one in segments.itertuples():
        clip = _clip(one, files) if 0 < left < total else None
        clips.append(clip if _size(clip) <= left else None)
        left -= _size(clips[-1])
    for path, made in embedded.items():
        if _size(made) <= left:
            files[path] |= {**made, "embedded": True}
            left -= _size(made)
    count = sum(file["embedded"] for file in files.values())
    summary = f"{count} of {len(files)} audio files embedded"
    if count < len(files):
        summary = (
            f"{sum(map(bool, clips))} of {len(clips)} worst moments and {summary}, the others "
            f"linked; --embed-mb {math.ceil(total / 1e6)} embeds all"
        )
    return Tracks(files, clips, missing, summary)


def _size(made: dict[str, str] | None) -> int:
    return sum(map(len, (made or {}).values()))


def _clip(segment: Any, files: dict[str, dict[str, Any]]) -> dict[str, str] | None:
    """The sounds of a worst segment, if its files are there."""
    paths = {role: getattr(segment, role) for role in ("reference", "estimate")}
    if not files.keys() >= {*paths.values()}:
        return None
    ends = segment.start - CONTEXT_S, segment.end + CONTEXT_S
    read = {role: read_mono(path) for role, path in paths.items()}
    return {role: address(cut(wave, rate, *ends), rate) for role, (wave, rate) in read.items()}


def _link(path: str, page: str) -> str:
    full = os.path.abspath(path)
    try:
        relative = os.path.relpath(full, os.path.dirname(os.path.abspath(page)))
    except ValueError:  # another drive
        return PurePath(full).as_uri()
    return quote(os.fsencode(PurePath(relative).as_posix()))


def playing_gain(wave: Tensor, rate: int) -> float:
    """Factor to −23 LUFS, 1 for silence and for rates too low to measure."""
    if bool(audio.is_silent(wave)) or rate < 8000:
        return 1.0
    return float(10.0 ** ((_TARGET - audio.integrated_loudness(wave, rate)) / 20.0))


def address(wave: Tensor, rate: int) -> str:
    """A sound as a data URI, to the last bit unless it has more than 24 or exceeds full scale."""
    import soundfile

    peak = float(wave.abs().max()) if len(wave) else 0.0
    scaled = wave.double() / max(peak, 1.0)
    bits = 16 if bool((scaled * 2.0**15).frac().eq(0.0).all()) else 24
    # As whole numbers: libsndfile scales floats by another factor in WAV than in FLAC.
    most = 2.0 ** (bits - 1)
    whole = (scaled * most).round().clamp(-most, most - 1.0)
    samples = whole.mul(2 ** (32 - bits)).int().numpy()
    kind = "WAV" if len(wave) <= _SHORT else "FLAC"
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, subtype=f"PCM_{bits}")
    return _data_uri(buffer, f"audio/{kind.lower()}")


def picture(wave: Tensor) -> str:
    """Spectrogram of a sound as a small grey PNG in a data URI, low frequencies at the bottom."""
    from PIL import Image

    level = spectrogram(wave, 512)  # (bins, frames) in dB, 0 to -70
    # The loudest bin of a pixel, and its middle levels darker: a mean would grey out lines.
    size = _PICTURE[1], min(_PICTURE[0], level.shape[1])
    small = torch.nn.functional.adaptive_max_pool2d(level[None], size)[0]
    bright = 255.0 * (small / -70.0).pow(1.4)
    pixels = bright.flip(0).round().to(torch.uint8).contiguous().numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels).quantize(16).save(buffer, format="png", optimize=True)
    return _data_uri(buffer, "image/png")


def _data_uri(content: io.BytesIO, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content.getvalue()).decode('ascii')}"

"""The sounds of a page: what is embedded within a budget of bytes, and links to all the rest.

If everything fits, whole files are embedded. Else the worst segments come first, with half a second
around them; then whole files with their spectrograms, those with worst segments first. A file that
is not embedded is linked by its path relative to the page.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple
from urllib.parse import quote

from torch_mapss.evaluation import io
from torch_mapss.evaluation.page.sound import Sound, address, picture, read_sound
from torch_mapss.evaluation.sounds import read_stretch
from torch_mapss.evaluation.worst import CONTEXT_S, Segment

# Longer sounds, in samples, are not encoded once too little of the budget is left for them.
_LONG = 2**22


class Budget:
    """Bytes left to embed."""

    def __init__(self, total: int) -> None:
        self.left = total

    def take(self, size: int) -> bool:
        """Whether ``size`` more bytes fit; they are spent if so."""
        if size > self.left:
            return False
        self.left -= size
        return True


class Tracks(NamedTuple):
    """The audio files of a page, each once however many rows play it."""

    entries: list[dict[str, Any]]  # for the page
    places: Mapping[str, int]  # path -> number of its entry; files that are gone have none
    clips: list[dict[str, Any] | None]  # of every segment: reference and estimate, or None
    missing: Mapping[str, str]  # path -> why it cannot be read
    told: str  # how many are embedded, and what embeds all


def make_tracks(
    paths: Sequence[str],
    segments: Sequence[tuple[Segment, Mapping[str, str]]],
    page: str,
    embed_bytes: int,
) -> Tracks:
    """Read audio files and embed what fits.

    Args:
        paths: of all files, those to be embedded first at the beginning.
        segments: the worst ones, with the paths of their roles.
        page: path of the page, which links are relative to.
        embed_bytes: the budget.
    """
    entries: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    missing: dict[str, str] = {}
    sounds: dict[str, Sound] = {}  # without their samples
    sizes, spare = [], Budget(embed_bytes)
    for path in dict.fromkeys(paths):
        try:
            sound = read_sound(path)
        except (OSError, ValueError) as error:
            missing[path] = " ".join(str(error).split())
            continue
        places[path], sounds[path] = len(entries), sound._replace(wave=sound.wave[:0])
        entry, size = _entry(sound, path, spare.left)
        sizes.append(size)
        if not spare.take(size):  # kept no longer than it may be needed
            entry["embedded"] = entry["picture"] = None
        entries.append(entry)
    budget = Budget(embed_bytes)
    clips: list[dict[str, Any] | None] = [None] * len(segments)
    if sum(sizes) > embed_bytes:
        clips = [_clips(one, given, sounds, budget) for one, given in segments]
    for path, place in places.items():
        entry = entries[place]
        source, image = entry.pop("embedded"), entry["picture"]
        fits = source is not None and budget.take(len(source) + len(image))
        if not fits and not (image is not None and budget.take(len(image))):
            entry["picture"] = None
        entry |= {"src": source if fits else _link(path, page), "embedded": fits}
    embedded = sum(entry["embedded"] for entry in entries)
    told = f"{embedded} of {len(entries)} audio files embedded"
    if embedded < len(entries):
        of_clips = f"{sum(clip is not None for clip in clips)} of {len(clips)} worst moments and "
        told = f"{of_clips if clips else ''}{told}, the others linked"
        told += f"; --embed-mb {math.ceil(sum(sizes) / 1e6)} embeds all"
    return Tracks(entries, places, clips, missing, told)


def _entry(sound: Sound, path: str, left: int) -> tuple[dict[str, Any], int]:
    """An audio file as it would be embedded, and its bytes; a song that cannot fit, their bound."""
    source = image = None
    size = 4 * len(sound.wave)  # 24 bits a sample in base64
    if len(sound.wave) < max(_LONG, left):
        source, image = address(sound), picture(sound)
        size = len(source) + len(image)
    entry = {
        "name": os.path.basename(io.shown(path)),
        "embedded": source,
        "picture": image,
        "gain": float(f"{sound.gain:.6g}"),
        "seconds": round(sound.seconds, 6),
        "khz": sound.rate / 2000.0,
    }
    return entry, size


def _clips(
    segment: Segment, given: Mapping[str, str], sounds: Mapping[str, Sound], budget: Budget
) -> dict[str, Any] | None:
    """The sound of a worst segment, if its files are there and it fits."""
    if budget.left == 0 or not all(path in sounds for path in given.values()):
        return None
    begin, end = segment.start - CONTEXT_S, segment.end + CONTEXT_S
    made: dict[str, dict[str, Any]] = {}
    for role, path in given.items():
        sound = sounds[path]._replace(wave=read_stretch(path, begin, end)[0])
        made[role] = {"src": address(sound), "gain": sound.gain, "embedded": True}
    return made if budget.take(sum(len(clip["src"]) for clip in made.values())) else None


def _link(path: str, page: str) -> str:
    """The file's address as seen from the page."""
    full = os.path.abspath(path)
    try:
        relative = os.path.relpath(full, os.path.dirname(os.path.abspath(page)))
    except ValueError:  # another drive
        return PurePath(full).as_uri()
    return quote(os.fsencode(PurePath(relative).as_posix()))

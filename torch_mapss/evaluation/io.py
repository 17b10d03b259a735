"""Files and their names: written completely or not at all, in UTF-8 whatever the locale.

Imports nothing heavy at the top, so that ``--help`` answers at once.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

# ---------------------------------------------------------------------------------- Names and paths


def shown(path: str | os.PathLike[str]) -> str:
    """``path`` as text for tables and messages.

    In the C locale Python may return names as undecoded bytes, which are almost certainly UTF-8.
    """
    return os.fsencode(os.fspath(path)).decode("utf-8", errors="replace")


def written(path: str) -> str:
    """``path`` as text for a UTF-8 file: :func:`native` gives the path back."""
    return os.fsencode(path).decode("utf-8", errors="surrogateescape")


def native(text: str) -> str:
    """``text``, read from a UTF-8 file, as a path that this process can open in any locale."""
    return os.fsdecode(text.encode("utf-8", errors="surrogateescape"))


def located(folder: str, path: str) -> str:
    """Path to open for a path in a manifest or in results.

    If the file does not exist, the other Unicode form of the name and slashes for backslashes are
    tried.
    """
    forms = (
        path,
        *(unicodedata.normalize(x, path) for x in ("NFC", "NFD")),
        path.replace("\\", "/"),
    )
    paths = [native(os.path.join(folder, form)) for form in forms]
    return next(filter(os.path.exists, paths), paths[0])


def same_name(text: str) -> str:
    """``text`` in the form used to compare names: "é" may be one character or two (macOS).

    Use it to compare and join; open files and show names in their original form.

    Example:
        >>> same_name("Cafe\\u0301") == same_name("Caf\\u00e9")
        True
    """
    return unicodedata.normalize("NFC", text)


AUDIO_SUFFIXES = (
    *(".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf"),
    *(".w64", ".rf64"),
)


def audio_files(root: str, with_suffix: bool) -> dict[str, str]:
    """Audio files by path, with their names below the folder; hidden files are left out."""
    names: dict[str, str] = {}
    visited: set[str] = set()
    for folder, below, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:  # reached by a link to a parent folder
            below.clear()
            continue
        visited.add(real)
        below[:] = sorted(name for name in below if name[0] != ".")
        shown_files = [name for name in files if name[0] != "."]
        for file in sorted(shown_files):
            path = os.path.join(folder, file)
            stem, suffix = os.path.splitext(path)
            if suffix.lower() in AUDIO_SUFFIXES:
                name = written(os.path.relpath(path if with_suffix else stem, root))
                names[written(path)] = same_name(name.replace(os.sep, "/"))
    return names


_RESERVED = re.compile(r"(con|prn|aux|nul|(com|lpt)\d)(\.|$)")  # on Windows, with any suffix
_LONGEST = 120  # bytes of a name; file systems take 255, with suffixes and temporary names


def file_name(text: str) -> str:
    """``text`` as a file or folder name valid on every system; distinct texts give distinct names.

    It ends with a hash if anything had to change, or if case alone might distinguish it from
    another.

    Example:
        >>> file_name("song 1"), file_name("a/b")
        ('song 1', 'a_b-c14cddc033')
    """
    name = same_name(text)
    safe = re.sub(r'[/\\:*?"<>|%\x00-\x1f\x7f\ud800-\udfff]', "_", name)
    safe = safe.encode()[:_LONGEST].decode(errors="ignore").strip(" .")
    if safe and safe == name == name.lower() and not _RESERVED.match(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", errors="surrogatepass")).hexdigest()[:10]
    return f"{safe.replace('.', '_') or '_'}-{digest}"


def display_names(paths: Sequence[str]) -> tuple[str, ...]:
    """Short name of each path: its stem, with as many folders as needed to distinguish equal stems.

    Example:
        >>> display_names(["s1/x.wav", "s2/x.wav", "y.flac"])
        ('s1/x', 's2/x', 'y')
    """
    split_paths = [os.path.splitext(path.replace("\\", "/"))[0].split("/") for path in paths]
    names = []
    for folders in split_paths:
        for count in range(1, len(folders)):
            ends = [split[-count:] for split in split_paths]
            if ends.count(folders[-count:]) == 1:
                break
        else:
            count = 0  # a repeated path: use all of it
        names.append("/".join(folders[-count:]))
    return numbered(names)


def numbered(names: Sequence[str]) -> tuple[str, ...]:
    """``names`` with a number after each repetition, as for a file passed twice."""
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in distinct or (number > 1 and candidate in names):
            number += 1  # a file may really be called "x (2)"
            candidate = f"{name} ({number})"
        distinct.append(candidate)
    return tuple(distinct)


def make_folder(path: str | os.PathLike[str]) -> str:
    """Create a folder with its parents; ValueError if it cannot be written to."""
    path = os.fspath(path)
    try:
        os.makedirs(path, exist_ok=True)
        if not os.access(path or ".", os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ValueError(
            f"the folder {shown(path)!r} cannot be written to: {error.strerror}. "
            "Choose another folder."
        ) from None
    return path


def sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------ Writing

_LEFT_BEHIND_S = 3600.0  # older temporary files are considered abandoned


class WriteError(OSError):
    """A result cannot be written: the disk is full, or the folder is gone."""

    def __init__(self, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.errno = number

    def __reduce__(self) -> Any:  # by default pickling would lose the number
        return type(self), (*self.args, self.errno)


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert the system's errors to a :class:`WriteError` that names the file."""
    try:
        yield
    except OSError as error:
        raise WriteError(
            f"{shown(path)!r} cannot be written: {error.strerror or error}. Free some space or "
            "choose another folder; results written so far are kept.",
            error.errno,
        ) from error


def _temporary(path: str) -> str:
    """Short temporary name next to ``path`` that only this thread uses, with the same suffix."""
    folder, name = os.path.split(path)
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    for leftover in Path(folder or ".").glob(f".part-{digest}-*"):  # after a kill
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _LEFT_BEHIND_S:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    suffix = os.path.splitext(name)[1][:16]
    return os.path.join(folder, f".part-{digest}-{os.getpid()}-{threading.get_ident()}{suffix}")


def write_with(path: str | os.PathLike[str], write: Callable[[str], object]) -> None:
    """Let ``write`` fill a temporary file next to ``path``, then rename it in one step.

    Readers see the old file or the new one, also after a kill; of two writers, the last one wins.
    """
    path = os.fspath(path)
    temporary = _temporary(path)
    with writing(path):
        try:
            write(temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(OSError):
                os.unlink(temporary)


@contextmanager
def filled_at_once(path: str | os.PathLike[str]) -> Iterator[str]:
    """Temporary folder whose content moves to ``path`` at the end; on an error, none of it does."""
    path = make_folder(path)
    temporary = _temporary(os.path.join(path, "content"))
    try:
        with writing(path):
            os.mkdir(temporary)
        yield temporary
        with writing(path):
            shutil.copytree(temporary, path, copy_function=os.replace, dirs_exist_ok=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            os.rmdir(path)  # if nothing is in it


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file in one step."""
    write_with(path, lambda name: Path(name).write_bytes(content))


def write_wave(path: str, samples: Any, rate: int, subtype: str = "FLOAT") -> None:
    """Write a WAV of (T,) or (T, channels) samples, a tensor on the CPU, in one step."""
    import soundfile

    # In memory: soundfile cannot open some names in the C locale.
    buffer = BytesIO()
    soundfile.write(buffer, samples.numpy(), rate, format="WAV", subtype=subtype)
    write_bytes(path, buffer.getvalue())


def write_table(
    path: str | os.PathLike[str],
    rows: DataFrame | Sequence[dict[str, Any]],
    columns: Sequence[str] | None = None,
    undefined: str = "nan",
) -> None:
    """Write a CSV file; numbers have nine digits, so that float32 is read back unchanged."""
    import pandas

    table = pandas.DataFrame(rows, columns=None if columns is None else list(columns))
    table = table.astype(dict.fromkeys(table.select_dtypes(bool), int))
    text = table.to_csv(index=False, float_format="%.9g", na_rep=undefined, lineterminator="\n")
    write_bytes(path, text.encode("utf-8", errors="replace"))


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write standard JSON, with ``null`` for undefined numbers."""
    text = json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # ASCII escapes preserve names that are not valid UTF-8
        encoded = json.dumps(plain(content), indent=2, allow_nan=False).encode()
    write_bytes(path, encoded + b"\n")


def read_json(path: str | os.PathLike[str], *keys: str) -> dict[str, Any]:
    """Read a JSON object of a results folder, which must have these keys."""
    try:
        content = json.loads(Path(path).read_bytes())
        return {**content, **{key: content[key] for key in keys}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{shown(path)!r} cannot be read as part of results "
            f"({type(error).__name__}: {error}). Score the set again, or choose another folder."
        ) from None


def plain(value: Any) -> Any:
    """Convert ``value`` to JSON types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | type(None)) else str(value)


# ---------------------------------------------------------------------------------- Text for people


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Key that sorts s2 before s10."""
    pieces = filter(None, re.split(r"(\d+)", name))
    return tuple((int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces)


def listed(items: Iterable[str], most: int = 5) -> str:
    """Join names for a sentence, with only the first few of many.

    Example:
        >>> listed("abcdefg", most=3)
        'a, b, c and 4 more'
    """
    names = list(items)
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligned columns for a terminal; the first ``left`` ones are words, the rest numbers."""
    lines = [[*map(_printable, line)] for line in (columns, *rows)]
    widths = [max(map(_width, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])

    def cell(column: int, item: str) -> str:
        blank = " " * (widths[column] - _width(item))
        return item + blank if column < left else blank + item

    return "\n".join("  ".join(map(cell, itertools.count(), x)).rstrip() for x in lines)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _width(text: str) -> int:
    """Width of ``text`` in a terminal: East Asian characters take two columns, marks none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)

"""Files as results are written to them: whole or not at all, UTF-8 whatever the locale says.

A leaf: standard library only.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


def shown(path: str | os.PathLike[str]) -> str:
    """``path`` as text for tables and messages.

    In the C locale Python may hand over names as undecoded bytes; they are UTF-8 in all likelihood.
    """
    return os.fsencode(os.fspath(path)).decode("utf-8", errors="replace")


def written(path: str) -> str:
    """``path`` as text for a UTF-8 file: :func:`native` gives the path back."""
    return os.fsencode(path).decode("utf-8", errors="surrogateescape")


def native(text: str) -> str:
    """``text``, read from a UTF-8 file, as a path that this process can open in any locale."""
    return os.fsdecode(text.encode("utf-8", errors="surrogateescape"))


def display_names(paths: Sequence[str]) -> tuple[str, ...]:
    """A short name for every path: its stem, with as many folders as tell equal stems apart.

    Example:
        >>> display_names(["s1/x.wav", "s2/x.wav", "y.flac"])
        ('s1/x', 's2/x', 'y')
    """
    parts = [os.path.splitext(path.replace(os.sep, "/"))[0].split("/") for path in paths]
    depth = [1] * len(parts)
    for _ in range(max(map(len, parts), default=0)):
        names = _tails(parts, depth)
        for place, name in enumerate(names):
            if names.count(name) > 1:
                depth[place] += 1
    return numbered(_tails(parts, depth))


def _tails(parts: Sequence[Sequence[str]], depth: Sequence[int]) -> list[str]:
    return ["/".join(part[-count:]) for part, count in zip(parts, depth)]


def numbered(names: Sequence[str]) -> tuple[str, ...]:
    """``names`` with a number behind each that occurs again: the same file given twice."""
    taken, found = set(names), []
    for place, name in enumerate(names):
        count = names[: place + 1].count(name)
        made = name
        while count > 1 and made in taken:  # a file may really be called "x (2)"
            made, count = f"{name} ({count})", count + 1
        taken.add(made)
        found.append(made)
    return tuple(found)


def make_folder(path: str | os.PathLike[str]) -> str:
    """Create a folder with its parents.

    Raises:
        ValueError: it, or one of its parents, is a file, or it cannot be made or written to.
    """
    path = os.fspath(path)
    try:
        os.makedirs(path, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(
            f"expected a folder to write to, but {shown(path)!r} is a file (or lies below one). "
            "Name another folder, or move the file away."
        ) from None
    except OSError as error:
        raise ValueError(
            f"the folder {shown(path)!r} cannot be made: {error.strerror}. Name one that can be "
            "written to."
        ) from None
    if not os.access(path or ".", os.W_OK | os.X_OK):
        raise ValueError(
            f"the folder {shown(path)!r} cannot be written to: permission denied. Name another one."
        )
    return path


@contextmanager
def filled_at_once(path: str | os.PathLike[str]) -> Iterator[str]:
    """A folder to write to, whose content is moved to ``path`` at the end; on an error, none of it.

    Where ``path`` is not there yet, it comes in one step; else its files are replaced one by one,
    those of subfolders first. What a kill left behind is cleared away by the next call.

    Raises:
        ValueError: as :func:`make_folder`.
        WriteError: the content cannot be moved.
    """
    path = os.fspath(path)
    there = os.path.exists(path)
    # Inside a folder that is there, for nothing may be written beside it.
    place = make_folder(path if there else os.path.dirname(os.path.abspath(path)))
    digest = hashlib.sha256(os.fsencode(os.path.basename(os.path.abspath(path)))).hexdigest()[:16]
    temporary = os.path.join(place, f".part-{digest}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with writing(path):
            os.mkdir(temporary)
        yield temporary
        with writing(path):
            if there:
                _move_files(temporary, path)
            else:
                os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move_files(source: str, target: str) -> None:
    for folder, _, names in os.walk(source, topdown=False):
        place = os.path.normpath(os.path.join(target, os.path.relpath(folder, source)))
        os.makedirs(place, exist_ok=True)
        for name in names:
            os.replace(os.path.join(folder, name), os.path.join(place, name))


def sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            found.update(block)
    return found.hexdigest()


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file in one step: a reader, or a kill, finds the old one or the new one."""
    write_with(path, lambda name: _dump(name, content))


class WriteError(OSError):
    """A result cannot be written: the disk is full, or the folder has gone."""


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within, an error of the system's names the file.

    Raises:
        WriteError: in its place.
    """
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(
            f"{shown(path)!r} cannot be written: {error.strerror or error}. Make room there, or "
            "name another place; what was written before is kept."
        ) from error


def write_with(path: str | os.PathLike[str], write: Callable[[str], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then move it there.

    What a kill leaves behind is taken up and moved away by whoever writes ``path`` again.

    Raises:
        WriteError: it cannot be written.
    """
    path = os.fspath(path)
    with writing(path), _temporary(path) as temporary:
        try:
            write(temporary)
            _synced(temporary)
            os.chmod(temporary, 0o666 & ~_umask())  # its own rights are for the owner alone
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


@contextmanager
def _temporary(path: str) -> Iterator[str]:
    """An empty file beside ``path``, always the same one unless another process is at it."""
    folder, name = os.path.split(path)
    suffix = os.path.splitext(name)[1]
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]  # a long name has room as well
    own = os.path.join(folder, f".part-{digest}{suffix}")
    handle = _locked(own)
    if handle is None:
        other, own = tempfile.mkstemp(prefix=".part-", suffix=suffix, dir=folder or ".")
        os.close(other)
    try:
        yield own
    finally:
        if handle is not None:
            os.close(handle)  # and its lock goes


def _locked(path: str) -> int | None:
    """``path`` open, empty and locked; None where another process has it, or there are no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its last holder may have moved it away between the two calls.
        if os.path.samestat(os.fstat(handle), os.stat(path)):
            os.ftruncate(handle, 0)
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def write_wave(path: str, samples: Any, rate: int, subtype: str = "FLOAT") -> None:
    """Write a WAV of (T,) or (T, channels) samples, a tensor on the CPU, in one step."""
    import soundfile

    def write(name: str) -> None:
        # An open file: soundfile cannot open some names in the C locale.
        with open(name, "wb") as file:
            soundfile.write(file, samples.numpy(), rate, format="WAV", subtype=subtype)

    write_with(path, write)


def _dump(name: str, content: bytes) -> None:
    with open(name, "wb") as file:
        file.write(content)


def _synced(name: str) -> None:
    with open(name, "rb+") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_csv(
    path: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> None:
    """A table with a header line; numbers with nine digits (float32 reads back unchanged)."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([cell(row.get(column)) for column in columns])
    write_bytes(path, buffer.getvalue().encode("utf-8", errors="replace"))


def cell(value: Any) -> str:
    """One value of a table: ``nan`` for an undefined number, nothing for an absent one."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return format(value, ".9g")
    return str(value)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """JSON that every reader takes: undefined numbers are ``null``."""
    text = json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, (text + "\n").encode("utf-8", errors="replace"))


def write_paths_json(path: str | os.PathLike[str], content: Any) -> None:
    """JSON of paths that read back as they were, also those that are no UTF-8."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    try:
        encoded = text.encode("utf-8")
    except UnicodeEncodeError:  # undecoded bytes, which ASCII escapes keep
        encoded = json.dumps(content, indent=2).encode("ascii")
    write_bytes(path, encoded + b"\n")


def plain(value: Any) -> Any:
    """``value`` in JSON's own types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | type(None)) else str(value)


def listed(items: Iterable[str], most: int = 5) -> str:
    """Names in a sentence, the first few of many.

    Example:
        >>> listed("abcdefg", most=3)
        'a, b, c and 4 more'
    """
    found = list(items)
    text = ", ".join(found[:most])
    return text if len(found) <= most else f"{text} and {len(found) - most} more"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligned columns for a terminal; the first ``left`` ones are words, the rest numbers."""
    lines = [[_one_line(item) for item in line] for line in (columns, *rows)]
    widths = [max(_width(line[k]) for line in lines) for k in range(len(columns))]
    text = []
    for line in lines:
        cells = [
            item + " " * (width - _width(item)) if k < left else " " * (width - _width(item)) + item
            for k, (item, width) in enumerate(zip(line, widths))
        ]
        text.append("  ".join(cells).rstrip())
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def wrapped(text: str, width: int = 100) -> list[str]:
    """A long sentence as lines for a terminal."""
    return textwrap.wrap(text, width)


def _one_line(text: str) -> str:
    """``text`` without line ends and other signs that would break a column."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _width(text: str) -> int:
    """Columns a terminal takes for ``text``: East Asian characters take two, marks none."""
    import unicodedata

    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)

"""Files of results: written whole or not at all, read back with care, UTF-8 whatever the locale.

Imports nothing heavy at the top, so that ``--help`` answers at once.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import json
import math
import os
import re
import shutil
import textwrap
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

# ------------------------------------------------------------------------------------------------
# Names and paths
# ------------------------------------------------------------------------------------------------


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


def same_name(text: str) -> str:
    """``text`` in the form in which names are compared, whatever program or system wrote them.

    "é" may be one character or two (macOS names files so); both give the composed form. Compare
    and join by it; open files and show names as they were given.

    Example:
        >>> same_name("Cafe\\u0301") == same_name("Caf\\u00e9")
        True
    """
    return unicodedata.normalize("NFC", text)


# What Windows does not take as the name of a file, with any suffix.
_RESERVED = {"con", "prn", "aux", "nul"} | {f"{d}{k}" for d in ("com", "lpt") for k in range(10)}
_LEFT_BEHIND_S = 3600.0  # age from which a temporary file is what a kill left behind
_LONGEST = 120  # bytes of a name; file systems take 255, with suffixes and temporary names


def file_name(text: str) -> str:
    """``text`` as the name of a file or folder on every system; other texts give other names.

    Letters, digits and a few signs stay. Where anything had to change, or the file system might
    take another name for the same (upper and lower case), a hash of the text is behind it.

    Example:
        >>> file_name("song 1"), file_name("a/b")
        ('song 1', 'a_b-c14cddc033')
    """
    name = same_name(text)
    safe = re.sub(r'[/\\:*?"<>|%\x00-\x1f\x7f\ud800-\udfff]', "_", name).strip(" .")
    while len(safe.encode()) > _LONGEST:
        safe = safe[:-1]
    safe = safe.rstrip(" .")
    if safe == name and safe == safe.lower() and safe.split(".")[0] not in _RESERVED and safe:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", errors="surrogatepass")).hexdigest()[:10]
    return (
        f"{safe or '_'}-{digest}" if safe.lower().split(".")[0] not in _RESERVED else f"_{digest}"
    )


def display_names(paths: Sequence[str]) -> tuple[str, ...]:
    """A short name for every path: its stem, with as many folders as tell equal stems apart.

    Example:
        >>> display_names(["s1/x.wav", "s2/x.wav", "y.flac"])
        ('s1/x', 's2/x', 'y')
    """
    parts = [os.path.splitext(path.replace(os.sep, "/"))[0].split("/") for path in paths]
    depth = [1] * len(parts)

    def names() -> list[str]:
        return ["/".join(part[-count:]) for part, count in zip(parts, depth)]

    for _ in range(max(map(len, parts), default=0)):
        found = names()
        for place, name in enumerate(found):
            if found.count(name) > 1:
                depth[place] += 1
    return numbered(names())


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


def sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            found.update(block)
    return found.hexdigest()


# ------------------------------------------------------------------------------------------------
# Writing
# ------------------------------------------------------------------------------------------------


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
        failed = WriteError(
            f"{shown(path)!r} cannot be written: {error.strerror or error}. Make room there, or "
            "name another place; what was written before is kept."
        )
        failed.errno = error.errno
        raise failed from error


def _temporary(path: str) -> str:
    """A name beside ``path`` for this process alone; what kills left there before is removed."""
    folder, name = os.path.split(path)
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]  # a long name has room as well
    for left in glob.glob(os.path.join(glob.escape(folder), f".part-{digest}-*")):
        with suppress(OSError):
            if time.time() - os.path.getmtime(left) > _LEFT_BEHIND_S:
                shutil.rmtree(left) if os.path.isdir(left) else os.unlink(left)
    suffix = os.path.splitext(name)[1][:16]
    return os.path.join(folder, f".part-{digest}-{os.getpid()}-{threading.get_ident()}{suffix}")


def write_with(path: str | os.PathLike[str], write: Callable[[str], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then move it there in one step.

    A reader, or a kill, finds the old file or the new one; of two writers, the last one's.

    Raises:
        WriteError: it cannot be written.
    """
    path = os.fspath(path)
    temporary = _temporary(path)
    with writing(path):
        try:
            write(temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


@contextmanager
def filled_at_once(path: str | os.PathLike[str]) -> Iterator[str]:
    """A folder to write to, whose content is moved to ``path`` at the end; on an error, none of it.

    Where ``path`` is not there yet, it comes in one step; else its files are replaced one by one,
    those of subfolders first. What a kill left behind is cleared away by the next call.

    Raises:
        ValueError: as :func:`make_folder`.
        WriteError: the content cannot be moved.
    """
    path = os.path.abspath(os.fspath(path))
    there = os.path.exists(path)
    # Inside a folder that is there, for nothing may be written beside it.
    place = make_folder(path if there else os.path.dirname(path))
    temporary = _temporary(os.path.join(place, os.path.basename(path)))
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


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file in one step."""

    def write(name: str) -> None:
        with open(name, "wb") as file:
            file.write(content)

    write_with(path, write)


def write_wave(path: str, samples: Any, rate: int, subtype: str = "FLOAT") -> None:
    """Write a WAV of (T,) or (T, channels) samples, a tensor on the CPU, in one step."""
    import soundfile

    def write(name: str) -> None:
        # An open file: soundfile cannot open some names in the C locale.
        with open(name, "wb") as file:
            soundfile.write(file, samples.numpy(), rate, format="WAV", subtype=subtype)

    write_with(path, write)


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


def nine_digits(value: Any) -> Any:
    """A number as the tables show it, so that means can be redone from them exactly."""
    return float(cell(float(value))) if isinstance(value, float) else value


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


# ------------------------------------------------------------------------------------------------
# Text for people
# ------------------------------------------------------------------------------------------------


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
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)


# ------------------------------------------------------------------------------------------------
# Reading tables
# ------------------------------------------------------------------------------------------------


def read_table(
    path: str | os.PathLike[str],
    required: Sequence[str] = (),
    numbers: Sequence[str] = (),
    content: str = "a table",
) -> DataFrame:
    """A table of text with a header line, also one that a spreadsheet program has saved again.

    UTF-8 with or without a byte order mark, or UTF-16 with one; columns separated by commas,
    semicolons or tabs; decimal commas where columns are not separated by commas.

    Args:
        path: of the file.
        required: columns that must be there.
        numbers: columns that hold numbers: float64 in the result, NaN where blank or "nan".
            Columns of the list that the file lacks are ignored; all others are text.
        content: what the file should be, for messages.

    Returns:
        A DataFrame with one row per line, blank lines left out; its index ("line") is the number
        of the line in the file, for messages about values.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it cannot be read as such a table; names the file, the line and the cause.
    """
    import pandas

    separator, lines = _lines(path, required, content)
    header = [name.strip() for name in lines[0][1]]
    missing = [name for name in required if name not in header]
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if missing or twice:
        wrong = f"lacks {', '.join(map(repr, missing))}" if missing else f"has {twice[0]!r} twice"
        raise ValueError(
            f"{shown(path)!r} should be {content}, but {wrong} in its header; its columns are "
            f"{listed(map(repr, header), 12)}."
        )
    cells = []
    for line, row in lines[1:]:
        if 2 * len({*row} & {*header}) > len(header):
            raise ValueError(
                f"{shown(path)!r}, line {line} is a second header: two tables were joined, or the "
                "columns changed. Cut the file there, and give each part its own header."
            )
        if any(text.strip() for text in row[len(header) :]):
            raise ValueError(
                f"{shown(path)!r}, line {line}: {len(row)} cells under a header of {len(header)}. "
                "Is a separator or a quotation mark missing or too many?"
            )
        cells.append([*row[: len(header)], *[""] * (len(header) - len(row))])
    index = pandas.Index([line for line, _ in lines[1:]], name="line")
    table = pandas.DataFrame(cells, columns=header, index=index, dtype=object)
    for name in numbers:
        if name in table:
            found = [_number(text, separator != ",") for text in table[name]]
            if None in found:
                place = found.index(None)
                raise ValueError(_no_number(path, index[place], name, table[name].iloc[place]))
            table[name] = pandas.Series(found, index, dtype="float64")
    return table


def _lines(
    path: str | os.PathLike[str], required: Sequence[str], content: str
) -> tuple[str, list[tuple[int, list[str]]]]:
    """The separator, and number and cells of every line that is not blank, the header first."""
    text = _decoded(path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    if not first:
        raise ValueError(f"{shown(path)!r} should be {content}, but is empty.")
    found = {mark: next(csv.reader([first], delimiter=mark)) for mark in (",", ";", "\t")}
    separator = max(found, key=lambda mark: (len({*found[mark]} & {*required}), len(found[mark])))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
        return separator, rows
    except csv.Error as error:
        raise ValueError(
            f"{shown(path)!r}, line {reader.line_num}: cannot be read as {content} ({error})."
        ) from None


def _decoded(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as file:
        data = file.read()
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    else:
        encoding = "utf-8-sig"
    try:
        text = data.decode(encoding)
        place = text.find("\0")
        if place < 0:
            return text
        line, cause = text[:place].count("\n") + 1, "it holds zero bytes, as UTF-16 does"
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        cause = f"byte 0x{data[error.start]:02X} is not UTF-8; cp1252 ('ANSI') perhaps"
        if b"\0" in data:
            cause = "it holds zero bytes, as UTF-16 does"
    raise ValueError(
        f"{shown(path)!r}, line {line}: expected UTF-8 text, but {cause}. Save it again as "
        "'CSV UTF-8'."
    )


def _number(text: str, decimal_commas: bool) -> float | None:
    """A cell as a number, NaN where it is blank; None: it is none."""
    text = text.strip()
    if text.lower() in ("", "nan"):
        return math.nan
    if decimal_commas and text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return None


def _no_number(path: str | os.PathLike[str], line: int, column: str, text: str) -> str:
    hint = ""
    if re.fullmatch(r"\s*-?\d+,\d+\s*", text):
        hint = (
            " Decimal commas are read where semicolons or tabs separate the columns; write "
            f"{text.strip().replace(',', '.')} otherwise."
        )
    return f"{shown(path)!r}, line {line}: {column} must be a number, got {text!r}.{hint}"

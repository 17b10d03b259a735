"""Reading of CSV files from other people, including those saved again by a spreadsheet."""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from torch_mapss.evaluation.io import listed, shown

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_SEPARATORS = ",;\t"
# Excel states the separator of a file in its first line.
_STATED = re.compile(rf'"?sep=([{_SEPARATORS}])"?\r?\n', re.IGNORECASE)


class TableError(ValueError):
    """A file is not the expected table; the message names file, line and reason."""


def read_csv_table(
    path: str | os.PathLike[str],
    required: Sequence[str] = (),
    numbers: Sequence[str] = (),
    content: str = "a table",
) -> DataFrame:
    """Read a CSV file with a header by pandas, and refuse what pandas would misread.

    UTF-8 with or without a byte order mark, or UTF-16 with one; columns separated by commas,
    semicolons or tabs, also with a first line ``sep=;``; decimal commas where columns are not
    separated by commas.

    Args:
        path: path of the file.
        required: required columns.
        numbers: columns to read as float64, NaN where blank or "nan"; all others are text.
        content: description of the file, for messages.

    Returns:
        One row per line, without blank lines. The index ("line") is the row number as in a
        spreadsheet, where the header is row 1, for messages about values.

    Raises:
        FileNotFoundError: the file does not exist.
        TableError: it cannot be read as such a table (a ValueError); names the file, line and
            cause.
    """
    try:
        text = _decoded(path)
        stated = _STATED.match(text)
        body = text[stated.end() :] if stated else text
        separator = stated[1] if stated else _separator(body, required)
        table = _with_header(_cells(body, separator, 2 if stated else 1), required)
    except FileNotFoundError:
        raise FileNotFoundError(f"{shown(path)!r} does not exist; expected {content}.") from None
    except TableError as problem:
        raise TableError(f"{shown(path)!r} should be {content}, but {problem}.") from None
    for name in table.columns.intersection([*numbers]):
        try:
            table[name] = _as_numbers(table[name], decimal_comma=separator != ",")
        except TableError as problem:
            raise TableError(f"{shown(path)!r}, {problem}") from None
    return table


def _decoded(path: str | os.PathLike[str]) -> str:
    """The file's text."""
    data = Path(path).read_bytes()
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + data[: error.start].count(b"\n")
        raise TableError(f"line {line} is not UTF-8: save it as UTF-8 CSV") from None
    if "\0" in text:
        raise TableError("holds zero bytes, as UTF-16 does: save it as UTF-8 CSV")
    return text


def _separator(text: str, required: Sequence[str]) -> str:
    """Separator that yields the most required names in the header, then the most cells."""
    lines = (line for line in text.splitlines() if line.strip(_SEPARATORS + " "))
    header = next(lines, "")

    def quality(sign: str) -> tuple[int, int]:
        names = [name.strip() for name in next(csv.reader([header], delimiter=sign), [])]
        return len({*names} & {*required}), len(names)

    return max(_SEPARATORS, key=quality)


def _cells(text: str, separator: str, first_line: int) -> DataFrame:
    """All non-empty rows as text, numbered like a spreadsheet's from ``first_line``."""
    import pandas

    most_cells = max((line.count(separator) for line in text.splitlines()), default=0) + 1
    try:
        cells = pandas.read_csv(
            StringIO(text, newline=""),
            sep=separator,
            header=None,
            # As many names as the longest row has cells, or pandas would take columns as an index.
            names=range(most_cells),
            index_col=False,
            dtype=str,
            na_filter=False,
            skip_blank_lines=False,
        ).fillna("")
    except pandas.errors.ParserError as error:
        row = re.search(r"at row (\d+)", str(error))
        line = f"line {int(row[1]) + first_line} " if row else ""
        raise TableError(f"{line}cannot be read ({error})") from None
    except pandas.errors.EmptyDataError:
        raise TableError("is empty") from None
    cells.index = pandas.RangeIndex(first_line, first_line + len(cells), name="line")
    return cells[cells.apply(lambda column: column.str.strip() != "").any(axis=1)]


def _with_header(cells: DataFrame, required: Sequence[str]) -> DataFrame:
    """Rows with the first one as header; columns without a name are left out."""
    if cells.empty:
        raise TableError("is empty")
    header = cells.iloc[0].str.strip()
    names = [name for name in header if name]
    columns_of_header = f" in its header: {listed(map(repr, names), 12)}"
    if missing := [name for name in required if name not in names]:
        raise TableError(f"lacks {', '.join(map(repr, missing))}{columns_of_header}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise TableError(f"has {twice[0]!r} twice{columns_of_header}")
    rows = cells.iloc[1:]
    stripped = rows.apply(lambda column: column.str.strip())
    width = int(header[header != ""].index[-1]) + 1
    longer = stripped[(stripped.iloc[:, width:] != "").any(axis=1)]
    if len(longer):
        count = int((longer.iloc[0] != "").to_numpy().nonzero()[0][-1]) + 1
        raise TableError(
            f"line {longer.index[0]} has {count} cells and its header {width}: is a separator or "
            "a quotation mark missing or too many?"
        )
    repeated = stripped[(stripped == header).all(axis=1)]
    if len(repeated):
        raise TableError(f"line {repeated.index[0]} is its header again: cut joined tables apart")
    named = header.index[header != ""]
    return rows[named].set_axis(names, axis=1)


def _as_numbers(texts: Series, decimal_comma: bool) -> Series:
    """float64 of a column, NaN where blank or "nan"."""
    import pandas

    plain = texts.str.strip().replace("", "nan")
    plain = plain.str.replace(",", ".") if decimal_comma else plain
    values = pandas.to_numeric(plain, errors="coerce")
    wrong = values.isna() & plain.str.lower().ne("nan")
    if wrong.any():
        cell = texts[wrong].iloc[0]
        comma = "," in cell
        hint = " Decimal commas need columns separated by semicolons or tabs." if comma else ""
        raise TableError(
            f"line {wrong.idxmax()}: {texts.name} must be a number, got {cell!r}.{hint}"
        )
    return values.astype(float)

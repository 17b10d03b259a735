"""Output of the commands: results to the output stream, everything else to the error stream.

Files are written before anything is printed. If a reader leaves (``| head``), only the output
stream is dropped; failing to print, as on a full disk, is an error like any other. The error
stream may be closed, and messages are then dropped.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

#: Seconds between two progress lines if there is no terminal for a bar.
INTERVAL = 30.0


class OutputError(OSError):
    """The output stream cannot be written to."""


def prepare() -> None:
    """Make the standard streams safe to write to, at the start of a program."""
    for number in (0, 1, 2):
        # A closed stream (>&-) must be reopened: otherwise the next file opened takes its number,
        # and libraries that print in C write into that file.
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, that is this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, StringIO())
        elif hasattr(stream, "reconfigure"):  # unprintable names must not stop the output
            stream.reconfigure(errors="replace")


def say(text: str = "", end: str = "\n") -> None:
    """Print ``text``; no effect once the reader has left, OutputError on a full disk."""
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        sys.stdout = StringIO()  # later output is discarded
        if isinstance(error, BrokenPipeError):
            return
        raise OutputError(
            f"the output cannot be printed: {error.strerror or error}. Free some space, or "
            "redirect the output; all requested files have been written."
        ) from error


def log(text: str) -> None:
    """Print a line to the error stream, after the program's name."""
    with suppress(OSError):
        print(f"torch-mapss: {text}", file=sys.stderr, flush=True)


@contextmanager
def short_warnings(quiet: bool) -> Iterator[None]:
    """Print warnings as one line each, without file names; none if quiet."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        warnings.showwarning = lambda message, *_, **__: log(f"warning: {message}")
        yield


class _Lines:
    """The error stream for tqdm without a terminal: a line for every state of the bar."""

    def write(self, text: str) -> None:
        if text.strip():
            log(text.strip())

    def flush(self) -> None:
        """Every line is printed at once."""


def progress(total: float, quiet: bool = False) -> tqdm[Any]:
    """A bar on a terminal, a line every :data:`INTERVAL` seconds without one, none if quiet."""
    from tqdm import tqdm

    terminal = sys.stderr.isatty()
    line = "scoring: {percentage:3.0f}%{postfix}, {elapsed} so far, {remaining} left"
    bar = "scoring: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
    return tqdm(
        total=total,
        file=sys.stderr if terminal else _Lines(),
        bar_format=bar if terminal else line,
        mininterval=0.2 if terminal else INTERVAL,
        delay=0.0 if terminal else INTERVAL,
        dynamic_ncols=terminal,
        smoothing=0.0,
        leave=terminal,
        disable=quiet or total <= 0,
    )


def duration(seconds: float) -> str:
    """Format seconds as readable text.

    Example:
        >>> duration(42.0), duration(130.0), duration(8000.0)
        ('42 s', '2 min', '2 h 13 min')
    """
    minutes = round(seconds / 60)
    if round(seconds) < 60:
        return f"{round(seconds)} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"

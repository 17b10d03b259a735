"""How a command speaks: results to the output stream, all else to the error stream.

What is asked for is written before anything is printed. A reader that leaves (``| head``) silences
the output stream and nothing else; an output that cannot take what is printed, as on a full disk,
is an error like any other. The error stream may be closed: what cannot be told is dropped.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

#: Seconds between two lines about progress where there is no terminal for a bar.
INTERVAL = 30.0


class OutputError(OSError):
    """The output stream does not take what is printed."""


def prepare() -> None:
    """Make the standard streams safe to write to; at the start of a program."""
    for number in (0, 1, 2):
        # A closed stream (>&-): else the next file that is opened takes its number, and libraries
        # that print in C write into that file.
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    for stream in (sys.stdout, sys.stderr):
        # No name may stop the output, whatever the terminal's encoding.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def say(text: str) -> None:
    """Print ``text``; without effect once the reader has left.

    Raises:
        OutputError: the stream cannot be written to, as on a full disk.
    """
    _printed(text + "\n")


def flush() -> None:
    """Hand on what others have printed.

    Raises:
        OutputError: as :func:`say`.
    """
    _printed("")


def _printed(text: str) -> None:
    stream = sys.stdout
    if stream is None or stream.closed:
        return
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _silence(stream)
        raise OutputError(
            f"the output cannot be printed: {error.strerror or error}. Free some space, or send "
            "it elsewhere; files that were asked for are written."
        ) from error


def complain(text: str) -> None:
    """A line on the error stream, under the program's name."""
    stream = sys.stderr
    if stream is None or stream.closed:
        return
    try:
        print(f"torch-mapss: {text}", file=stream, flush=True)
    except OSError:
        _silence(stream)


def _silence(stream: TextIO) -> None:
    """Let what is written to ``stream`` from now on, buffered text included, go nowhere."""
    with suppress(OSError, ValueError):  # ValueError: no stream of the system's
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextmanager
def short_warnings(quiet: bool) -> Iterator[None]:
    """Warnings as one line each, without file names; none if quiet."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")

        def show(message: Any, category: Any, *rest: Any, **options: Any) -> None:
            del category, rest, options
            complain(f"warning: {message}")

        warnings.showwarning = show
        yield


# ------------------------------------------------------------------------------------------------
# Progress
# ------------------------------------------------------------------------------------------------


class _Lines:
    """The error stream for tqdm without a terminal: a line for every state of the bar."""

    def write(self, text: str) -> None:
        if text.strip():
            complain(text.strip())

    def flush(self) -> None:
        """Nothing is kept back."""


class Bar:
    """How far a work is: a bar on a terminal, a line every :data:`INTERVAL` seconds without one.

    The time that is left comes from the average speed so far.

    Args:
        total: amount of work, e.g. seconds of audio.
        desc: what is done.
        quiet: show nothing.
    """

    def __init__(self, total: float, desc: str, quiet: bool = False) -> None:
        stream = sys.stderr
        self.done, self._bar = 0.0, None
        if quiet or stream is None or stream.closed or total <= 0:
            return
        from tqdm import tqdm

        terminal = stream.isatty()
        form = "{desc}: {percentage:3.0f}%{postfix}, {elapsed} so far, {remaining} left"
        self._bar = tqdm(
            total=total,
            desc=desc,
            file=stream if terminal else _Lines(),
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
            if terminal
            else form,
            mininterval=0.2 if terminal else INTERVAL,
            dynamic_ncols=terminal,
            delay=0.0 if terminal else INTERVAL,
            smoothing=0.0,
            leave=terminal,
        )

    def to(self, done: float, text: str | None = None) -> None:
        """So much is done, and this is at work."""
        if self._bar is not None:
            if text is not None:
                self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(done - self.done)
        self.done = done

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.close()


def duration(seconds: float) -> str:
    """Seconds for people.

    Example:
        >>> duration(42.0), duration(130.0), duration(8000.0)
        ('42 s', '2 min', '2 h 13 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"

"""How a command speaks: results to the output stream, all else to the error stream.

The work does not hang on its output. What is asked for is written before anything is printed; a
reader that leaves (``| head``) silences the output stream and nothing else; an output that cannot
take what is printed, as on a full disk, is an error like any other. The error stream may be closed
as well: what cannot be told is dropped.

Standard library only: ``--help`` is to be quick.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

#: Seconds between two lines about progress where there is no terminal for a bar.
INTERVAL = 30.0


class OutputError(OSError):
    """The output stream does not take what is printed."""


def prepare() -> None:
    """Make the standard streams safe to write to; at the start of a program."""
    _fill_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # No name may stop the output, whatever the terminal's encoding.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _fill_closed_streams() -> None:
    """Open the null device where a standard stream is closed (``>&-``).

    Otherwise the next file that is opened takes its number, and libraries that print in C write
    into that file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one


def say(text: str) -> None:
    """Print ``text``; without effect once the reader has left.

    Raises:
        OutputError: the stream cannot be written to, as on a full disk.
    """
    stream = sys.stdout
    if stream is None or stream.closed:
        return
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _silence(stream)
        raise OutputError(
            f"the output cannot be printed: {error.strerror or error}. Free some space, or send "
            "it elsewhere; files that were asked for are written."
        ) from error


def flush() -> None:
    """Hand on what others have printed, as Python would at its end, where it ends in a traceback.

    Raises:
        OutputError: as :func:`say`.
    """
    stream = sys.stdout
    if stream is None or stream.closed:
        return
    try:
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _silence(stream)
        raise OutputError(f"the output cannot be printed: {error.strerror or error}.") from error


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


def has_terminal() -> bool:
    """Whether a bar can be drawn on the error stream."""
    stream = sys.stderr
    return stream is not None and not stream.closed and stream.isatty()


def progress(
    items: Any, *, quiet: bool = False, desc: str = "", unit: str = "item", **options: Any
) -> Iterable[Any]:
    """``items`` under a progress bar on the terminal, or with a line now and then without one.

    Args:
        items: with a length.
        quiet: neither.
        desc: what is done.
        unit: what the items are, in the singular.
        options: of the bar.

    Raises:
        ImportError: tqdm is missing and a bar is wanted.
    """
    if quiet:
        return items  # type: ignore[no-any-return]
    if not has_terminal():
        return _with_lines(items, desc, unit)
    return _drawn(_bar()(items, desc=desc, unit=unit, **options))


_DETAIL = [""]  # how far the item at work is; drawn behind what stands above it


def detail(text: str) -> None:
    """Say how far the item at work is, in the bar or in the next line; "" when it is done."""
    _DETAIL[0] = text
    bar = _BARS[-1] if _BARS else None
    if bar is not None:
        bar.set_postfix_str(text)


_BARS: list[Any] = []  # that are drawn


def segment_detail() -> Callable[[int, int], None]:
    """What tells, segment by segment of a long file, how far it is and how long it will take."""
    started = [0.0]

    def tell(done: int, total: int) -> None:
        now = time.monotonic()
        if done == 0:
            started[0] = now
        text = f"{done} of {total} segments scored"
        if 0 < done < total:
            left = (now - started[0]) / done * (total - done)
            text += f", about {duration(left)} left in this file"
        detail("" if done == total else text)

    return tell


def _bar() -> Callable[..., Any]:
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError(
            "the progress bar needs tqdm: pip install tqdm (or pass --quiet)"
        ) from error
    return lambda items, **options: tqdm(items, file=sys.stderr, dynamic_ncols=True, **options)


def _drawn(bar: Any) -> Iterator[Any]:
    _BARS.append(bar)
    try:
        for item in bar:
            yield item
            detail("")  # also of an item that failed half way
    finally:
        _BARS.remove(bar)


def _with_lines(items: Any, desc: str, unit: str) -> Iterator[Any]:
    total, done, started = len(items), 0, time.monotonic()

    def line() -> str:
        return f"{desc}: {state(done, total, unit, time.monotonic() - started)}{_behind()}"

    with heartbeat(line):
        for item in items:
            yield item
            done += 1
            detail("")  # also of an item that failed half way


def _behind() -> str:
    return f" ({_DETAIL[0]})" if _DETAIL[0] else ""


def state(done: int, total: int, unit: str, seconds: float) -> str:
    """How far a work of ``total`` parts is after so many seconds.

    Example:
        >>> state(3, 12, "mixture", 60.0)
        '3 of 12 mixtures done, 9 left, 1 min so far, about 3 min left'
    """
    left = total - done
    text = f"{done} of {total} {unit}s done, {left} left, {duration(seconds)} so far"
    return text if done == 0 else f"{text}, about {duration(seconds / done * left)} left"


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


@contextmanager
def heartbeat(line: Callable[[], str]) -> Iterator[None]:
    """Within, ``line()`` goes to the error stream every :data:`INTERVAL` seconds.

    From a thread of its own, as a single item may take longer than that.
    """
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(INTERVAL):
            complain(line())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def stages(count: int, quiet: bool) -> Iterator[Callable[[str], None] | None]:
    """Progress through ``count`` stages, moved on by naming the next one; None if quiet."""
    if quiet:
        yield None
        return
    if not has_terminal():
        with _stage_lines(count) as stage:
            yield stage
        return
    bar = _bar()(range(count), bar_format="{desc} [{n_fmt}/{total_fmt}, {elapsed}]")

    def named(name: str) -> None:
        bar.set_description_str(name, refresh=False)
        bar.update()

    with bar:
        _BARS.append(bar)
        try:
            yield named
        finally:
            _BARS.remove(bar)


@contextmanager
def _stage_lines(count: int) -> Iterator[Callable[[str], None]]:
    names, started = ["starting"], time.monotonic()

    def line() -> str:
        so_far = duration(time.monotonic() - started)
        return f"{names[-1]} (stage {len(names) - 1} of {count}), {so_far} so far{_behind()}"

    with heartbeat(line):
        yield names.append

"""The command ``torch-mapss``: one file per command in ``commands``, and what surrounds them all.

Imports nothing heavy before a command runs, so ``--help`` and wrong usage answer at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch_mapss.evaluation.commands.options import (
    BAD_INPUT,
    CODES,
    INTERRUPTED,
    MEASURES,
    OK,
    make_parser,
)

# In the order of the help; each is a module of ``commands`` with ``add_parser`` and ``run``.
COMMANDS = (
    "score",
    "evaluate",
    "demo",
    "encoders",
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = make_parser(None, "torch-mapss", MEASURES, CODES)
    parser.add_argument("--version", action="version", version=f"torch_mapss {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"torch_mapss.evaluation.commands.{name}")
        module.add_parser(commands)
    return parser


def _version() -> str:
    from torch_mapss import __version__

    return __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: of the command line, ``sys.argv[1:]`` by default.

    Returns:
        The exit code. Wrong usage exits with 2 at once, as argparse does.
    """
    _make_output_safe()
    args = build_parser().parse_args(arguments)
    with _short_warnings(getattr(args, "quiet", False)):
        try:
            return int(args.run(args))
        except KeyboardInterrupt:
            print("torch-mapss: interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:  # the reader of a pipe has left, e.g. `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        except Exception as error:
            _print_error(error, args.debug)
            return BAD_INPUT


def _make_output_safe() -> None:
    """No name may stop the output, whatever the terminal's encoding."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _print_error(error: Exception, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    text = str(error) or type(error).__name__
    expected = (ValueError, TypeError, OSError, ImportError, RuntimeError)
    if not isinstance(error, expected):
        text = f"unexpected {type(error).__name__}: {text}. Run with --debug for the traceback"
    lines = [line for line in text.splitlines() if line.strip()]
    if getattr(error, "problems", None) is None:  # a list of problems keeps its lines
        lines = [" ".join(line.strip() for line in lines)]
    # Under torchrun what all processes find is said by each, and what one alone finds is not lost.
    rank = f" in process {os.environ['RANK']}" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    print(f"torch-mapss: error{rank}: " + "\n".join(lines), file=sys.stderr)


@contextmanager
def _short_warnings(quiet: bool) -> Iterator[None]:
    """Warnings as one line each, without file names; none if quiet."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")

        def show(message: Any, category: Any, *rest: Any, **options: Any) -> None:
            del category, rest, options
            print(f"torch-mapss: warning: {message}", file=sys.stderr)

        warnings.showwarning = show
        yield

"""The command ``torch-mapss``: one file per command in ``commands``, and what surrounds them all.

Imports nothing heavy before a command runs, so ``--help`` and wrong usage answer at once.
"""

from __future__ import annotations

import argparse
import importlib
import traceback
from collections.abc import Sequence

from torch_mapss.evaluation import console, processes, threads
from torch_mapss.evaluation.commands.options import (
    BAD_INPUT,
    CODES,
    INTERRUPTED,
    MEASURES,
    make_parser,
)

# In the order of the help; each is a module of ``commands`` with ``add_parser`` and ``run``.
COMMANDS = (
    "score",
    "evaluate",
    "compare",
    "report",
    "worst",
    "verify",
    "listen",
    "correlate",
    "demo",
    "encoders",
    "distortions",
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

    What is asked for is done and written before anything is printed, so the exit code is that of
    the work, whoever reads the output.

    Args:
        arguments: of the command line, ``sys.argv[1:]`` by default.

    Returns:
        The exit code. Wrong usage exits with 2 at once, as argparse does.
    """
    console.prepare()
    threads.let_idle_threads_sleep()
    debug = False
    try:
        try:
            args = build_parser().parse_args(arguments)
            debug = args.debug
            with console.short_warnings(getattr(args, "quiet", False)):
                code = int(args.run(args))
        finally:
            console.flush()  # of what libraries have printed
        return code
    except KeyboardInterrupt as interruption:
        console.complain(" ".join(["interrupted", *map(str, interruption.args)]))
        return INTERRUPTED
    except Exception as error:
        _print_error(error, debug)
        return BAD_INPUT


def _print_error(error: Exception, debug: bool) -> None:
    if debug:
        console.complain("".join(traceback.format_exception(error)))
    text = str(error) or type(error).__name__
    expected = (ValueError, TypeError, OSError, ImportError, RuntimeError)
    if not isinstance(error, expected):
        text = f"unexpected {type(error).__name__}: {text}. Run with --debug for the traceback"
    lines = [line for line in text.splitlines() if line.strip()]
    if getattr(error, "problems", None) is None:  # a list of problems keeps its lines
        lines = [" ".join(line.strip() for line in lines)]
    # Where several run, what all find is said by each, and what one alone finds is not lost.
    console.complain(f"error{processes.label()}: " + "\n".join(lines))

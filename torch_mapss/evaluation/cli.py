"""The command ``torch-mapss``: parser, start and error handling; ``commands`` has a file for each.

Imports nothing heavy before a command runs, so ``--help`` and wrong usage answer at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch_mapss.evaluation import console
from torch_mapss.evaluation.commands.arguments import BAD_INPUT, CODES, INTERRUPTED, SCORE_HELP
from torch_mapss.evaluation.shard import Shard, launched_shard

# In the order of the help; each is a module of ``commands``: its docstring is the help of the
# command, ``add_options`` adds to its parser, and ``run`` does the work.
COMMANDS = (
    *("score", "evaluate", "compare", "report", "worst", "verify", "listen", "correlate"),
    *("demo", "encoders", "distortions"),
)
# If set in the environment, the traceback of an error is printed as well.
DEBUG = "TORCH_MAPSS_DEBUG"
# Variables of the OpenMP standard, GCC's runtime and LLVM's; if any is set, the user has chosen.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


class _Parser(argparse.ArgumentParser):
    """Parser that prints through ``console``, like the rest of the program; also for commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is None or file is sys.stderr:
            with suppress(OSError):
                super()._print_message(message, file)
        else:
            console.say(message.removesuffix("\n"))


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    from torch_mapss import __version__

    parser = _Parser(prog="torch-mapss", description=SCORE_HELP, epilog=CODES)
    parser.add_argument("--version", action="version", version=f"torch_mapss {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"torch_mapss.evaluation.commands.{name}")
        text = module.__doc__ or ""
        command = commands.add_parser(name, help=text.partition("\n")[0], description=text)
        command.set_defaults(run=module.run)
        module.add_options(command)
    return parser


def let_idle_threads_sleep() -> None:
    """Set ``OMP_WAIT_POLICY=passive`` for this process and those it starts, unless it is too late.

    OpenMP's threads wait for their next task in a busy loop. On a busy machine this takes processor
    time from the very threads that they wait for: with two cores under load, scoring took two to
    six times as long. The variable is read once, when torch loads.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in _WAITING):
        os.environ["OMP_WAIT_POLICY"] = "passive"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, whose arguments are ``sys.argv[1:]`` by default.

    All work is done and written before anything is printed, so the returned exit code is that of
    the work, whoever reads the output. Wrong usage exits with 2 at once.
    """
    console.prepare()
    let_idle_threads_sleep()
    try:
        try:
            args = build_parser().parse_args(arguments)
            with console.short_warnings(getattr(args, "quiet", False)):
                code = int(args.run(args))
        finally:
            console.say(end="")  # flushes what libraries have printed
        return code
    except KeyboardInterrupt as interruption:
        console.log(" ".join(["interrupted", *map(str, interruption.args)]))
        return INTERRUPTED
    except Exception as error:
        _print_error(error)
        return BAD_INPUT


def _print_error(error: Exception) -> None:
    if os.environ.get(DEBUG):
        console.log("".join(traceback.format_exception(error)))
    text = str(error) or type(error).__name__
    if not isinstance(error, ValueError | TypeError | OSError | ImportError | RuntimeError):
        text = f"unexpected {type(error).__name__}: {text}. Set {DEBUG}=1 for the traceback"
    if getattr(error, "problems", None) is None:  # lists of problems keep their line breaks
        text = " ".join(line.strip() for line in text.splitlines())
    shard = Shard()
    with suppress(ValueError):
        shard = launched_shard()
    process = f" in process {shard.number} of {shard.total}" if shard.total > 1 else ""
    console.log(f"error{process}: {text}")

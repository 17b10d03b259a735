"""The directive ``command-reference``: all commands and their options, read from the parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from torch_mapss.evaluation.cli import build_parser


def escaped(text: str) -> str:
    """Help text as reStructuredText, in which only backticks keep their meaning.

    Options become code, where two hyphens stay two hyphens.
    """
    code = re.compile(r"(`[^`\n]+`|(?<![\w-])--[a-z][a-z-]+)")
    pieces = []
    for piece in code.split(text):
        if not code.fullmatch(piece):
            pieces.append(re.sub(r"([\\*|_<>])", r"\\\1", piece))
        else:
            pieces.append(piece if piece.startswith("`") else f"`{piece}`")
    return "".join(pieces)


def indented(lines: Iterable[str]) -> list[str]:
    return [f"   {line}" if line else "" for line in lines]


def paragraphs(text: str) -> Iterator[str]:
    """Prose of a help text as it is, and its indented lines as literal blocks."""
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        literal: list[str] = []
        for line in block.splitlines():
            if line.startswith("  "):
                literal.append(line)
                continue
            if literal:
                yield from ("", "::", "", *indented(literal), "")
                literal = []
            yield escaped(line)
        if literal:
            yield from ("", "::", "", *indented(literal))
        yield ""


def usage(action: argparse.Action, formatter: argparse.HelpFormatter) -> str:
    """An argument as the usage line has it: ``--out DIR``."""
    if not action.option_strings:
        return str(action.metavar or action.dest)
    default = action.dest.upper()
    values = "" if action.nargs == 0 else formatter._format_args(action, default)
    return ", ".join(f"{name} {values}".rstrip() for name in action.option_strings)


def arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    """An ``option`` directive for each argument that the help shows."""
    formatter = parser._get_formatter()
    for action in parser._actions:
        if action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        text = formatter._expand_help(action) if action.help else ""
        required = " Required." if action.required and action.option_strings else ""
        yield from (f".. option:: {usage(action, formatter)}", "")
        if re.match("[a-z]+ ", text):  # a sentence, not a list of values such as "cpu, cuda"
            text = text[:1].upper() + text[1:]
        yield from (f"   {escaped(text)}.{required}", "")


class CommandReference(SphinxDirective):
    """A section for each command: its description, usage, options and closing notes."""

    def run(self) -> list[nodes.Node]:
        parser = build_parser()
        commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        sections: list[nodes.Node] = []
        for name, command in commands.choices.items():
            title = f"torch-mapss {name}"
            section = nodes.section(ids=[nodes.make_id(title)], names=[title])
            section += nodes.title(title, "", nodes.literal("", title))
            lines = [f".. program:: {title}", "", *paragraphs(command.description or "")]
            lines += [".. code-block:: text", "", *indented(command.format_usage().splitlines())]
            lines += ["", *arguments(command), *paragraphs(command.epilog or "")]
            self.state.nested_parse(StringList(lines, source=title), 0, section)
            sections.append(section)
        return sections


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

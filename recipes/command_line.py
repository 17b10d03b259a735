"""What the command lines of the recipes share. Imports nothing heavy: ``--help`` is quick."""

from __future__ import annotations

import argparse


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults beside the options, the description as it is written."""

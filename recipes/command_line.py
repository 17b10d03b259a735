"""What the command lines of the recipes share; it imports nothing heavy, so --help is quick."""

from __future__ import annotations

import argparse


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults with the options, and the description with its own line breaks."""

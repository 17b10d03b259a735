"""List the encoders that --encoder takes by name.

A local folder or hub id (owner/name) of a wav2vec2, HuBERT, WavLM or Whisper checkpoint works as
well.
"""

from __future__ import annotations

import argparse

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands.arguments import OK


def add_options(parser: argparse.ArgumentParser) -> None:
    """This command has no options."""


def run(args: argparse.Namespace) -> int:
    """``torch-mapss encoders``."""
    del args
    from torch_mapss.encoders import encoder_table

    columns = ["name", "checkpoint", "rate (Hz)", "frames/s", "layer"]
    rows = [
        [
            row.name,
            row.checkpoint or "none needed",
            str(row.sample_rate),
            f"{row.frames_per_second:g}",
            "-" if row.layer is None else str(row.layer),
        ]
        for row in encoder_table()
    ]
    console.say(io.text_table(columns, rows, left=2))
    console.say(
        "\nlayer: the default of --layer; 0 is the input of the first block. mert: layer 1 suits "
        "drums better.\nwhisper: files are scored in segments of at most 28 s. A local folder or "
        "hub id (owner/name) works as well."
    )
    return OK

"""Train a small mask-based separator with perceptual terms in its loss, and see what they change.

    python recipes/train_separator.py --speech FOLDER --out runs/table            # all losses
    python recipes/train_separator.py --speech FOLDER --out runs/one --losses 1:2 --curriculum
    python recipes/train_separator.py --speech FOLDER --out runs/try --quick      # half a minute

FOLDER holds speech in any format that soundfile reads. Files in one subfolder, or with one name up
to the first "_", are one talker. The last quarter of each talker's files is held out for the test;
``--validate`` holds out another quarter instead, on which to choose steps and weights. By default
any two talkers are mixed and training is permutation-invariant, which takes many talkers and steps.
``--target anna`` mixes the talker anna with the other ones, anna always first: a few minutes of
speech suffice for that.

Training uses small banks (``--bank-size``), the test whole ones, since scores with small banks are
not comparable. The curriculum's trigger reads scores of the training mixtures. Written to
``--out``: ``log.csv``, ``training.md`` (held-out means over the seeds, and differences from SI-SDR
alone within each seed), ``curves.png`` and the weights.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from command_line import Help

LOSSES = ("si_sdr", "ps", "ps+pm", "clearance", "fidelity", "1:1", "1:2")
QUICK = {"steps": 10, "pool": 6, "test_mixtures": 3, "test_frames": 20, "test_every": 10}


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    add = parser.add_argument
    add("--speech", required=True, help="folder of speech files")
    add("--out", required=True, help="folder for log, page, curves and weights")
    add(
        "--losses",
        nargs="+",
        default=LOSSES,
        help="C:F are weights of clearance and fidelity",
    )
    add("--seeds", nargs="+", type=int, default=[0], help="one run of each loss for each")
    add("--quick", action="store_true", help="few steps and mixtures: to see that it runs")
    add("--target", help="a talker to separate from the others; any two talkers by default")
    add("--validate", action="store_true", help="hold out the quarter before the last one")
    add("--curriculum", action="store_true", help="raise the interferer's level as scores improve")
    add("--encoder", default="mel", help="of PS and PM; wav2vec2-large needs a GPU")
    add("--device", default="cpu", help="of model and scores")
    add("--steps", type=int, default=1500, help="of each run")
    add("--batch", type=int, default=4, help="mixtures per step")
    add("--seconds", type=float, default=2.0, help="length of a training mixture")
    add("--rate", type=float, default=2e-3, help="learning rate")
    add("--frames", type=int, default=60, help="random frames per step that are scored")
    add("--bank-size", type=int, default=24, help="distortions per source in training")
    add("--pool", type=int, default=64, help="prepared pairs of segments")
    add("--refresh", type=int, default=50, help="steps until a batch of them is renewed; 0: never")
    add("--test-mixtures", type=int, default=40, help="number of held-out mixtures")
    add("--test-seconds", type=float, default=3.0, help="length of each")
    add("--test-frames", type=int, default=240, help="random frames of the test, with whole banks")
    add("--test-every", type=int, default=500, help="steps between tests")
    add("--check-every", type=int, default=20, help="steps between checks of the trigger")
    options = parser.parse_args(argv)
    return argparse.Namespace(**vars(options) | (QUICK if options.quick else {}))


def main(argv: Sequence[str] | None = None) -> str:
    """Train all runs asked for; returns the page."""
    options = arguments(argv)
    command = " ".join(["python recipes/train_separator.py", *(argv or sys.argv[1:])])
    command = command.replace(options.speech, "FOLDER").replace(options.out, "OUT")
    from separator_training import train_all  # torch and the rest, which --help does not need

    text = train_all(options, command)
    print(text)
    return text


if __name__ == "__main__":
    main()

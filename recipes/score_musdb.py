"""Score systems on MUSDB18-HQ: vocals, drums, bass and other of every song.

    python recipes/score_musdb.py musdb18hq/test --system demucs=out/demucs \\
        --system umx=out/umx --out results/musdb --excerpts 8

Expects ``ROOT/SONG/{vocals,drums,bass,other}.wav`` (``mixture.wav`` is ignored) and
``FOLDER/SONG/SOURCE.wav`` of every system; another layout is given as a template, e.g.
``--system 'x=out/{mixture}_{source}.wav'``.

The encoder is `mel-44k`, which has 128 bands up to 20 kHz; `mel` would discard all above 8 kHz.
Clearance, fidelity, bleed and SI-SDR are scored. ``--measures decomposition bss`` takes SDR, SIR
and SAR instead, and ``--encoder mel-44k`` adds PS and PM, which take many times as long. Start with
``--excerpts 8``: eight excerpts a song, the same for all systems, with the standard error of every
mean. ``evaluate`` estimates beforehand how long it will take. Songs are mixed down to one channel;
``--channels each`` scores left and right.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataset_scoring import parser_of, score, templates

SOURCES = ("vocals", "drums", "bass", "other")
MEASURES = ("decomposition", "bleed", "si_sdr")


def main(arguments: Sequence[str] | None = None) -> int:
    """Score and compare; returns the exit code of ``torch-mapss evaluate``."""
    parser = parser_of(__doc__ or "", "folder of the songs, e.g. musdb18hq/test")
    parser.add_argument("--sources", nargs="+", default=SOURCES, help="default: all four")
    args, options = parser.parse_known_args(arguments)
    command = ["--references", f"{args.root}/{{mixture}}/{{source}}.wav", "--sources"]
    command += [*args.sources, "--system", *templates(args.system, "{mixture}/{source}.wav")]
    if "--encoder" not in options:
        measures = [] if "--measures" in options else ["--measures", *MEASURES]
        command += ["--encoder", "mel-44k", *measures]
    return score([*command, *options], args.out)


if __name__ == "__main__":
    raise SystemExit(main())

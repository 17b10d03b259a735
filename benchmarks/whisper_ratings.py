"""Whisper, log-mel and the raw waveform held against listeners, on speech and on singing.

    python benchmarks/whisper_ratings.py --whisper FOLDER --data DIR --work runs/whisper

``FOLDER`` holds a Whisper (`whisper_from_ctranslate2.py` makes one), ``DIR`` the folders
``p835ref`` and ``ward2018``, each with a manifest and ratings. Scores are kept in ``--work``, so a
run that was stopped goes on. Every network stands beside its own shape with random weights, for
what those reach was not learned. Writes ``results/whisper.md``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "recipes" / "experiments"))

import encoders  # noqa: E402
import rated  # noqa: E402
import toolkit  # noqa: E402
import untrained  # noqa: E402

PAGE = HERE / "results" / "whisper.md"


class Set(NamedTuple):
    """A rated set and how it is read."""

    folder: str
    manifest: str
    ratings: str
    questions: tuple[str, str]  # of PS, of PM
    text: str
    every: int  # one frame in so many
    tracks: int | None  # at most so many, evenly spaced
    leakage: tuple[int, ...]


SETS = (
    Set(
        "p835ref",
        "mapss_by_talker.json",
        "ratings_by_talker.csv",
        ("bak", "sig"),
        "Speech and noise, 12 conditions of 6 talkers whose noise and distortion are set apart; "
        "`bak` rates the noise, `sig` the distortion, `ovrl` the whole.",
        8,
        None,
        (0, 7),
    ),
    Set(
        "ward2018",
        "mapss.json",
        "ratings.csv",
        ("interference", "quality"),
        "Singing taken out of songs, 5 systems each, rated for interference and for quality.",
        16,
        8,
        (0,),
    ),
)


def run(one: Set, leakage: int, options: argparse.Namespace) -> toolkit.Rows:
    """Score one set, or read what is there."""
    folder = options.data / one.folder
    plain = ["mel", "waveform"] if options.waveform and not leakage else ["mel"]
    named = {
        "--manifest": folder / one.manifest,
        "--ratings": folder / one.ratings,
        "--ps-question": one.questions[0],
        "--pm-question": one.questions[1],
        "--every": one.every * options.coarser,
        "--leakage": leakage,
        "--out": options.work / f"{one.folder}-l{leakage}",
    }
    words = [str(word) for pair in named.items() for word in pair]
    words += ["--encoders", *plain, f"{options.whisper}@{options.layer}"]
    words += [] if leakage else ["--random"]
    words += [] if one.tracks is None else ["--mixtures", str(one.tracks)]
    return encoders.main(words)


def section(one: Set, found: dict[int, toolkit.Rows], options: argparse.Namespace) -> str:
    """The tables of one set."""
    questions = rated.Ratings(options.data / one.folder / one.ratings).questions
    rows = found[0]
    tracks = len(rated.common_tracks(rows))
    lines = [
        f"## {one.folder}",
        "",
        f"{one.text} One frame in {one.every * options.coarser}, `paper` convention; correlations "
        f"over the systems of a track, averaged over {tracks} tracks, ± the standard error of "
        "that average. PS and B should follow the first question, PM and log PM the second, and "
        "each as little as may be the other.",
    ]
    for leakage, here in found.items():
        for method in rated.METHODS:
            title = f"### {method}" + (f", {leakage} leakage members in PM's bank" * bool(leakage))
            lines += ["", title, "", toolkit.markdown(*_cross(here, questions, method))]
    lines += ["", "### What was learned: SRCC less that of the same shape untrained", ""]
    lines += [_learned(rows, questions, rated.shown_name(str(options.whisper)))]
    lines += ["", "### Frames at the ends", "", _saturation(rows)]
    return "\n".join(lines)


def _cross(rows: toolkit.Rows, questions: tuple[str, ...], method: str) -> Any:
    header = ["measure", "encoder", *questions]
    tracks = rated.common_tracks(rows)
    lines = []
    for measure in rated.SHOWN:
        for encoder in rows.distinct("encoder"):
            cells = [
                str(rated.correlation(rows, measure, question, method, tracks, encoder=encoder))
                for question in questions
            ]
            lines.append([toolkit.LABELS[measure], encoder, *cells])
    return header, lines


def _learned(rows: toolkit.Rows, questions: tuple[str, ...], name: str) -> str:
    """Differences over the tracks of both; beyond two standard errors they are in bold."""
    lines = []
    for measure in rated.SHOWN:
        cells = []
        for question in questions:
            found = rated.difference(rows, measure, question, "SRCC", name, name + untrained.MARK)
            bold = "**" if abs(found.value) > 2 * found.error else ""
            cells.append(f"{bold}{found}{bold}")
        lines.append([toolkit.LABELS[measure], *cells])
    return toolkit.markdown(["measure", *questions], lines)


def _saturation(rows: toolkit.Rows) -> str:
    """Mean scores, and outputs whose mean PM is as good as 0: no mean of those can rank."""
    header = ["encoder", "mean PS", "mean PM", "mean log PM", "outputs with mean PM below 0.01"]
    tracks = rated.common_tracks(rows)
    lines = []
    for encoder in rows.distinct("encoder"):
        here = [row for row in rows.where(encoder=encoder) if row["track"] in tracks]
        values = {m: [float(row[m]) for row in here] for m in ("ps", "pm", "log_pm")}
        means = [toolkit.number(sum(found) / len(found)) for found in values.values()]
        dead = sum(value < 0.01 for value in values["pm"])
        lines.append([encoder, *means, f"{dead} of {len(here)}"])
    return toolkit.markdown(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--whisper", type=Path, required=True, help="folder with its weights")
    parser.add_argument("--layer", type=int, default=1)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="where the scores are kept")
    parser.add_argument("--coarser", type=int, default=1, help="so many times fewer frames")
    parser.add_argument("--waveform", action="store_true", help="the raw waveform as well")
    options = parser.parse_args()
    sections = []
    for one in SETS:
        found = {leakage: run(one, leakage, options) for leakage in one.leakage}
        sections.append(section(one, found, options))
    head = (
        "# An encoder with learned weights, on speech and on singing\n\n"
        f"Written by `whisper_ratings.py`. `{rated.shown_name(str(options.whisper))}` is Whisper "
        f"at layer {options.layer}, `(random)` the same shape before any training. These are a few "
        "dozen stimuli: differences of one or two standard errors are no differences.\n"
    )
    toolkit.write_page(PAGE, "\n\n".join([head.strip(), *sections]))
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()

"""Two versions of the package on the same rated outputs: which correlations rose, which fell?

    python recipes/experiments/versions.py --out runs/versions --before runs/before/pair.csv \\
        --after runs/after/pair.csv --sets DATA/ward2018 DATA/p835ref DATA/gensvs

The rows are those of `learned.py`, run with each of the two versions (a checkout on the
PYTHONPATH). For every set, question and score the page has SRCC within tracks before and after, and
the paired difference with its interval over tracks; then the means of systems, hidden references
and anchors, before and after.
"""

from __future__ import annotations

import argparse
import csv
import operator
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import rated
import toolkit

from torch_mapss.score_table import SCORES

NAMES = ("clearance", "fidelity", "bleed_db")
KEYS = ["dataset", "mixture", "system", "source"]


def rows_of(path: Path, encoder: str) -> list[dict[str, str]]:
    """Rows of one encoder in a file of `learned.py`."""
    with open(path, encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["encoder"] == encoder]


def joined_rows(
    before: Sequence[dict[str, str]], after: Sequence[dict[str, str]]
) -> list[dict[str, str]]:
    """Outputs that both have, with ``NAME before`` and ``NAME after``."""
    output_of = operator.itemgetter(*KEYS)
    before_by_output = {output_of(row): row for row in before}
    rows = []
    for row in after:
        row_before = before_by_output.get(output_of(row))
        if row_before is not None:
            values = {f"{name} before": row_before[name] for name in NAMES}
            values |= {f"{name} after": row[name] for name in NAMES}
            rows.append({key: row[key] for key in KEYS} | values)
    return rows


def commits_of(rows: Sequence[dict[str, str]]) -> str:
    """The commits that made the rows, in order of appearance."""
    return ", ".join(dict.fromkeys(row["commit"] for row in rows))


def differences(rows: Sequence[dict[str, str]], ratings: rated.Ratings) -> str:
    """SRCC within tracks before and after, and their difference, for every question and score."""
    lines = []
    for question in ratings.questions:
        keys = [f"{name} before" for name in NAMES] + [f"{name} after" for name in NAMES]
        table = rated.stimuli(rows, keys, question, ratings)
        for name in NAMES:
            before, after = f"{name} before", f"{name} after"
            if not SCORES[name].higher_is_better:
                table[[before, after]] = -table[[before, after]]
            estimates = [rated.correlation(table, key) for key in (before, after)]
            change = rated.correlation(table, after, before)
            low, high = f"{change.low:+.2f}", f"{change.high:+.2f}"
            cells = [str(estimate) for estimate in estimates]
            lines.append([question, name, *cells, f"{change.value:+.2f} [{low}, {high}]"])
    return toolkit.markdown(["question", "score", "before", "after", "after less before"], lines)


def means(rows: Sequence[dict[str, str]]) -> str:
    """Mean scores of the systems, hidden references and anchors, before and after."""
    table = pd.DataFrame(rows)
    columns = [column for column in table if column not in KEYS]
    table[columns] = table[columns].apply(pd.to_numeric, errors="coerce")
    is_control = table["system"].str.startswith(rated.CONTROL)
    group = table["system"].str.removeprefix(rated.CONTROL).where(is_control, "systems")
    lines = []
    for name, values in table.groupby(group)[columns]:
        cells = [toolkit.number(float(mean)) for mean in values.mean()]
        lines.append([str(name), str(len(values)), *cells])
    return toolkit.markdown(["", "outputs", *columns], lines)


def main(arguments: Sequence[str] | None = None) -> str:
    parser = toolkit.parser(__doc__, manifest=False, scoring=False)
    parser.add_argument("--before", type=Path, required=True, help="pair.csv of the old version")
    parser.add_argument("--after", type=Path, required=True, help="pair.csv of the new version")
    parser.add_argument(
        "--sets", type=Path, nargs="+", required=True, help="folders of rated sets, see learned.py"
    )
    parser.add_argument("--encoder", default="mel", help="whose rows are compared")
    options: argparse.Namespace = parser.parse_args(arguments)
    before, after = (rows_of(path, options.encoder) for path in (options.before, options.after))
    commits = [commits_of(rows) for rows in (before, after)]
    about = (
        f"`{options.encoder}`, every frame; before: commit {commits[0]}, after: commit "
        f"{commits[1]}. SRCC over the systems of a track, averaged; in brackets the 95 % interval "
        "over tracks (BCa bootstrap). Bleed is turned, so that more is better. Hidden references "
        "and anchors are in the means alone."
    )
    text = toolkit.page_head(
        "Clearance, fidelity and bleed by two versions", __file__, arguments, about
    )
    for folder in options.sets:
        suffix = "_by_talker" if (folder / "ratings_by_talker.csv").exists() else ""
        ratings = rated.Ratings(folder / f"ratings{suffix}.csv")
        rows = [row for row in joined_rows(before, after) if row["dataset"] == folder.name]
        if rows:
            text += ["", f"## {folder.name}", "", differences(rows, ratings), "", means(rows)]
    toolkit.finish(options, "versions", text)
    return "\n".join(text)


if __name__ == "__main__":
    main()

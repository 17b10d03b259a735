"""The paper's main table from the SEBASS download, in one command [tab:correlations].

    python recipes/experiments/sebass.py --root SEBASS --ratings ratings.csv --out runs/sebass

SEBASS holds one folder for each campaign (SASSEC, SiSEC08, SAOC, PEASS-DB, SiSEC18), and in it
``Signals/orig/NAME_1.wav`` ... for the references and ``Signals/AlgoN/NAME_1.wav`` ... for the
outputs, as the example manifests of the released package name them. From these come

1. a manifest for each scenario: English (sources 1 and 2 of the four talkers of ``female_...`` and
   ``male_...``), Spanish (3 and 4), drums (``wdrums_...``) and no drums (``nodrums_...``);
   `--multilingual` adds one with all four talkers [tab:mono_vs_multi];
2. the page of `listeners.py` for each: scores by the paper's encoder and layer of the scenario and
   by the waveform [tab:correlations_ssl_vs_wavform] (or `--encoders`), and by the rivals;
3. the table in the paper's layout. `errors.py` makes [tab:ci_merged_like_main] of any scenario.

A download with other folders is described by a JSON file (`--layout`), see `LAYOUT` and `layouts/`.
Ratings are a CSV file with campaign, mixture, source, system and mean_rating, or with one column
``file`` (a path as in the layout) in place of the first four; `--columns` maps other names.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import listeners
import rated
import toolkit

LAYOUT: dict[str, Any] = {
    "reference": "{campaign}/Signals/orig/{mixture}_{source}.wav",
    "output": "{campaign}/Signals/{system}/{mixture}_{source}.wav",
    "systems": "Algo\\d+",
    "scenarios": {
        "English": {"mixtures": "(fe)?male_.*", "sources": ["1", "2"]},
        "Spanish": {"mixtures": "(fe)?male_.*", "sources": ["3", "4"]},
        "Music (Drums)": {"mixtures": "wdrums_.*"},
        "Music (No Drums)": {"mixtures": "nodrums_.*"},
    },
}
MULTILINGUAL = {"Multilingual": {"mixtures": "(fe)?male_.*", "sources": ["1", "2", "3", "4"]}}
# The paper's encoder and layer of each scenario; any other scenario takes the first.
PAPER = {
    "English": "wav2vec2-large@2",
    "Spanish": "wav2vec2-xlsr@2",
    "Music (Drums)": "mert@1",
    "Music (No Drums)": "mert@3",
    "Multilingual": "wav2vec2-xlsr@2",
}
FIELDS = ("campaign", "mixture", "source", "system")
QUESTION = "basic audio quality"


class File(NamedTuple):
    """One signal of the download."""

    path: str  # relative to the root
    campaign: str
    mixture: str
    source: str
    system: str | None  # None: a reference


# ------------------------------------------------------------------------------------------------
# Folders -> manifests
# ------------------------------------------------------------------------------------------------


def pattern(template: str, systems: str) -> re.Pattern[str]:
    """The paths that match a template of the layout, with a named group for each field."""
    values = {"system": systems, "campaign": "[^/]+", "source": "[^/_]+"}
    seen = set()
    expression = ""
    # Splitting at a group returns literal text and the names of fields in turn.
    for index, piece in enumerate(re.split(r"\{(\w+)\}", template)):
        if index % 2 == 0:
            expression += re.escape(piece)
        elif piece in seen:
            expression += rf"(?P={piece})"
        else:
            expression += rf"(?P<{piece}>{values.get(piece, '[^/]+?')})"
            seen.add(piece)
    return re.compile(expression)


def files_of(root: Path, layout: Mapping[str, Any]) -> list[File]:
    """Every signal below ``root`` that matches a template of the layout."""
    reference = pattern(layout["reference"], layout["systems"])
    output = pattern(layout["output"], layout["systems"])
    files = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        for kind, expression in (("reference", reference), ("output", output)):
            match = expression.fullmatch(name)
            if match is not None and path.is_file():
                files.append(_file(name, match.groupdict(), kind, layout))
                break
    return files


def _file(name: str, fields: dict[str, str], kind: str, layout: Mapping[str, Any]) -> File:
    campaign = fields.get("campaign", layout.get("campaign", "all"))
    mixture = fields.get("mixture", layout.get("mixture", "mixture"))
    system = fields.get("system") if kind == "output" else None
    return File(name, campaign, mixture, fields["source"], system)


def manifest(
    files: Sequence[File], scenario: str, rule: Mapping[str, Any], root: Path
) -> list[dict[str, Any]]:
    """The entries of one scenario: mixtures that have all their references."""
    files_by_mixture: dict[tuple[str, str], list[File]] = {}
    for file in files:
        if re.fullmatch(rule["mixtures"], file.mixture):
            files_by_mixture.setdefault((file.campaign, file.mixture), []).append(file)
    entries = []
    for (campaign, mixture), of_mixture in files_by_mixture.items():
        references = {file.source: file.path for file in of_mixture if file.system is None}
        sources = rule.get("sources") or sorted(references)
        if len(sources) < 2 or not set(sources) <= set(references):
            continue
        systems: dict[str, list[str | None]] = {}
        for file in of_mixture:
            if file.system is not None and file.source in sources:
                outputs = systems.setdefault(f"{file.system}_{campaign}", [None] * len(sources))
                outputs[sources.index(file.source)] = str(root.resolve() / file.path)
        entries.append(
            {
                "mixture_id": f"{campaign}/{mixture}/{scenario}",
                "scenario": scenario,
                "sources": list(sources),
                "references": [str(root.resolve() / references[name]) for name in sources],
                "systems": systems,
            }
        )
    return entries


def manifests(options: argparse.Namespace) -> dict[str, Path]:
    """Scenario -> its manifest, written into the folder of results.

    Raises:
        SystemExit: no mixture matches the layout.
    """
    layout = layout_of(options)
    files = files_of(options.root, layout)
    written = {}
    for scenario, rule in layout["scenarios"].items():
        entries = manifest(files, scenario, rule, options.root)
        if entries:
            path = options.out / f"{_slug(scenario)}.json"
            toolkit.write_page(path, json.dumps(entries, indent=1, ensure_ascii=False))
            written[scenario] = path
    if not written:
        raise SystemExit(
            f"{options.root} holds no mixture of this layout: {len(files)} files match its "
            "templates. Pass your own with --layout."
        )
    return written


def layout_of(options: argparse.Namespace) -> dict[str, Any]:
    """`LAYOUT`, changed by the file and the options of the command line."""
    layout = LAYOUT
    if options.layout is not None:
        layout = {**LAYOUT, **json.loads(options.layout.read_text(encoding="utf-8"))}
    if options.multilingual:
        layout = {**layout, "scenarios": {**layout["scenarios"], **MULTILINGUAL}}
    return layout


def _slug(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")


# ------------------------------------------------------------------------------------------------
# Ratings
# ------------------------------------------------------------------------------------------------


def ratings(options: argparse.Namespace, scenario: str, manifest_path: Path) -> Path | None:
    """A file of a scenario's ratings, as ``torch-mapss correlate`` reads them; None without any."""
    columns = {name: name for name in (*FIELDS, "mean_rating", "question", "role", "file")}
    columns |= dict(text.split("=", 1) for text in options.columns)
    entries = json.loads(manifest_path.read_text(encoding="utf-8"))
    sources = {entry["mixture_id"]: entry["sources"] for entry in entries}
    with open(options.ratings, encoding="utf-8-sig", newline="") as file:
        rated_rows = list(csv.DictReader(file))
    rows = []
    for row in rated_rows:
        fields = _fields(row, columns, layout_of(options))
        if fields is None:
            continue
        track = f"{fields['campaign']}/{fields['mixture']}/{scenario}"
        if fields["source"] in sources.get(track, ()):
            rows.append(
                {
                    "track": track,
                    "scenario": scenario,
                    "source": fields["source"],
                    "system": f"{fields['system']}_{fields['campaign']}",
                    "question": row.get(columns["question"]) or QUESTION,
                    "role": row.get(columns["role"]) or "system",
                    "mean_rating": row[columns["mean_rating"]],
                }
            )
    if not rows:
        return None
    path = options.out / f"ratings_{_slug(scenario)}.csv"
    toolkit.write_csv(path, rows)
    return path


def _fields(
    row: Mapping[str, str], columns: Mapping[str, str], layout: Mapping[str, Any]
) -> dict[str, str] | None:
    """Campaign, mixture, source and system of a row; None where it does not name an output."""
    if columns["file"] in row:
        match = pattern(layout["output"], layout["systems"]).fullmatch(row[columns["file"]])
        return None if match is None else match.groupdict()
    fallback = {"campaign": layout.get("campaign", "all"), "mixture": layout.get("mixture", "")}
    fields = {name: row.get(columns[name], fallback.get(name)) for name in FIELDS}
    return None if None in fields.values() else fields


# ------------------------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------------------------


def scored(options: argparse.Namespace, scenario: str, manifest_path: Path, table: Path) -> Any:
    """One scenario by `listeners.main`, with the paper's encoder and the waveform."""
    encoders = options.encoders or [PAPER.get(scenario, PAPER["English"]), "waveform"]
    out = options.out / _slug(scenario)
    words = ["--manifest", manifest_path, "--ratings", table, "--out", out, "--encoders", *encoders]
    words += ["--convention", options.convention, "--no-variants"]
    for name in ("sample_frames", "bank_size", "device", "seconds"):
        value = getattr(options, name)
        words += [] if value is None else [f"--{name.replace('_', '-')}", value]
    words += ["--no-rivals"] if options.no_rivals else []
    return listeners.main([str(word) for word in words])


def main_table(
    rows_by_scenario: Mapping[str, Any], tables: Mapping[str, Path]
) -> tuple[list[str], list[list[str]]]:
    """Header and lines: SRCC and PCC (%) in every scenario, by measure and kind of features."""
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for scenario, rows in rows_by_scenario.items():
        ratings_of_scenario = rated.Ratings(tables[scenario])
        (question,) = ratings_of_scenario.questions
        columns = listeners.columns(rows["scores"], rows["rivals"])
        table = listeners.all_measures(columns, question, ratings_of_scenario)
        for column in columns:
            kind = column.encoder and ("waveform" if column.encoder == "waveform" else "SSL")
            values = [rated.correlation(table, column.key, method=m).value for m in rated.METHODS]
            line = cells.setdefault((column.label, kind), {})
            line[scenario] = [toolkit.number(100 * value) for value in values]
    methods = rated.METHODS.values()
    header = ["Measure", "features"]
    header += [f"{s}: {method}" for s, method in itertools.product(rows_by_scenario, methods)]
    lines = []
    for name, line in cells.items():
        values_of_line = [line.get(scenario, ["–", "–"]) for scenario in rows_by_scenario]
        lines.append([*name, *itertools.chain(*values_of_line)])
    return header, lines


def main(arguments: Sequence[str] | None = None) -> tuple[list[str], list[list[str]]]:
    parser = toolkit.parser(__doc__, manifest=False, without=("--encoders", "--convention"))
    parser.add_argument(
        "--encoders",
        nargs="+",
        metavar="NAME[@LAYER]",
        help="for all scenarios (default: the paper's encoder of each, and waveform)",
    )
    parser.add_argument(
        "--convention",
        choices=("paper", "reference"),
        default="reference",
        help="of PS and PM: as in the paper, or as in its released code (default: reference)",
    )
    parser.add_argument("--root", type=Path, required=True, help="folder of the SEBASS download")
    parser.add_argument(
        "--layout",
        type=Path,
        metavar="JSON",
        help="where folders have other names, see `layouts/`",
    )
    parser.add_argument("--ratings", type=Path, required=True, help="CSV file, see above")
    parser.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="NAME=COLUMN",
        help="columns of the ratings with other names, e.g. mean_rating=score",
    )
    parser.add_argument("--seconds", type=float, help="only the beginning of each mixture")
    parser.add_argument(
        "--multilingual", action="store_true", help="add a scenario with all four talkers"
    )
    parser.add_argument("--no-rivals", action="store_true", help="leave out the other measures")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    written = manifests(options)
    tables = {}
    for scenario, manifest_path in written.items():
        path = ratings(options, scenario, manifest_path)
        if path is not None:
            tables[scenario] = path
    if not tables:
        raise SystemExit(
            f"{options.ratings} rates no output of {', '.join(written)}. It needs the columns "
            f"{', '.join(FIELDS)} and mean_rating, or file and mean_rating; name others with "
            "--columns."
        )
    rows_by_scenario = {
        scenario: scored(options, scenario, written[scenario], path)
        for scenario, path in tables.items()
    }
    header, lines = main_table(rows_by_scenario, tables)
    about = f"Correlations with ratings (%), `{options.convention}` convention. {listeners.PAPER}."
    head = toolkit.page_head("SEBASS: Table 1 of the paper", __file__, arguments, about)
    toolkit.finish(options, "table1", [*head, "", toolkit.markdown(header, lines)])
    return header, lines


if __name__ == "__main__":
    main()

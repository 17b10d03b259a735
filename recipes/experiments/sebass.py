"""The paper's main tables from the SEBASS download [tab:correlations, tab:ci_merged_like_main].

    python recipes/experiments/sebass.py --root SEBASS --ratings ratings.csv --out runs/sebass

SEBASS holds one folder for each campaign (SASSEC, SiSEC08, SAOC, PEASS-DB, SiSEC18), and in it
``Signals/orig/NAME_1.wav`` ... for the references and ``Signals/AlgoN/NAME_1.wav`` ... for the
outputs, as the example manifests of the released package name them. From these come

1. a manifest for each scenario: English (sources 1 and 2 of the four talkers of ``female_...`` and
   ``male_...``), Spanish (3 and 4), drums (``wdrums_...``) and no drums (``nodrums_...``);
   `--multilingual` adds one with all four talkers [tab:mono_vs_multi];
2. scores: ``torch-mapss evaluate`` with the paper's encoder and layer of each scenario, or with
   `--encoder`; goes on where it stopped;
3. correlations with the ratings, and both tables in the paper's layout, in Markdown and LaTeX.

The layout is a JSON file (`--layout`) for what lies otherwise, see `layouts/`; `--show-layout`
prints the one above. Ratings are a CSV file with campaign, mixture, source, system and mean_rating
(`--columns` names others), or with one column ``file`` (a path as in the layout) in place of the
first four. Without ratings, it stops after the scores.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import toolkit

from torch_mapss.evaluation.correlate import Correlation, correlate

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
# Encoder and layer of each scenario; another scenario takes the first.
PAPER = {
    "English": ("wav2vec2-large", 2),
    "Spanish": ("wav2vec2-xlsr", 2),
    "Music (Drums)": ("mert", 1),
    "Music (No Drums)": ("mert", 3),
    "Multilingual": ("wav2vec2-xlsr", 2),
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
    """The paths that a template of the layout means; each field a group."""
    parts = re.split(r"\{(\w+)\}", template)
    text = ""
    for place, part in enumerate(parts):
        if place % 2 == 0:
            text += re.escape(part)
            continue
        inner = systems if part == "system" else "[^/]+" if part == "campaign" else "[^/]+?"
        inner = r"[^/_]+" if part == "source" else inner
        text += rf"(?P={part})" if f"(?P<{part}>" in text else rf"(?P<{part}>{inner})"
    return re.compile(text)


def files_of(root: Path, layout: Mapping[str, Any]) -> list[File]:
    """Every signal below ``root`` that the layout knows."""
    reference = pattern(layout["reference"], layout["systems"])
    output = pattern(layout["output"], layout["systems"])
    found = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        for kind, wanted in (("reference", reference), ("output", output)):
            match = wanted.fullmatch(name)
            if match is not None and path.is_file():
                found.append(_file(name, match.groupdict(), kind, layout))
                break
    return found


def _file(name: str, fields: dict[str, str], kind: str, layout: Mapping[str, Any]) -> File:
    campaign = fields.get("campaign", layout.get("campaign", "all"))
    mixture = fields.get("mixture", layout.get("mixture", "mixture"))
    system = fields.get("system") if kind == "output" else None
    return File(name, campaign, mixture, fields["source"], system)


def manifest(
    found: Sequence[File], scenario: str, rule: Mapping[str, Any], root: Path
) -> list[dict[str, Any]]:
    """The entries of one scenario: mixtures that have all their references."""
    groups: dict[tuple[str, str], list[File]] = {}
    for file in found:
        if re.fullmatch(rule["mixtures"], file.mixture):
            groups.setdefault((file.campaign, file.mixture), []).append(file)
    entries = []
    for (campaign, mixture), files in groups.items():
        references = {f.source: f.path for f in files if f.system is None}
        sources = rule.get("sources") or sorted(references)
        if len(sources) < 2 or not set(sources) <= set(references):
            continue
        systems: dict[str, list[str | None]] = {}
        for file in files:
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
    """Scenario -> its manifest, written to the results."""
    layout = layout_of(options)
    found = files_of(options.root, layout)
    written = {}
    for scenario, rule in layout["scenarios"].items():
        entries = manifest(found, scenario, rule, options.root)
        if entries:
            path = options.out / f"{_slug(scenario)}.json"
            toolkit.write_page(path, json.dumps(entries, indent=1, ensure_ascii=False))
            written[scenario] = path
    if not written:
        raise SystemExit(
            f"{options.root} holds no mixture of this layout: {len(found)} files fit its "
            "templates. See --show-layout, and pass your own with --layout."
        )
    return written


def layout_of(options: argparse.Namespace) -> dict[str, Any]:
    layout = LAYOUT
    if options.layout is not None:
        layout = {**LAYOUT, **json.loads(options.layout.read_text(encoding="utf-8"))}
    if options.multilingual:
        layout = {**layout, "scenarios": {**layout["scenarios"], **MULTILINGUAL}}
    return layout


def _slug(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")


# ------------------------------------------------------------------------------------------------
# Scores and ratings
# ------------------------------------------------------------------------------------------------


def score(options: argparse.Namespace, scenario: str, manifest_path: Path) -> Path:
    """The results folder of a scenario."""
    encoder, layer = PAPER.get(scenario, PAPER["English"])
    if options.encoder is not None:
        encoder, layer = options.encoder, options.layer
    out = options.out / _slug(scenario)
    command = [sys.executable, "-m", "torch_mapss", "evaluate", str(manifest_path)]
    command += ["--out", str(out), "--encoder", encoder, "--convention", options.convention]
    command += ["--bounds", "--quiet", "--trim", "--threads", "1"]
    command += [] if layer is None else ["--layer", str(layer)]
    for name in ("sample_frames", "bank_size", "device"):
        value = getattr(options, name)
        command += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    subprocess.run(command, check=True)
    return out


def ratings(options: argparse.Namespace, scenario: str, manifest_path: Path) -> Path | None:
    """A scenario's ratings in the columns of ``torch-mapss correlate``; None without any."""
    columns = {name: name for name in (*FIELDS, "mean_rating", "question", "role", "file")}
    columns |= dict(options.columns)
    entries = json.loads(manifest_path.read_text(encoding="utf-8"))
    sources = {entry["mixture_id"]: entry["sources"] for entry in entries}
    with open(options.ratings, encoding="utf-8-sig", newline="") as file:
        given = list(csv.DictReader(file))
    rows = []
    for row in given:
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
    """Campaign, mixture, source and system of a row; None where its file is no output."""
    if columns["file"] in row:
        match = pattern(layout["output"], layout["systems"]).fullmatch(row[columns["file"]])
        return None if match is None else match.groupdict()
    fallback = {"campaign": layout.get("campaign", "all"), "mixture": layout.get("mixture", "")}
    found = {name: row.get(columns[name], fallback.get(name)) for name in FIELDS}
    return None if any(value is None for value in found.values()) else found


# ------------------------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------------------------

MAIN = ("ps_pesq", "ps", "pm", "log_pm", "foreign_distance", "log_foreign_distance")
ERRORS = {"ps_pesq": "PS", "pm": "PM"}


def rows_of(found: Mapping[str, Correlation], question: str) -> Iterator[tuple[str, str, dict]]:
    """Scenario, measure and row, per track, of one question."""
    for scenario, one in found.items():
        for row in one.rows.to_dict("records"):
            if row["question"] == question and row["pooling"] == "per_track":
                yield scenario, row["measure"], row


def main_table(
    found: Mapping[str, Correlation], question: str
) -> tuple[list[str], list[list[str]]]:
    """SRCC and PCC of every scenario, a line for each measure; PS first in the paper's pooling."""
    cells = {(s, m): row for s, m, row in rows_of(found, question)}
    header = ["Measure", *(f"{s}: {m}" for s in found for m in ("SRCC", "PCC"))]
    lines = []
    for measure in MAIN:
        line = [toolkit.LABELS[measure]]
        for scenario in found:
            row = cells.get((scenario, measure))
            line += (
                ["–", "–"] if row is None else [toolkit.percent(row[k]) for k in ("srcc", "pcc")]
            )
        if any(cell != "–" for cell in line[1:]):
            lines.append(line)
    return header, lines


def error_table(
    found: Mapping[str, Correlation], question: str
) -> tuple[list[str], list[list[str]]]:
    """Radius and 95 % half-width of PS (as pooled in the paper) and PM."""
    cells = {(s, m): row for s, m, row in rows_of(found, question)}
    header = ["Measure", *(f"{s}: {m}" for s in found for m in ("SRCC", "PCC"))]
    lines = []
    for measure, name in ERRORS.items():
        for part, title in (("radius", "radius"), ("half_width", "CIs (95%)")):
            line = [f"{name} {title}"]
            for scenario in found:
                row = cells.get((scenario, measure), {})
                values = [row.get(f"{method}_{part}", float("nan")) for method in ("srcc", "pcc")]
                line += [toolkit.percent(value) for value in values]
            lines.append(line)
    return header, lines


def main(arguments: Sequence[str] | None = None) -> dict[str, Correlation]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="folder of the download")
    parser.add_argument(
        "--layout", type=Path, metavar="JSON", help="where it is laid out otherwise"
    )
    parser.add_argument("--show-layout", action="store_true", help="print the layout and stop")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--ratings", type=Path, help="CSV file, see above")
    parser.add_argument("--columns", nargs="+", type=toolkit.pair, default=[], metavar="NAME=NAME")
    parser.add_argument("--multilingual", action="store_true")
    parser.add_argument("--encoder", help="for all scenarios; default: the paper's of each")
    parser.add_argument("--layer", type=int)
    parser.add_argument("--convention", choices=("paper", "reference"), default="reference")
    parser.add_argument("--error-convention", choices=("paper", "derived"), default="paper")
    parser.add_argument("--sample-frames", type=int, metavar="N", help="of each mixture")
    parser.add_argument("--bank-size", type=int, metavar="N")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--device")
    options = parser.parse_args(arguments)
    if options.show_layout:
        print(json.dumps(LAYOUT, indent=2))
        return {}
    if options.root is None or options.out is None:
        parser.error("--root and --out are needed")
    options.out.mkdir(parents=True, exist_ok=True)
    written = manifests(options)
    folders = {scenario: score(options, scenario, path) for scenario, path in written.items()}
    if options.ratings is None:
        return {}
    found = {}
    for scenario, folder in folders.items():
        table = ratings(options, scenario, written[scenario])
        if table is not None:
            found[scenario] = correlate(
                folder, table, draws=options.draws, convention=options.error_convention
            )
    if not found:
        raise SystemExit(
            f"{options.ratings} rates no output of {', '.join(written)}. It needs the columns "
            f"{', '.join(FIELDS)} and mean_rating, or file and mean_rating; name others with "
            "--columns."
        )
    text = page(options, found)
    toolkit.write_page(options.out / "sebass.md", text)
    print(text)
    return found


def page(options: argparse.Namespace, found: Mapping[str, Correlation]) -> str:
    """Both tables for every question; LaTeX beside it."""
    text = ["# SEBASS", ""]
    for scenario, one in found.items():
        made = len({(s.track, s.source, s.system) for s in one.stimuli})
        text.append(
            f"- {scenario}: {made} rated outputs of {len({s.track for s in one.stimuli})} mixtures"
        )
        text += [f"  - {note}" for note in one.notes]
    questions = dict.fromkeys(
        row["question"] for one in found.values() for row in one.rows.to_dict("records")
    )
    for question in questions:
        tables = {
            "correlations": main_table(found, question),
            "errors": error_table(found, question),
        }
        text += [
            "",
            f"## {question}: SRCC and PCC (%)",
            "",
            toolkit.markdown(*tables["correlations"]),
        ]
        text += [
            "",
            f"Error radius and half-width, `{options.error_convention}` convention (%):",
            "",
        ]
        text += [toolkit.markdown(*tables["errors"])]
        if not tables["correlations"][1]:
            text += ["", "No correlation: at least three rated systems of a source are needed."]
        for name, table in tables.items():
            path = options.out / f"{name}_{_slug(question)}.tex"
            toolkit.write_page(path, toolkit.latex(*table))
    return "\n".join(text)


if __name__ == "__main__":
    main()

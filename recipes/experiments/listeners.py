"""All measures against listeners, on one page [tab:correlations, tab:ci_merged_like_main].

    python recipes/experiments/listeners.py --manifest FOLDER/mapss.json \
        --ratings FOLDER/ratings.csv --sample-frames 20 --out runs/listeners

Scores the manifest with every encoder in every convention (``torch-mapss evaluate``, which goes on
where it stopped), and by the rivals (`rivals.py`); correlates all of them with every question
(``torch-mapss correlate``); and writes the page: the measures crossed with the questions, what the
errors of the scores may change in both conventions, which measure is better than which, and where
it goes wrong: the tracks, the systems, and how far PM has run into 0.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rivals
import toolkit

from torch_mapss import MAPSS, DistortionBank
from torch_mapss.evaluation.correlate import Correlation, correlate

SHOWN = ("ps", "ps_pesq", "pm", "log_pm", "foreign_distance", "log_foreign_distance")
LOOKED_AT = ("ps", "log_foreign_distance", "log_pm")
GONE = 1e-6  # a PM below this has saturated


def score(options: argparse.Namespace) -> dict[tuple[str, str], Path]:
    """(encoder, convention) -> folder of results."""
    found = {}
    for encoder in options.encoders:
        for convention in options.conventions:
            folder = options.out / f"{encoder}_{convention}"
            found[encoder, convention] = folder
            if options.scored and (folder / "scores.csv").exists():
                continue
            command = [sys.executable, "-m", "torch_mapss", "evaluate", str(options.manifest)]
            command += ["--encoder", encoder, "--convention", convention, "--out", str(folder)]
            command += ["--threads", "1", "--quiet", "--device", options.device or "cpu"]
            if options.sample_frames:
                command += ["--sample-frames", str(options.sample_frames)]
            if options.bank_size:
                command += ["--bank-size", str(options.bank_size)]
            if (encoder, convention) == (options.encoders[0], options.conventions[0]):
                command += ["--bounds"]
            subprocess.run(command, check=True)
    return found


def rival_scores(options: argparse.Namespace) -> list[Path]:
    """The table of the rivals, unless it is not wanted."""
    folder = options.out / "rivals"
    if options.no_rivals:
        return []
    if not (options.scored and (folder / "rivals.csv").exists()):
        arguments = ["--manifest", str(options.manifest), "--out", str(folder)]
        rivals.main([*arguments, "--rate", str(options.rate)])
    return [folder / "rivals.csv"]


def correlated(
    options: argparse.Namespace, folders: dict[tuple[str, str], Path], others: list[Path]
) -> dict[tuple[str, str], Correlation]:
    """The correlations of every folder; the rivals' are in the first one's."""
    found = {}
    for place, (name, folder) in enumerate(folders.items()):
        made = correlate(
            folder,
            options.ratings,
            columns=dict(options.columns),
            sources=dict(options.source_map),
            rivals=() if place else others,
            draws=options.draws,
        )
        made.save(options.out / f"correlations_{'_'.join(name)}")
        found[name] = made
    return found


# ------------------------------------------------------------------------------------------------
# The page
# ------------------------------------------------------------------------------------------------


def groups_of(found: Correlation) -> list[tuple[str, str]]:
    """Scenarios and questions."""
    return list(
        dict.fromkeys((row["scenario"], row["question"]) for row in found.rows.to_dict("records"))
    )


def cell(row: dict[str, Any], method: str) -> str:
    """A correlation with its interval, as two decimals."""
    value, low, high = (row[name] for name in (method, f"{method}_low", f"{method}_high"))
    if math.isnan(low):
        return toolkit.number(value)
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def crossed(found: dict[tuple[str, str], Correlation], scenario: str, question: str) -> str:
    """All measures against one question, the best SRCC first."""
    lines = []
    for (encoder, convention), one in found.items():
        rows = [
            r
            for r in one.rows.to_dict("records")
            if (r["scenario"], r["question"]) == (scenario, question)
        ]
        for row in rows:
            if row["pooling"] != "per_track":
                continue
            (pooled,) = (
                r for r in rows if r["pooling"] == "pooled" and r["measure"] == row["measure"]
            )
            own = row["measure"] in SHOWN
            name = one.labels[row["measure"]] if own else rivals.RIVALS[row["measure"]].label
            line = [name, *((encoder, convention) if own else ("", ""))]
            line += [cell(row, "srcc"), cell(row, "pcc"), f"{row['p_holm']:.3f}"]
            line += [toolkit.number(pooled[m]) for m in ("srcc", "pcc")]
            lines.append((row["srcc"], [*line, str(row["tracks"])]))
    lines.sort(key=lambda pair: -pair[0] if not math.isnan(pair[0]) else 2.0)
    header = ["measure", "encoder", "convention", "SRCC", "PCC", "p (Holm)"]
    header += ["pooled SRCC", "PCC", "tracks"]
    return toolkit.markdown(header, [line for _, line in lines])


def errors(options: argparse.Namespace, folder: Path, scenario: str, question: str) -> str:
    """Radius and half-width of the first folder's correlations in both conventions, in %."""
    lines = []
    for convention in ("derived", "paper"):
        one = correlate(
            folder,
            options.ratings,
            columns=dict(options.columns),
            sources=dict(options.source_map),
            draws=0,
            convention=convention,
        )
        for row in one.rows.to_dict("records"):
            here = (row["scenario"], row["question"], row["pooling"])
            if (
                here == (scenario, question, "per_track")
                and row["srcc_radius"] == row["srcc_radius"]
            ):
                names = ("srcc_radius", "srcc_half_width", "pcc_radius", "pcc_half_width")
                cells = [toolkit.percent(row[name]) for name in names]
                lines.append([one.labels[row["measure"]], convention, *cells])
    header = ["measure", "convention", "SRCC radius", "half-width", "PCC radius", "half-width"]
    return toolkit.markdown(header, lines)


def better(one: Correlation, scenario: str, question: str) -> str:
    """Differences of SRCC between the own measures, and to some rivals."""
    lines = []
    for row in one.differences.to_dict("records"):
        here = (row["scenario"], row["question"], row["pooling"], row["method"])
        names = row["measure_a"], row["measure_b"]
        own = all(name in LOOKED_AT for name in names)
        rival = names[0] in LOOKED_AT and names[1] in ("sir", "sar", "pesq", "si_sdr", "visqol")
        if here == (scenario, question, "per_track", "srcc") and (own or rival):
            label = [one.labels[names[0]], toolkit.LABELS.get(names[1], "")]
            label[1] = label[1] or rivals.RIVALS[names[1]].label
            text = f"{row['difference']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
            lines.append([*label, text])
    return toolkit.markdown(["measure", "minus", "difference of SRCC"], lines)


def by_track(one: Correlation, scenario: str, question: str) -> str:
    """SRCC of each track, the worst of the first measure first."""
    values: dict[str, dict[str, float]] = {}
    for unit in one.units.to_dict("records"):
        if (unit["scenario"], unit["question"]) == (scenario, question):
            name = f"{unit['track']} {unit['source']}"
            values.setdefault(name, {})[unit["measure"]] = unit["srcc"]
    lines = [
        [name, *(toolkit.number(found.get(m, math.nan)) for m in LOOKED_AT)]
        for name, found in sorted(values.items(), key=lambda pair: pair[1].get("ps", math.nan))
    ]
    return toolkit.markdown(["track", *(toolkit.LABELS[m] for m in LOOKED_AT)], lines)


def by_system(one: Correlation, scenario: str, question: str) -> str:
    """How much higher than the listeners each measure ranks each system within its tracks."""
    from scipy.stats import rankdata

    table = one.stimuli
    here = table[(table["scenario"] == scenario) & (table["question"] == question)]
    misplaced: dict[str, dict[str, list[float]]] = {}
    for _, group in here.groupby(["track", "source"], sort=False):
        rated = rankdata(group["rating"])
        for measure in (name for name in LOOKED_AT if name in group):
            if group[measure].isna().any():
                continue
            for system, off in zip(group["system"], rankdata(group[measure]) - rated):
                found = misplaced.setdefault(system, {})
                found.setdefault(measure, []).append(float(off))
    lines = []
    for system, found in sorted(misplaced.items()):
        rating = float(here.loc[here["system"] == system, "rating"].mean())
        count = max(map(len, found.values()))
        cells = [f"{np.mean(found[m]):+.1f}" if m in found else "–" for m in LOOKED_AT]
        lines.append([system, str(count), f"{rating:.2f}", *cells])
    header = ["system", "tracks", "mean rating", *(toolkit.LABELS[m] for m in LOOKED_AT)]
    return toolkit.markdown(header, lines)


def saturation(found: dict[tuple[str, str], Correlation]) -> str:
    """How far PM has run into 0, per encoder and convention."""
    lines = []
    for (encoder, convention), one in found.items():
        here = one.stimuli[one.stimuli["question"] == one.stimuli["question"].iloc[0]]
        pm, log_pm, ps = (here[name].to_numpy(float) for name in ("pm", "log_pm", "ps"))
        lines.append(
            [encoder, convention, f"{np.nanmean(ps):.2f}", f"{np.nanmean(pm):.3f}"]
            + [f"{np.nanmedian(pm):.2g}", f"{100 * np.nanmean(pm < GONE):.0f} %"]
            + [f"{np.nanmedian(log_pm):.3g}"]
        )
    header = ["encoder", "convention", "mean PS", "mean PM", "median PM", f"PM below {GONE:g}"]
    return toolkit.markdown([*header, "median log PM"], lines)


def dimensions(options: argparse.Namespace) -> str:
    """Mean retained d of both maps in some frames, beside the number of distortions."""
    lines = []
    for encoder in options.encoders:
        for convention in options.conventions:
            banks = {}
            if options.bank_size:
                kinds = ("separation", "match")
                banks = {f"{k}_bank": DistortionBank(k, size=options.bank_size) for k in kinds}
            mapss = MAPSS(encoder, convention=convention, **banks)
            found: dict[str, list[float]] = {"separation": [], "match": [], "members": []}
            mixtures = toolkit.load_mixtures(
                options.manifest, mapss.sample_rate, limit=options.dimension_mixtures, seconds=4.0
            )
            for mixture in mixtures:
                bank = mapss.prepare(mixture.references[None])
                scores = mapss(mixture.references[None, :1], bank, attributed=(0,), frames=12)
                active = scores.active[0, 0]
                for kind in ("separation", "match"):
                    of_frame = getattr(scores, f"{kind}_dimension")[0][active].double()
                    found[kind].append(float(of_frame.mean()))
                found["members"].append(float(bank.groups[0].encoded["match"].distortions.shape[2]))
            cells = [f"{np.mean(found[k]):.0f}" for k in ("separation", "match", "members")]
            cells.insert(1, str(len(mapss.separation_bank)))
            lines.append([encoder, convention, *cells])
    header = ["encoder", "convention", "d of PS's map", "N_p of PS", "d of PM's map", "N_p of PM"]
    return toolkit.markdown(header, lines)


def page(
    options: argparse.Namespace,
    folders: dict[tuple[str, str], Path],
    found: dict[tuple[str, str], Correlation],
) -> str:
    """All sections."""
    (name, first), *_ = found.items()
    stimuli = len(first.stimuli[["track", "source", "system"]].drop_duplicates())
    tracks = first.stimuli["track"].nunique()
    frames = f"{options.sample_frames} frames each" if options.sample_frames else "every frame"
    text = [
        f"# {options.manifest.parent.name}: scores against listeners",
        "",
        f"Written by `recipes/experiments/listeners.py`. {tracks} tracks, {stimuli} outputs, "
        f"{frames}. SRCC and PCC over the systems of a track, averaged; in brackets the 95 % "
        "interval over tracks; p of permutations within tracks, corrected for all measures of one "
        "encoder and convention (with the rivals in the first one's).",
        "",
        *(f"- {note}." for note in first.notes),
        "",
        "## How far PM has run into 0",
        "",
        saturation(found),
        "",
        f"Retained coordinates d, means over 12 frames of {options.dimension_mixtures} mixtures, "
        "and distortions N_p of each source:",
        "",
        dimensions(options),
    ]
    for scenario, question in groups_of(first):
        title = question if scenario == "all" else f"{question}, {scenario}"
        main = ", ".join(f"`{part}`" for part in name)
        text += ["", f"## {title}", "", crossed(found, scenario, question)]
        text += ["", f"What the errors of the scores may change (%), {main}:", ""]
        text += [errors(options, folders[name], scenario, question)]
        text += ["", f"Which is better, {main}:", "", better(first, scenario, question)]
        text += ["", f"SRCC of each track, {main}:", "", by_track(first, scenario, question)]
        text += ["", "By how many ranks a measure places a system too high (+) or too low (−):", ""]
        text += [by_system(first, scenario, question)]
    return "\n".join(text)


def missing_rivals() -> str:
    """The paper's measures that were not run."""
    return toolkit.markdown(["not run", "why"], [list(pair) for pair in rivals.not_run().items()])


def main(arguments: Sequence[str] | None = None) -> dict[tuple[str, str], Correlation]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--manifest", type=Path, required=True)
    toolkit.add_ratings(parser, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--encoders", nargs="+", default=["mel", "waveform"])
    parser.add_argument("--conventions", nargs="+", default=["paper", "reference"])
    parser.add_argument("--sample-frames", type=int, metavar="N", help="of each mixture")
    parser.add_argument("--bank-size", type=int, metavar="N")
    parser.add_argument("--rate", type=int, default=16000, help="Hz, of the rivals' energy ratios")
    parser.add_argument("--dimension-mixtures", type=int, default=2, metavar="N")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--scored", action="store_true", help="take the scores that are in --out")
    parser.add_argument("--device")
    parser.add_argument("--page", type=Path, help="also write the page here")
    options = parser.parse_args(arguments)
    folders = score(options)
    found = correlated(options, folders, rival_scores(options))
    text = page(options, folders, found)
    if not options.no_rivals:
        text += f"\n\n## The paper's measures that are not here\n\n{missing_rivals()}"
    toolkit.write_page(options.out / "listeners.md", text)
    if options.page:
        toolkit.write_page(options.page, text)
    print(text)
    return found


if __name__ == "__main__":
    main()

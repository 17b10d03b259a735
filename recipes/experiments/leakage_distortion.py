"""Does PS react to leakage alone, and PM to distortion alone? [tab:alpha_lambda]

    python recipes/experiments/leakage_distortion.py --manifest FOLDER/manifest.json --out runs/leak

The first source of every mixture is the target y1, and no separator takes part:

* leakage: y1 + α times the other sources, α from 0 to 1;
* distortion: a kind that is in neither bank, from λ = 0 to 1. The paper does not name its own;
  here the phase of every STFT bin of y1 is turned by a uniform angle within ±πλ, which leaves the
  magnitudes (almost) as they are.

Prints the paper's table, PS/PM of every scenario, the same of log PM and of the distance B to the
closest foreign cluster, and the correlation of each measure with α and with λ within a mixture.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import toolkit
import torch
from torch import Tensor

from torch_mapss.bounds import pearson, spearman

SWEEPS = {"leakage": "α", "distortion": "λ"}
SHOWN = ("ps", "pm", "log_pm", "log_foreign_distance")


def leaking(references: Tensor, amount: float) -> Tensor:
    """(T,) the first of (S, T) references with ``amount`` of all others."""
    return references[0] + amount * references[1:].sum(0)


def random_phase(references: Tensor, amount: float) -> Tensor:
    """(T,) the first reference with its STFT phase turned by uniform angles within ±π·amount."""
    window = torch.hann_window(512)
    spectrum = torch.stft(references[0], 512, 128, window=window, return_complex=True)
    generator = torch.Generator().manual_seed(0)
    angle = (2 * torch.rand(spectrum.shape, generator=generator) - 1) * math.pi * amount
    turned = spectrum * torch.polar(torch.ones_like(angle), angle)
    return torch.istft(turned, 512, 128, window=window, length=references.shape[-1])


MAKERS = {"leakage": leaking, "distortion": random_phase}


def run(options: argparse.Namespace) -> toolkit.Rows:
    """Score every mixture at every strength."""
    keys = ("encoder", "scenario", "mixture", "sweep", "amount")
    settings = toolkit.settings_of(options, "encoders", "mixtures")
    rows = toolkit.Rows(options.out, keys, (*toolkit.MEASURES, "frames"), settings)
    amounts = [step / max(options.steps - 1, 1) for step in range(options.steps)]
    for encoder in options.encoders:
        mapss = toolkit.scorer(options, encoder)
        found = toolkit.load_mixtures(
            options.manifest,
            mapss.sample_rate,
            seconds=options.seconds,
            limit=options.mixtures,
        )
        for mixture in toolkit.progress(list(found), f"{encoder}, mixtures"):
            name = (encoder, mixture.scenario, mixture.name)
            wanted = [(s, a) for s in SWEEPS for a in amounts if not rows.has(*name, s, a)]
            if not wanted:
                continue
            bank = mapss.prepare(mixture.references[None])
            for sweep, amount in wanted:
                estimate = MAKERS[sweep](mixture.references, amount)
                scores = toolkit.target_scores(mapss, bank, estimate, every=options.every)
                rows.add(**dict(zip(keys, (*name, sweep, amount))), **scores)
    return rows


def tables(rows: toolkit.Rows, sweep: str, encoder: str) -> tuple[list[str], list[list[str]]]:
    """Rows α or λ, columns scenarios, as the paper prints them, then all scenarios together."""
    scenarios = rows.distinct("scenario")
    groups: list[dict[str, Any]] = [{"scenario": name} for name in scenarios]
    groups = groups if len(groups) == 1 else [*groups, {}]
    names = scenarios if len(scenarios) == 1 else [*scenarios, "together"]
    header = [SWEEPS[sweep], *(f"{name}: PS/PM" for name in names), "log PM", "log B"]
    lines = []
    for amount in sorted({float(a) for a in rows.distinct("amount")}):
        here: dict[str, Any] = {"sweep": sweep, "encoder": encoder, "amount": amount}
        cells = [
            "/".join(toolkit.number(rows.mean(m, **here, **group)) for m in ("ps", "pm"))
            for group in groups
        ]
        more = [toolkit.number(rows.mean(m, **here)) for m in SHOWN[2:]]
        lines.append([f"{amount:.2f}", *cells, *more])
    return header, lines


def sensitivity(rows: toolkit.Rows, encoder: str) -> list[list[str]]:
    """SRCC and PCC of each measure with the strength, within a mixture, averaged over them."""
    lines = []
    for measure in SHOWN:
        cells = []
        for sweep in SWEEPS:
            values = []
            for mixture in rows.distinct("mixture"):
                found = rows.where(mixture=mixture, encoder=encoder, sweep=sweep)
                pairs = [(float(row[measure]), float(row["amount"])) for row in found]
                values.append(_correlations(pairs))
            both = [[v[k] for v in values if math.isfinite(v[k])] for k in (0, 1)]
            cells += [toolkit.percent(sum(v) / len(v)) if v else "–" for v in both]
        lines.append([toolkit.LABELS[measure], *cells])
    return lines


def _correlations(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    x, y = torch.tensor(pairs, dtype=torch.float64).T
    if len(pairs) < 3 or not bool(x.isfinite().all()) or bool((x == x[0]).all()):
        return math.nan, math.nan
    return float(spearman(x, y)), float(pearson(x, y))


def draw(rows: toolkit.Rows, path: Path) -> None:
    """PS, PM and log PM over the strength, a panel for each sweep and encoder."""
    encoders = rows.distinct("encoder")
    figure = toolkit.new_figure(8.0, 3.0 * len(encoders))
    grid = figure.subplots(len(encoders), 2, squeeze=False, sharey=True)
    for line, encoder in zip(grid, encoders):
        for axis, sweep in zip(line, SWEEPS):
            amounts = sorted({float(a) for a in rows.distinct("amount")})
            for measure, colour in (("ps", "#0b4f79"), ("pm", "#e8871e")):
                for scenario in rows.distinct("scenario"):
                    here = {"sweep": sweep, "encoder": encoder, "scenario": scenario}
                    values = [rows.mean(measure, **here, amount=a) for a in amounts]
                    axis.plot(amounts, values, color=colour, alpha=0.35, linewidth=0.8)
                here = {"sweep": sweep, "encoder": encoder}
                values = [rows.mean(measure, **here, amount=a) for a in amounts]
                axis.plot(amounts, values, color=colour, linewidth=2, label=measure.upper())
            axis.set(xlabel=f"{sweep} {SWEEPS[sweep]}", ylim=(-0.02, 1.02), title=encoder)
            axis.grid(alpha=0.3)
    grid[0][0].set_ylabel("mean over frames and mixtures")
    grid[0][0].legend()
    toolkit.save_figure(figure, path)


def page(rows: toolkit.Rows, options: argparse.Namespace) -> str:
    """The tables of all encoders in Markdown."""
    mixtures = len(rows.distinct("mixture"))
    frames = "every frame" if options.every <= 1 else f"one frame in {options.every}"
    lines = [
        "# Leakage and distortion apart",
        "",
        f"{mixtures} mixtures of {options.manifest.parent.name}, the first source of each, "
        f"{frames}, `{options.convention}` convention. PS/PM are means over frames, then mixtures; "
        "log PM and log B likewise, over all scenarios.",
    ]
    for encoder in rows.distinct("encoder"):
        for sweep in SWEEPS:
            lines += [
                "",
                f"## {sweep}, `{encoder}`",
                "",
                toolkit.markdown(*tables(rows, sweep, encoder)),
            ]
        header = ["measure", "leakage: SRCC", "PCC", "distortion: SRCC", "PCC"]
        lines += ["", f"## Correlation with the strength, `{encoder}` (%)", ""]
        lines += [toolkit.markdown(header, sensitivity(rows, encoder))]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__)
    parser.add_argument("--steps", type=int, default=10, help="strengths from 0 to 1")
    toolkit.add_scoring(parser)
    options = parser.parse_args(arguments)
    rows = run(options)
    text = page(rows, options)
    toolkit.write_page(options.out / "leakage_distortion.md", text)
    for sweep in SWEEPS:
        tex = toolkit.latex(*tables(rows, sweep, options.encoders[0]))
        toolkit.write_page(options.out / f"{sweep}.tex", tex)
    draw(rows, options.out / "leakage_distortion.png")
    print(text)
    return rows


if __name__ == "__main__":
    main()

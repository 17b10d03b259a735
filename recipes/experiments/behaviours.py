"""What each measure makes of outputs whose fault is known: silence, noise, leakage, delay, …

    python recipes/experiments/behaviours.py --manifest FOLDER/manifest.json --out runs/behaviours

The target is the first source of every mixture, with two and with three talkers, and each output
has one fault. The tables show PS, PM and log PM, clearance and fidelity, these two without a map
(the control), and with other numbers of distortions and other diffusion times (`variants.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import signals
import toolkit
import variants

# Name -> maker and amount. Names that contain `THREE` need three talkers.
BEHAVIOURS: dict[str, tuple[signals.Maker, float]] = {
    "reference": (signals.scaled, 1.0),
    "gain -12 dB": (signals.scaled, 0.25),
    "polarity inverted": (signals.scaled, -1.0),
    "silence": (signals.silence, 0.0),
    "noise alone": (signals.noise_alone, 0.0),
    "noise, 20 dB SNR": (signals.noisy, 20.0),
    "noise, 0 dB SNR": (signals.noisy, 0.0),
    "low-pass 3 kHz": (signals.lowpass, 3000.0),
    "low-pass 300 Hz": (signals.lowpass, 300.0),
    "other source": (signals.source, 1.0),
    "sum of the others (3 talkers)": (signals.others, 0.0),
    "mixture": (signals.leakage, 1.0),
    "leakage 0.11": (signals.leakage, 0.11),
    "leakage 0.33": (signals.leakage, 0.33),
    "leakage 0.67": (signals.leakage, 0.67),
    "leakage 0.33, below 1 kHz": (signals.filtered_leakage, 0.33),
    "leakage 0.33, 30 ms late": (signals.delayed_leakage, 0.33),
    "leakage 0.33, reverberant": (signals.reverberant_leakage, 0.33),
    "random phase 0.11": (signals.random_phase, 0.11),
    "random phase 0.33": (signals.random_phase, 0.33),
    "random phase 0.67": (signals.random_phase, 0.67),
    "random phase 1": (signals.random_phase, 1.0),
    "clipping at 0.3 of the peak": (signals.clipped, 0.3),
    "clipping at 0.03 of the peak": (signals.clipped, 0.03),
    "delay 1 ms": (signals.delayed, 1.0),
    "delay 20 ms": (signals.delayed, 20.0),
    "delay 100 ms": (signals.delayed, 100.0),
    "ideal ratio mask": (signals.ratio_mask, 0.0),
}
THREE = "(3 talkers)"
SHOWN = ("clearance", "fidelity", "ps", "pm", "log_pm_compressed", "log_foreign_distance")
KEYS = ("encoder", "talkers", "mixture", "behaviour")


def run(options: argparse.Namespace) -> toolkit.Rows:
    """Score every behaviour of every mixture."""
    columns = (*toolkit.MEASURES, "frames", *variants.COLUMNS)
    rows = toolkit.Rows(options.out, KEYS, columns, toolkit.settings_of(options, "talkers"))
    for encoder in options.encoders:
        mapss = toolkit.scorer(options, encoder)
        varied = variants.scorer(encoder, options.device)
        rate = mapss.grid.sample_rate
        for talkers in options.talkers:
            for mixture in toolkit.load_mixtures(options, rate, talkers=talkers):
                bank = reference = None
                for name, (maker, amount) in BEHAVIOURS.items():
                    key = toolkit.shown(encoder), talkers, mixture.name, name
                    if rows.has(*key) or (THREE in name and talkers < 3):
                        continue
                    bank = bank or mapss.prepare(mixture.references[None], measures=toolkit.ENCODED)
                    reference = reference or variants.prepared(varied, mixture.references)
                    output = maker(mixture.references, rate, amount)
                    frames = options.sample_frames
                    scores = toolkit.target_scores(mapss, bank, output, frames=frames)
                    scores |= variants.variants(reference, output, frames=frames)
                    rows.add(*key, **scores)
    return rows


def table(rows: toolkit.Rows, encoder: str, talkers: int) -> str:
    """Means over mixtures; a line for each behaviour."""
    control = [f"{variants.CONTROL}: {kind}" for kind in ("clearance", "fidelity")]
    names = [n for n in rows.distinct("behaviour") if talkers > 2 or THREE not in n]
    lines = []
    for name in names:
        condition = {"encoder": encoder, "talkers": talkers, "behaviour": name}
        if rows.where(**condition):
            cells = [toolkit.number(rows.mean(m, **condition)) for m in (*SHOWN, *control)]
            lines.append([name, *cells])
    labels = [toolkit.LABELS[m] for m in SHOWN]
    return toolkit.markdown(["output", *labels, *control], lines)


def variant_table(rows: toolkit.Rows, encoder: str, talkers: int) -> str:
    """Clearance / fidelity of each variant, a line for each behaviour."""
    lines = []
    for name in rows.distinct("behaviour"):
        condition = {"encoder": encoder, "talkers": talkers, "behaviour": name}
        if not rows.where(**condition):
            continue
        cells = []
        for variant in variants.NAMES:
            clearance = rows.mean(f"{variant}: clearance", **condition)
            fidelity = rows.mean(f"{variant}: fidelity", **condition)
            cells.append(f"{toolkit.number(clearance)}/{toolkit.number(fidelity)}")
        lines.append([name, *cells])
    return toolkit.markdown(["output", *variants.NAMES], lines)


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__)
    parser.add_argument(
        "--talkers", nargs="+", type=int, default=[2, 3], help="in a mixture (default: 2 3)"
    )
    options = parser.parse_args(arguments)
    rows = run(options)
    counts = []
    for talkers in options.talkers:
        mixtures = {row["mixture"] for row in rows.where(talkers=talkers)}
        counts.append(f"{len(mixtures)} mixtures of {talkers} talkers")
    about = (
        f"{toolkit.subset(options, rows)} Of these {', '.join(counts)}; the first source of each "
        "is the target; means over mixtures. A dash: undefined (fidelity where clearance is below "
        "0.1)."
    )
    text = toolkit.page_head("Outputs whose fault is known", __file__, arguments, about)
    for encoder in map(toolkit.shown, options.encoders):
        for talkers in options.talkers:
            title = f"{talkers} talkers, `{encoder}`"
            text += ["", f"## {title}", "", table(rows, encoder, talkers)]
        talkers = options.talkers[0]
        title = f"Clearance/fidelity of variants, {talkers} talkers, `{encoder}`"
        text += ["", f"## {title}", "", variant_table(rows, encoder, talkers)]
    toolkit.finish(options, "behaviours", text)
    return rows


if __name__ == "__main__":
    main()

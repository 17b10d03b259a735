"""How much do correlations depend on the choice of distortions? [tab:pm_ps_split_stacked]

    python recipes/experiments/banks.py --manifest FOLDER/mapss.json --ratings FOLDER/ratings.csv \\
        --out runs/banks

Each of the 13 families in turn is left out of all banks, while the next family gets a further
member that is far too strong (`EXCESS`). The paper's PS moves by at most 4 points, PM by 9.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import rated
import toolkit

from torch_mapss import MAPSS, DistortionBank
from torch_mapss.distortions import FAMILIES, Distortion, additive, dynamics, echoes, filters, pitch

SHOWN = ("clearance", "fidelity", "ps", "pm", "log_pm", "log_foreign_distance")
KEYS = ("encoder", "bank", "mixture", "system", "source")
_REVERB = {"length": 1.5, "decay": math.log(1000) / 3.0, "gain": 3.0}
# One member of each family, well beyond the range of the paper's table in either bank.
EXCESS: dict[str, tuple[Any, dict[str, float]]] = {
    "notch": (filters.notch, {"frequency": 1500.0, "half_width": 1000.0}),
    "comb": (echoes.comb, {"delay": 0.03, "gain": 0.98}),
    "tremolo": (dynamics.tremolo, {"rate": 25.0, "depth": 1.0}),
    "noise": (additive.add_noise, {"snr": -20.0, "exponent": 0.0}),
    "tone": (additive.add_tone, {"frequency": 700.0, "amplitude": 0.5}),
    "reverb": (echoes.reverberate, _REVERB),
    "gate": (dynamics.gate, {"threshold": 0.15}),
    "pitch": (pitch.shift_pitch, {"semitones": 12.0}),
    "lowpass": (filters.lowpass, {"cutoff": 300.0}),
    "highpass": (filters.highpass, {"cutoff": 3500.0}),
    "echo": (echoes.echo, {"delay": 0.4, "gain": 1.0}),
    "clipping": (dynamics.clip, {"threshold": 0.01}),
    "vibrato": (pitch.vibrato, {"rate": 8.0, "depth": 0.15}),
}


def configurations() -> dict[str, tuple[str | None, str | None]]:
    """Name -> family left out, family extended; the families in the order of the paper's table."""
    families: dict[str, tuple[str | None, str | None]] = {"original": (None, None)}
    for index, family in enumerate(FAMILIES):
        extended = FAMILIES[(index + 1) % len(FAMILIES)]
        families[f"O. {family}, E. {extended}"] = (family, extended)
    return families


def scorer(options: argparse.Namespace, encoder: str, name: str) -> MAPSS:
    """A MAPSS with the banks of one configuration."""
    without, extended = configurations()[name]
    extra = []
    if extended is not None:
        function, parameters = EXCESS[extended]
        random = extended in ("noise", "reverb")
        extra = [Distortion(f"{extended}/excess", extended, function, parameters, random=random)]
    banks = {}
    for slot, size in (("separation", None), ("match", None), ("decomposition", 20)):
        kind = "match" if slot == "match" else "separation"
        size = size or options.bank_size
        bank = DistortionBank(kind, size=size, without=[without] if without else [])
        names = [member.name for member in bank.members]
        banks[f"{slot}_bank"] = DistortionBank(kind, only=names, extra=extra)
    return toolkit.scorer(options, encoder, **banks)


def run(options: argparse.Namespace, ratings: rated.Ratings) -> toolkit.Rows:
    """Score every output with every bank."""
    settings = toolkit.settings_of(options, "ratings", "unit")
    rows = toolkit.Rows(options.out, KEYS, (*toolkit.MEASURES, "frames"), settings)
    for encoder in options.encoders:
        for name in configurations():
            mapss = scorer(options, encoder, name)
            for mixture in toolkit.load_mixtures(options, mapss.grid.sample_rate, systems=True):
                prefix = toolkit.shown(encoder), name
                outputs = mixture.outputs()
                toolkit.add_scores(
                    rows, prefix, mapss, mixture, outputs, toolkit.ENCODED, options.sample_frames
                )
    return rows


def table(rows: toolkit.Rows, ratings: rated.Ratings, encoder: str, question: str) -> str:
    """SRCC with one question, a line for each bank; below, the largest change from the original."""
    estimates_by_bank = rated.by_condition(
        rows, "bank", SHOWN, ratings, encoder=encoder, question=question
    )
    values_by_bank, lines = {}, []
    for bank, estimates in estimates_by_bank.items():
        values_by_bank[bank] = [estimate.value for estimate in estimates]
        lines.append([bank, *map(toolkit.number, values_by_bank[bank])])
    original = values_by_bank.pop("original")
    changes = []
    for index, base in enumerate(original):
        differences = [abs(values[index] - base) for values in values_by_bank.values()]
        changes.append(max(differences, default=0.0))
    lines.append(["largest change", *map(toolkit.number, changes)])
    return toolkit.markdown(["bank", *(toolkit.LABELS[m] for m in SHOWN)], lines)


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__, ratings=True)
    rated.add_unit_option(parser)
    options = parser.parse_args(arguments)
    ratings = rated.Ratings(options.ratings, options.unit)
    rows = run(options, ratings)
    about = f"{toolkit.subset(options, rows)} SRCC over the systems of a track, averaged. Paper: PS"
    about += " moves by at most 0.04, PM by 0.09."
    text = toolkit.page_head("Families left out and overdone", __file__, arguments, about)
    for encoder in map(toolkit.shown, options.encoders):
        for question in ratings.questions:
            text += ["", f"## {question}, `{encoder}`", "", table(rows, ratings, encoder, question)]
    toolkit.finish(options, "banks", text)
    return rows


if __name__ == "__main__":
    main()

"""How much do the correlations hang on the choice of distortions? [tab:pm_ps_split_stacked]

    python recipes/experiments/banks.py --manifest FOLDER/mapss.json --ratings FOLDER/ratings.csv \
        --out runs/banks

One after the other, each of the 13 families is left out of both banks, and the next one gets a
further member that is far too strong (`EXCESS`). Correlates PS, PM, log PM and log B with every
question, beside the original banks. References are distorted and encoded once, with every family
and every excess; a bank of the table is a choice of those members.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace

import toolkit
import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, ReferenceBank
from torch_mapss.distortions import FAMILIES, Distortion, additive, dynamics, echoes, filters, pitch
from torch_mapss.pipeline.bank import Encoded

KINDS = ("separation", "match")
ORIGINAL = "original"
SHOWN = ("ps", "pm", "log_pm", "log_foreign_distance")
# One member of each family, well beyond the range of the paper's table in either bank.
EXCESS = (
    Distortion("notch/excess", "notch", filters.notch, {"frequency": 1500.0, "half_width": 1000.0}),
    Distortion("comb/excess", "comb", echoes.comb, {"delay": 0.03, "gain": 0.98}),
    Distortion("tremolo/excess", "tremolo", dynamics.tremolo, {"rate": 25.0, "depth": 1.0}),
    Distortion(
        "noise/excess", "noise", additive.add_noise, {"snr": -20.0, "exponent": 0.0}, random=True
    ),
    Distortion("tone/excess", "tone", additive.add_tone, {"frequency": 700.0, "amplitude": 0.5}),
    Distortion(
        "reverb/excess",
        "reverb",
        echoes.reverberate,
        {"length": 1.5, "decay": math.log(1000) / 3.0, "gain": 3.0},
        random=True,
    ),
    Distortion("gate/excess", "gate", dynamics.gate, {"threshold": 0.15}),
    Distortion("pitch/excess", "pitch", pitch.shift_pitch, {"semitones": 12.0}),
    Distortion("lowpass/excess", "lowpass", filters.lowpass, {"cutoff": 300.0}),
    Distortion("highpass/excess", "highpass", filters.highpass, {"cutoff": 3500.0}),
    Distortion("echo/excess", "echo", echoes.echo, {"delay": 0.4, "gain": 1.0}),
    Distortion("clipping/excess", "clipping", dynamics.clip, {"threshold": 0.01}),
    Distortion("vibrato/excess", "vibrato", pitch.vibrato, {"rate": 8.0, "depth": 0.15}),
)


def configurations() -> dict[str, tuple[str | None, str | None]]:
    """Name -> family left out, family extended; the families in the order of the paper's table."""
    found: dict[str, tuple[str | None, str | None]] = {ORIGINAL: (None, None)}
    for place, family in enumerate(FAMILIES):
        extended = FAMILIES[(place + 1) % len(FAMILIES)]
        found[f"O. {family}, E. {extended}"] = (family, extended)
    return found


def extended_scorer(options: argparse.Namespace, encoder: str) -> MAPSS:
    """A MAPSS whose banks hold all members and every excess."""
    banks = {
        f"{kind}_bank": DistortionBank(kind, size=None, extra=EXCESS)
        if options.bank_size is None
        else _small(kind, options.bank_size)
        for kind in KINDS
    }
    return toolkit.scorer(options, encoder, **banks)


def _small(kind: str, size: int) -> DistortionBank:
    """For a quick look: ``size`` of the bank's members, and every excess."""
    names = [member.name for member in DistortionBank(kind, size=size).members]
    return DistortionBank(kind, only=names, extra=EXCESS)


def presence(mapss: MAPSS, bank: ReferenceBank) -> dict[str, list[Tensor]]:
    """Kind -> for each group (b, S, P) which members exist, in the order of the names.

    A prepared bank holds the members that exist for a source one behind the other, unnamed.
    """
    rate = mapss.grid.sample_rate
    found: dict[str, list[Tensor]] = {}
    for kind in KINDS:
        own = getattr(mapss, f"{kind}_bank")
        found[kind] = [
            torch.cat([mask for _, _, mask in own.iterate(group.waveforms, rate)], -1)
            for group in bank.groups
        ]
    return found


def chosen(
    mapss: MAPSS, bank: ReferenceBank, present: dict[str, list[Tensor]], name: str
) -> ReferenceBank:
    """``bank`` with the members of one configuration."""
    groups = []
    for place, group in enumerate(bank.groups):
        parts = {}
        for kind in KINDS:
            keep = kept_members(getattr(mapss, f"{kind}_bank"), mapss.grid.sample_rate, name)
            parts[kind] = _taken(getattr(group, kind), present[kind][place], keep)
        groups.append(replace(group, **parts))
    return replace(bank, groups=tuple(groups))


def _taken(part: Encoded, present: Tensor, keep: Tensor) -> Encoded:
    """The kept (P,) of the present (b, S, P) members, again one behind the other."""
    slots = present.cumsum(-1) - 1
    wanted = present & keep
    most = int(wanted.sum(-1).max())
    batch, sources, _, frames, features = part.distortions.shape
    distortions = part.distortions.new_zeros(batch, sources, most, frames, features)
    mask = torch.arange(most) < wanted.sum(-1, keepdim=True)
    for b in range(batch):
        for s in range(sources):
            here = slots[b, s][wanted[b, s]]
            distortions[b, s, : len(here)] = part.distortions[b, s, here]
    return Encoded(part.references, distortions, None if bool(mask.all()) else mask)


def kept_members(bank: DistortionBank, rate: int, name: str) -> Tensor:
    """(P,) bool, the members of one configuration among the bank's names."""
    without, extended = configurations()[name]
    family = {member.name: member.family for member in bank.members}
    return torch.tensor(
        [
            family[member] != without
            and (not member.endswith("/excess") or family[member] == extended)
            for member in bank.names(rate)
        ]
    )


def run(options: argparse.Namespace) -> toolkit.Rows:
    """Score every output with every bank."""
    keys = ("encoder", "bank", "mixture", "system", "source")
    settings = toolkit.settings_of(options, "encoders", "mixtures", "ratings", "columns")
    rows = toolkit.Rows(options.out, keys, (*toolkit.MEASURES, "frames"), settings)
    for encoder in options.encoders:
        mapss = extended_scorer(options, encoder)
        found = toolkit.load_mixtures(
            options.manifest,
            mapss.sample_rate,
            seconds=options.seconds,
            limit=options.mixtures,
            systems=True,
        )
        for mixture in toolkit.progress(list(found), f"{encoder}, mixtures"):
            outputs = [
                (system, place, output)
                for system, given in mixture.systems.items()
                if not system.startswith("control:")
                for place, output in enumerate(given)
                if output is not None
            ]
            wanted = [
                (name, system, place, output)
                for name in configurations()
                for system, place, output in outputs
                if not rows.has(encoder, name, mixture.name, system, mixture.sources[place])
            ]
            if not wanted:
                continue
            whole = mapss.prepare(mixture.references[None])
            present = presence(mapss, whole)
            for name in dict.fromkeys(name for name, *_ in wanted):
                bank = chosen(mapss, whole, present, name)
                for system, place, output in [w[1:] for w in wanted if w[0] == name]:
                    scores = toolkit.target_scores(
                        mapss, bank, output, source=place, every=options.every
                    )
                    key = encoder, name, mixture.name, system, mixture.sources[place]
                    rows.add(**dict(zip(keys, key)), **scores)
    return rows


def tables(rows: toolkit.Rows, options: argparse.Namespace, encoder: str) -> str:
    """A table for each question: SRCC/PCC in %, a line for each bank, and the largest changes."""
    found = {
        name: toolkit.correlations(
            rows.where(encoder=encoder, bank=name),
            options.ratings,
            measures=SHOWN,
            sources=dict(options.source_map),
            columns=dict(options.columns),
        )
        for name in configurations()
    }
    text: list[str] = []
    for scenario, question in dict.fromkeys(key[:2] for key in found[ORIGINAL]):
        here = {n: {m: c[scenario, question, m] for m in SHOWN} for n, c in found.items()}
        lines = [
            [n, *(f"{toolkit.percent(c[m]['srcc'])}/{toolkit.percent(c[m]['pcc'])}" for m in SHOWN)]
            for n, c in here.items()
        ]
        changes = ["largest change"]
        for measure in SHOWN:
            cells = []
            for method in ("srcc", "pcc"):
                start = here[ORIGINAL][measure][method]
                moved = [abs(c[measure][method] - start) for c in here.values()]
                cells.append(toolkit.percent(max(m for m in moved if not math.isnan(m))))
            changes.append("/".join(cells))
        title = question if scenario == "all" else f"{question}, {scenario}"
        header = ["bank", *(f"{toolkit.LABELS[m]}: SRCC/PCC" for m in SHOWN)]
        text += [f"## {title}, `{encoder}`", "", toolkit.markdown(header, [*lines, changes]), ""]
    return "\n".join(text)


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__)
    toolkit.add_scoring(parser)
    toolkit.add_ratings(parser, required=True)
    options = parser.parse_args(arguments)
    rows = run(options)
    tracks = len(rows.distinct("mixture"))
    text = [
        "# Families left out and overdone",
        "",
        f"{tracks} tracks of {options.manifest.parent.name}, `{options.convention}` convention, "
        + (f"the first {options.seconds:g} s, " if options.seconds else "")
        + ("every frame" if options.every <= 1 else f"one frame in {options.every}")
        + ". SRCC/PCC in %, over the systems of a track, averaged.",
        "",
        *(tables(rows, options, encoder) for encoder in options.encoders),
    ]
    toolkit.write_page(options.out / "banks.md", "\n".join(text))
    print("\n".join(text))
    return rows


if __name__ == "__main__":
    main()

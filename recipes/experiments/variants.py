"""Clearance and fidelity by other settings, and without a map, from one pass of the encoder.

References, all members of PS's bank and the output are encoded once; a variant then takes some of
the members, a diffusion time, or none of the map at all: the *control*, in which plain differences
of embeddings are split in the same way.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import toolkit
import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, ReferenceBank
from torch_mapss.audio import normalize_loudness
from torch_mapss.core.decomposition import (
    LEAST_CLEARANCE,
    decomposition_scores,
    nonnegative_least_squares,
)
from torch_mapss.core.frame_batches import run
from torch_mapss.core.points import Points
from torch_mapss.core.settings import Settings

SIZES = (0, 5, 10, 20, 35, 70)  # distortions of a source
TIMES = (2, 4)
DEFAULT, CONTROL = "20 distortions", "without a map"
NAMES = (
    *(f"{size} distortions" for size in SIZES),
    *(f"t = {time}" for time in TIMES),
    CONTROL,
)
COLUMNS = tuple(f"{name}: {kind}" for name in NAMES for kind in ("clearance", "fidelity"))


class Prepared(NamedTuple):
    """References of one mixture, with every member of PS's bank."""

    mapss: MAPSS
    bank: ReferenceBank
    names: tuple[str, ...]  # of the members


def scorer(encoder: str, device: str | None = None) -> MAPSS:
    """A MAPSS whose pair reads ``encoder``, with the whole of PS's bank."""
    whole, loaded = DistortionBank("separation"), toolkit.load(encoder, device)
    pair_encoder = toolkit.pair_encoder_of(encoder, loaded)
    return MAPSS(loaded, decomposition_encoder=pair_encoder, decomposition_bank=whole)


def prepared(mapss: MAPSS, references: Tensor) -> Prepared:
    """Of references (S, T)."""
    bank = mapss.prepare(references[None], measures="decomposition")
    return Prepared(mapss, bank, tuple(mapss.decomposition_bank.names(mapss.grid.sample_rate)))


@torch.no_grad()
def variants(
    reference: Prepared, output: Tensor, source: int = 0, frames: int | None = None
) -> dict[str, float]:
    """`COLUMNS` of one output (T,) of one source, each pooled over the clip."""
    points = points_of(reference, output, source, frames)
    found = {}
    for size in SIZES:
        found[f"{size} distortions"] = _scores(_subset(points, reference, size), 1)
    for time in TIMES:
        found[f"t = {time}"] = _scores(_subset(points, reference, 20), time)
    found[CONTROL] = pooled(*without_map(points))
    kinds = ("clearance", "fidelity")
    return {f"{name}: {k}": v for name, pair in found.items() for k, v in zip(kinds, pair)}


def points_of(
    reference: Prepared, output: Tensor, source: int, frames: int | None = None
) -> Points:
    """The points of the frames that are scored; at most ``frames`` of them, evenly spaced."""
    mapss, (group,) = reference.mapss, reference.bank.groups
    encoder = mapss.decomposition_encoder
    wave = normalize_loudness(output[None], mapss.grid.sample_rate)
    encoded = mapss.grid.shared(encoder(wave), encoder)[0]  # (F, M)
    part = group.encoded["decomposition"]
    active = group.active[0]  # (S, F)
    chosen = (active[source] & (active.sum(0) >= 2)).nonzero()[:, 0]
    if frames is not None and len(chosen) > frames:
        chosen = chosen[torch.arange(frames) * len(chosen) // frames]
    others = None if part.others is None else part.others[0][:, chosen].transpose(0, 1)
    return Points(
        encoded[chosen, None],
        part.references[0][:, chosen].transpose(0, 1),
        part.distortions[0][:, :, chosen].permute(2, 0, 1, 3),
        (source,),
        active[:, chosen].T,
        None if part.mask is None else part.mask.expand(len(chosen), -1, -1),
        others,
    )


def _subset(points: Points, reference: Prepared, size: int) -> Points:
    """With ``size`` members, those that a bank of that size has."""
    whole = reference.mapss.decomposition_bank
    rate = reference.mapss.grid.sample_rate
    kept = whole.subset(size).names(rate) if size else ()
    index = torch.tensor([k for k, name in enumerate(reference.names) if name in kept])
    index = index.long()
    mask = None if points.mask is None else points.mask[:, :, index]
    return points._replace(distortions=points.distortions[:, :, index], mask=mask)


def _scores(points: Points, time: int) -> tuple[float, float]:
    found = run(points, Settings(time=time), decomposition_scores)
    return pooled(found["clearance"], found["fidelity"], found["distortion_ratio_defined"])


def without_map(points: Points) -> tuple[Tensor, Tensor, Tensor]:
    """Clearance, fidelity (F, 1) and where they are defined, of plain differences."""
    (source,) = points.attributed
    everyone = torch.ones_like(points.references[..., 0], dtype=torch.bool)
    foreign = (everyone if points.active is None else points.active).clone()
    foreign[:, source] = False
    targets = points.references
    if points.others is not None and points.references.shape[1] > 2:
        targets = torch.cat([targets, points.others[:, source : source + 1]], 1)
        foreign = torch.cat([foreign, foreign.sum(-1, keepdim=True) >= 2], -1)
    own = points.references[:, source].double()
    e, u = points.outputs[:, 0].double() - own, targets.double() - own[:, None]
    length = u.norm(dim=-1).masked_fill(~foreign, torch.inf)
    apart = (e[:, None] - u).norm(dim=-1) / length.clamp(min=1e-12)
    clearance = apart.masked_fill(~foreign, torch.inf).amin(-1).clamp(max=1.0)
    leaked = nonnegative_least_squares(u, e, foreign)
    rest = (e - (leaked[..., None] * u).sum(1)).norm(dim=-1)
    fidelity = (1.0 - rest / length.amin(-1)).clamp(min=0.0)
    return clearance[:, None], fidelity[:, None], (length.amin(-1) > 1e-12)[:, None]


def pooled(clearance: Tensor, fidelity: Tensor, defined: Tensor) -> tuple[float, float]:
    """Mean clearance, and 1 - RMS(1 - F) where clearance is not too small."""
    both = defined & (clearance >= LEAST_CLEARANCE)
    if not bool(defined.any()):
        return math.nan, math.nan
    if int(both.sum()) * 2 < int(defined.sum()):
        return float(clearance[defined].mean()), math.nan
    rms = (1.0 - fidelity[both]).square().mean().sqrt()
    return float(clearance[defined].mean()), 1.0 - float(rms)

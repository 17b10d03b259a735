"""Clearance and fidelity with other settings, and without a map, from one pass of the encoder.

References, all members of PS's bank and the output are encoded once. A variant then takes some of
the members, or another diffusion time, or no map: in this *control* plain differences of embeddings
are decomposed in the same way.
"""

from __future__ import annotations

import itertools
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
from torch_mapss.core.settings import MapSettings

SIZES = (0, 5, 10, 20, 35, 70)  # distortions of a source
TIMES = (2, 4)
DEFAULT, CONTROL = "20 distortions", "without a map"
NAMES = (
    *(f"{size} distortions" for size in SIZES),
    *(f"t = {time}" for time in TIMES),
    CONTROL,
)
COLUMNS = tuple(map(": ".join, itertools.product(NAMES, ("clearance", "fidelity"))))


class Prepared(NamedTuple):
    """References of one mixture, with every member of PS's bank."""

    mapss: MAPSS
    bank: ReferenceBank
    names: tuple[str, ...]  # of the members


def scorer(encoder: str, device: str | None = None) -> MAPSS:
    """A MAPSS whose clearance and fidelity read ``encoder`` and have all members of PS's bank."""
    loaded = toolkit.load(encoder, device)
    return MAPSS(
        loaded,
        decomposition_encoder=toolkit.pair_encoder_of(encoder, loaded),
        decomposition_bank=DistortionBank("separation"),
    )


def prepared(mapss: MAPSS, references: Tensor) -> Prepared:
    """References (S, T) with their bank."""
    bank = mapss.prepare(references[None], measures="decomposition")
    return Prepared(mapss, bank, tuple(mapss.decomposition_bank.names(mapss.grid.sample_rate)))


@torch.no_grad()
def variants(
    reference: Prepared, output: Tensor, source: int = 0, frames: int | None = None
) -> dict[str, float]:
    """`COLUMNS` of one output (T,) of one source, each pooled over the clip."""
    points = points_of(reference, output, source, frames)
    by_variant = {}
    for size in SIZES:
        by_variant[f"{size} distortions"] = _scores(_subset(points, reference, size), 1)
    for time in TIMES:
        by_variant[f"t = {time}"] = _scores(_subset(points, reference, 20), time)
    by_variant[CONTROL] = pooled(*without_map(points))
    scores = {}
    for name, (clearance, fidelity) in by_variant.items():
        scores |= {f"{name}: clearance": clearance, f"{name}: fidelity": fidelity}
    return scores


def points_of(
    reference: Prepared, output: Tensor, source: int, frames: int | None = None
) -> Points:
    """The points of the frames that are scored; at most ``frames`` of them, evenly spaced."""
    mapss, (group,) = reference.mapss, reference.bank.groups
    encoder = mapss.decomposition_encoder
    wave = normalize_loudness(output[None], mapss.grid.sample_rate)
    encoded = mapss.grid.shared(encoder(wave), encoder)[0]  # (F, M)
    clip = group.encoded["decomposition"]
    active = group.active[0]  # (S, F)
    chosen = (active[source] & (active.sum(0) >= 2)).nonzero()[:, 0]
    if frames is not None and len(chosen) > frames:
        chosen = chosen[torch.arange(frames) * len(chosen) // frames]
    sums_of_others = None
    if clip.others is not None:
        sums_of_others = clip.others[0][:, chosen].transpose(0, 1)
    return Points(
        encoded[chosen, None],
        clip.references[0][:, chosen].transpose(0, 1),
        clip.distortions[0][:, :, chosen].permute(2, 0, 1, 3),
        (source,),
        active[:, chosen].T,
        None if clip.mask is None else clip.mask.expand(len(chosen), -1, -1),
        sums_of_others,
    )


def _subset(points: Points, reference: Prepared, size: int) -> Points:
    """The points with only those distortions that a bank of ``size`` members has."""
    bank = reference.mapss.decomposition_bank
    rate = reference.mapss.grid.sample_rate
    names = bank.subset(size).names(rate) if size else ()
    members = [index for index, name in enumerate(reference.names) if name in names]
    index = torch.tensor(members, dtype=torch.long)
    mask = None if points.mask is None else points.mask[:, :, index]
    return points._replace(distortions=points.distortions[:, :, index], mask=mask)


def _scores(points: Points, time: int) -> tuple[float, float]:
    scores = run(points, MapSettings(time=time), decomposition_scores)
    return pooled(scores["clearance"], scores["fidelity"], scores["distortion_ratio_defined"])


def without_map(points: Points) -> tuple[Tensor, Tensor, Tensor]:
    """Clearance, fidelity (F, 1) and where they are defined, from plain differences."""
    (source,) = points.attributed
    all_active = torch.ones_like(points.references[..., 0], dtype=torch.bool)
    foreign = (all_active if points.active is None else points.active).clone()
    foreign[:, source] = False
    targets = points.references
    if points.others is not None and points.references.shape[1] > 2:
        targets = torch.cat([targets, points.others[:, source : source + 1]], 1)
        foreign = torch.cat([foreign, foreign.sum(-1, keepdim=True) >= 2], -1)
    reference = points.references[:, source].double()
    e = points.outputs[:, 0].double() - reference  # the error
    u = targets.double() - reference[:, None]  # towards each foreign source
    length = u.norm(dim=-1).masked_fill(~foreign, torch.inf)
    distance = (e[:, None] - u).norm(dim=-1) / length.clamp(min=1e-12)
    clearance = distance.masked_fill(~foreign, torch.inf).amin(-1).clamp(max=1.0)
    shares = nonnegative_least_squares(u, e, foreign)  # of the sources in the error
    residual = (e - (shares[..., None] * u).sum(1)).norm(dim=-1)
    fidelity = (1.0 - residual / length.amin(-1)).clamp(min=0.0)
    return clearance[:, None], fidelity[:, None], (length.amin(-1) > 1e-12)[:, None]


def pooled(clearance: Tensor, fidelity: Tensor, defined: Tensor) -> tuple[float, float]:
    """Mean clearance, and 1 - RMS(1 - fidelity) over frames whose clearance is not too small.

    Fidelity is NaN where those are fewer than half of the defined frames.
    """
    has_fidelity = defined & (clearance >= LEAST_CLEARANCE)
    if not bool(defined.any()):
        return math.nan, math.nan
    if int(has_fidelity.sum()) * 2 < int(defined.sum()):
        return float(clearance[defined].mean()), math.nan
    rms = (1.0 - fidelity[has_fidelity]).square().mean().sqrt()
    return float(clearance[defined].mean()), 1.0 - float(rms)

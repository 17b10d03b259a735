"""Collects values frame by frame, and makes the records of scores and bounds from them."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_mapss.core import devices
from torch_mapss.core.frame_batches import Bounds
from torch_mapss.pipeline.bleed import bleed
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.measures import MEASURES, Measure, with_encoder
from torch_mapss.pipeline.scores import BOUNDED, ScoreBounds, Scores


class FrameValues:
    """Values of the estimates of a call (B, S', F), written frame by frame."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._written: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.sums: dict[str, Tensor] = {}  # (B, S', S, P) over frames

    def write(self, name: str, position: Tensor, values: Tensor) -> None:
        """Write values (n, S') at positions (n,) of the flattened (B, F)."""
        self._written.setdefault(name, []).append((position, values))

    def add(self, name: str, position: Tensor, is_usable: Tensor, values: Tensor) -> None:
        """Add values (n, S', S, P) of usable frames to the sums over frames."""
        bank = self.call.bank
        usable = torch.where(is_usable[:, None, None, None], values.double(), 0.0)
        total = self.sums.get(name, usable.new_zeros(bank.batch, *usable.shape[1:]))
        # Groups of other lengths may have another number of members; pad to the larger.
        missing = usable.shape[-1] - total.shape[-1]
        total, usable = pad(total, (0, max(0, missing))), pad(usable, (0, max(0, -missing)))
        self.sums[name] = total.index_add(0, position // bank.frames, usable)

    @functools.cached_property
    def active(self) -> Tensor:
        """(B, S', F) bool: own source and another one are active."""
        return self._joined("active", torch.bool)

    @functools.cached_property
    def exposed(self) -> Tensor:
        """(B, S', F) bool: another source is active, and the own one plays at some time."""
        return self._joined("exposed", torch.bool)

    def of(self, measure: Measure, name: str) -> Tensor:
        """(B, S', F) a field of a measure; 0 or False where it does not score an estimate.

        Raises:
            RuntimeError: the measure's function returned others of its fields, and not this one.
        """
        if name not in self._written and any(field in self._written for field in measure.fields):
            raise RuntimeError(
                f"the function of measure {measure.name!r} returned no {name!r}, which the table "
                "of scores and its record in MEASURES promise."
            )
        is_scored = self.exposed if measure.in_pauses else self.active
        if name.endswith("_defined"):
            return self._joined(name, torch.bool) & is_scored
        is_double = self.call.estimates.dtype == torch.float64
        values = self._joined(name, torch.float64 if is_double else torch.float32)
        return torch.where(is_scored, values, 0.0)

    def _joined(self, name: str, dtype: torch.dtype) -> Tensor:
        bank, outputs = self.call.bank, len(self.call.attributed)
        shape = bank.batch * bank.frames, outputs
        joined = torch.zeros(shape, dtype=dtype, device=self.call.estimates.device)
        if name in self._written:
            positions, values = zip(*self._written[name])
            joined = joined.index_put((torch.cat(positions),), torch.cat(values).to(dtype))
        return joined.unflatten(0, (bank.batch, bank.frames)).transpose(1, 2)


def scores_of(config: Config, values: FrameValues) -> Scores:
    """Scores of a call, from the values written."""
    call = values.call
    fields: dict[str, Tensor] = {}
    if "bleed" in call.measures:
        fields["bleed_db"] = bleed(config, call)
        fields["bleed_defined"] = ~fields["bleed_db"].isnan()
    for measure in with_encoder(call.measures):
        fields |= {field: values.of(measure, field) for field in measure.fields}
        if measure.spectrum:  # the same for all estimates of a frame
            name = f"{measure.name}_dimension"
            fields[name] = values.of(measure, name).detach().amax(1).round().long()
    times = config.times(call.bank.frames) + call.offset / config.sample_rate
    times = devices.back(times, call.estimates.device)
    return Scores(values.active, times, call.measures, **fields)


def bounds_of(
    config: Config, confidence: float, has_scores: bool, values: FrameValues
) -> ScoreBounds:
    """Bounds of a call, from the values written."""
    bounds = {}
    for measure in with_encoder(values.call.measures):
        for field in measure.fields:
            if field in BOUNDED:
                radius = values.of(measure, f"{field}_radius")
                bounds[field] = Bounds.of(radius, values.of(measure, f"{field}_tail"))
    if "clearance" in bounds:
        bounds |= utterance_bounds(confidence, values)
    scores = scores_of(config, values) if has_scores else None
    return ScoreBounds(values.active, confidence, **bounds, scores=scores)


def utterance_bounds(confidence: float, values: FrameValues) -> dict[str, Bounds]:
    """Half-widths (B, S') of pooled clearance and fidelity, by jackknife of the pooled scores."""
    from torch_mapss.bounds.decomposition import utterance_half_widths

    measure = MEASURES["decomposition"]
    names = "clearance", "fidelity"
    counts = [values.of(measure, f"{name}_defined").sum(-1) for name in names]
    if values.sums:
        sums = {name: total.to(counts[0].device) for name, total in values.sums.items()}
        clearance_frames, fidelity_frames = counts
        tails = utterance_half_widths(sums, clearance_frames, fidelity_frames, confidence)
    else:  # no frame is scored
        nothing = torch.full(counts[0].shape, torch.nan, device=counts[0].device)
        tails = nothing, nothing
    dtype = torch.promote_types(values.call.estimates.dtype, torch.float32)
    return {
        f"utterance_{name}": Bounds.of(torch.zeros_like(tail, dtype=dtype), tail.to(dtype))
        for name, tail in zip(names, tails)
    }

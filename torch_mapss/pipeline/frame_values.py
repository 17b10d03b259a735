"""Collects values frame by frame, and makes the records of scores and bounds from them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_mapss.core import devices
from torch_mapss.core.error_bounds import Bounds
from torch_mapss.core.settings import MapSettings
from torch_mapss.pipeline.bleed import bleed
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.measures import MEASURES, Measure, with_encoder
from torch_mapss.pipeline.scores import BOUNDED, ScoreBounds, Scores


class FrameValues:
    """Values of the estimates of a call, written frame by frame.

    Args:
        config: settings of the scorer.
        call: a checked call.
        settings: settings of the diffusion maps that the values come from.
    """

    def __init__(self, config: Config, call: Call, settings: MapSettings) -> None:
        self.config = config
        self.call = call
        self.settings = settings
        self._shape = call.bank.batch, call.bank.frames
        rows, outputs = call.bank.batch * call.bank.frames, len(call.attributed)
        #: (B · F, S') bool: own source and another one are active.
        self.active = torch.zeros(rows, outputs, dtype=torch.bool, device=call.estimates.device)
        #: (B · F, S') bool: the estimate is exposed to leakage, because another source is active;
        #: its own one may be active or pause, but is not silent throughout the mixture.
        self.exposed = torch.zeros_like(self.active)
        self._written: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self._sums: dict[str, Tensor] = {}  # (B, S', S, P) over frames

    def write(self, name: str, position: Tensor, is_usable: Tensor, values: Tensor) -> None:
        """Write the values of n frames.

        Args:
            name: name of the values. Those whose name ends in ``_left_out``, (n, S', S, P), are
                summed over the usable frames.
            position: (n,) int64, rows of the flattened (B, F).
            is_usable: (n,) bool.
            values: (n, S').
        """
        if not name.endswith("_left_out"):
            self._written.setdefault(name, []).append((position, values))
            return
        usable = torch.where(is_usable[:, None, None, None], values.double(), 0.0)
        batch, frames = self._shape
        total = self._sums.get(name, usable.new_zeros(batch, *usable.shape[1:]))
        # Groups of other lengths may have another number of members; pad to the larger.
        missing = usable.shape[-1] - total.shape[-1]
        total, usable = pad(total, (0, max(0, missing))), pad(usable, (0, max(0, -missing)))
        self._sums[name] = total.index_add(0, position // frames, usable)

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
        is_mask, is_double = name.endswith("_defined"), self.call.estimates.dtype == torch.float64
        dtype = torch.float64 if is_double else torch.float32
        if is_mask:
            dtype = torch.bool
        joined = torch.zeros(is_scored.shape, dtype=dtype, device=is_scored.device)
        if name in self._written:
            positions, values = zip(*self._written[name])
            joined = joined.index_put((torch.cat(positions),), torch.cat(values).to(dtype))
        joined = joined & is_scored if is_mask else torch.where(is_scored, joined, 0.0)
        return joined.unflatten(0, self._shape).transpose(1, 2)

    def scores(self) -> Scores:
        """The scores of the call."""
        call, grid = self.call, self.config.grid
        fields: dict[str, Tensor] = {}
        if "bleed" in call.measures:
            fields["bleed_db"] = bleed(self.config, call)
            fields["bleed_defined"] = ~fields["bleed_db"].isnan()
        for measure in with_encoder(call.measures):
            fields |= {field: self.of(measure, field) for field in measure.fields}
            if measure.spectrum:  # the same for all estimates of a frame
                name = f"{measure.name}_dimension"
                fields[name] = self.of(measure, name).detach().amax(1).round().long()
        times = grid.times(call.bank.frames) + call.offset / self.config.sample_rate
        times = devices.back(times, call.estimates.device)
        active = self.active.unflatten(0, self._shape).transpose(1, 2)
        return Scores(active, times, call.measures, **fields)

    def bounds(self, confidence: float) -> ScoreBounds:
        """The bounds of the call, with the scores if they come from the same maps."""
        bounds = {}
        for measure in with_encoder(self.call.measures):
            for field in measure.fields:
                if field in BOUNDED:
                    radius = self.of(measure, f"{field}_radius")
                    bounds[field] = Bounds.of(radius, self.of(measure, f"{field}_tail"))
        if "clearance" in bounds:
            bounds |= self._utterance_bounds(confidence)
        scores = self.scores() if self.settings == self.config.settings else None
        active = self.active.unflatten(0, self._shape).transpose(1, 2)
        return ScoreBounds(active, confidence, **bounds, scores=scores)

    def _utterance_bounds(self, confidence: float) -> dict[str, Bounds]:
        """Half-widths (B, S') of pooled clearance and fidelity, by jackknife of these."""
        from torch_mapss.bounds.decomposition import utterance_half_widths

        measure = MEASURES["decomposition"]
        names = "clearance", "fidelity"
        clearance_frames, fidelity_frames = (
            self.of(measure, f"{name}_defined").sum(-1) for name in names
        )
        device = clearance_frames.device
        if self._sums:
            sums = {name: total.to(device) for name, total in self._sums.items()}
            tails = utterance_half_widths(sums, clearance_frames, fidelity_frames, confidence)
        else:  # no frame is scored
            size = clearance_frames.shape
            nothing = torch.full(size, torch.nan, dtype=torch.float64, device=device)
            tails = nothing, nothing
        dtype = torch.promote_types(self.call.estimates.dtype, torch.float32)
        return {
            f"utterance_{name}": Bounds.of(torch.zeros_like(tail, dtype=dtype), tail.to(dtype))
            for name, tail in zip(names, tails)
        }

"""The points of a batch of frames as one record: their roles, their presence, their checks.

The cluster of a source is its reference and its distortions; outputs are points of the graph, but
never of a cluster. Rows of a frame's graph come in the order outputs, references, distortions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import checks, devices
from torch_mapss.core.autograd import lifted

LEAST_ACTIVE = 2  # active sources in a scored frame: leakage needs a source to come from


class Points(NamedTuple):
    """Embeddings of F frames, with masks of the sources and points that are present.

    ``outputs``, ``references`` and ``distortions`` have any floating-point type of at least 32
    bits.
    """

    outputs: Tensor  # (F, S', M)
    references: Tensor  # (F, S, M)
    distortions: Tensor  # (F, S, P, M)
    attributed: tuple[int, ...]  # (S',) source of each output
    active: Tensor | None = None  # (F, S) bool; None: every source is active
    mask: Tensor | None = None  # (F, S, P) bool; None: every distortion is present
    others: Tensor | None = None  # (F, S, M) sum of the other references; None where unused
    # Dimensions that all frames were flattened from, those of other batches too; None: (F,).
    lead: torch.Size | None = None

    @property
    def device(self) -> torch.device:
        """Device that scores the frames: their own, or the CPU if their own has no float64."""
        return devices.working_device(self.outputs.device)

    def embeddings(self) -> tuple[Tensor, ...]:
        """All tensors of embeddings, frames first."""
        tensors = self.outputs, self.references, self.distortions
        return tensors if self.others is None else (*tensors, self.others)

    def with_embeddings(self, tensors: Sequence[Tensor]) -> Points:
        """The same points with other tensors in place of :meth:`embeddings`."""
        outputs, references, distortions, *sums = tensors
        points = self._replace(outputs=outputs, references=references, distortions=distortions)
        return points._replace(others=sums[0]) if sums else points


# --------------------------------------------------------------------------------------------
# Presence
# --------------------------------------------------------------------------------------------


def presence(points: Points) -> tuple[Tensor, Tensor]:
    """Masks: active sources (F, S), and present cluster points (F, S, P+1), reference first."""
    active = points.active
    frames, sources, members, _ = points.distortions.shape
    if active is None:
        active = torch.ones(frames, sources, dtype=torch.bool, device=points.device)
    present = active.unsqueeze(-1).expand(frames, sources, members + 1)
    if points.mask is not None:
        present = present & torch.nn.functional.pad(points.mask, (1, 0), value=True)
    return active, present


def point_validity(points: Points) -> Tensor | None:
    """(F, N) bool, points that enter the graph; None: all."""
    if points.active is None and points.mask is None:
        return None
    active, present = presence(points)
    outputs = devices.select(active, points.attributed, 1)
    return torch.cat([outputs, present[..., 0], present[..., 1:].flatten(1)], -1)


def split_points(coordinates: Tensor, points: Points) -> tuple[Tensor, Tensor]:
    """Split (F, N, D) into outputs (F, S', D) and clusters (F, S, P+1, D), reference first."""
    s, p = points.distortions.shape[1:3]
    outputs, references, distortions = coordinates.split([len(points.attributed), s, s * p], -2)
    distortions = distortions.unflatten(-2, (s, p))
    return outputs, torch.cat([references.unsqueeze(-2), distortions], -2)


def scored_outputs(points: Points) -> Tensor:
    """(F, S') bool, whether an output's source is active together with another one."""
    active, _ = presence(points)
    several = active.sum(-1, keepdim=True) >= LEAST_ACTIVE
    return devices.select(active, points.attributed, 1) & several


# --------------------------------------------------------------------------------------------
# Joining, and checks for finite values
# --------------------------------------------------------------------------------------------


class NonFiniteError(ValueError):
    """An embedding of a present point is NaN, infinite or huge.

    Args:
        point: the point, in words.
        frame: its index among the scored frames.
        lead: see :class:`Points`.
    """

    def __init__(self, point: str, frame: int, lead: torch.Size | None = None) -> None:
        super().__init__(point, frame, lead)  # pickle calls the constructor with these arguments
        self.point, self.frame, self.lead = point, frame, lead

    def __str__(self) -> str:
        """The message."""
        frame = f"frame {self.frame}"
        if self.lead is not None:
            frame = checks.describe_frame(self.frame, self.lead)
        return (
            f"embeddings must be finite (and below 1e150): {self.point} holds NaN, infinite or "
            f"huge values in {frame}. Repair it, or take its source out of that frame with active, "
            "or a point with mask."
        )


def joined(point_groups: Sequence[Tensor], valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Join groups of points into one tensor, on a device that has float64, and check them.

    Args:
        point_groups: (F, n, M) each.
        valid: (F, N) bool, points that are present; None: all.

    Returns:
        (F, N, M) float64, detached; and (F, N) bool, present points that are not finite, or whose
        squared norm overflows.
    """
    frames, _, features = point_groups[0].shape
    device = devices.working_device(point_groups[0].device)
    counts = [group.shape[1] for group in point_groups]
    points = torch.empty(frames, sum(counts), features, dtype=torch.float64, device=device)
    for rows, group in zip(points.split(counts, 1), point_groups):
        rows.copy_(group.detach())
    broken = ~torch.isfinite(torch.linalg.vector_norm(points, dim=-1).square())
    return points, broken if valid is None else broken & valid


def refuse_broken(broken: Tensor, points: Points) -> None:
    """Raise :class:`NonFiniteError` for the first point of ``broken`` (F, N); reads values."""
    if not bool(broken.any()):
        return
    frame, point = (int(index) for index in broken.nonzero()[0])
    sources, members = points.distortions.shape[1:3]
    names = [f"the output of source {i}" for i in points.attributed]
    names += [f"the reference of source {i}" for i in range(sources)]
    for i in range(sources):
        names += [f"distortion {m} of source {i}" for m in range(members)]
    raise NonFiniteError(names[point], frame)


# --------------------------------------------------------------------------------------------
# Construction from a caller's tensors
# --------------------------------------------------------------------------------------------


def checked_points(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    attributed: object,
    active: Tensor | None,
    mask: Tensor | None,
    minimum_distortions: int,
    others: Tensor | None = None,
) -> Points:
    """Points from the embeddings of a scoring call, with leading dimensions flattened.

    Shapes and types are checked without reading values. Only ``mask`` is read, to find active
    sources with too few distortions left.

    Raises:
        TypeError: a dtype is not floating point (or, for the masks, not bool).
        ValueError: ranks or shapes that do not fit, S < 2, P < 2, different devices, an invalid
            ``attributed``, or an active source with fewer than ``minimum_distortions`` distortions
            left.
    """
    embeddings = {"outputs": outputs, "references": references, "distortions": distortions}
    embeddings |= {} if others is None else {"others": others}
    for name, tensor in embeddings.items():
        checks.check_floating(tensor, name)
    _check_shapes(outputs, references, distortions)
    checks.check_devices(**embeddings, active=active, mask=mask)
    if others is not None and others.shape != references.shape:
        raise ValueError(
            "others must have the shape of references: the sum of the other references for each "
            f"of them, {tuple(references.shape)}, got {tuple(others.shape)}."
        )
    lead = outputs.shape[:-2]
    sources, count = distortions.shape[-3], distortions.shape[-2]
    index = checks.check_attributed(attributed, outputs.shape[-2], sources)
    frames = math.prod(lead)
    if active is not None:
        active = checks.check_bool(active, "active", (*lead, sources)).reshape(frames, sources)
    if mask is not None:
        mask = checks.check_bool(mask, "mask", (*lead, sources, count))
        mask = mask.reshape(frames, sources, count)
        _check_distortions_left(mask, active, minimum_distortions, lead)
    flat = {
        name: lifted(tensor).reshape(frames, *tensor.shape[len(lead) :])
        for name, tensor in embeddings.items()
    }
    return Points(**flat, attributed=index, active=active, mask=mask, lead=lead)


def _check_shapes(outputs: Tensor, references: Tensor, distortions: Tensor) -> None:
    fits = (
        distortions.ndim - 1 == references.ndim == outputs.ndim >= 2
        and outputs.shape[:-2] == references.shape[:-2] == distortions.shape[:-3]
        and outputs.shape[-1] == references.shape[-1] == distortions.shape[-1]
        and references.shape[-2] == distortions.shape[-3] >= 2
        and distortions.shape[-2] >= 2
        and min(outputs.shape[-2:]) >= 1
    )
    if not fits:
        raise ValueError(
            "expected outputs (..., S', M), references (..., S, M) and distortions (..., S, P, M) "
            "with the same leading dimensions and features M, of at least two sources, two "
            "distortions of every reference, one output and one feature, got outputs "
            f"{tuple(outputs.shape)}, references {tuple(references.shape)}, distortions "
            f"{tuple(distortions.shape)}. Nothing is broadcast: expand to full shapes."
        )


def _check_distortions_left(
    mask: Tensor, active: Tensor | None, minimum: int, lead: torch.Size
) -> None:
    """Raise ValueError if an active source has fewer than ``minimum`` distortions; reads values."""
    remaining = mask.sum(-1)
    short = remaining < minimum if active is None else (remaining < minimum) & active
    if bool(short.any()):
        frame, source = (int(index) for index in short.nonzero()[0])
        raise ValueError(
            f"mask leaves {int(remaining[frame, source])} distortions for active source {source} "
            f"in {checks.describe_frame(frame, lead)}; at least {minimum} are needed. Keep more of "
            "them in the mask, or mark the source inactive there."
        )

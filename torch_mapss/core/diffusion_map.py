r"""Diffusion maps: from points to coordinates whose distances are diffusion distances.

One frame holds N points :math:`x_i \in R^M`. With pairwise squared distances :math:`D^2`:

1. kernel :math:`K_{ij} = \exp(-D_{ij}^2/\sigma^2)`, :math:`\sigma^2` the median of :math:`D^2`
   over pairs [eq:K];
2. :math:`v = K1`, :math:`w = v^{-\alpha}`, :math:`K^{(\alpha)}_{ij} = w_i K_{ij} w_j`
   [eq:K_alpha_short], degrees :math:`\deg_i = w_i (Kw)_i`, :math:`\pi = \deg/\sum\deg`
   [eq:stat_dist];
3. :math:`P = \mathrm{diag}(\deg)^{-1} K^{(\alpha)}` [eq:P_short] is similar to the symmetric
   :math:`S = \deg^{-1/2} K^{(\alpha)} \deg^{-1/2} = c_i K_{ij} c_j`, :math:`c = w\,\deg^{-1/2}`,
   so :math:`Pu = \lambda u` with :math:`u = v/\sqrt\pi`, :math:`Sv = \lambda v`, and unit
   :math:`v` make :math:`\sum_i \pi_i u(i)^2 = 1`;
4. coordinates :math:`\lambda_\ell^t u_\ell` of the non-trivial pairs [eq:embedding_short], the
   first d of them retained [eq:truncation_threshold_short].

**The trivial pair** (:math:`\lambda_0 = 1`, :math:`v_0 = \sqrt\pi`) can be tied when the graph is
numerically disconnected, and then "the first column" is arbitrary. Here
:math:`S - 2\sqrt\pi\sqrt\pi^T` is decomposed instead: :math:`v_0` moves to eigenvalue -1 and
nothing else changes, so it is identified by its position below the spectrum (the kernel is positive
semi-definite). Absent points get rows of zeros and the eigenvalue -2, so they end below it.

**Gradient.** Distances and covariances of :math:`\Phi = V_d \Lambda^t` do not change under
:math:`\Phi \to \Phi Q`, Q orthogonal. Write :math:`g = \partial L/\partial\Phi` and
:math:`A_{ij} = v_i^T g_j` (j retained). First-order perturbation of an eigenvector gives

.. math:: dL = \sum_j \sum_{i \ne j} A_{ij} \frac{\lambda_j^t}{\lambda_j - \lambda_i}
               v_i^T dS\, v_j + \sum_j t \lambda_j^{t-1} A_{jj}\, v_j^T dS\, v_j .

The invariance (differentiate :math:`L(\Phi e^{\epsilon B})`, B antisymmetric) reads
:math:`\lambda_i^t A_{ij} = \lambda_j^t A_{ji}` for two retained columns. Put in, their terms
combine to :math:`A_{ji} \lambda_i^{-t} (\lambda_i^{2t} - \lambda_j^{2t})/(\lambda_i - \lambda_j)`:
the gap has cancelled, and a multiple eigenvalue is as good as any other. Only gaps between
retained and discarded eigenvalues remain; the tie rule of :func:`retained_dimension` keeps them
open. With :math:`C_{ij}` a quarter of the coefficient of a retained pair (half on the diagonal),
or :math:`\tfrac12 A_{ij}\lambda_j^t/(\lambda_j - \lambda_i)` for discarded i, and
:math:`Y = V C`, :math:`\partial L/\partial S = Y V_d^T + V_d Y^T`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import checks, devices
from torch_mapss.core.frame_batches import Scored, ScoreFunction
from torch_mapss.core.kernel import gaussian_kernel
from torch_mapss.core.points import (
    NonFiniteError,
    Points,
    joined,
    point_validity,
    refuse_broken,
)
from torch_mapss.core.settings import MapSettings, checked
from torch_mapss.core.spectrum import Operator, RetainedEigenvectors


@dataclass(frozen=True)
class DiffusionMap:
    """Result of :func:`diffusion_map`: the full spectrum, and how much of it is retained."""

    eigenvalues: Tensor  # (..., N-1) non-trivial, descending, at least 0; 0 behind absent points
    dimension: Tensor  # (...) int64, d: how many coordinates are retained
    stationary: Tensor  # (..., N) π, sums to 1, 0 at absent points
    retained: Tensor  # (..., N, N-1) λ^t u, columns from d on are zero; differentiable
    coordinates: Tensor  # (..., N, N-1) λ^t u, all columns, detached
    time: float  # t


class FrameMaps(NamedTuple):
    """Diffusion maps of a batch of frames."""

    coordinates: Tensor  # (F, N, D) retained λ^t u, D = largest d; zero beyond d; differentiable
    dimension: Tensor  # (F,) int64, d; 1 where there is no map
    eigenvalues: Tensor  # (F, N-1) non-trivial, descending; 0 behind absent points and without map
    stationary: Tensor  # (F, N) π, 0 at absent points
    squared_distances: Tensor  # (F, N, N) D² of the points, detached
    degenerate: Tensor  # (F,) bool: the bandwidth is zero and there is no map
    needs_values: Tensor  # () bool: must be computed once more with ``may_sync=True``
    all_coordinates: Tensor | None  # (F, N, N-1) λ^t u of all columns, detached; for error bounds


Read = Callable[[FrameMaps, Points, MapSettings], dict[str, Tensor]]


# --------------------------------------------------------------------------------------------
# Points -> map
# --------------------------------------------------------------------------------------------


def embed(
    points: Points, settings: MapSettings, *, complete: bool = False, may_sync: bool = True
) -> FrameMaps:
    """Diffusion maps of a batch of frames; see :func:`diffusion_map`.

    Args:
        points: N points per frame. Tensors that do not require grad make the backward pass cheaper.
        settings: settings of the map.
        complete: also return all coordinates, with those from d on.
        may_sync: whether values may be read, which synchronises an accelerator. If not, all N-1
            columns of coordinates are returned, frames with non-finite points count as zeros, and
            ``needs_values`` says whether the batch must be computed once more.

    Raises:
        NonFiniteError: a present point is not finite, where values may be read.
    """
    point_groups = points.outputs, points.references, points.distortions.flatten(1, 2)
    valid = point_validity(points)
    x, broken = joined(point_groups, valid)
    if may_sync:
        refuse_broken(broken, points)
    else:
        x.masked_fill_(broken.any(-1)[:, None, None], 0.0)
    columns = None if may_sync else x.shape[-2] - 1
    maps = _maps(x, point_groups, valid, settings, may_sync, columns, complete=complete)
    return maps._replace(needs_values=broken.any() | maps.needs_values)


def _maps(
    x: Tensor,
    point_groups: Sequence[Tensor],
    valid: Tensor | None,
    settings: MapSettings,
    may_sync: bool,
    columns: int | None,
    *,
    complete: bool,
    invariant: bool = True,
) -> FrameMaps:
    """Steps 1 to 4 of the module.

    Args:
        x, point_groups, valid, may_sync: as in :func:`torch_mapss.core.kernel.gaussian_kernel`.
        settings: settings of the map.
        columns: number of columns D of ``coordinates``; None: the largest d.
        complete: also return all coordinates.
        invariant: see :class:`torch_mapss.core.spectrum.RetainedEigenvectors`.
    """
    as_released = settings.convention == "reference"
    graph = gaussian_kernel(x, point_groups, valid, may_sync, as_released)
    kernel, squared, degenerate, imprecise = graph
    s, root = Operator.apply(kernel, valid, settings.alpha)
    if valid is None:
        count = torch.full(kernel.shape[:1], kernel.shape[-1] - 1, device=kernel.device)
    else:
        count = (valid.sum(-1) - 1).clamp(min=0)
    phi, dimension, eigenvalues, vectors = RetainedEigenvectors.apply(
        s, count, settings, columns, invariant
    )
    present = root > 0.0
    scale = present.to(root.dtype)
    if not as_released:
        scale = torch.where(present, 1.0 / torch.where(present, root, 1.0), 0.0)
    no_map = degenerate[:, None, None]
    all_coordinates = None
    if complete:
        with torch.no_grad():  # the non-trivial vectors come last, ascending
            power = torch.where(eigenvalues > 0.0, eigenvalues.pow(settings.time), 0.0)
            scaled = vectors[..., 1:].flip(-1) * power.unsqueeze(-2) * scale.unsqueeze(-1)
            all_coordinates = torch.where(no_map, 0.0, scaled)
    return FrameMaps(
        coordinates=torch.where(no_map, 0.0, phi * scale.unsqueeze(-1)),
        dimension=torch.where(degenerate, 1, dimension),
        eigenvalues=torch.where(degenerate.unsqueeze(-1), 0.0, eigenvalues),
        stationary=root.square(),
        squared_distances=squared,
        degenerate=degenerate,
        needs_values=imprecise.any(),
        all_coordinates=all_coordinates,
    )


def score_function_from(read: Read, *, complete: bool = False) -> ScoreFunction:
    """Make a score function (see :mod:`torch_mapss.core.frame_batches`) from ``read``.

    Args:
        read: function of maps, points and settings of a batch of frames that returns tensors by
            name.
        complete: as in :func:`embed`.
    """

    def score(points: Points, settings: MapSettings, may_sync: bool = True) -> Scored:
        maps = embed(points, settings, complete=complete, may_sync=may_sync)
        return read(maps, points, settings), maps.needs_values

    return score


def diffusion_map(
    points: Tensor,
    alpha: float = 1.0,
    time: float = 1.0,
    energy: float = 0.99,
    mask: Tensor | None = None,
    convention: str = "paper",
    max_dimension: int | None = None,
    eigh: str = "float64",
) -> DiffusionMap:
    """Diffusion map of each cloud of points in a batch [sec:dm_foundations_moved].

    Euclidean distances between rows of ``coordinates`` equal the diffusion distances
    [eq:diff_euclid_dist_equal_short]. Computed in float64 whatever the input, also under
    autocast. Where more than half of the pairs coincide the bandwidth is zero and there is no
    map: all coordinates of that frame are 0, d is 1 and no gradient flows.

    Args:
        points: (..., N, M) floating point, N at least 2.
        alpha: density exponent in [0, 1]; 1 removes the sampling density, 0 keeps it.
        time: diffusion time t, any positive number; larger values blur more.
        energy: τ in (0, 1], the share of the eigenvalue sum the retained coordinates reach.
        mask: (..., N) bool, False leaves a point out exactly as if it were never there.
        convention: ``"paper"`` (bandwidth: mean of the two middle values, u orthonormal under
            π) or ``"reference"`` (half-width kernel, lower middle value, unit eigenvectors).
        max_dimension: the most coordinates to retain; None for as many as ``energy`` asks for. A
            group of tied eigenvalues that the limit would cut is dropped whole, unless it is the
            leading group.
        eigh: precision of the eigendecomposition alone, ``"float64"`` or ``"float32"``.

    Returns:
        A :class:`DiffusionMap`. ``retained`` is differentiable: exactly, also at repeated
        eigenvalues, for everything that does not depend on the choice of eigenbasis.

    Raises:
        TypeError: ``points`` not floating point or ``mask`` not bool.
        ValueError: shapes that do not fit, N < 2, non-finite present points, settings out of
            range.
    """
    settings = checked(MapSettings(alpha, time, energy, convention, max_dimension, eigh))
    checks.check_floating(points, "points")
    if points.ndim < 2 or points.shape[-2] < 2 or points.shape[-1] < 1:
        raise ValueError(
            f"points must have shape (..., N, M) with N >= 2 points of M >= 1 features, got "
            f"{tuple(points.shape)}."
        )
    lead, (n, m) = points.shape[:-2], points.shape[-2:]
    valid = None
    if mask is not None:
        valid = checks.check_bool(mask, "mask", (*lead, n)).reshape(-1, n)
    frames = points.reshape(-1, n, m)
    with torch.autocast(points.device.type, enabled=False):
        if valid is not None:
            valid = valid.to(devices.working_device(points.device))
        x, broken = joined([frames], valid)
        if bool(broken.any()):  # one non-finite matrix would make the entire batched ``eigh`` fail
            frame, point = (int(index) for index in broken.nonzero()[0])
            raise NonFiniteError(f"point {point}", frame, lead)
        maps = _maps(x, [frames], valid, settings, True, n - 1, complete=True, invariant=False)
        assert maps.all_coordinates is not None
        return DiffusionMap(
            eigenvalues=maps.eigenvalues.reshape(*lead, n - 1),
            dimension=maps.dimension.reshape(lead),
            stationary=maps.stationary.reshape(*lead, n),
            retained=maps.coordinates.reshape(*lead, n, n - 1),
            coordinates=maps.all_coordinates.reshape(*lead, n, n - 1),
            time=settings.time,
        )

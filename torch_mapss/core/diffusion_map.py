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

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.core.frame_batches import Score, Scored
from torch_mapss.core.kernel import gaussian_kernel
from torch_mapss.core.points import (
    NonFiniteError,
    Points,
    broken_points,
    joined,
    point_validity,
    refuse_broken,
)
from torch_mapss.core.settings import Settings, checked
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


class Embedding(NamedTuple):
    """Diffusion maps of a batch of frames, with what the score functions need of them."""

    coordinates: Tensor  # (F, N, D) retained λ^t u, D = largest d; zero beyond d; differentiable
    dimension: Tensor  # (F,) int64, d
    squared_distances: Tensor  # (F, N, N) D² of the points, detached
    degenerate: Tensor  # (F,) bool: the bandwidth is zero and there is no map
    needs_values: Tensor  # () bool: must be computed once more with ``may_sync=True``
    discarded: Tensor | None = None  # (F, N, N-1) columns from d on, the others zero; detached
    precision: torch.dtype = torch.float64  # of the eigendecomposition

    def dimensions(self, outputs: int) -> Tensor:
        """d of each frame, repeated for its outputs (F, S'); 1 where there is no map."""
        d = torch.where(self.degenerate, 1, self.dimension)
        return d.unsqueeze(-1).expand(-1, outputs)


Read = Callable[[Embedding, Points, Settings], dict[str, Tensor]]


# --------------------------------------------------------------------------------------------
# Points -> map
# --------------------------------------------------------------------------------------------


def embed(
    points: Points, settings: Settings, *, discarded: bool = False, may_sync: bool = True
) -> Embedding:
    """Retained diffusion coordinates of a batch of frames; see :func:`diffusion_map`.

    Args:
        points: N points per frame. Tensors that do not require grad make the backward pass cheaper.
        settings: settings of the map.
        discarded: also return the coordinates from d on (detached), for error bounds.
        may_sync: whether values may be read, which synchronises an accelerator. If not, all N-1
            columns of coordinates are returned, frames with non-finite points count as zeros, and
            ``needs_values`` says whether the batch must be computed once more.

    Raises:
        NonFiniteError: a present point is not finite, where values may be read.
    """
    point_groups = points.outputs, points.references, points.distortions.flatten(1, 2)
    x, valid = joined(*point_groups), point_validity(points)
    broken = broken_points(x, valid)
    if may_sync:
        refuse_broken(broken, points)
    else:
        x.masked_fill_(broken.any(-1)[:, None, None], 0.0)
    reference = settings.convention == "reference"
    graph = gaussian_kernel(x, point_groups, valid, may_sync, reference)
    spectrum = _decomposed(*graph, valid, settings, may_sync)
    dimension, degenerate = spectrum.dimension, spectrum.degenerate
    discarded_coordinates = None
    if discarded:
        all_coordinates = spectrum.all_coordinates(settings.time)
        index = torch.arange(all_coordinates.shape[-1], device=all_coordinates.device)
        is_discarded = (index >= dimension.unsqueeze(-1)).unsqueeze(-2)
        discarded_coordinates = torch.where(is_discarded, all_coordinates, 0.0)
    needs_values = broken.any() | spectrum.imprecise.any()
    retained, squared = spectrum.retained, spectrum.squared_distances
    return Embedding(
        coordinates=retained,
        dimension=dimension,
        squared_distances=squared,
        degenerate=degenerate,
        needs_values=needs_values,
        discarded=discarded_coordinates,
        precision=settings.precision,
    )


class _Spectrum(NamedTuple):
    """Eigenpairs of a batch of graphs, and their retained coordinates."""

    retained: Tensor  # (F, N, D) λ^t u; 0 where there is no bandwidth
    dimension: Tensor
    eigenvalues: Tensor  # (F, N-1)
    vectors: Tensor  # (F, N, N), the non-trivial ones last, ascending
    scale: Tensor  # (F, N) π^-½ (0 at absent points) in the paper convention, else 1
    root: Tensor  # (F, N) √π
    squared_distances: Tensor
    degenerate: Tensor
    imprecise: Tensor  # (F,) bool

    @torch.no_grad()
    def all_coordinates(self, time: float) -> Tensor:
        """(F, N, N-1) λ^t u, detached; 0 where there is no bandwidth."""
        power = torch.where(self.eigenvalues > 0.0, self.eigenvalues.pow(time), 0.0)
        columns = self.vectors[..., 1:].flip(-1) * power.unsqueeze(-2) * self.scale.unsqueeze(-1)
        return torch.where(self.degenerate[:, None, None], 0.0, columns)


def _decomposed(
    kernel: Tensor,
    squared: Tensor,
    degenerate: Tensor,
    imprecise: Tensor,
    valid: Tensor | None,
    settings: Settings,
    may_sync: bool,
    single: bool = False,
) -> _Spectrum:
    """Steps 2 to 4 of the module; ``single``: return all N-1 coordinates, for losses on one."""
    s, root = Operator.apply(kernel, valid, settings.alpha)
    columns = kernel.shape[-1] - 1
    count = torch.full(kernel.shape[:1], columns, device=kernel.device)
    if valid is not None:
        count = (valid.sum(-1) - 1).clamp(min=0)
    width = None if may_sync and not single else columns
    phi, dimension, eigenvalues, vectors = RetainedEigenvectors.apply(
        s, count, settings, width, not single
    )
    present = root > 0.0
    scale = present.to(root.dtype)
    if settings.convention != "reference":
        scale = torch.where(present, 1.0 / torch.where(present, root, 1.0), 0.0)
    retained = torch.where(degenerate[:, None, None], 0.0, phi * scale.unsqueeze(-1))
    return _Spectrum(
        retained, dimension, eigenvalues, vectors, scale, root, squared, degenerate, imprecise
    )


def read_map(read: Read, *, discarded: bool = False) -> Score:
    """Make a score function (see :mod:`torch_mapss.core.frame_batches`) from ``read``.

    Args:
        read: function of map, points and settings of a batch of frames that returns tensors by
            name.
        discarded: as in :func:`embed`.
    """

    def score(points: Points, settings: Settings, may_sync: bool = True) -> Scored:
        embedding = embed(points, settings, discarded=discarded, may_sync=may_sync)
        return read(embedding, points, settings), embedding.needs_values

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
    settings = checked(Settings(alpha, time, energy, convention, max_dimension, eigh))
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
        x = joined(frames)
        if valid is not None:
            valid = valid.to(x.device)
        broken = broken_points(x, valid)
        if bool(broken.any()):  # one non-finite matrix would make the entire batched ``eigh`` fail
            frame, point = (int(index) for index in broken.nonzero()[0])
            raise NonFiniteError(f"point {point}", frame, lead)
        graph = gaussian_kernel(x, [frames], valid, True, convention == "reference")
        spectrum = _decomposed(*graph, valid, settings, may_sync=True, single=True)
        eigenvalues = torch.where(spectrum.degenerate.unsqueeze(-1), 0.0, spectrum.eigenvalues)
        coordinates = spectrum.all_coordinates(settings.time)
        return DiffusionMap(
            eigenvalues=eigenvalues.reshape(*lead, n - 1),
            dimension=torch.where(spectrum.degenerate, 1, spectrum.dimension).reshape(lead),
            stationary=spectrum.root.square().reshape(*lead, n),
            retained=spectrum.retained.reshape(*lead, n, n - 1),
            coordinates=coordinates.reshape(*lead, n, n - 1),
            time=settings.time,
        )

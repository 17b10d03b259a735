"""Stateless functions from embeddings to scores, batched over leading dimensions.

Shapes: S' outputs, S sources, P distortions, M features, N points of a frame; ``...`` any
leading dimensions (batch, frames). Order is always outputs (estimates), references, distortions.
Stages: :mod:`torch_mapss.core.diffusion_map`, :mod:`torch_mapss.core.separation` (PS),
:mod:`torch_mapss.core.match` (PM), :mod:`torch_mapss.core.pooling` (pooling),
:mod:`torch_mapss.core.gamma` (incomplete gamma),
:mod:`torch_mapss.bounds` (error radius and half-width, without gradients).

Measure, call, equation (labels of the paper's source):

.. list-table::
   :header-rows: 1

   * - what
     - call
     - equation
   * - diffusion map of a cloud of points
     - ``functional.diffusion_map``
     - ``eq:K``, ``eq:P_short``
   * - clearance and fidelity from embeddings
     - ``functional.clearance``, ``fidelity``
     - none: ours
   * - their half-width
     - ``functional.decomposition_bounds``
     - none: jackknife
   * - that of the utterance
     - ``bounds.utterance_decomposition_bounds``
     - none: jackknife
   * - PS from embeddings
     - ``functional.perceptual_separation``
     - ``eq:PS_final``
   * - its two distances A and B
     - ``functional.separation_distances``
     - ``eq:B``
   * - PM, log PM from embeddings
     - ``functional.perceptual_match``
     - ``eq:pm_gamma_mm_short``
   * - Q(k, x), log Q, differentiable
     - ``functional.gammaincc``, ``log_gammaincc``
     - ``eq:Q_partials``
   * - error radius and half-width of PS
     - ``functional.separation_bounds``
     - ``eq:ps_final_bound``
   * - error radius and half-width of PM
     - ``functional.match_bounds``
     - ``eq:pm_final_bound``
   * - truncation error of the embedding
     - ``functional.truncation_bounds``
     - ``app:conf_bound_pi``
   * - utterance PS
     - ``functional.pool_separation``
     - ``eq:pesq_pooling_ps``
   * - utterance fidelity
     - ``functional.pool_fidelity``
     - ours
   * - utterance PM
     - ``functional.pool_match``
     - ``eq:avg_pooling_pm``
   * - its bounds
     - ``bounds.pool_separation_bounds``
     - ``eq:pesq_pool_h``
   * - bounds of utterance PM
     - ``bounds.pool_match_bounds``
     - ``eq:avg_pool_h``
   * - correlation with ratings
     - ``bounds.correlation_bounds``
     - ``eq:pcc_hw``
   * - the same over mixtures
     - ``bounds.scenario_bounds``
     - ``eq:srcc_hw``
   * - the distortions
     - ``DistortionBank("separation")``, ``("match")``
     - ``app:distortionsbank``
   * - waveforms to frame scores
     - ``MAPSS``
     - all of the above
   * - waveforms to a score of each item
     - ``metrics.clearance``, ``metrics.perceptual_separation``, …
     - means over frames
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from typing_extensions import Unpack

from torch_mapss.bounds.frames import (
    DecompositionBounds,
    TruncationBounds,
    decomposition_bounds,
    match_bounds,
    separation_bounds,
    truncation_bounds,
)
from torch_mapss.core.decomposition import decomposition_scores
from torch_mapss.core.diffusion_map import DiffusionMap, diffusion_map
from torch_mapss.core.eager import eager
from torch_mapss.core.error_bounds import Bounds
from torch_mapss.core.frame_batches import run
from torch_mapss.core.gamma import gammaincc, log_gammaincc
from torch_mapss.core.match import match_scores
from torch_mapss.core.points import checked_points
from torch_mapss.core.pooling import pool_fidelity, pool_match, pool_separation
from torch_mapss.core.separation import separation_scores
from torch_mapss.core.settings import MapOptions, map_settings

__all__ = [
    "Bounds",
    "DecompositionBounds",
    "DiffusionMap",
    "SeparationDistances",
    "TruncationBounds",
    "clearance",
    "decomposition_bounds",
    "diffusion_map",
    "fidelity",
    "gammaincc",
    "log_gammaincc",
    "match_bounds",
    "perceptual_match",
    "perceptual_separation",
    "pool_fidelity",
    "pool_match",
    "pool_separation",
    "separation_bounds",
    "separation_distances",
    "truncation_bounds",
]


class SeparationDistances(NamedTuple):
    """The two halves of PS = B/(A + B)."""

    attributed: Tensor  # (..., S') A, to the cluster of the output's own source
    foreign: Tensor  # (..., S') B, to the closest cluster of another active source


@eager
def clearance(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    others: Tensor | None = None,
    alpha: float = 1.0,
    time: float = 1.0,
) -> Tensor:
    """Clearance of every output: how far it is from the other sources.

    It is the distance from the output to the nearest other source, divided by the distance from its
    own reference to that source, in diffusion coordinates, at most 1. 1 is as free of leakage as
    the reference, 0 is another source. Differentiable, without a gradient where it is 1; computed
    in float64. See :mod:`torch_mapss.core.decomposition` for the definition. No eigendecomposition.

    Args:
        outputs: (..., S', M) embeddings of the estimates, floating point. Each has its own graph:
            scores do not depend on which outputs are passed together.
        references: (..., S, M) embeddings of the references, S from 2 to 14 (time and memory
            grow with 2^S: 8 are fast).
        distortions: (..., S, P, M) embeddings of the distorted references, P at least 2; 20 are
            enough.
        attributed: (S',) the source of each output, no duplicates; all in order by default.
        active: (..., S) bool. An inactive source leaves the graph with its distortions, except for
            the graph of its own output: leakage into a source's pauses counts, so its embeddings
            must be finite there as well.
        mask: (..., S, P) bool, False where a distortion is absent.
        others: (..., S, M) embedding of the sum of the *other* references, for each source. With
            three or more sources it is an additional foreign point where two or more other sources
            are active; without it, an output that holds several other sources at once is not
            recognised as leakage.
        alpha: density exponent of the kernel in [0, 1].
        time: diffusion time t, a whole number of at least 1.

    Returns:
        (..., S') in [0, 1]; float64 if an input is, else float32. 0 without gradient where
        undefined: no other source active, an own reference that coincides with a foreign point, or
        more than half of the pairs of points coincident (no bandwidth). A source that is silent
        throughout has no level to compare its output at: leave that output out.

    Raises:
        TypeError: inputs not floating point, masks not bool.
        ValueError: shapes, devices or settings that do not fit; non-finite embeddings (names the
            first frame and source); an active source without any distortion.
    """
    points = checked_points(outputs, references, distortions, attributed, active, mask, 1, others)
    return run(points, map_settings(alpha=alpha, time=time), decomposition_scores)["clearance"]


@eager
def fidelity(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    others: Tensor | None = None,
    alpha: float = 1.0,
    time: float = 1.0,
) -> Tensor:
    """Fidelity of every output: how free it is of distortion (displacement other than leakage).

    The displacement from the own reference is fitted by the directions to the other sources, with
    non-negative least squares. Fidelity is 1 minus the residual over the distance to the nearest of
    them, at least 0. 1 is undistorted. An output that *is* another source has no distortion, so
    read it together with :func:`clearance`: where that is below 0.1, fidelity is undefined.
    Differentiable; no gradient where it is 0.

    Args:
        outputs, references, distortions, attributed, active, mask, others, alpha, time: as for
            :func:`clearance`.

    Returns:
        (..., S') in [0, 1]; float64 if an input is, else float32. 0 without gradient where
        undefined: where the own source is inactive, or clearance undefined or below 0.1.

    Raises:
        TypeError, ValueError: as :func:`clearance`.
    """
    points = checked_points(outputs, references, distortions, attributed, active, mask, 1, others)
    return run(points, map_settings(alpha=alpha, time=time), decomposition_scores)["fidelity"]


@eager
def perceptual_separation(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    **options: Unpack[MapOptions],
) -> Tensor:
    """PS of every output: how free it is of the other sources [eq:PS_final].

    B/(A + B) with A the Mahalanobis distance of the output to the cluster of its own source and B
    to the closest other one, on the diffusion map of the frame. 1 is free of leakage, ½ is equally
    far from both, 0 is another source. Differentiable, also at repeated eigenvalues; computed in
    float64. Where there is no map (more than half of the points coincide) it is ½.

    Args:
        outputs: (..., S', M) embeddings of the estimates, floating point.
        references: (..., S, M) embeddings of the references, S at least 2.
        distortions: (..., S, P, M) embeddings of the distorted references, P at least 2.
        attributed: (S',) the source of each output, no duplicates; all in order by default. Only
            the outputs passed are points of the graph.
        active: (..., S) bool; an inactive source leaves the graph with its cluster and output.
            Undefined scores (own source inactive, or no other source active) are 0 without
            gradient, for the caller to mask.
        mask: (..., S, P) bool, False where a distortion is absent.
        alpha: density exponent of the kernel in [0, 1].
        time: diffusion time t, positive.
        energy: share τ of the eigenvalue sum that is retained, in (0, 1].
        convention: ``"paper"`` as printed, or ``"reference"`` as the released implementation.
        max_dimension: the most coordinates to retain; None leaves it to ``energy``.
        eigh: precision of the eigendecomposition alone, ``"float64"`` or ``"float32"``. The latter
            is faster on cards with slow float64. It moves PS by about 1e-6, but the gradient of a
            single frame can be far off: use it for training and means, not for single frames.

    Returns:
        (..., S') in [0, 1]; float64 if an input is, else float32.

    Raises:
        TypeError: inputs not floating point, masks not bool, or an unknown option.
        ValueError: shapes, devices or settings that do not fit; non-finite embeddings (names the
            first frame and source); an active source without any distortion.
    """
    points = checked_points(outputs, references, distortions, attributed, active, mask, 1)
    return run(points, map_settings(**options), separation_scores)["ps"]


@eager
def separation_distances(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    **options: Unpack[MapOptions],
) -> SeparationDistances:
    """Distances A and B in PS = B/(A + B) [eq:B].

    PS also reacts to distortion, through A; B alone is the distance of the output from the closest
    foreign cluster. Arguments and errors as :func:`perceptual_separation`.

    Returns:
        A :class:`SeparationDistances` of two (..., S') tensors, at least 0; 0 where undefined.
    """
    points = checked_points(outputs, references, distortions, attributed, active, mask, 1)
    distances = run(points, map_settings(**options), separation_scores)
    return SeparationDistances(distances["attributed_distance"], distances["foreign_distance"])


@eager
def perceptual_match(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    log: bool = False,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    **options: Unpack[MapOptions],
) -> Tensor:
    """PM of every output: how undistorted it is [eq:pm_gamma_mm_short].

    The upper tail Q(k, a/θ) of the Gamma distribution matched to the squared distances of the
    distortions from their reference, at the squared distance a of the output. A cluster that is
    collapsed onto its reference has no Gamma: PM is 1 if the output coincides too, else 0,
    without gradient.

    Args:
        outputs, references, distortions, attributed, active, mask, options: as for
            :func:`perceptual_separation`; an active source needs at least two distortions.
        log: return log PM. PM of an audible distortion is often 1e-100: its log still ranks, and
            still has a gradient. In the reference convention it is not floored at 1e-16.

    Returns:
        (..., S') PM in [0, 1], or log PM, at most 0; float64 if an input is, else float32.

    Raises:
        TypeError, ValueError: as :func:`perceptual_separation`.
    """
    points = checked_points(outputs, references, distortions, attributed, active, mask, 2)
    return run(points, map_settings(**options), match_scores)["log_pm" if log else "pm"]

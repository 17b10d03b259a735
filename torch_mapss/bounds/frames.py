r"""Error bounds of PS and PM from truncation and from finitely many distortions.

Everything here runs without gradients, on all clusters of all frames at once, and uses the same
maps as the scores. Two errors are distinguished and added [eq:ps_final_bound], [eq:pm_final_bound]:

* **radius**, deterministic: the score keeps d of N-1 coordinates.
* **tail**, probabilistic: mean and covariance of a cluster are estimates from its N_p distortions.

What each of them guarantees: :mod:`torch_mapss.bounds`. ε(A) of [eq:temp_A] adds sqrt(A) times a
length to A: it is dimensionally inconsistent, and kept as printed in the paper's convention.

The derivations are in the modules that do the work: ``schur`` (what truncation discards),
``separation`` and ``match``, ``effective`` (sample sizes), ``bootstrap``. Bounds of utterances and
correlations follow in ``utterance`` and ``correlation``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torch_mapss.bounds.decomposition import (
    LEFT_OUT,
    decomposition_errors,
    utterance_half_widths,
)
from torch_mapss.bounds.match import match_widths
from torch_mapss.bounds.separation import separation_widths
from torch_mapss.bounds.settings import (
    CONVENTIONS,
    POOLED_CONVENTIONS,
    BoundSettings,
    check_confidence,
    checked,
)
from torch_mapss.core import checks
from torch_mapss.core.diffusion_map import DiffusionMap, FrameMaps, Read, score_function_from
from torch_mapss.core.eager import eager
from torch_mapss.core.error_bounds import Bounds
from torch_mapss.core.frame_batches import ScoreFunction, run
from torch_mapss.core.match import of_match
from torch_mapss.core.points import Points, checked_points
from torch_mapss.core.separation import of_separation
from torch_mapss.core.settings import MapOptions, MapSettings, map_settings

Widths = Callable[[FrameMaps, Points, MapSettings, BoundSettings], tuple[Tensor, Tensor]]


class DecompositionBounds(NamedTuple):
    """Half-widths of clearance and fidelity; the radius of both is 0."""

    clearance: Bounds
    fidelity: Bounds


class TruncationBounds(NamedTuple):
    """Length of the coordinates that the truncated embedding of a point leaves out."""

    expectation: Tensor  # (...) root mean square of E(x) under π, so at least its mean
    bound: Tensor  # (...) E(x) stays below it with the requested confidence


# --------------------------------------------------------------------------------------------
# Public functions
# --------------------------------------------------------------------------------------------


@eager
@torch.no_grad()
def separation_bounds(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    confidence: float = 0.95,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    tail: str = "concentration",
    n_eff: float | str = 0.7,
    c: float = 1.0,
    floor: float = 0.05,
    draws: int = 200,
    seed: int = 0,
    **options: Unpack[MapOptions],
) -> Bounds:
    """Error radius and half-width of PS [sec:bounds], for the scores of the same arguments.

    ``|PS of the full space - PS| <= radius`` always holds (for the same closest cluster j*). The
    tail is an approximation: see the module's notes, and ``benchmarks/coverage.py`` for how often
    it holds. Bounds are capped only where a convention says so; one above ½ is uninformative.

    Args:
        outputs, references, distortions, attributed, active, mask: as in
            :func:`torch_mapss.functional.perceptual_separation`.
        confidence: 1 - δ in (0, 1), for each measure separately.
        tail: ``"concentration"`` (the paper's inequalities) or ``"bootstrap"``: the ``confidence``
            quantile of the change when the distortions are resampled with replacement, on an
            unchanged map. Costs ``draws`` factorisations per cluster.
        n_eff: effective sample size: a share of the cluster's points in (0, 1], or ``"bartlett"``
            to estimate it for every cluster from the autocorrelation along the bank's order
            (never more than the cluster has). Smaller is wider.
        c: constant C of [eq:ps_cov], which the paper leaves open. Larger is safer and wider.
        floor: ε_r in (0, 1], the share of λmax added to the least eigenvalue. Larger is tighter.
        draws: number of bootstrap draws.
        seed: seed of the bootstrap draws; every frame resamples the same distortions.
        options: settings of the map, as in the score. The convention is ``"paper"`` as printed,
            ``"reference"`` as the released implementation, or ``"derived"`` with units, union
            bounds and constants corrected (the scores are then the paper's).

    Returns:
        :class:`Bounds` of (..., S') tensors. 0 where the score is undefined (own source inactive,
        or alone), for the caller to mask. Where the score is ½ by rule (both distances 0) the tail
        is ½.

    Raises:
        TypeError, ValueError: as the score; and a setting out of its range.
    """
    convention, settings = _settings(options)
    limits = BoundSettings(
        confidence, convention, tail, n_eff, c, floor=floor, draws=draws, seed=seed
    )
    score = separation_errors(checked(limits))
    points = checked_points(outputs, references, distortions, attributed, active, mask, 1)
    return _of_measure(run(points, settings, score), "ps")


@eager
@torch.no_grad()
def match_bounds(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    confidence: float = 0.95,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    tail: str = "concentration",
    c1: float = 1.0,
    c2: float = 1.0,
    cap: float = 0.5,
    draws: int = 200,
    seed: int = 0,
    **options: Unpack[MapOptions],
) -> Bounds:
    """Error radius and half-width of PM [app:pm_measure], for the scores of the same arguments.

    The radius is guaranteed in the derived convention; in the others it depends on c1 and c2.

    Args:
        outputs, references, distortions, attributed, active, mask: as for
            :func:`torch_mapss.functional.perceptual_match`.
        confidence, tail, draws, seed, options: as in :func:`separation_bounds`.
        c1: C₁ of [eq:pm_k_bias], which the paper leaves open; scales the half-width of k.
        c2: C₂ of [eq:pm_theta_bias], the same for θ.
        cap: largest half-width of k, θ and a as a share of each. The paper's ½ keeps the tail from
            becoming extremely loose; ``math.inf`` removes it (and with 70 distortions leaves almost
            only vacuous tails).

    Returns:
        :class:`Bounds` of (..., S') tensors. 0 where the score is undefined. Where PM is 0 or 1 by
        the rule for collapsed clusters there is no fit, and the tail is 1.

    Raises:
        TypeError, ValueError: as the score; and a setting out of its range.
    """
    convention, settings = _settings(options)
    limits = BoundSettings(
        confidence, convention, tail, c1=c1, c2=c2, cap=cap, draws=draws, seed=seed
    )
    score = match_errors(checked(limits))
    points = checked_points(outputs, references, distortions, attributed, active, mask, 2)
    return _of_measure(run(points, settings, score), "pm")


@eager
@torch.no_grad()
def decomposition_bounds(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    confidence: float = 0.95,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    others: Tensor | None = None,
    alpha: float = 1.0,
    time: float = 1.0,
) -> DecompositionBounds:
    """Jackknife half-widths of clearance and fidelity over the choice of distortions.

    Args:
        outputs, references, distortions, attributed, active, mask, others, alpha, time: as for
            :func:`torch_mapss.functional.clearance`.
        confidence: confidence in (0, 1), for each number separately.

    Returns:
        Two :class:`Bounds` of (..., S') tensors, radius 0; 0 where the score is undefined.

    Raises:
        TypeError, ValueError: as :func:`torch_mapss.functional.clearance`; a confidence out of its
            range.
    """
    score = decomposition_errors(checked(BoundSettings(confidence)))
    points = checked_points(outputs, references, distortions, attributed, active, mask, 1, others)
    errors = run(points, map_settings(alpha=alpha, time=time), score)
    return DecompositionBounds(_of_measure(errors, "clearance"), _of_measure(errors, "fidelity"))


@eager
@torch.no_grad()
def utterance_decomposition_bounds(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    confidence: float = 0.95,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    others: Tensor | None = None,
    alpha: float = 1.0,
    time: float = 1.0,
) -> DecompositionBounds:
    """Half-widths of utterance clearance (mean) and fidelity (1 - RMS of 1 - F).

    By a jackknife of the pooled score: all frames are compared with the same distortions, so what
    the choice of these does to the score does not average out over frames.

    Args:
        outputs: (..., F, S', M), references: (..., F, S, M), distortions: (..., F, S, P, M): the
            last leading dimension are the frames of an utterance.
        confidence, attributed, active, mask, others, alpha, time: as for
            :func:`decomposition_bounds`.

    Returns:
        Two :class:`Bounds` of (..., S') tensors, radius 0; NaN where no frame is defined.

    Raises:
        TypeError, ValueError: as :func:`decomposition_bounds`; no dimension of frames.
    """
    settings = checked(BoundSettings(confidence))
    if outputs.ndim < 3:
        raise ValueError(
            "an utterance needs frames: outputs must have shape (..., F, S', M), got "
            f"{tuple(outputs.shape)}. For single frames use decomposition_bounds."
        )
    score = decomposition_errors(settings, scores=True, left_out=True)
    points = checked_points(outputs, references, distortions, attributed, active, mask, 1, others)
    errors = run(points, map_settings(alpha=alpha, time=time), score)
    sums = {name: values.sum(-4) for name, values in errors.items() if name in LEFT_OUT}
    clearance_frames = errors["clearance_defined"].sum(-2)
    fidelity_frames = errors["fidelity_defined"].sum(-2)
    tails = utterance_half_widths(sums, clearance_frames, fidelity_frames, confidence)
    return DecompositionBounds(*(Bounds.of(torch.zeros_like(tail), tail) for tail in tails))


def _of_measure(errors: dict[str, Tensor], name: str) -> Bounds:
    return Bounds.of(errors[f"{name}_radius"], errors[f"{name}_tail"])


@torch.no_grad()
def truncation_bounds(
    embedded: DiffusionMap,
    confidence: float = 0.95,
    *,
    c: float = 1.0,
    convention: str = "paper",
) -> TruncationBounds:
    r"""Truncation error E(x) of the embedding itself [app:conf_bound_pi], x drawn from π.

    E(x) is the length of the discarded coordinates of a point. Its mean square under π is
    :math:`\sum_{\ell>d}\lambda_\ell^{2t}`; the paper prints the root as its mean, which it bounds
    from above (Jensen).

    The printed high-probability bound :math:`C\lambda_{d+1}^t K (m + \sqrt{m \ln(1/\delta)})` is
    never below one that always holds: :math:`\sum_\ell u_\ell(i)^2 = 1/\pi_i - 1`, so
    :math:`E(x_i) \le \lambda_{d+1}^t (1/\pi_{min} - 1)^{1/2} < \lambda_{d+1}^t K`. ``"derived"``
    gives the smaller of this and Markov's :math:`(\sum\lambda^{2t}/\delta)^{1/2}`.

    Args:
        embedded: of :func:`torch_mapss.functional.diffusion_map`, paper convention. Its diffusion
            time is the t of the bound.
        confidence: 1 - δ in (0, 1).
        c: constant C, which the paper leaves open (printed bound only).
        convention: ``"paper"`` or ``"derived"``.

    Returns:
        :class:`TruncationBounds` of (...) tensors; 0 where nothing is discarded.

    Raises:
        TypeError, ValueError: a setting that is not a number, or out of its range.
    """
    check_confidence(confidence)
    checks.check_real(c, "c", "(0, inf)")
    checks.check_choice(convention, "convention", POOLED_CONVENTIONS)
    present = embedded.stationary > 0.0
    m = (present.sum(-1) - 1 - embedded.dimension).clamp(min=0)
    index = torch.arange(embedded.eigenvalues.shape[-1], device=m.device)
    discarded = index >= embedded.dimension.unsqueeze(-1)
    powers = torch.where(discarded, embedded.eigenvalues.pow(embedded.time), 0.0)
    square = powers.square().sum(-1)
    smallest_share = torch.where(present, embedded.stationary, 1.0).amin(-1)
    following = powers.amax(-1)
    if convention == "derived":
        sure = following * (1.0 / smallest_share - 1.0).clamp(min=0.0).sqrt()
        bound = torch.minimum(sure, (square / (1.0 - confidence)).sqrt())
    else:
        k = (smallest_share * math.log(2.0)).rsqrt()
        log = -math.log1p(-confidence)
        m = m.to(following.dtype)
        bound = c * following * k * (m + (m * log).sqrt())
    return TruncationBounds(square.sqrt(), bound)


# --------------------------------------------------------------------------------------------
# Together with the scores
# --------------------------------------------------------------------------------------------


def _errors(
    name: str, widths: Widths, scored: Read | None, options: BoundSettings
) -> ScoreFunction:
    def read(maps: FrameMaps, points: Points, settings: MapSettings) -> dict[str, Tensor]:
        radius, tail = widths(maps, points, settings, options)
        scores = {} if scored is None else scored(maps, points, settings)
        return {f"{name}_radius": radius, f"{name}_tail": tail, **scores}

    return score_function_from(read, complete=True)


def separation_errors(options: BoundSettings, *, scores: bool = False) -> ScoreFunction:
    """Make a score function for ``ps_radius`` and ``ps_tail``, optionally with those of PS.

    Making the map is most of the work, and bounds and scores share it.

    Args:
        options: checked options, see :func:`torch_mapss.bounds.settings.checked`.
        scores: also return the result of :func:`torch_mapss.core.separation.of_separation`.
    """
    return _errors("ps", separation_widths, of_separation if scores else None, options)


def match_errors(options: BoundSettings, *, scores: bool = False) -> ScoreFunction:
    """Make a score function for ``pm_radius`` and ``pm_tail``, optionally with those of PM."""
    return _errors("pm", match_widths, of_match if scores else None, options)


# --------------------------------------------------------------------------------------------
# Checks
# --------------------------------------------------------------------------------------------


def _settings(options: MapOptions) -> tuple[str, MapSettings]:
    """The convention of the bounds, and the settings of their maps."""
    convention = checks.check_choice(options.get("convention", "paper"), "convention", CONVENTIONS)
    printed = "paper" if convention == "derived" else convention
    maps: MapOptions = {**options, "convention": printed}
    return convention, map_settings(**maps)

"""Frame scores as training losses: thin modules over :class:`~torch_mapss.MAPSS`.

    ``DecompositionLoss``  leakage and distortion: (1 - clearance) + 2 (1 - fidelity), cheap
    ``ClearanceLoss``      leakage: 1 - clearance
    ``FidelityLoss``       distortion: 1 - fidelity, not capped
    ``SeparationLoss``     leakage: 1 - PS, or -log PS
    ``MatchLoss``          distortion: log(1 - log PM), -log PM, or 1 - PM
    ``BleedLoss``          level in the pauses of a source, in dB above a floor
    ``MAPSSLoss``          a weighted sum of any of them, SI-SDR and a term of your own

All are called as ``loss(estimates, references)`` or, much cheaper, ``loss(estimates, bank)`` with
``bank = loss.prepare(references)`` made once per mixture. They guarantee:

* *Undefined is zero.* A source for which a term is defined in no frame (silent reference, no frame
  with two active sources) adds exactly zero and gets exactly zero gradient; means are taken over
  defined frames of a source, defined sources of a mixture, and defined mixtures of the batch. If
  nothing is defined, the loss is a zero that can be back-propagated, with a single warning (on an
  accelerator only with ``check_finite``, since it reads values).
* *Full precision.* Half-precision estimates are lifted to float32, autocast is switched off inside,
  and the manifold runs in float64; the gradient comes back in the dtype of the estimates, clamped
  to its largest finite number. Call ``backward()`` outside the autocast block, as PyTorch
  advises: inside, it would run the encoder's backward pass in half precision.
* *No parameters.* The encoder is frozen and not part of the module tree: ``parameters()`` and
  ``state_dict()`` of a model that holds a loss are those of the model alone, as data-parallel and
  sharded training require (an ``extra`` that is a module is a submodule like any other). Copies
  share the encoder's weights until one moves to another device; ``pickle`` carries them.
* *Eager under compilation.* A compiled step breaks its graph at the loss and resumes after it.
* *Means per process.* Data-parallel training averages gradients over processes, each of which
  averages over the defined items in its own batch: a process with nothing defined, or with fewer
  mixtures, counts as much as the others. ``reduction="global"`` is exact: sums and counts are added
  up over all processes (one small collective per call, so every process must call it), the loss is
  the mean over all mixtures, the same on every process, and the average of the gradients is its
  gradient.
* *Estimates first.* A loss is not symmetric. If references require a gradient and estimates do not,
  they are refused as swapped; if nothing requires a gradient, as in validation, a swap cannot be
  detected.

Fewer frames (``frames=100``) and smaller banks (``DistortionBank(..., size=24)``) make a step
cheaper. Every call draws different frames at random, so that means over calls are unbiased; a
source that a draw misses is left out of that step. A smaller bank is a different, coarser measure:
its loss ranks outputs much like the full one but has other values, so compare only losses of the
same bank (``benchmarks/training_step.py`` measures both).

Clearance and fidelity use frames every 20 ms, and training would exploit what lies between them. So
in training mode a loss with one of them draws a new start of the frames in every call: it leaves
out less than a hop of samples at the beginning of estimates and references, in all terms but
``extra``. Two calls with equal signals then differ a little; after ``loss.eval()`` they do not. A
bank was encoded on one grid, so nothing is drawn with it: its windows of 50 ms overlap enough that
a separator trained on one grid keeps its fidelity on others to within a few hundredths. Leave a
loss that draws frames or grids out of activation checkpointing, which would call it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss.core import checks, devices
from torch_mapss.core.eager import eager
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.energy_ratios import si_sdr_of_call
from torch_mapss.pipeline.frame_draws import frame_generator, grid_shift
from torch_mapss.pipeline.inputs import check_pit
from torch_mapss.pipeline.mapss import MAPSS, EncoderChoice, resolve
from torch_mapss.pipeline.measures import MEASURES
from torch_mapss.pipeline.score import score
from torch_mapss.training.autocast import precisely
from torch_mapss.training.inputs import PIT, ordered, truth_of, validate
from torch_mapss.training.reduction import REDUCTIONS, mean_of, reduced, reduced_extra
from torch_mapss.training.terms import (
    FRAME_TERMS,
    FrameTerm,
    LossRecord,
    Term,
    Weighting,
    bleed_term,
    checked_weighting,
    estimate_term,
    frame_weights,
    match_term,
    measure_of_term,
    separation_term,
)

__all__ = [
    "BleedLoss",
    "ClearanceLoss",
    "DecompositionLoss",
    "FidelityLoss",
    "LossRecord",
    "MAPSSLoss",
    "MatchLoss",
    "SeparationLoss",
]

UNDEFINED = (
    "fidelity, PS and PM need frames in which the own source and another one are active (and "
    "different), clearance frames in which another one is (of a source that plays at some time), "
    "bleed frames in which the own source pauses and another one is active."
)

Extra = Callable[[Tensor, Tensor], Tensor]


class PerceptualLoss(nn.Module):
    """A weighted sum of terms: scores a call, averages the terms, adds them up.

    Args:
        mapss: the scorer, shared and not copied; one scorer serves several losses and metrics. Made
            from ``encoder`` and ``options`` if None, only for the measures of this loss.
        weights: weights of the terms by name.
        terms: terms with settings, by name, as partial functions; all others are taken from
            ``FRAME_TERMS``.
        reduction, weighting, pit, frames, seed, encoder, options: see :class:`SeparationLoss`.
    """

    def __init__(
        self,
        mapss: MAPSS | None,
        weights: Mapping[str, float],
        terms: Mapping[str, FrameTerm] | None = None,
        *,
        reduction: str = "mean",
        weighting: str | Weighting | None = None,
        pit: str | None = None,
        frames: int | None = None,
        seed: int = 0,
        encoder: EncoderChoice | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        #: Weights of the terms, which may be changed between calls.
        self.weights = dict(weights)
        #: Terms by name: functions from scores to the losses of their frames.
        self.terms: dict[str, FrameTerm] = {**FRAME_TERMS, **(terms or {})}
        self.pit = check_pit(pit, None, PIT)
        self.seed = checks.check_seed(seed)
        # The measures refuse weights that leave out every term.
        self.mapss = resolve(mapss, encoder, options, self.measures, self.seed)
        self.reduction = checks.check_choice(reduction, "reduction", REDUCTIONS)
        self.weighting = checked_weighting(weighting)
        self.frames = None if frames is None else checks.check_whole(frames, "frames", 1)
        #: Calls made in training mode, which choose frames and grids: set it to resume exactly.
        self.draws = 0
        self._evaluation_draws = 0
        #: :class:`LossRecord` of the last call.
        self.last: LossRecord | None = None
        self._warned = False
        self.extra: Extra | None = None

    @property
    def measures(self) -> tuple[str, ...]:
        """Measures that a :class:`~torch_mapss.MAPSS` must compute for the non-zero weights."""
        for name, weight in self.weights.items():
            if name not in (*self.terms, "si_sdr"):
                raise ValueError(
                    f"weights[{name!r}] is not a term. Terms: {', '.join(self.terms)} and si_sdr."
                )
            checks.check_real(weight, name, "[0, inf)", "0 leaves the term out.")
        weighted = self._weighted()
        if not weighted:
            raise ValueError(
                f"the weights {self.weights} leave out every term of the scores. Give one of them "
                "a weight, or use SI-SDR (torch_mapss.audio.si_sdr) without this loss."
            )
        if self.pit == "loss" and not {"clearance", "separation"} & set(weighted):
            # A swap of two outputs is pure leakage, which distortion alone cannot detect.
            raise ValueError(
                'pit="loss" needs a term of leakage (clearance or separation), which tells swapped '
                f'outputs, got the weights {self.weights}. Use pit="si_sdr".'
            )
        needed = {measure_of_term(name) for name in weighted}
        return tuple(name for name in MEASURES if name in needed)

    def _weighted(self) -> list[str]:
        """Names of the frame terms with a weight."""
        return [name for name, weight in self.weights.items() if weight and name in self.terms]

    def train(self, mode: bool = True) -> PerceptualLoss:
        """Set the mode like any module; evaluation restarts its draws."""
        self._evaluation_draws = 0
        return super().train(mode)

    def prepare(
        self, references: Tensor, lengths: Tensor | Sequence[int] | None = None
    ) -> ReferenceBank:
        """:meth:`MAPSS.prepare` for the measures that this loss needs."""
        return self.mapss.prepare(references, lengths, measures=self.measures)

    @eager
    def forward(
        self,
        estimates: Tensor,
        references: Tensor | ReferenceBank,
        attributed: Sequence[int] | Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        waveforms: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            estimates: (B, S', T) waveforms; the gradient flows through them. (S', T) is refused,
                since a wrapper that goes speaker by speaker would pass (B, T), which looks the
                same.
            references: (B, S, T) waveforms, or a bank of them (:meth:`prepare`), which saves most
                of the cost. In training mode clearance and fidelity of waveforms are taken on a
                grid of frames that every call draws; a bank has one grid.
            attributed: (S',) index of the reference of each estimate; all in order by default. To
                train only on a target, pass one estimate and ``attributed=(0,)``.
            lengths: (B,) true lengths in samples of a padded batch; a bank has its own.
            waveforms: (B, S, T) waveforms of the references, if these are a bank and ``extra``
                needs them; otherwise unused.

        Returns:
            () with reduction "mean", "sum" or "global", (B,) with "item", (B, S') with "none";
            float64 for float64 estimates, else float32. Values are in the order of the estimates,
            also with PIT.

        Raises:
            TypeError: not tensors of a dtype that can hold audio.
            ValueError: shapes, lengths, devices or samples that do not fit, see the message;
                arguments that seem to be swapped.
        """
        config, draw = self.mapss.config, self._draw()
        shift = 0.0
        if self.training and "decomposition" in self.measures:
            shift = grid_shift(self.seed, draw)
        with precisely(estimates) as (waves, leave):
            arguments = config, waves, references, attributed, lengths, self.measures
            call = validate(*arguments, self.pit, shift)
            truth = None
            if self.extra is not None:
                truth = truth_of(config, call, references, waveforms)
            call, order = ordered(
                call,
                self.pit,
                lambda permuted: reduced(self._terms(permuted, draw), self.weights, "item"),
            )
            return leave(self._reduce(self._terms(call, draw), call, order, truth))

    def _draw(self) -> int:
        """Number of this call's draw: different in every call, but repeated in every evaluation.

        If all batches drew the same frames, the mean over an epoch would be biased.
        """
        if self.training:
            self.draws += 1
            return self.draws - 1
        self._evaluation_draws += 1
        return -self._evaluation_draws

    def _terms(self, call: Call, draw: int) -> dict[str, Term]:
        """Terms per estimate, by the name of their weight."""
        config = self.mapss.config
        generator = frame_generator(self.seed, draw)
        (values,) = score(config, [call], self.frames, generator)
        scores = values.scores()
        weights_of_frames = frame_weights(self.weighting, scores, call, config.grid)
        terms = {
            name: estimate_term(name, self.terms[name](scores), weights_of_frames)
            for name in self._weighted()
        }
        if self.weights.get("si_sdr"):
            decibels, defined = si_sdr_of_call(call)
            terms["si_sdr"] = -decibels, defined
        return terms

    def _reduce(
        self,
        permuted_terms: Mapping[str, Term],
        call: Call,
        order: Tensor | None,
        truth: Tensor | None,
    ) -> Tensor:
        terms: dict[str, Term] = {}  # in the order of the estimates, before PIT
        means: dict[str, Tensor] = {}
        for name, (values, defined) in permuted_terms.items():
            term = devices.restore_order(values, order), devices.restore_order(defined, order)
            mean = torch.where(defined.any(), mean_of(term), torch.nan)
            terms[name], means[f"{name}_loss"] = term, mean.detach()
        of_frames = [defined for name, (_, defined) in terms.items() if name in self.terms]
        defined = torch.stack(of_frames).any(0)
        self.last = LossRecord(means, defined.detach(), order)
        self._warn_undefined(self.last.defined, call.bank)
        value = reduced(terms, self.weights, self.reduction)
        if self.extra is None or truth is None:
            return value
        waves = call.estimates
        extra = reduced_extra(self.extra(waves, truth), self.reduction, waves.shape[:2])
        return value + (devices.restore_order(extra, order) if self.reduction == "none" else extra)

    def _warn_undefined(self, defined: Tensor, bank: ReferenceBank) -> None:
        if self._warned:
            return
        # Shapes first; values are read only where samples are checked anyway.
        in_pauses = any(MEASURES[name].in_pauses for name in self.measures)
        empty = all(
            len(clips.scored) == 0 and not (in_pauses and len(clips.pauses))
            for clips in bank.groups
        )
        if "bleed" not in self.measures and empty:
            self._warned = True
        elif self.mapss.config.check_finite or not devices.is_accelerator(defined.device):
            self._warned = not bool(defined.any())
        if self._warned:
            checks.warn_user(
                f"no estimate of this batch of {bank.batch} can be scored: {UNDEFINED} The loss of "
                "the scores is zero, without gradient. This warning is given once."
            )

    def extra_repr(self) -> str:
        """Settings, for ``print``."""
        shown: dict[str, Any] = dict(self.weights)
        for name in self._weighted():
            for argument, value in getattr(self.terms[name], "keywords", {}).items():
                shown[f"{name}_mode" if argument == "mode" else argument] = value
        for argument in ("reduction", "weighting", "pit", "frames", "seed"):
            shown[argument] = getattr(self, argument)
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


class SeparationLoss(PerceptualLoss):
    """Leakage as a loss: 1 - PS, or -log PS.

    Args:
        mapss: the scorer, shared and not copied; one scorer serves several losses and metrics.
            Made from ``encoder`` and ``options`` if None, for the measures of this loss alone.
        mode: ``"linear"`` is 1 - PS, in [0, 1], with bounded gradients. ``"log"`` is -log PS, which
            pulls harder on outputs that resemble another source (continued linearly below PS =
            1e-6).
        reduction: ``"mean"`` over defined frames, then sources, then mixtures; ``"global"``: the
            same over the mixtures of all processes of data-parallel training; ``"sum"`` over
            estimates; ``"item"`` (B,) or ``"none"`` (B, S'), 0 where undefined.
        weighting: weights of the frames in a source's mean: None (equal), ``"energy"`` (that of the
            reference in the frame, so that soft passages count less), or a function of the detached
            :class:`~torch_mapss.Scores` and the bank that returns weights (B, S', F), at least 0.
        pit: None takes estimates in order. ``"si_sdr"`` gives each reference the estimate that
            maximises the total SI-SDR; ``"loss"`` chooses the permutation with the smallest loss,
            by scoring all of them without gradients (S! forward passes, at most 4 sources).
        frames: largest number of frames to score per batch, drawn at random for each call (in
            evaluation mode the same in every pass, since ``loss.eval()`` restarts the draws). Fewer
            are cheaper but noisier.
        seed: seed of these draws, of the start of the frames of clearance and fidelity, and of the
            noise in the banks of a new MAPSS (an existing one has its own). ``loss.draws`` counts
            the calls in training mode and can be set to resume.
        encoder: encoder of a new MAPSS; None: the default encoder of MAPSS.
        options: further keywords of :class:`~torch_mapss.MAPSS`, e.g. ``layer``,
            ``separation_bank=DistortionBank("separation", size=24)``, ``device``.

    Example:
        >>> import torch
        >>> from torch_mapss import SeparationLoss
        >>> loss = SeparationLoss(encoder="mel")
        >>> references = torch.randn(1, 2, 8000)
        >>> estimates = (references + 0.5 * references.flip(1)).requires_grad_()
        >>> loss(estimates, references).backward()
        >>> bool(estimates.grad.abs().sum() > 0)
        True
    """

    def __init__(self, mapss: MAPSS | None = None, *, mode: str = "linear", **options: Any) -> None:
        terms = {"separation": separation_term(mode)}
        super().__init__(mapss, {"separation": 1.0}, terms, **options)


class MatchLoss(PerceptualLoss):
    """Distortion as a loss: log(1 - log PM), -log PM, or 1 - PM.

    Args:
        mapss: as in :class:`SeparationLoss`.
        mode: ``"log1p"`` is log(1 - log PM), computed from the logarithm: an output far outside its
            cluster, whose PM has underflown to 0, still has a slope, but costs only a few units, so
            that hopeless frames do not outweigh the rest. ``"log"`` is -log PM: it has the same
            order and the same slopes near a good output, but is unbounded, reaching hundreds for an
            output with audible leakage. ``"linear"`` is 1 - PM, in [0, 1], flat once PM is 0.
        options: as in :class:`SeparationLoss`.
    """

    def __init__(self, mapss: MAPSS | None = None, *, mode: str = "log1p", **options: Any) -> None:
        terms = {"match": match_term(mode)}
        super().__init__(mapss, {"match": 1.0}, terms, **options)


class ClearanceLoss(PerceptualLoss):
    """Leakage as a loss: 1 - clearance, in [0, 1].

    **Do not use it alone**: any output far from the other sources has a high clearance, so on its
    own, even with SI-SDR, this loss destroys the output (in ``recipes/train_separator.py`` STOI
    falls to 0.64, against 0.73 without it, as measured with version 0.4.0). Use
    :class:`DecompositionLoss`, or give fidelity at least as much weight. The slope is zero once an
    output is as far from the other sources as its reference is. Pauses of a source in which another
    one plays count like other frames; ``weighting="energy"`` gives them next to no weight.

    Args:
        mapss, options: as in :class:`SeparationLoss`; ``decomposition_bank`` and
            ``decomposition_encoder`` choose what it sees.
    """

    def __init__(self, mapss: MAPSS | None = None, **options: Any) -> None:
        super().__init__(mapss, {"clearance": 1.0}, **options)


class FidelityLoss(PerceptualLoss):
    r"""Distortion as a loss: :math:`|e_{dist}| / \min_j |u_j|`, 1 - fidelity without its cap at 1.

    :mod:`torch_mapss.core.decomposition` defines both lengths. It keeps its slope where fidelity is
    0 (except at digital silence, which has none). On its own it trades artefacts for leakage and
    cannot detect swapped outputs, so ``pit="loss"`` is refused.

    Args:
        mapss, options: as in :class:`ClearanceLoss`.
    """

    def __init__(self, mapss: MAPSS | None = None, **options: Any) -> None:
        super().__init__(mapss, {"fidelity": 1.0}, **options)


class DecompositionLoss(PerceptualLoss):
    r"""Leakage and distortion: :math:`(1 - C) + 2 |e_{dist}| / \min_j |u_j|`.

    Their gradients oppose each other, so they belong together; a ratio of 1 : 2 worked best in
    training (``benchmarks/results/training.md``). Completely swapped outputs are a stationary point
    of value 1: start from the mixture, or set ``pit``.

    Args:
        mapss, options: as in :class:`ClearanceLoss`.
        clearance, fidelity: weights of the two terms.
        si_sdr: weight of -SI-SDR, in 1/dB, as in :class:`MAPSSLoss`.

    Example:
        >>> import torch
        >>> from torch_mapss import DecompositionLoss
        >>> loss = DecompositionLoss(si_sdr=0.1)  # loads no weights: its encoder is "mel"
        >>> references = torch.randn(1, 2, 8000)
        >>> bank = loss.prepare(references)
        >>> estimates = (references + 0.5 * references.flip(1)).requires_grad_()
        >>> loss(estimates, bank).backward()
        >>> bool(estimates.grad.abs().sum() > 0)
        True
    """

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        clearance: float = 1.0,
        fidelity: float = 2.0,
        si_sdr: float = 0.0,
        **options: Any,
    ) -> None:
        weights = {"clearance": clearance, "fidelity": fidelity, "si_sdr": si_sdr}
        super().__init__(mapss, weights, **options)


class BleedLoss(PerceptualLoss):
    """How far the bleed of a source exceeds a floor, in dB: mean of max(0, bleed_db - floor).

    It penalises what an output adds in the pauses of its source while another one plays, however
    soft, and needs neither encoder nor bank. Its slope is 0 at the reference. All frames weigh the
    same, whatever ``weighting``.

    Args:
        mapss, options: as in :class:`SeparationLoss`.
        floor_db: bleed below it costs nothing.
    """

    def __init__(
        self, mapss: MAPSS | None = None, *, floor_db: float = -40.0, **options: Any
    ) -> None:
        terms = {"bleed": bleed_term(floor_db)}
        super().__init__(mapss, {"bleed": 1.0}, terms, **options)


class MAPSSLoss(PerceptualLoss):
    """Weighted sum of any of the terms, SI-SDR and your own term.

    ``clearance`` · (1 - C) + ``fidelity`` · distortion + ``separation`` · leakage + ``match`` ·
    distortion + ``bleed`` · dB above the floor − ``si_sdr`` · SI-SDR + ``extra``. Each term is
    averaged over its defined items: SI-SDR needs a reference that is not silent, the others need
    defined frames.

    Args:
        mapss: as in :class:`SeparationLoss`.
        clearance, fidelity: weights of the terms of :class:`DecompositionLoss`.
        separation: weight of the PS term; 0 removes the term and its cost.
        match: weight of the PM term. With the defaults, both have similar gradients on the outputs
            of real separators.
        bleed: weight of the term of :class:`BleedLoss`, in 1/dB.
        si_sdr: weight of -SI-SDR, in 1/dB, at the encoder's sample rate. It anchors the waveform
            itself, which the other terms do not see; at 0.15 its gradient is similar to those of PS
            and PM, and 0 removes it.
        extra: your own term: a function of estimates and their references (B, S', T), in the
            original samples (permuted and selected, but never resampled or normalised), that
            returns losses of shape (), (B,) or (B, S'). Reductions "item" and "none" need the shape
            that they return. It carries its own weight, and is ignored when permutations are
            compared.
        separation_mode, match_mode: ``mode`` of :class:`SeparationLoss` and :class:`MatchLoss`.
        floor_db: floor of :class:`BleedLoss`.
        options: as in :class:`SeparationLoss`.

    Attributes:
        weights: the weights by name, a dictionary that may be changed between calls.

    Raises:
        ValueError: a weight is negative or not finite, or all terms but SI-SDR are left out.
    """

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        clearance: float = 0.0,
        fidelity: float = 0.0,
        separation: float = 1.0,
        match: float = 0.1,
        bleed: float = 0.0,
        si_sdr: float = 0.0,
        extra: Extra | None = None,
        separation_mode: str = "linear",
        match_mode: str = "log1p",
        floor_db: float = -40.0,
        **options: Any,
    ) -> None:
        weights = {
            "clearance": clearance,
            "fidelity": fidelity,
            "separation": separation,
            "match": match,
            "bleed": bleed,
            "si_sdr": si_sdr,
        }
        terms = {
            "separation": separation_term(separation_mode),
            "match": match_term(match_mode),
            "bleed": bleed_term(floor_db),
        }
        super().__init__(mapss, weights, terms, **options)
        if extra is not None and not callable(extra):
            raise TypeError(
                "extra must be a function of (estimates, references), got "
                f"{type(extra).__name__}. Pass e.g. lambda e, r: 0.1 * (e - r).abs().mean(-1)."
            )
        self.extra = extra

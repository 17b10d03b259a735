"""PS and PM as training losses: thin modules over :class:`~torch_mapss.MAPSS`.

    ``SeparationLoss``  leakage: 1 - PS, or -log PS
    ``MatchLoss``       self-distortion: log(1 - log PM), -log PM, or 1 - PM
    ``MAPSSLoss``       a weighted sum of both, SI-SDR and a term of your own

As they come they train: their terms have gradients of one size on what separators put out
(``benchmarks/training_gradients.py``), where a bare -log PM outweighs all others a hundred times.

All are called as ``loss(estimates, references)`` or, much cheaper, ``loss(estimates, bank)`` with
``bank = loss.mapss.prepare(references)`` made once per mixture. What they promise:

*Undefined is zero.* A source that is scored in no frame (silent reference, no frame with two
    active sources) adds exactly zero and gets exactly zero gradient; means run over what is
    defined: frames of a source, sources of a mixture, mixtures of the batch. If nothing is
    defined the loss is a zero that can be back-propagated, and a warning says so once.
*Full precision.* Half-precision estimates are lifted to float32, autocast is switched off inside,
    and the manifold runs in float64; the gradient comes back in the dtype of the estimates, held
    at its largest finite number. Call ``backward()`` outside the autocast block, as PyTorch
    advises: inside, it would run the encoder's backward pass in half precision.
*No parameters.* The encoder is frozen and no part of the module tree: ``parameters()`` and
    ``state_dict()`` of a model that holds a loss are those of the model alone, as data-parallel
    and sharded training want it (an ``extra`` that is a module is a submodule like any other).
    Copies share the encoder's weights until one moves to another device; ``pickle`` carries them.
*Eager under compilation.* A compiled step leaves its graph at the loss and goes on behind it.
*Means of a process.* Data-parallel training averages gradients over processes, each of which has
    averaged over what is defined in its own batch: a process with nothing defined, or with fewer
    mixtures, weighs as much as the others, and halves a gradient of two. ``reduction="global"`` is
    exact: sums and counts are added up over all processes (one small collective a call, so every
    process must call it), the loss is the mean over all mixtures, the same on every process, and
    the average of the gradients is its gradient.

Fewer frames (``frames=100``) and smaller banks (``DistortionBank(..., size=24)``) make a step
cheaper. Frames are drawn at random, so each source's mean is unbiased over the draws that reach
it; a source that a draw misses is left out of that step. As each call draws anew, leave such a
loss out of activation checkpointing, which would call it again. A smaller bank is another, coarser
measure: its loss ranks outputs much as the full one does but lies elsewhere, so compare losses of
one bank only (``benchmarks/training_step.py`` measures both).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss.core import checks
from torch_mapss.core.torch_defaults import with_torch_defaults
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.mapss import DEFAULT_ENCODER, MAPSS, EncoderChoice, resolve
from torch_mapss.pipeline.permutation import check_pit
from torch_mapss.pipeline.score import score
from torch_mapss.pipeline.scores import Scores
from torch_mapss.training.autocast import precisely
from torch_mapss.training.inputs import Call, admit
from torch_mapss.training.pit import PIT, ordered, returned, unplaced
from torch_mapss.training.reduction import REDUCTIONS, mean_of, reduced, reduced_extra
from torch_mapss.training.terms import (
    LossRecord,
    Term,
    distortion_values,
    leakage_values,
    negative_si_sdr,
    weighted_mean,
)
from torch_mapss.training.weights import (
    Weighting,
    checked_weight,
    checked_weighting,
    frame_weights,
    needed,
)

__all__ = ["LossRecord", "MAPSSLoss", "MatchLoss", "SeparationLoss"]

MODES = ("linear", "log")
MATCH_MODES = ("linear", "log", "log1p")

Extra = Callable[[Tensor, Tensor], Tensor]
FrameTerm = tuple[str, float, Tensor]  # name, weight, values (B, S', F)


class _PerceptualLoss(nn.Module):
    """What the three losses share: admit a call, score it, weigh the terms, reduce them."""

    @property
    def measures(self) -> tuple[str, ...]:
        """What of a :class:`~torch_mapss.MAPSS` is computed."""
        raise NotImplementedError

    def __init__(
        self,
        mapss: MAPSS | None,
        encoder: EncoderChoice,
        reduction: str,
        weighting: str | Weighting | None,
        pit: str | None,
        frames: int | None,
        seed: int,
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        self.mapss = resolve(mapss, encoder, options)
        self.reduction = checks.check_choice(reduction, "reduction", REDUCTIONS)
        self.weighting = checked_weighting(weighting)
        self.pit = check_pit(pit, None, PIT)
        self.frames = None if frames is None else checks.check_whole(frames, "frames", 1)
        self.seed = checks.check_seed(seed)
        #: Calls made in training mode, which choose the random frames: set it to resume exactly.
        self.draws = 0
        #: :class:`LossRecord` of the last call.
        self.last: LossRecord | None = None
        self._warned = False
        self.extra: Extra | None = None

    @with_torch_defaults
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
            estimates: (B, S', T) waveforms; the gradient runs through them. (S', T) is refused:
                a wrapper that goes speaker by speaker hands in (B, T), which looks the same.
            references: (B, S, T) waveforms, or a bank of them
                (``loss.mapss.prepare(references)``), which saves most of the cost.
            attributed: (S',) which reference each estimate belongs to; all in order by default.
                Train on the target alone with one estimate and ``attributed=(0,)``.
            lengths: (B,) true lengths in samples of a padded batch; a bank knows its own.
            waveforms: (B, S, T) the references as waveforms, where a bank is handed in and
                ``extra`` wants them. Unused otherwise.

        Returns:
            () with reduction "mean", "sum" or "global", (B,) with "item", (B, S') with "none";
            float64 for float64 estimates, else float32. Estimates keep their place also with PIT.

        Raises:
            TypeError: not tensors of a type that holds audio.
            ValueError: shapes, lengths, devices or samples that do not fit, see the message;
                non-finite samples name item and source.
        """
        with precisely(estimates) as (waves, leave):
            given = waves, references, attributed, lengths, waveforms
            call = admit(self.mapss, *given, self.measures, self.extra is not None)
            call = ordered(replace(call, draw=self._draw()), self.pit, self._losses)
            terms = self._weigh(self._score(call), call)
            return leave(self._reduce(terms, call))

    def _draw(self) -> int | None:
        """New random frames for every call in training mode, the same ones in evaluation mode."""
        if self.frames is None:
            return None
        draw = self.draws if self.training else -1
        self.draws += self.training
        return _stable_seed(self.seed, draw)

    def _score(self, call: Call) -> Scores:
        return score(self.mapss.config, call.admitted, self.frames, call.generator())

    def _frame_terms(self, scores: Scores) -> list[FrameTerm]:
        """The terms that frames have."""
        raise NotImplementedError

    def _weigh(self, scores: Scores, call: Call) -> list[Term]:
        weights = frame_weights(self.weighting, scores, call, self.mapss.grid)
        return [
            Term(name, weight, *weighted_mean(values, weights))
            for name, weight, values in self._frame_terms(scores)
        ]

    def _losses(self, call: Call) -> Tensor:
        """(B,) of one permutation."""
        return reduced(self._weigh(self._score(call), call), "item")

    def _reduce(self, terms: Sequence[Term], call: Call) -> Tensor:
        terms = [returned(term, call.order) for term in terms]
        self.last = _record(terms, call.order)
        self._warn_undefined(self.last.defined, call.bank)
        return reduced(terms, self.reduction)

    def _warn_undefined(self, defined: Tensor, bank: ReferenceBank) -> None:
        if self._warned:
            return
        # Shapes tell first; values of a tensor are read only where samples are checked anyway.
        empty = all(len(group.scored) == 0 for group in bank.groups)
        if empty or (self.mapss.config.check_finite and not bool(defined.any())):
            self._warned = True
            checks.warn_user(
                f"no estimate of this batch of {bank.batch} can be scored: no drawn frame has its "
                "own source and another one active. PS and PM add zero, without gradient. This is "
                "said once."
            )

    def extra_repr(self) -> str:
        """Settings, for ``print``."""
        names = ("reduction", "weighting", "pit", "frames", "seed")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


def _record(terms: Sequence[Term], order: Tensor | None) -> LossRecord:
    perceptual = [term for term in terms if term.name in ("separation", "match")]
    means = {
        term.name: torch.where(term.defined.any(), mean_of(term), torch.nan).detach()
        for term in terms
    }
    return LossRecord(means, perceptual[0].defined.detach(), order)


def _stable_seed(seed: int, draw: int) -> int:
    """Hashed, since neighbouring seeds of one generator would share draws with other losses."""
    digest = hashlib.sha256(f"frames/{seed}/{draw}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


class SeparationLoss(_PerceptualLoss):
    """Leakage as a loss: 1 - PS, or -log PS.

    Args:
        mapss: the scorer, shared and not copied; one scorer serves several losses and metrics.
            Made from ``encoder`` and ``options`` if None.
        mode: ``"linear"`` is 1 - PS, in [0, 1]: calm. ``"log"`` is -log PS: pulls harder on the
            outputs that sound like another source (straight below PS = 1e-6).
        reduction: ``"mean"`` over frames, then sources, then mixtures, of what is defined;
            ``"global"``: the same over the mixtures of all processes of data-parallel training;
            ``"sum"`` over estimates; ``"item"`` (B,) or ``"none"`` (B, S'), 0 where undefined.
        weighting: of the frames in a source's mean: None (equal), ``"energy"`` (of the reference
            in the frame: soft passages count less), or a callable from the detached
            :class:`~torch_mapss.Scores` and the bank to weights (B, S', F), at least 0.
        pit: None takes estimates in order. ``"si_sdr"`` gives each reference the estimate that
            maximises the total SI-SDR; ``"loss"`` the permutation of least loss, by scoring them
            all without gradients (S! forward passes, at most 4 sources).
        frames: score at most so many frames of the batch, drawn at random for each call (in
            evaluation mode always the same ones). Fewer are cheaper and noisier.
        seed: of those draws; ``loss.draws`` counts them and can be set to resume.
        encoder: as for :class:`~torch_mapss.MAPSS`.
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

    measures = ("separation",)

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        mode: str = "linear",
        reduction: str = "mean",
        weighting: str | Weighting | None = None,
        pit: str | None = None,
        frames: int | None = None,
        seed: int = 0,
        encoder: EncoderChoice = DEFAULT_ENCODER,
        **options: Any,
    ) -> None:
        super().__init__(mapss, encoder, reduction, weighting, pit, frames, seed, options)
        self.mode = checks.check_choice(mode, "mode", MODES)

    def _frame_terms(self, scores: Scores) -> list[FrameTerm]:
        return [("separation", 1.0, leakage_values(scores, self.mode))]


class MatchLoss(_PerceptualLoss):
    """Self-distortion as a loss: log(1 - log PM), -log PM, or 1 - PM.

    Args:
        mapss: as for :class:`SeparationLoss`.
        mode: ``"log1p"`` is log(1 - log PM), computed from the logarithm: an output far outside its
            cluster, whose PM has underflown to 0, still has a slope, and costs a few units, so that
            hopeless frames do not outweigh the rest. ``"log"`` is -log PM: the same order, the same
            slopes near a good output, but unbounded, hundreds for an output with audible leakage.
            ``"linear"`` is 1 - PM, in [0, 1], flat once PM is 0. So in the paper convention: in
            the conformal one all three keep a slope at every distance, and of much the same size
            (``benchmarks/results/conformal.md``).
        reduction, weighting, pit, frames, seed, encoder, options: as for
            :class:`SeparationLoss`.
    """

    measures = ("match",)

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        mode: str = "log1p",
        reduction: str = "mean",
        weighting: str | Weighting | None = None,
        pit: str | None = None,
        frames: int | None = None,
        seed: int = 0,
        encoder: EncoderChoice = DEFAULT_ENCODER,
        **options: Any,
    ) -> None:
        super().__init__(mapss, encoder, reduction, weighting, pit, frames, seed, options)
        self.mode = checks.check_choice(mode, "mode", MATCH_MODES)

    def _frame_terms(self, scores: Scores) -> list[FrameTerm]:
        return [("match", 1.0, distortion_values(scores, self.mode))]


class MAPSSLoss(_PerceptualLoss):
    """Leakage and self-distortion, with SI-SDR and a term of your own, as one loss.

    ``separation`` · leakage + ``match`` · distortion − ``si_sdr`` · SI-SDR + ``extra``. Each term
    is averaged over what is defined for it: SI-SDR needs a reference that is not silent, PS and
    PM a frame with two active sources.

    Args:
        mapss: as for :class:`SeparationLoss`.
        separation: weight of the PS term; 0 leaves it out, cost and all.
        match: weight of the PM term; 0 leaves it out. With the defaults both pull alike on the
            outputs of real separators (``benchmarks/results/training_gradients.md``). The default
            is that of the paper convention: in the conformal one the term is several times flatter
            and wants more, with leakage members in its bank it is a little steeper
            (``benchmarks/results/training.md`` has weights that pull alike, and what they train).
        si_sdr: weight of -SI-SDR, in 1/dB, at the encoder's sample rate. It anchors what PS and PM
            do not hear, the waveform itself; 0.15 makes it pull like the other two, 0 leaves it
            out.
        extra: a term of your own, called with estimates and their references (B, S', T) as
            handed in (permuted and picked, never resampled or normalised); returns (), or (B,) or
            (B, S') of losses.
            Reduction "item" and "none" need the shape they return. It weighs itself and takes no
            part in choosing permutations.
        separation_mode, match_mode: ``mode`` of :class:`SeparationLoss` and :class:`MatchLoss`.
        reduction, weighting, pit, frames, seed, encoder, options: as for
            :class:`SeparationLoss`.

    Attributes:
        weights: the three weights by name, a dictionary that may be changed between calls.

    Raises:
        ValueError: a weight that is negative or not finite, or both PS and PM left out.
    """

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        separation: float = 1.0,
        match: float = 0.1,
        si_sdr: float = 0.0,
        extra: Extra | None = None,
        separation_mode: str = "linear",
        match_mode: str = "log1p",
        reduction: str = "mean",
        weighting: str | Weighting | None = None,
        pit: str | None = None,
        frames: int | None = None,
        seed: int = 0,
        encoder: EncoderChoice = DEFAULT_ENCODER,
        **options: Any,
    ) -> None:
        super().__init__(mapss, encoder, reduction, weighting, pit, frames, seed, options)
        weights = {"separation": separation, "match": match, "si_sdr": si_sdr}
        self.weights = {name: checked_weight(w, name) for name, w in weights.items()}
        self.separation_mode = checks.check_choice(separation_mode, "separation_mode", MODES)
        self.match_mode = checks.check_choice(match_mode, "match_mode", MATCH_MODES)
        if extra is not None and not callable(extra):
            raise TypeError(
                "extra must be a function of (estimates, references), got "
                f"{type(extra).__name__}. Pass e.g. lambda e, r: 0.1 * (e - r).abs().mean(-1)."
            )
        self.extra = extra
        needed(self.weights)

    @property
    def measures(self) -> tuple[str, ...]:
        """As the weights need it; they may be changed between calls."""
        return needed(self.weights)

    def _frame_terms(self, scores: Scores) -> list[FrameTerm]:
        found = {
            "separation": lambda: leakage_values(scores, self.separation_mode),
            "match": lambda: distortion_values(scores, self.match_mode),
        }
        return [(n, self.weights[n], values()) for n, values in found.items() if self.weights[n]]

    def _weigh(self, scores: Scores, call: Call) -> list[Term]:
        terms = super()._weigh(scores, call)
        if self.weights["si_sdr"]:
            values, defined = negative_si_sdr(call)
            terms.append(Term("si_sdr", self.weights["si_sdr"], values, defined))
        return terms

    def _reduce(self, terms: Sequence[Term], call: Call) -> Tensor:
        value = super()._reduce(terms, call)
        if self.extra is None:
            return value
        assert call.truth is not None
        extra = self.extra(call.estimates, call.truth)
        extra = reduced_extra(extra, self.reduction, call.estimates.shape[:2])
        return value + (unplaced(extra, call.order) if self.reduction == "none" else extra)

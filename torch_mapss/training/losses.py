"""PS and PM as training losses: thin modules over :class:`~torch_mapss.MAPSS`.

    ``SeparationLoss``  leakage: 1 - PS, or -log PS
    ``MatchLoss``       self-distortion: -log PM, log(1 - log PM), or 1 - PM
    ``MAPSSLoss``       a weighted sum of both, SI-SDR and a term of your own

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

Fewer frames (``frames=100``) and smaller banks (``DistortionBank(..., size=24)``) make a step
cheaper. Frames are drawn at random, so each source's mean is unbiased over the draws that reach
it; a source that a draw misses is left out of that step. As each call draws anew, leave such a
loss out of activation checkpointing, which would call it again. A smaller bank is another, coarser
measure: its loss ranks outputs much as the full one does but lies elsewhere, so compare losses of
one bank only (``benchmarks/training_step.py`` measures both).
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.pipeline.admit import admit, sound_waveforms
from torch_mapss.pipeline.mapss import DEFAULT_ENCODER, MAPSS, EncoderChoice, resolve
from torch_mapss.pipeline.records import ReferenceBank, Scores
from torch_mapss.pipeline.scoring import bank_of, prepared, score
from torch_mapss.training.precision import Output, lifted_estimates, returned, without_autocast
from torch_mapss.training.terms import (
    Call,
    LossRecord,
    Term,
    distortion_values,
    energies_of,
    leakage_values,
    mean_of,
    negative_si_sdr,
    pairs,
    reduced,
    reduced_extra,
    weighted_mean,
    zero_of,
)

__all__ = ["LossRecord", "MAPSSLoss", "MatchLoss", "SeparationLoss"]

REDUCTIONS = ("mean", "sum", "item", "none")
MODES = ("linear", "log")
MATCH_MODES = ("linear", "log", "log1p")
PIT = ("si_sdr", "loss")
# PIT over the loss scores every permutation: 24 of them for 4 sources.
MOST_PERMUTED = 4

Weighting = Callable[[Scores, ReferenceBank], Tensor]
Extra = Callable[[Tensor, Tensor], Tensor]


class _PerceptualLoss(nn.Module):
    """What the three losses share: the scorer, frames, permutations, reductions."""

    @property
    def measures(self) -> str:
        """What of a :class:`~torch_mapss.MAPSS` is computed: "both", "separation" or "match"."""
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
        self.weighting = _checked_weighting(weighting)
        self.pit = pit if pit is None else checks.check_choice(pit, "pit", PIT)
        self.frames = None if frames is None else checks.check_whole(frames, "frames", 1)
        self.seed = checks.check_seed(seed)
        #: Calls made in training mode, which choose the random frames: set it to resume exactly.
        self.draws = 0
        #: :class:`LossRecord` of the last call.
        self.last: LossRecord | None = None
        self._warned = False

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
            () with reduction "mean" or "sum", (B,) with "item", (B, S') with "none"; float64 for
            float64 estimates, else float32. Estimates keep their place also with PIT.

        Raises:
            TypeError: not tensors of a type that holds audio.
            ValueError: shapes, lengths, devices or samples that do not fit, see the message;
                non-finite samples name item and source.
        """
        arguments = estimates, references, attributed, lengths, waveforms
        if torch.compiler.is_compiling():
            # Looked up here: importing the compiler would cost every eager user seconds.
            return torch.compiler.disable(self._evaluate)(*arguments)
        return self._evaluate(*arguments)

    def _evaluate(
        self,
        estimates: Tensor,
        references: Tensor | ReferenceBank,
        attributed: Sequence[int] | Tensor | None,
        lengths: Tensor | Sequence[int] | None,
        waveforms: Tensor | None,
    ) -> Tensor:
        self._check_rank(estimates)
        scale: list[Tensor] = []
        with without_autocast(estimates):
            estimates = lifted_estimates(estimates, scale)
            call = self._call(estimates, references, attributed, lengths, waveforms)
            order = self._order(call)
            terms = self._terms(_placed(call, order))
            terms = terms if order is None else [returned(term, order) for term in terms]
            self._note(terms, order, call.bank)
            value = reduced(terms, self.reduction)
            value = value + self._extra(_placed(call, order))
        if call.estimates.requires_grad and not value.requires_grad:
            value = value + zero_of(call.estimates)
        return Output.apply(value, scale)

    # --------------------------------------------------------------------------- one call

    @staticmethod
    def _check_rank(estimates: object) -> None:
        if getattr(estimates, "ndim", 3) == 2:
            shape = tuple(estimates.shape)  # type: ignore[attr-defined]
            raise ValueError(
                f"a loss takes estimates (B, S', T), got {shape}: the first axis could be mixtures "
                "or sources. PS and PM compare an estimate with all sources of its mixture and "
                "have no value speaker by speaker; a permutation wrapper must hand in whole "
                "mixtures (mode='permutation-wise'). For one mixture pass estimates.unsqueeze(0)."
            )

    def _call(
        self,
        estimates: Tensor,
        references: Tensor | ReferenceBank,
        attributed: Sequence[int] | Tensor | None,
        lengths: Tensor | Sequence[int] | None,
        waveforms: Tensor | None,
    ) -> Call:
        call = admit(self.mapss, estimates, references, attributed, lengths, self.measures)
        call = prepared(self.mapss, call)
        bank = bank_of(call)
        if waveforms is None and isinstance(references, Tensor):
            waveforms = references[..., : bank.samples]
        if waveforms is not None:
            waveforms = _of_bank(audio.as_waveform(waveforms, "waveforms"), bank)
        return Call(call, waveforms, self._draw())

    def _draw(self) -> int | None:
        """New random frames for every call in training mode, the same ones in evaluation mode."""
        if self.frames is None:
            return None
        draw = self.draws if self.training else -1
        self.draws += self.training
        return _stable_seed(self.seed, draw)

    def _frame_terms(self, scores: Scores) -> list[tuple[str, float, Tensor]]:
        """Name, weight and (B, S', F) values of the terms that frames have."""
        raise NotImplementedError

    def _terms(self, call: Call) -> list[Term]:
        draw = None if call.draw is None else torch.Generator("cpu").manual_seed(call.draw)
        scores = score(self.mapss, call.admitted, self.frames, draw)
        weights = self._weights(scores, call)
        return [
            Term(name, weight, *weighted_mean(values, weights))
            for name, weight, values in self._frame_terms(scores)
        ]

    def _weights(self, scores: Scores, call: Call) -> Tensor:
        """(B, S', F) weights of the frames, 0 where they are not scored."""
        if self.weighting is None:
            return scores.active.to(scores.ps.dtype)
        if self.weighting == "energy":
            weights = energies_of(call.bank, call.attributed, self.mapss.grid)
        else:
            assert callable(self.weighting)
            weights = _checked_weights(self.weighting(scores.detach(), call.bank), scores)
        return torch.where(scores.active, weights.detach().to(scores.ps), 0.0)

    def _extra(self, call: Call) -> Tensor | float:
        del call
        return 0.0

    # --------------------------------------------------------------------------- permutations

    def _order(self, call: Call) -> Tensor | None:
        """(B, S): the estimate that stands for each reference; None: as they came."""
        if self.pit is None:
            return None
        sources = call.bank.sources
        if call.attributed != tuple(range(sources)):
            raise ValueError(
                f"pit={self.pit!r} needs one estimate per reference and no attribution, got "
                f"attributed={call.attributed} of {sources} sources. Leave pit out where the "
                "source of an estimate is known."
            )
        with torch.no_grad():
            return (
                self._order_by_si_sdr(call) if self.pit == "si_sdr" else self._order_by_loss(call)
            )

    def _order_by_si_sdr(self, call: Call) -> Tensor:
        order = torch.empty(call.estimates.shape[:2], dtype=torch.long)
        for items, estimates, references in pairs(call):
            order[list(items)] = audio.match_sources(estimates, references).argsort(-1).cpu()
        return order.to(call.estimates.device)

    def _order_by_loss(self, call: Call) -> Tensor:
        sources = call.bank.sources
        if sources > MOST_PERMUTED:
            raise ValueError(
                f"pit='loss' scores every permutation and takes at most {MOST_PERMUTED} sources, "
                f"got {sources}. Use pit='si_sdr'."
            )
        orders = torch.tensor(list(itertools.permutations(range(sources))))
        orders = orders.to(call.estimates.device)
        batch = len(call.estimates)
        losses = [
            reduced(self._terms(_placed(call, order.expand(batch, -1))), "item") for order in orders
        ]
        return orders[torch.stack(losses).argmin(0)]

    # --------------------------------------------------------------------------- notes

    def _note(self, terms: Sequence[Term], order: Tensor | None, bank: ReferenceBank) -> None:
        perceptual = [term for term in terms if term.name in ("separation", "match")]
        defined = perceptual[0].defined
        means = {
            term.name: torch.where(term.defined.any(), mean_of(term), torch.nan).detach()
            for term in terms
        }
        self.last = LossRecord(means, defined.detach(), order)
        self._warn_undefined(defined, bank)

    def _warn_undefined(self, defined: Tensor, bank: ReferenceBank) -> None:
        if self._warned:
            return
        # Shapes tell first; values of a tensor are read only where samples are checked anyway.
        empty = all(len(group.scored) == 0 for group in bank.groups)
        if empty or (self.mapss.check_finite and not bool(defined.any())):
            self._warned = True
            checks.warn_user(
                f"no estimate of this batch of {bank.batch} can be scored: no drawn frame has its "
                "own source and another one active. PS and PM add zero, without gradient. This is "
                "said once."
            )

    # --------------------------------------------------------------------------- module manners

    def extra_repr(self) -> str:
        """Settings, for ``print``."""
        names = ("reduction", "weighting", "pit", "frames", "seed")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class SeparationLoss(_PerceptualLoss):
    """Leakage as a loss: 1 - PS, or -log PS.

    Args:
        mapss: the scorer, shared and not copied; one scorer serves several losses and metrics.
            Made from ``encoder`` and ``options`` if None.
        mode: ``"linear"`` is 1 - PS, in [0, 1]: calm. ``"log"`` is -log PS: pulls harder on the
            outputs that sound like another source (straight below PS = 1e-6).
        reduction: ``"mean"`` over frames, then sources, then mixtures, of what is defined;
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

    measures = "separation"

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

    def _frame_terms(self, scores: Scores) -> list[tuple[str, float, Tensor]]:
        return [("separation", 1.0, leakage_values(scores, self.mode))]


class MatchLoss(_PerceptualLoss):
    """Self-distortion as a loss: -log PM, log(1 - log PM), or 1 - PM.

    Args:
        mapss: as for :class:`SeparationLoss`.
        mode: ``"log"`` is -log PM, computed as a logarithm throughout: an output far outside its
            cluster, whose PM has underflown to 0, still has a slope. It is unbounded: hundreds
            for an output with audible leakage, so a few hopeless frames can outweigh the rest.
            ``"log1p"`` is log(1 - log PM): the same order and slopes near a good output, a few
            units for a hopeless one, so that it can be weighed against other terms. ``"linear"``
            is 1 - PM, in [0, 1], flat once PM is 0.
        reduction, weighting, pit, frames, seed, encoder, options: as for
            :class:`SeparationLoss`.
    """

    measures = "match"

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        mode: str = "log",
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

    def _frame_terms(self, scores: Scores) -> list[tuple[str, float, Tensor]]:
        return [("match", 1.0, distortion_values(scores, self.mode))]


class MAPSSLoss(_PerceptualLoss):
    """Leakage and self-distortion, with SI-SDR and a term of your own, as one loss.

    ``separation`` · leakage + ``match`` · distortion − ``si_sdr`` · SI-SDR + ``extra``. Each term
    is averaged over what is defined for it: SI-SDR needs a reference that is not silent, PS and
    PM a frame with two active sources.

    Args:
        mapss: as for :class:`SeparationLoss`.
        separation: weight of the PS term; 0 leaves it out, cost and all.
        match: weight of the PM term; 0 leaves it out.
        si_sdr: weight of -SI-SDR, in 1/dB, at the encoder's sample rate. It anchors what PS and PM
            do not hear, the waveform itself (0.05 weighs a dB like 5 % of PS).
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
        match: float = 1.0,
        si_sdr: float = 0.0,
        extra: Extra | None = None,
        separation_mode: str = "linear",
        match_mode: str = "log",
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
        self.weights = {name: _checked_weight(w, name) for name, w in weights.items()}
        self.separation_mode = checks.check_choice(separation_mode, "separation_mode", MODES)
        self.match_mode = checks.check_choice(match_mode, "match_mode", MATCH_MODES)
        if extra is not None and not callable(extra):
            raise TypeError(
                "extra must be a function of (estimates, references), got "
                f"{type(extra).__name__}. Pass e.g. lambda e, r: 0.1 * (e - r).abs().mean(-1)."
            )
        self.extra = extra
        _needed(self.weights)

    @property
    def measures(self) -> str:
        """As the weights need it; they may be changed between calls."""
        return _needed(self.weights)

    def _frame_terms(self, scores: Scores) -> list[tuple[str, float, Tensor]]:
        terms = []
        if self.weights["separation"]:
            leakage = leakage_values(scores, self.separation_mode)
            terms.append(("separation", self.weights["separation"], leakage))
        if self.weights["match"]:
            terms.append(
                ("match", self.weights["match"], distortion_values(scores, self.match_mode))
            )
        return terms

    def _terms(self, call: Call) -> list[Term]:
        terms = super()._terms(call)
        if self.weights["si_sdr"]:
            values, defined = negative_si_sdr(call)
            terms.append(Term("si_sdr", self.weights["si_sdr"], values, defined))
        return terms

    def _extra(self, call: Call) -> Tensor | float:
        if self.extra is None:
            return 0.0
        if call.waveforms is None:
            raise ValueError(
                "extra needs the references as waveforms, and a bank was handed in. Pass them "
                "along: loss(estimates, bank, waveforms=references)."
            )
        lengths, check = call.bank.lengths, self.mapss.check_finite
        references, _ = sound_waveforms(call.waveforms, "waveforms", lengths, check)
        references = references[:, list(call.attributed)]
        value = self.extra(call.estimates, references.to(call.estimates.dtype))
        return reduced_extra(value, self.reduction, call.estimates.shape[:2])


# ------------------------------------------------------------------------------------------------
# Small parts
# ------------------------------------------------------------------------------------------------


def _of_bank(waveforms: Tensor, bank: ReferenceBank) -> Tensor:
    """References as waveforms, of the shape the bank was made from."""
    expected = bank.batch, bank.sources, bank.samples
    if tuple(waveforms.shape) != expected:
        raise ValueError(
            f"waveforms must be the references (B, S, T) = {expected} the bank was made of, got "
            f"{tuple(waveforms.shape)}. Nothing is broadcast or cut."
        )
    return waveforms


def _placed(call: Call, order: Tensor | None) -> Call:
    """The call with estimates brought into the order of the references."""
    if order is None:
        return call
    return call._replace(admitted=call.admitted.ordered(order))


def _stable_seed(seed: int, draw: int) -> int:
    """Hashed, since neighbouring seeds of one generator would share draws with other losses."""
    digest = hashlib.sha256(f"frames/{seed}/{draw}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _checked_weighting(weighting: str | Weighting | None) -> str | Weighting | None:
    if weighting is None or weighting == "energy" or callable(weighting):
        return weighting
    raise ValueError(
        "weighting must be None, 'energy' or a function from scores and bank to weights "
        f"(B, S', F), got {weighting!r}."
    )


def _checked_weights(weights: object, scores: Scores) -> Tensor:
    if not isinstance(weights, Tensor):
        raise TypeError(f"weighting must return a tensor (B, S', F), got {type(weights).__name__}.")
    try:
        weights = weights.expand(scores.ps.shape)
    except RuntimeError:
        raise ValueError(
            f"weighting must return (B, S', F) = {tuple(scores.ps.shape)}, got "
            f"{tuple(weights.shape)}."
        ) from None
    if not bool(((weights >= 0.0) & weights.isfinite()).all()):
        raise ValueError(
            "weighting must return finite weights of at least 0, got others. A negative weight "
            "would reward what it should punish."
        )
    return weights


def _checked_weight(weight: float, name: str) -> float:
    value = float(weight)
    if not (math.isfinite(value) and value >= 0.0):
        raise ValueError(
            f"{name} must be a finite weight of at least 0, got {weight}. 0 leaves the term out."
        )
    return value


def _needed(weights: dict[str, float]) -> str:
    """Which measures a MAPSSLoss computes."""
    ps, pm = weights["separation"] > 0.0, weights["match"] > 0.0
    if not (ps or pm):
        raise ValueError(
            "separation and match are both 0, so neither PS nor PM would be computed. Give one of "
            "them a weight, or use SI-SDR (torch_mapss.audio.si_sdr) without this loss."
        )
    return "both" if ps and pm else "separation" if ps else "match"

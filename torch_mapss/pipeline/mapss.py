"""The scorer itself: its settings and manners. The work is done by the rooms beside it.

A call is admitted (:mod:`~torch_mapss.pipeline.inputs`), its references are prepared unless they
came as a bank (``prepare``), its estimates normalised, encoded, scored and placed (``scoring``).
What depends on the references alone is computed without gradients; the gradient of a score runs
through the estimates only.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.core.frame_batches import Score
from torch_mapss.core.settings import Settings, map_settings
from torch_mapss.core.torch_defaults import with_torch_defaults
from torch_mapss.distortions import DistortionBank
from torch_mapss.encoders import Encoder, as_encoder
from torch_mapss.pipeline.clusters import LEAST_MEMBERS, Checks
from torch_mapss.pipeline.inputs import Call, admit, admit_references
from torch_mapss.pipeline.memory import Budget, budget, checked_memory, explained, lowered
from torch_mapss.pipeline.prepare import prepare_bank, shared_grid, warn_unscored
from torch_mapss.pipeline.records import ReferenceBank, ScoreBounds, Scores
from torch_mapss.pipeline.scoring import (
    OnSegment,
    bank_of,
    bound,
    prepared,
    score,
    score_together,
)
from torch_mapss.pipeline.segments import CONTEXT

Recall = Callable[[Encoder, Sequence[Tensor]], list[Tensor]]
EncoderChoice = str | Encoder | Callable[[Tensor], Tensor]
DEFAULT_ENCODER = "wav2vec2-large"
SEGMENT = 60.0  # seconds, of segment="auto"


class MAPSS(nn.Module):
    """PS and PM of separated sources, frame by frame, differentiable in the estimates.

    Args:
        encoder: name (``torch-mapss encoders`` lists them), local folder or hub id of a
            checkpoint, an :class:`~torch_mapss.encoders.Encoder`, or any callable with
            ``sample_rate``, ``hop`` and ``receptive_field``. ``"mel"`` needs no download.
        layer: of the encoder; its default if None.
        match_encoder: another encoder for PM, on the same rate and hop; ``encoder`` if None.
        separation_bank: distortions for PS; the paper's 70 if None. A smaller one
            (``DistortionBank("separation", size=20)``) is faster and coarser.
        match_bank: distortions for PM; the paper's up to 83 if None.
        seed: of the noise in the default banks. Equal seeds give equal scores.
        sample_rate: of the waveforms handed in, in Hz; they are resampled to the encoder's rate,
            which None says they already have.
        trim: cut estimates and references to the shorter of them instead of refusing.
        align_polarity: flip an estimate whose correlation with its reference is negative.
            Checkpoints hear the sign, people do not.
        alpha, time, energy, max_dimension, convention, eigh: of the diffusion map, see
            :func:`torch_mapss.functional.perceptual_separation`.
        loudness: target of the normalisation of every waveform, in LUFS.
        activity: a source is active where its RMS exceeds this share of its RMS over all samples.
        check_finite: look for NaN and infinite samples and refuse them. Without, the mixture
            of such a source is left out, undefined; a training step on an accelerator then waits
            for the device twice instead of four times.
        segment: seconds. Longer clips are distorted, encoded and scored in segments of at most so
            much, in memory that grows with them by some copies of their waveforms alone; gradients
            are then not to be had. Encoders whose frames see no further than their receptive field
            (``"mel"``, ``"waveform"``) give the scores of the whole clip up to rounding. For
            transformers the segment, with a second more on each side, is all that they hear, so
            that scores depend on it. ``"auto"`` is 60, or what the encoder can hear at once. None:
            everything is scored whole.
        memory: to work in, beside waveforms, weights and results: bytes, a text like ``"2GiB"``,
            or ``"auto"``: 1 GiB on a CPU, a quarter of what is free on CUDA. How many distortions
            are made, clips encoded and frames scored at a time follows from it, and no score.
        dtype, device, local_files_only, cache_dir: of the encoder, if it is given by name.

    The encoder is frozen and shared, and is neither part of ``state_dict()`` nor of
    ``parameters()``; ``to(device)`` moves it along, while ``half()`` and its like change nothing:
    its precision is ``dtype``, or a module's own. The manifold runs in float64 inside whatever the
    dtype of the waveforms and under autocast (its eigendecomposition in ``eigh``, not to be taken
    for ``dtype``).

    Raises:
        TypeError: an argument of another type.
        ValueError: a setting out of its range, encoders on different frames, or a bank of the
            other measure or with too few members.
        ValueError, OSError, ImportError: an encoder that cannot be loaded, see
            :func:`torch_mapss.load_encoder`.

    Example:
        >>> import torch
        >>> from torch_mapss import MAPSS
        >>> references = torch.randn(1, 2, 16000)
        >>> scores = MAPSS("mel")(references, references)
        >>> scores.ps.shape
        torch.Size([1, 2, 49])
    """

    @with_torch_defaults
    def __init__(
        self,
        encoder: EncoderChoice = DEFAULT_ENCODER,
        layer: int | None = None,
        *,
        match_encoder: EncoderChoice | None = None,
        separation_bank: DistortionBank | None = None,
        match_bank: DistortionBank | None = None,
        seed: int = 0,
        sample_rate: int | None = None,
        trim: bool = False,
        align_polarity: bool = False,
        alpha: float = 1.0,
        time: float = 1.0,
        energy: float = 0.99,
        max_dimension: int | None = None,
        convention: str = "paper",
        eigh: str = "float64",
        loudness: float = -23.0,
        activity: float = 0.1,
        check_finite: bool = True,
        segment: float | str | None = None,
        memory: int | str = "auto",
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | None = None,
        local_files_only: bool = False,
        cache_dir: str | None = None,
    ) -> None:
        # As long as its arguments are many: each is checked and kept once.
        super().__init__()
        self.settings = map_settings(
            alpha=alpha,
            time=time,
            energy=energy,
            convention=convention,
            max_dimension=max_dimension,
            eigh=eigh,
        )
        options: dict[str, Any] = {"layer": layer, "dtype": dtype, "device": device}
        options |= {"local_files_only": local_files_only or None, "cache_dir": cache_dir}
        first = as_encoder(encoder, **_given(options))
        second = first
        if match_encoder is not None:
            named = isinstance(match_encoder, str | PathLike)
            second = as_encoder(
                match_encoder, **(_given({**options, "layer": None}) if named else {})
            )
        # In a tuple: not a submodule, so neither saved, nor trained, nor wrapped.
        self.encoders = (first, second)
        self._recall: Recall | None = None
        self.grid = shared_grid(first, second)
        rate = self.grid.sample_rate
        self.separation_bank = _checked_bank(separation_bank, "separation", seed, rate)
        self.match_bank = _checked_bank(match_bank, "match", seed, rate)
        if sample_rate is not None:
            sample_rate = checks.check_whole(sample_rate, "sample_rate", 1)
            audio.check_source_rate(sample_rate, "sample_rate")
        self.sample_rate = sample_rate or self.grid.sample_rate
        self.trim, self.align_polarity = trim, align_polarity
        self.loudness = checks.check_real(loudness, "loudness")
        self.activity = checks.check_real(activity, "activity")
        if not 0.0 <= self.activity < 1.0:
            raise ValueError(
                f"activity must be a share of a source's own RMS, at least 0 and below 1, got "
                f"{activity}: at 1 and above a steady source is active nowhere. 0.1 is the default."
            )
        self.check_finite = check_finite
        self.memory = checked_memory(memory)
        self.segment = _checked_segment(segment, self.encoders)

    # ------------------------------------------------------------------------- module manners

    @property
    def encoder(self) -> Encoder:
        """The encoder of PS (and of PM, unless another was given)."""
        return self.encoders[0]

    @property
    def banks(self) -> dict[str, DistortionBank]:
        """The banks of PS and PM, in this order."""
        return {"separation": self.separation_bank, "match": self.match_bank}

    @property
    def match_encoder(self) -> Encoder:
        """The encoder of PM."""
        return self.encoders[1]

    @property
    def segment_frames(self) -> int:
        """Frames of a segment, at most; only where there are segments."""
        assert self.segment is not None
        return max(1, round(self.segment * self.grid.sample_rate / self.grid.hop))

    def is_long(self, samples: int) -> bool:
        """Whether a clip of so many samples at the encoder's rate is scored in segments."""
        if self.segment is None:
            return False
        frames = audio.frame_count(samples, self.grid.receptive_field, self.grid.hop)
        return frames > self.segment_frames

    def budget(self, device: torch.device) -> Budget:
        """What ``memory`` allows on a device."""
        return budget(self.memory, device)

    def _apply(self, fn: Any, recurse: bool = True) -> MAPSS:
        super()._apply(fn, recurse)
        for encoder in {id(e): e for e in self.encoders}.values():
            encoder._apply(fn)
        return self

    def extra_repr(self) -> str:
        """The parts and settings, for ``print``."""
        return f"encoder={self.encoder.name!r}, " + ", ".join(
            f"{name}={value!r}" for name, value in self.describe().items() if name != "encoder"
        )

    def describe(self) -> dict[str, Any]:
        """All settings that a score depends on, as plain values."""
        first, second = self.encoders
        return {
            "encoder": _encoder_settings(first),
            "match_encoder": _encoder_settings(second),
            "separation_bank": _bank_settings(self.separation_bank),
            "match_bank": _bank_settings(self.match_bank),
            **self.settings._asdict(),
            "sample_rate": self.sample_rate,
            "encoder_rate": self.grid.sample_rate,
            "loudness": self.loudness,
            "activity": self.activity,
            "align_polarity": self.align_polarity,
            "trim": self.trim,
            "segment": self.segment,
        }

    @property
    def key(self) -> str:
        """A short name of everything that a :class:`ReferenceBank` depends on."""
        unlike = (*self.settings._fields, "align_polarity", "trim")
        settings = {k: v for k, v in self.describe().items() if k not in unlike}
        banks = self.separation_bank, self.match_bank
        members = [member.description for bank in banks for member in bank.members]
        text = json.dumps([settings, members], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def times(self, frames: int) -> Tensor:
        """(F,) seconds, the centre of each frame's receptive field."""
        grid = self.grid
        return audio.frame_times(frames, grid.receptive_field, grid.hop, grid.sample_rate)

    # ------------------------------------------------------------------------- references

    @with_torch_defaults
    def prepare(
        self,
        references: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        measures: str = "both",
    ) -> ReferenceBank:
        """Distort and encode references once, for any number of calls with estimates of them.

        Args:
            references: (B, S, T) or (S, T) waveforms, S at least 2; any float type, or PCM
                integers.
            lengths: (B,) true lengths in samples of a padded batch. Each mixture is treated at
                its true length, so that it scores as if it were alone.
            measures: ``"both"``, or ``"separation"`` or ``"match"`` to prepare PS or PM alone.

        Returns:
            A :class:`ReferenceBank`.

        Raises:
            TypeError: not a tensor of a type that holds audio.
            ValueError: shapes, lengths or samples that cannot be scored, see the message; or a
                source that has too few distortions, as its bank holds few families.
        """
        admitted = admit_references(self, references, lengths, measures)
        bank = prepare_bank(self, admitted, measures)
        warn_unscored(bank)
        return bank

    def embeddings(self, encoder: Encoder, waves: Sequence[Tensor]) -> list[Tensor]:
        """(b, S, F, M) of references or estimates of every length (b, S, T).

        Distortions are never looked up.
        """
        if self._recall is not None:
            return self._recall(encoder, waves)
        return encode_checked(encoder, waves, self.budget(waves[0].device))

    @contextmanager
    def recalling(self, recall: Recall) -> Iterator[None]:
        """Within, ask ``recall(encoder, waveforms)`` for embeddings of references and estimates.

        It returns what it remembers of equal waveforms, or :func:`encode_checked` of them: several
        calls with the same signals, each for one measure, then encode them once.
        """
        before, self._recall = self._recall, recall
        try:
            yield
        finally:
            self._recall = before

    # ------------------------------------------------------------------------- scores

    @with_torch_defaults
    def forward(
        self,
        estimates: Tensor,
        references: Tensor | ReferenceBank,
        attributed: Sequence[int] | Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        measures: str = "both",
        frames: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Scores:
        """Score estimates against references.

        Args:
            estimates: (B, S', T) or (S', T) waveforms.
            references: (B, S, T) or (S, T) waveforms, or a bank made of them by :meth:`prepare`.
            attributed: (S',) which reference each estimate belongs to; all in order by default.
                Score a target alone with one estimate and ``attributed=(0,)``.
            lengths: (B,) true lengths in samples, of estimates and references alike. A bank knows
                its own.
            measures: ``"both"``, or one of ``"separation"``, ``"match"`` to compute PS or PM
                alone; the fields of the other are then 0.
            frames: score at most so many frames, drawn at random from the scored frames of the
                batch: a cheap, unbiased estimate of the mean over frames. All by default.
            generator: a CPU generator to draw them with; a fixed one by default.

        Returns:
            :class:`Scores`, (B, S', F) each; for unbatched input B is 1.

        Raises:
            TypeError: not tensors of a type that holds audio.
            ValueError: shapes, lengths, devices or samples that do not fit, see the message;
                ``attributed`` missing or wrong; a bank of other settings.
        """
        call = prepared(self, admit(self, estimates, references, attributed, lengths, measures))
        if call.references is not None:
            warn_unscored(bank_of(call))
        return score(self, call, frames, generator)

    @with_torch_defaults
    @torch.no_grad()
    def bounds(
        self,
        estimates: Tensor,
        references: Tensor | ReferenceBank,
        confidence: float = 0.95,
        attributed: Sequence[int] | Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        convention: str | None = None,
        *,
        frames: int | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> ScoreBounds:
        """Error of every frame score: a truncation radius and a confidence half-width.

        The scores are read off the same maps and returned along: cheaper than scoring apart.

        Args:
            estimates, references, attributed, lengths, frames, generator: as for scoring.
            confidence: of the half-width of each measure, in (0, 1).
            convention: ``"paper"``, ``"reference"`` or ``"derived"``; that of the scores by
                default. See :mod:`torch_mapss.bounds` for what each guarantees.
            options: further settings of :func:`torch_mapss.functional.separation_bounds` and
                ``match_bounds``, e.g. ``tail="bootstrap"``.

        Returns:
            :class:`ScoreBounds`, without gradients.

        Raises:
            TypeError, ValueError: as for scoring, and for options that are unknown or out of range.
        """
        scores, settings = self._of_bounds(confidence, convention, options)
        call = prepared(self, admit(self, estimates, references, attributed, lengths))
        return bound(self, [call], scores, settings, frames, generator, confidence)[0]

    # ------------------------------------------------------------------------- several systems

    @torch.no_grad()
    def score_systems(
        self,
        estimates: Sequence[Tensor],
        bank: ReferenceBank,
        attributed: Sequence[Any] | None = None,
        *,
        frames: int | None = None,
        on_segment: OnSegment | None = None,
    ) -> list[Scores]:
        """Scores of several systems' estimates of the same mixtures.

        As calls one by one, without gradients; but of clips longer than ``segment``, distortions
        are made and encoded once for all systems.

        Args:
            estimates: of each system, (B, S', T) or (S', T).
            bank: made by :meth:`prepare`.
            attributed: of each system, as for scoring; None: all in order.
            frames: as for scoring; every system has the same frames drawn.
            on_segment: told how many segments of a long clip are scored, and of how many: as
                scoring begins, and after each.

        Returns:
            The :class:`Scores` of each.

        Raises:
            TypeError, ValueError: as for scoring.
        """
        calls = self._calls(estimates, bank, attributed)
        return score_together(self, calls, frames, None, on_segment)

    @torch.no_grad()
    def bound_systems(
        self,
        estimates: Sequence[Tensor],
        bank: ReferenceBank,
        confidence: float = 0.95,
        attributed: Sequence[Any] | None = None,
        convention: str | None = None,
        *,
        frames: int | None = None,
        on_segment: OnSegment | None = None,
        **options: Any,
    ) -> list[ScoreBounds]:
        """What :meth:`bounds` returns, of several systems as :meth:`score_systems` takes them.

        Args:
            estimates, bank, attributed, frames, on_segment: as for :meth:`score_systems`.
            confidence, convention, options: as for :meth:`bounds`.

        Returns:
            The :class:`ScoreBounds` of each.

        Raises:
            TypeError, ValueError: as :meth:`bounds`.
        """
        scores, settings = self._of_bounds(confidence, convention, options)
        calls = self._calls(estimates, bank, attributed)
        return bound(self, calls, scores, settings, frames, None, confidence, on_segment)

    def _calls(
        self, estimates: Sequence[Tensor], bank: ReferenceBank, attributed: Sequence[Any] | None
    ) -> list[Call]:
        indices = [None] * len(estimates) if attributed is None else list(attributed)
        if len(indices) != len(estimates) or not indices:
            raise ValueError(
                f"estimates must be those of at least one system, and attributed have one entry "
                f"for each, got {len(estimates)} and {len(indices)}."
            )
        if not isinstance(bank, ReferenceBank):
            raise TypeError(
                f"bank must be a ReferenceBank, which all systems share, got "
                f"{type(bank).__name__}. Make it once: bank = mapss.prepare(references)."
            )
        return [admit(self, each, bank, index) for each, index in zip(estimates, indices)]

    def _of_bounds(
        self, confidence: float, convention: str | None, options: dict[str, Any]
    ) -> tuple[tuple[Score, Score], Settings]:
        """The score functions of bounds, and the settings of the maps that they read."""
        from torch_mapss.bounds import frames as stage

        convention = convention or self.settings.convention
        unknown = set(options) - set(stage.Options._fields)
        if unknown:
            raise TypeError(
                f"bounds takes no {', '.join(sorted(unknown))}; it takes "
                f"{', '.join(stage.Options._fields)}."
            )
        checked = stage.check_options(stage.Options(confidence, convention, **options))
        graph = "reference" if convention == "reference" else "paper"
        scores = (
            stage.separation_errors(checked, scores=True),
            stage.match_errors(checked, scores=True),
        )
        return scores, self.settings._replace(convention=graph)


def resolve(mapss: MAPSS | None, encoder: EncoderChoice, options: dict[str, Any]) -> MAPSS:
    """The MAPSS given, or one made of the other arguments.

    Raises:
        TypeError: ``mapss`` is something else.
        ValueError: both are given.
    """
    if mapss is None:
        return MAPSS(encoder, **options)
    if not isinstance(mapss, MAPSS):
        raise TypeError(
            f"mapss must be a torch_mapss.MAPSS, got {type(mapss).__name__}. An encoder is passed "
            "by keyword: encoder='mel'."
        )
    extra = sorted(options) + ([] if encoder == DEFAULT_ENCODER else ["encoder"])
    if extra:
        raise ValueError(
            f"{', '.join(extra)} cannot be applied to the MAPSS that was given. Set them when "
            "making it: MAPSS(encoder, ...)."
        )
    return mapss


_KEEPS_ALL = (
    "Gradients are wanted, so the graph keeps every activation of the encoder. Set "
    "activation_checkpointing=True of the encoder (it then runs twice, a few waveforms at a time), "
    "pass fewer or shorter mixtures, or free what else lies on the device."
)


def encode_checked(
    encoder: Encoder, waves: Sequence[Tensor], most: Budget | None = None
) -> list[Tensor]:
    """Embeddings of waveforms of several lengths; an encoder that gives no finite number for one
    is an error. An accelerator is asked about all of them at once.

    Where the device runs out of memory, fewer waveforms are encoded at a time. A graph keeps the
    activations of all, so that fewer at a time help where they are recomputed only.
    """
    keeps_all = torch.is_grad_enabled() and any(some.requires_grad for some in waves)
    if keeps_all and not encoder.activation_checkpointing:
        with explained(_KEEPS_ALL):
            return _checked(encoder, encoder.together(waves))

    def encode(allowed: Budget) -> list[Tensor]:
        with encoder.within(allowed.encoder):
            return encoder.together(waves)

    own = Budget(2 * encoder.memory_budget)  # half of which is for the encoder
    start = own if most is None or own.total < most.total else most
    return _checked(encoder, lowered(encode, start))


def _checked(encoder: Encoder, found: Sequence[Tensor]) -> list[Tensor]:
    checks = Checks(encoder)
    for embeddings in found:
        checks.note(embeddings)
    checks.read()
    return list(found)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _checked_bank(bank: DistortionBank | None, kind: str, seed: int, rate: int) -> DistortionBank:
    """The bank given, or the full one of its kind."""
    if bank is None:
        return DistortionBank(kind, seed=seed)
    if not isinstance(bank, DistortionBank):
        raise TypeError(
            f"{kind}_bank must be a torch_mapss.DistortionBank, got {bank!r}. Make one, e.g. "
            f'DistortionBank("{kind}", size=20), or leave it out for the full one.'
        )
    if bank.kind != kind:
        raise ValueError(
            f"{kind}_bank is a DistortionBank({bank.kind!r}), made for the other measure: its "
            f'members differ. Make a DistortionBank("{kind}", ...).'
        )
    if len(bank.names(rate)) < LEAST_MEMBERS[kind]:
        raise ValueError(
            f"{kind}_bank has {len(bank.names(rate))} distortions at {rate} Hz, but a cluster "
            f"needs at least {LEAST_MEMBERS[kind]}. Take a larger size, or keep more families."
        )
    return bank


def _checked_segment(segment: Any, encoders: Sequence[Encoder]) -> float | None:
    if segment is None:
        return None
    limits = [e.maximum_samples / e.sample_rate for e in encoders if e.maximum_samples]
    most = min(limits, default=math.inf) - 2 * CONTEXT
    if segment == "auto":
        return min(SEGMENT, most)
    seconds = checks.check_real(segment, "segment", "(0, inf)")
    if seconds > most:
        raise ValueError(
            f"segment must be at most {most:g} s for encoder {encoders[0].name!r}, got "
            f"{segment!r}: it hears clips of {min(limits):g} s and no longer, and {CONTEXT:g} s on "
            "each side of a segment."
        )
    if seconds < 1.0:
        raise ValueError(
            f"segment must be at least 1 s, got {segment!r}: every segment is distorted with "
            "several seconds of what surrounds it. 60 is what the command line takes."
        )
    return seconds


def _encoder_settings(encoder: Encoder) -> dict[str, Any]:
    plain = (str, int, float, bool, type(None), torch.dtype)
    names = ("name", "checkpoint", "layer", "dtype", "sample_rate", "hop", "receptive_field")
    extra = ("feature_size", "bands", "floor", "context")
    found = {name: getattr(encoder, name, None) for name in (*names, *extra)}
    return {
        name: str(value) if isinstance(value, torch.dtype) else value
        for name, value in found.items()
        if value is not None and isinstance(value, plain)
    }


def _bank_settings(bank: DistortionBank) -> dict[str, Any]:
    return {"kind": bank.kind, "size": len(bank), "seed": bank.seed, "families": bank.families}

"""From waveforms to frame scores: the only file that joins the stages.

loudness (:mod:`~torch_mapss.audio`) -> distortions -> encoders -> manifold and measures. What
depends on the references alone is computed once, by :meth:`MAPSS.prepare`, without gradients; the
gradient of a score runs through the estimates only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.core.chunks import score_frames
from torch_mapss.core.devices import back
from torch_mapss.core.match import match_parts
from torch_mapss.core.separation import separation_parts
from torch_mapss.core.settings import map_settings
from torch_mapss.distortions import DistortionBank
from torch_mapss.encoders import Encoder, as_encoder, check_embeddings
from torch_mapss.pipeline import batches
from torch_mapss.pipeline.frames import Canvas, Part, activity, choose, chunks, gather
from torch_mapss.pipeline.prepare import (
    LEAST_MEMBERS,
    by_length,
    check_members,
    encode_distortions,
    shared_grid,
    usable,
    warn_unscored,
)
from torch_mapss.pipeline.records import (
    Encoded,
    FrameBounds,
    Group,
    ReferenceBank,
    ScoreBounds,
    Scores,
)

Recall = Callable[[Encoder, Tensor], Tensor]
EncoderChoice = str | Encoder | Callable[[Tensor], Tensor]
DEFAULT_ENCODER = "wav2vec2-large"
MEASURES = ("both", "separation", "match")
# What the kernels of the bounds return, see :func:`torch_mapss.bounds.kernels_with_scores`.
_BOUND_NAMES = (
    ("ps_radius", "ps_tail", "ps", "attributed_distance", "foreign_distance"),
    ("pm_radius", "pm_tail", "pm", "log_pm"),
)


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
        alpha, time, energy, convention: of the diffusion map, see
            :func:`torch_mapss.functional.perceptual_separation`.
        loudness: target of the normalisation of every waveform, in LUFS.
        activity: a source is active where its RMS exceeds this share of its RMS over all samples.
        check_finite: look for NaN and infinite samples and refuse them. Without, such a source is
            left out with its frames; on an accelerator that saves waiting for the device.
        dtype, device, local_files_only, cache_dir: of the encoder, if it is given by name.

    The encoder is frozen and shared, and is neither part of ``state_dict()`` nor of
    ``parameters()``; ``to(device)`` moves it along, while ``half()`` and its like change nothing:
    its precision is ``dtype``, or a module's own. The manifold runs in float64 inside whatever the
    dtype of the waveforms and under autocast.

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
        convention: str = "paper",
        loudness: float = -23.0,
        activity: float = 0.1,
        check_finite: bool = True,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | None = None,
        local_files_only: bool = False,
        cache_dir: str | None = None,
    ) -> None:
        super().__init__()
        self.settings = map_settings(alpha, time, energy, convention)
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
        self._encoders = (first, second)
        self._recall: Recall | None = None
        self.grid = shared_grid(first, second)
        rate = self.grid.sample_rate
        self.separation_bank = _checked_bank(separation_bank, "separation", seed, rate)
        self.match_bank = _checked_bank(match_bank, "match", seed, rate)
        if sample_rate is not None:
            sample_rate = checks.check_whole(sample_rate, "sample_rate", 1)
        self.sample_rate = sample_rate or self.grid.sample_rate
        self.trim, self.align_polarity = trim, align_polarity
        self.loudness = checks.check_real(loudness, "loudness")
        self.activity = checks.check_real(activity, "activity")
        if self.activity < 0.0:
            raise ValueError(f"activity must be at least 0, got {activity}. 0.1 is the default.")
        self.check_finite = check_finite

    # ------------------------------------------------------------------------- module manners

    @property
    def encoder(self) -> Encoder:
        """The encoder of PS (and of PM, unless another was given)."""
        return self._encoders[0]

    @property
    def match_encoder(self) -> Encoder:
        """The encoder of PM."""
        return self._encoders[1]

    def _apply(self, fn: Any, recurse: bool = True) -> MAPSS:
        super()._apply(fn, recurse)
        for encoder in {id(e): e for e in self._encoders}.values():
            encoder._apply(fn)
        return self

    def extra_repr(self) -> str:
        """The parts and settings, for ``print``."""
        return f"encoder={self.encoder.name!r}, " + ", ".join(
            f"{name}={value!r}" for name, value in self.describe().items() if name != "encoder"
        )

    def describe(self) -> dict[str, Any]:
        """All settings that a score depends on, as plain values."""
        first, second = self._encoders
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
        }

    @property
    def key(self) -> str:
        """A short name of everything that a :class:`ReferenceBank` depends on."""
        unlike = ("alpha", "time", "energy", "convention", "align_polarity", "trim")
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
        bank = self._prepare(references, lengths, measures)
        warn_unscored(bank)
        return bank

    @torch.inference_mode(False)  # a bank made in validation serves in training too
    @torch.no_grad()
    def _prepare(
        self, references: Tensor, lengths: Tensor | Sequence[int] | None, measures: str
    ) -> ReferenceBank:
        """:meth:`prepare` without its warning, for callers that have one of their own."""
        checks.check_choice(measures, "measures", MEASURES)
        waves = batches.as_batch(references, "references")
        batches.check_sources(waves, references.ndim)
        true = self._lengths(lengths, *waves.shape[::2])
        waves, sound = batches.sound_waveforms(waves, "references", true, self.check_finite)
        waves = waves.clone() if waves.is_inference() else waves
        groups = [
            self._prepare_group(waves[list(items), :, :samples], items, samples, measures)
            for items, samples in by_length(true)
        ]
        return ReferenceBank(
            groups=tuple(_sound_groups(groups, sound)),
            batch=len(waves),
            sources=waves.shape[1],
            samples=waves.shape[2],
            frames=max(group.frames for group in groups),
            lengths=true,
            key=self.key,
        )

    def _prepare_group(
        self, waves: Tensor, items: tuple[int, ...], samples: int, measures: str
    ) -> Group:
        waves = self._normalised(waves)
        grid = self.grid
        active = audio.source_activity(waves, grid.receptive_field, grid.hop, self.activity)
        encoded: list[Encoded | None] = []
        plain: dict[int, Tensor] = {}
        banks = self.separation_bank, self.match_bank
        for place, (kind, bank) in enumerate(zip(MEASURES[1:], banks)):
            if measures not in ("both", kind):
                encoded.append(None)
                continue
            encoder = self._encoders[place]
            if id(encoder) not in plain:
                plain[id(encoder)] = self._embeddings(encoder, waves)
            distortions, mask = encode_distortions(
                waves, bank, encoder, grid.sample_rate, self.loudness
            )
            found = (self._shared_frames(x, place) for x in (plain[id(encoder)], distortions))
            encoded.append(Encoded(next(found), next(found), mask))
            check_members(mask, active, items, kind)
        for part in encoded:
            if part is not None:
                active = active & usable(part).unsqueeze(1)
        scored = (active.sum(1) >= 2).nonzero()
        return Group(items, samples, waves, active, scored, *encoded)

    def _embeddings(self, encoder: Encoder, waves: Tensor) -> Tensor:
        """(b, S, F, M) of references or estimates; distortions are never looked up."""
        if self._recall is not None:
            return self._recall(encoder, waves)
        return encode_checked(encoder, waves)

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

    def _shared_frames(self, embeddings: Tensor, place: int) -> Tensor:
        """The frames of (..., F, M) that both encoders have."""
        skip = self.grid.skip[place]
        return embeddings[..., skip : embeddings.shape[-2] - skip, :]

    # ------------------------------------------------------------------------- scores

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
        checks.check_choice(measures, "measures", MEASURES)
        estimates, bank, index = self._matched(estimates, references, attributed, lengths, measures)
        kinds = [measures in ("both", kind) for kind in MEASURES[1:]]
        found = self._outputs(estimates, bank, index, kinds)
        chosen = choose(found, frames, generator)
        shape = (bank.batch, len(index), bank.frames)
        canvas = Canvas(shape, estimates)
        for part in chunks(chosen, estimates.requires_grad and torch.is_grad_enabled()):
            self._score_part(part, index, kinds, canvas)
        return canvas.scores(back(self.times(bank.frames), estimates.device), measures)

    def _score_part(
        self, part: Part, index: tuple[int, ...], kinds: Sequence[bool], canvas: Canvas
    ) -> None:
        group, where = part.group, part.where
        active, ok = activity(part, index)
        canvas.put("active", group, where, ok)
        if kinds[0]:
            clouds = gather(part, 0, index, active)
            ps, a, b = score_frames(clouds, self.settings, separation_parts)
            for name, values in zip(("ps", "attributed_distance", "foreign_distance"), (ps, a, b)):
                canvas.put(name, group, where, torch.where(ok, values, 0.0))
        if kinds[1]:
            clouds = gather(part, 1, index, active)
            pm, log_pm = score_frames(clouds, self.settings, match_parts)
            canvas.put("pm", group, where, torch.where(ok, pm, 0.0))
            canvas.put("log_pm", group, where, torch.where(ok, log_pm, 0.0))

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
        from torch_mapss.bounds import frames as stage

        convention = convention or self.settings.convention
        unknown = set(options) - set(stage.Options._fields)
        if unknown:
            raise TypeError(
                f"bounds takes no {', '.join(sorted(unknown))}; it takes "
                f"{', '.join(stage.Options._fields)}."
            )
        kernels = stage.kernels_with_scores(stage.Options(confidence, convention, **options))
        graph = "reference" if convention == "reference" else "paper"
        settings = self.settings._replace(convention=graph)
        estimates, bank, index = self._matched(estimates, references, attributed, lengths, "both")
        found = choose(self._outputs(estimates, bank, index, (True, True)), frames, generator)
        canvas = Canvas((bank.batch, len(index), bank.frames), estimates)
        for part in chunks(found, graph=False):
            active, ok = activity(part, index)
            canvas.put("active", part.group, part.where, ok)
            for place, (kernel, names) in enumerate(zip(kernels, _BOUND_NAMES)):
                clouds = gather(part, place, index, active)
                results = score_frames(clouds, settings, kernel, rest=True)
                for name, values in zip(names, results):
                    canvas.put(name, part.group, part.where, torch.where(ok, values, 0.0))
        scores = canvas.scores(back(self.times(bank.frames), estimates.device))
        ps, pm = (
            FrameBounds(canvas[radius], canvas[tail], canvas[radius] + canvas[tail])
            for radius, tail, *_ in _BOUND_NAMES
        )
        same = settings == self.settings
        return ScoreBounds(ps, pm, canvas["active"], confidence, scores if same else None)

    # ------------------------------------------------------------------------- input

    def _matched(
        self,
        estimates: Tensor,
        references: Tensor | ReferenceBank,
        attributed: object,
        lengths: Tensor | Sequence[int] | None,
        measures: str,
        warn: bool = True,
    ) -> tuple[Tensor, ReferenceBank, tuple[int, ...]]:
        """Estimates as (B, S', T) floats, the bank, and the source of each estimate."""
        waves = batches.as_batch(estimates, "estimates")
        if not isinstance(references, ReferenceBank):
            other = batches.as_batch(references, "references")
            checks.check_devices(estimates=waves, references=other)
            batches.check_batches(estimates, references)
            batches.check_sources(other, references.ndim)
            index = checks.check_attributed(attributed, waves.shape[1], other.shape[1])
            waves, other = batches.same_length(waves, other, lengths, self.trim)
            prepare = self.prepare if warn else self._prepare
            return waves, prepare(other, lengths, measures), index
        bank = references
        self._check_bank(bank, waves, lengths, measures)
        index = checks.check_attributed(attributed, waves.shape[1], bank.sources)
        return waves[..., : bank.samples], bank, index

    def _check_bank(
        self,
        bank: ReferenceBank,
        waves: Tensor,
        lengths: Tensor | Sequence[int] | None,
        measures: str,
    ) -> None:
        if bank.key != self.key:
            raise ValueError(
                "the bank was prepared by a MAPSS of other settings (encoder, layer, distortions, "
                "rate or loudness). Prepare it again with this one."
            )
        needed = MEASURES[1:] if measures == "both" else (measures,)
        if any(getattr(group, kind) is None for group in bank.groups for kind in needed):
            raise ValueError(
                f"the bank was not prepared for {measures!r}. Call prepare(references, "
                f"measures={measures!r}) or prepare both."
            )
        if waves.shape[0] != bank.batch:
            raise ValueError(
                f"estimates hold {waves.shape[0]} mixtures and the bank {bank.batch}. Pass the "
                "estimates of exactly the mixtures that were prepared, in their order."
            )
        if lengths is not None:
            given = self._lengths(lengths, bank.batch, bank.samples)
            if given != bank.lengths:
                raise ValueError(
                    f"lengths {given} differ from those the bank was prepared with, "
                    f"{bank.lengths}. Leave lengths out: the bank knows them."
                )
        longer_is_fine = self.trim and waves.shape[-1] >= bank.samples
        if waves.shape[-1] != bank.samples and not longer_is_fine:
            raise ValueError(batches.unequal(waves.shape[-1], bank.samples))
        checks.check_devices(estimates=waves, bank=bank.groups[0].waveforms)

    def _lengths(
        self, lengths: Tensor | Sequence[int] | None, batch: int, samples: int
    ) -> tuple[int, ...]:
        grid = self.grid
        least = -(-grid.receptive_field * self.sample_rate // grid.sample_rate)
        name = self.encoder.name
        return batches.true_lengths(lengths, batch, samples, least, self.sample_rate, name)

    def _normalised(self, waves: Tensor) -> Tensor:
        grid = self.grid
        if self.sample_rate != grid.sample_rate:
            waves = audio.resample(waves, self.sample_rate, grid.sample_rate)
        return audio.normalize_loudness(waves, grid.sample_rate, self.loudness)

    def _outputs(
        self,
        estimates: Tensor,
        bank: ReferenceBank,
        index: tuple[int, ...],
        kinds: Sequence[bool],
    ) -> list[Part]:
        """Encoded estimates of every group, with all its scored frames."""
        waves, sound = batches.sound_waveforms(
            estimates, "estimates", bank.lengths, self.check_finite
        )
        parts = []
        for group in bank.groups:
            here = self._normalised(waves[list(group.items), :, : group.samples])
            if self.align_polarity:
                same = (here.detach() * group.waveforms[:, list(index)]).sum(-1, keepdim=True)
                here = torch.where(same < 0.0, -here, here)
            encoded: dict[int, Tensor] = {}
            outputs: list[Tensor | None] = []
            for place, wanted in enumerate(kinds):
                encoder = self._encoders[place]
                if wanted and id(encoder) not in encoded:
                    encoded[id(encoder)] = self._embeddings(encoder, here)
                outputs.append(self._shared_frames(encoded[id(encoder)], place) if wanted else None)
            (group,) = _sound_groups([group], sound)
            parts.append(Part(group, group.scored, (outputs[0], outputs[1])))
        return parts


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


def encode_checked(encoder: Encoder, waves: Tensor) -> Tensor:
    """Embeddings of waveforms; an encoder that gives no finite number is an error."""
    return check_embeddings(encoder(waves), encoder)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _checked_bank(bank: DistortionBank | None, kind: str, seed: int, rate: int) -> DistortionBank:
    """The bank given, or the full one of its kind."""
    if bank is None:
        return DistortionBank(kind, seed=seed)  # type: ignore[arg-type]
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


def _sound_groups(groups: Sequence[Group], sound: Tensor | None) -> list[Group]:
    """Mixtures with a non-finite waveform are active nowhere; ``sound`` is (B, sources) or None."""
    if sound is None:
        return list(groups)
    whole = sound.all(-1)
    return [
        replace(group, active=group.active & whole[list(group.items)][:, None, None])
        for group in groups
    ]

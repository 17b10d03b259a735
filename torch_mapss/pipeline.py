"""From waveforms to frame scores: the only file that joins the stages.

loudness (:mod:`~torch_mapss.audio`) -> distortions -> encoders -> manifold and measures. What
depends on the references alone is computed once, by :meth:`MAPSS.prepare`, without gradients; the
gradient of a score runs through the estimates only.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_mapss import _checks, audio
from torch_mapss.distortions import DistortionBank
from torch_mapss.encoders import Encoder, WaveformEncoder, as_encoder, check_embeddings
from torch_mapss.manifold import Settings
from torch_mapss.measures import match_parts, score_frames, separation_parts
from torch_mapss.records import (
    Encoded,
    FrameBounds,
    Group,
    ReferenceBank,
    ScoreBounds,
    Scores,
)

MEASURES = ("both", "separation", "match")
# Embeddings gathered for one chunk of frames when no graph is kept.
GATHER_BYTES = 128 * 2**20
# Distortions made and encoded at a time.
MEMBERS = 8


class Grid(NamedTuple):
    """The frames both encoders share."""

    sample_rate: int
    hop: int
    receptive_field: int  # of the wider one
    skip: tuple[int, int]  # frames the PS and the PM encoder have before the first shared one

    def frame_count(self, samples: int) -> int:
        return audio.frame_count(samples, self.receptive_field, self.hop)


class _Part(NamedTuple):
    """The frames of one group that are scored in one go."""

    group: Group
    index: Tensor  # (n, 2) item of the group, frame
    outputs: tuple[Tensor | None, Tensor | None]  # (b, S', F, M) for PS and PM


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
    ``parameters()``; ``to(device)`` moves it along. The manifold runs in float64 inside whatever
    the dtype of the waveforms and under autocast.

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
        encoder: str | Encoder | Callable[[Tensor], Tensor] = "wav2vec2-large",
        layer: int | None = None,
        *,
        match_encoder: str | Encoder | Callable[[Tensor], Tensor] | None = None,
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
        _checks.check_map_settings(alpha, time, energy, convention, _checks.CONVENTIONS)
        options: dict[str, Any] = {"layer": layer, "dtype": dtype, "device": device}
        options |= {"local_files_only": local_files_only or None, "cache_dir": cache_dir}
        first = as_encoder(encoder, **_given(options))
        second = first
        if match_encoder is not None:
            named = isinstance(match_encoder, str)
            second = as_encoder(
                match_encoder, **(_given({**options, "layer": None}) if named else {})
            )
        # In a tuple: not a submodule, so neither saved, nor trained, nor wrapped.
        self._encoders = (first, second)
        self.grid = _shared_grid(first, second)
        self.separation_bank = separation_bank or DistortionBank("separation", seed=seed)
        self.match_bank = match_bank or DistortionBank("match", seed=seed)
        self.settings = Settings(alpha, time, energy, convention)
        self.sample_rate = self.grid.sample_rate if sample_rate is None else int(sample_rate)
        self.trim, self.align_polarity = trim, align_polarity
        self.loudness, self.activity = loudness, activity
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
        extras = [
            _member_key(m) for b in (self.separation_bank, self.match_bank) for m in b.members
        ]
        text = json.dumps([settings, extras], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def times(self, frames: int) -> Tensor:
        """(F,) seconds, the centre of each frame's receptive field."""
        grid = self.grid
        return audio.frame_times(frames, grid.receptive_field, grid.hop, grid.sample_rate)

    # ------------------------------------------------------------------------- references

    @torch.no_grad()
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
            ValueError: shapes, lengths or samples that cannot be scored, see the message.
        """
        _checks.check_choice(measures, "measures", MEASURES)
        waves = self._waveforms(references, "references")
        if waves.shape[1] < 2:
            raise ValueError(
                f"at least two references are needed, got {waves.shape[1]} from shape "
                f"{tuple(references.shape)}: axis {references.ndim - 2} holds the sources. PS "
                "compares an estimate with the other sources of the mixture."
            )
        true = self._lengths(lengths, *waves.shape[::2])
        waves, _ = self._finite(waves, "references", true)
        groups = [
            self._prepare_group(waves[list(items), :, :samples], items, samples, measures)
            for items, samples in _by_length(true)
        ]
        bank = ReferenceBank(
            groups=tuple(groups),
            batch=len(waves),
            sources=waves.shape[1],
            samples=waves.shape[2],
            frames=max(group.frames for group in groups),
            lengths=true,
            key=self.key,
        )
        _warn_unscored(bank)
        return bank

    def _prepare_group(
        self, waves: Tensor, items: tuple[int, ...], samples: int, measures: str
    ) -> Group:
        waves = self._normalised(waves, "references")
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
                plain[id(encoder)] = check_embeddings(encoder(waves), encoder)
            found = self._shared_frames(plain[id(encoder)], place)
            encoded.append(self._encode_distortions(waves, found, bank, place))
        for part in encoded:
            if part is not None:
                active = active & _usable(part).unsqueeze(1)
        scored = (active.sum(1) >= 2).nonzero()
        return Group(items, samples, waves, active, scored, *encoded)

    def _encode_distortions(
        self, waves: Tensor, references: Tensor, bank: DistortionBank, place: int
    ) -> Encoded:
        """All members, present ones moved to the front so that no slot stays empty needlessly."""
        encoder, rate = self._encoders[place], self.grid.sample_rate
        count = len(bank.names(rate))
        store = _Store(encoder, waves, count)
        taken = torch.zeros(waves.shape[:2], dtype=torch.int64, device=waves.device)
        for _, copies, present in bank.iterate(waves, rate, chunk=MEMBERS):
            slot = taken.unsqueeze(-1) + present.cumsum(-1) - 1
            b, s, p = present.nonzero(as_tuple=True)
            normal = audio.normalize_loudness(copies[b, s, p], rate, self.loudness)
            store.put((b, s, slot[b, s, p]), normal)
            taken = taken + present.sum(-1)
        most = int(taken.max())
        full = bool((taken == most).all())
        mask = torch.arange(most, device=waves.device) < taken.unsqueeze(-1)
        distortions = self._shared_frames(store.embeddings(most), place)
        return Encoded(references, distortions, None if full else mask)

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
        _checks.check_choice(measures, "measures", MEASURES)
        estimates, bank, index = self._matched(estimates, references, attributed, lengths, measures)
        kinds = [measures in ("both", kind) for kind in MEASURES[1:]]
        found = self._outputs(estimates, bank, index, kinds)
        chosen = _choose(found, frames, generator)
        shape = (bank.batch, len(index), bank.frames)
        canvas = _Canvas(shape, estimates)
        for part in self._parts(chosen, estimates.requires_grad and torch.is_grad_enabled()):
            self._score_part(part, index, kinds, canvas)
        return canvas.scores(self.times(bank.frames).to(estimates.device))

    def _score_part(
        self, part: _Part, index: tuple[int, ...], kinds: Sequence[bool], canvas: _Canvas
    ) -> None:
        group, where = part.group, part.index
        active, ok = self._part_activity(part, index)
        canvas.put("active", group, where, ok)
        if kinds[0]:
            clouds = _gather(part, 0, index, active)
            ps, a, b = score_frames(clouds, self.settings, separation_parts)
            for name, values in zip(("ps", "attributed_distance", "foreign_distance"), (ps, a, b)):
                canvas.put(name, group, where, torch.where(ok, values, 0.0))
        if kinds[1]:
            clouds = _gather(part, 1, index, active)
            pm, log_pm = score_frames(clouds, self.settings, match_parts)
            canvas.put("pm", group, where, torch.where(ok, pm, 0.0))
            canvas.put("log_pm", group, where, torch.where(ok, log_pm, 0.0))

    def _part_activity(self, part: _Part, index: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Active sources (n, S) of the frames, and which estimates (n, S') are scored in them.

        A frame whose estimates have non-finite embeddings scores none of its estimates.
        """
        item, frame = part.index.unbind(-1)
        active = part.group.active[item, :, frame]
        finite = torch.ones(len(item), dtype=torch.bool, device=active.device)
        for outputs in part.outputs:
            if outputs is not None:
                finite &= outputs.detach()[item, :, frame].isfinite().all(-1).all(-1)
        ok = active[:, list(index)] & (active.sum(-1, keepdim=True) >= 2) & finite.unsqueeze(-1)
        return active, ok

    @torch.no_grad()
    def bounds(
        self,
        estimates: Tensor,
        references: Tensor | ReferenceBank,
        confidence: float = 0.95,
        attributed: Sequence[int] | Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        convention: str | None = None,
        **options: Any,
    ) -> ScoreBounds:
        """Error of every frame score: a truncation radius and a confidence half-width.

        Args:
            estimates, references, attributed, lengths: as for scoring.
            confidence: of the half-width of each measure, in (0, 1).
            convention: ``"paper"``, ``"reference"`` or ``"derived"``; that of the scores by
                default. See :mod:`torch_mapss.bounds` for what each guarantees.
            options: further keywords of :func:`torch_mapss.functional.separation_bounds` and
                ``match_bounds`` that both take, e.g. ``tail="bootstrap"``.

        Returns:
            :class:`ScoreBounds`, without gradients.

        Raises:
            TypeError, ValueError: as for scoring, and for options out of range.
        """
        from torch_mapss import bounds as stage

        estimates, bank, index = self._matched(estimates, references, attributed, lengths, "both")
        found = self._outputs(estimates, bank, index, (True, True))
        settings = self.settings._asdict()
        settings["convention"] = convention or self.settings.convention
        canvas = _Canvas((bank.batch, len(index), bank.frames), estimates)
        for part in self._parts(found, graph=False):
            active, ok = self._part_activity(part, index)
            canvas.put("active", part.group, part.index, ok)
            for place, compute in enumerate((stage.separation_bounds, stage.match_bounds)):
                clouds = _gather(part, place, index, active)
                result = compute(
                    clouds.outputs,
                    clouds.references,
                    clouds.distortions,
                    attributed=index,
                    active=clouds.active,
                    mask=clouds.mask,
                    confidence=confidence,
                    **settings,
                    **options,
                )
                for name in FrameBounds._fields:
                    values = torch.where(ok, getattr(result, name), 0.0)
                    canvas.put(f"{place}{name}", part.group, part.index, values)
        ps, pm = (FrameBounds(*(canvas[f"{i}{n}"] for n in FrameBounds._fields)) for i in (0, 1))
        return ScoreBounds(ps, pm, canvas["active"], confidence)

    # ------------------------------------------------------------------------- input

    def _matched(
        self,
        estimates: Tensor,
        references: Tensor | ReferenceBank,
        attributed: object,
        lengths: Tensor | Sequence[int] | None,
        measures: str,
    ) -> tuple[Tensor, ReferenceBank, tuple[int, ...]]:
        """Estimates as (B, S', T) floats, the bank, and the source of each estimate."""
        waves = self._waveforms(estimates, "estimates")
        if not isinstance(references, ReferenceBank):
            other = self._waveforms(references, "references")
            _checks.check_devices(estimates=waves, references=other)
            waves, other = self._same_length(waves, other, lengths)
            _check_batches(waves, other, estimates, references)
            index = _checks.check_attributed(attributed, waves.shape[1], other.shape[1])
            return waves, self.prepare(other, lengths, measures), index
        bank = references
        self._check_bank(bank, waves, lengths, measures)
        index = _checks.check_attributed(attributed, waves.shape[1], bank.sources)
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
            raise ValueError(_unequal(waves.shape[-1], bank.samples))
        _checks.check_devices(estimates=waves, bank=bank.groups[0].waveforms)

    def _waveforms(self, x: object, name: str) -> Tensor:
        """``x`` as (B, sources, T) floating point."""
        accepted = "(B, S, T) or (S, T): batch, sources, samples"
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{name} must be a tensor of shape {accepted}, got {type(x).__name__}. Convert it "
                "with torch.as_tensor, or use torch_mapss.evaluate for arrays and files."
            )
        if x.ndim not in (2, 3):
            hint = (
                " Channels are not sources: mix them down first, e.g. "
                f"{name}.mean(dim) over the channel axis."
                if x.ndim == 4
                else ""
            )
            raise ValueError(f"{name} must have shape {accepted}, got {tuple(x.shape)}.{hint}")
        if 0 in x.shape:
            raise ValueError(f"{name} must not be empty, got shape {tuple(x.shape)}.")
        waves = audio.as_waveform(x, name)
        return waves if waves.ndim == 3 else waves.unsqueeze(0)

    def _same_length(
        self, estimates: Tensor, references: Tensor, lengths: object
    ) -> tuple[Tensor, Tensor]:
        t, u = estimates.shape[-1], references.shape[-1]
        if t != u and not self.trim:
            raise ValueError(_unequal(t, u))
        if t != u and lengths is not None:
            raise ValueError(
                f"lengths and trim exclude each other where estimates ({t} samples) and "
                f"references ({u} samples) differ. Pad both to one length first."
            )
        shorter = min(t, u)
        return estimates[..., :shorter], references[..., :shorter]

    def _lengths(
        self, lengths: Tensor | Sequence[int] | None, batch: int, samples: int
    ) -> tuple[int, ...]:
        if lengths is None:
            true: tuple[int, ...] = (samples,) * batch
        else:
            values = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
            if any(isinstance(v, bool) or int(v) != v for v in values):
                raise TypeError(f"lengths must be whole numbers of samples, got {values}.")
            true = tuple(int(v) for v in values)
        if len(true) != batch:
            raise ValueError(
                f"lengths must hold one length for each of the {batch} mixtures, got {len(true)}."
            )
        least = self._least_samples()
        for item, length in enumerate(true):
            if length > samples:
                raise ValueError(
                    f"lengths[{item}] is {length} but the waveforms have {samples} samples."
                )
            if length < least:
                raise ValueError(
                    f"mixture {item} has {length} samples "
                    f"({1000 * length / self.sample_rate:.1f} ms), but one frame of encoder "
                    f"{self.encoder.name!r} needs at least {least} samples "
                    f"({1000 * least / self.sample_rate:.1f} ms) at {self.sample_rate} Hz. Pass a "
                    "longer clip."
                )
        return true

    def _least_samples(self) -> int:
        grid = self.grid
        return -(-grid.receptive_field * self.sample_rate // grid.sample_rate)

    def _finite(
        self, waves: Tensor, name: str, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Refuse non-finite samples; unchecked, silence the sources that have them.

        Returns:
            The waveforms, and (B, sources) bool of the sound ones (None when checked).
        """
        sound = waves.detach().isfinite().all(-1)
        if not self.check_finite:
            return torch.where(sound.unsqueeze(-1), waves, 0.0), sound
        if not bool(sound.all()):
            item, source = (int(i) for i in (~sound).nonzero()[0])
            bad = (~waves[item, source].detach().isfinite()).nonzero()
            if int(bad[0]) < lengths[item]:
                raise ValueError(
                    f"{name} must be finite, got {len(bad)} NaN or infinite samples in item {item}, "
                    f"source {source}, the first at sample {int(bad[0])}. Repair the signal or "
                    "leave the item out."
                )
            return self._finite(
                _padding_cleared(waves, lengths), name, [waves.shape[-1]] * len(waves)
            )
        return waves, None

    def _normalised(self, waves: Tensor, name: str) -> Tensor:
        del name
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
    ) -> list[_Part]:
        """Encoded estimates of every group, with all its scored frames."""
        waves, sound = self._finite(estimates, "estimates", bank.lengths)
        parts = []
        for group in bank.groups:
            here = self._normalised(waves[list(group.items), :, : group.samples], "estimates")
            if self.align_polarity:
                same = (here.detach() * group.waveforms[:, list(index)]).sum(-1, keepdim=True)
                here = torch.where(same < 0.0, -here, here)
            encoded: dict[int, Tensor] = {}
            outputs: list[Tensor | None] = []
            for place, wanted in enumerate(kinds):
                encoder = self._encoders[place]
                if wanted and id(encoder) not in encoded:
                    encoded[id(encoder)] = check_embeddings(encoder(here), encoder)
                outputs.append(self._shared_frames(encoded[id(encoder)], place) if wanted else None)
            if sound is not None:
                group = _without_unsound(group, sound[list(group.items)], index)
            parts.append(_Part(group, group.scored, (outputs[0], outputs[1])))
        return parts

    def _parts(self, parts: Sequence[_Part], graph: bool) -> Iterator[_Part]:
        """The scored frames, in chunks of bounded memory unless a graph is kept anyway."""
        for part in parts:
            each = max(_frame_bytes(part.group.separation), _frame_bytes(part.group.match), 1)
            size = len(part.index) if graph else max(1, GATHER_BYTES // each)
            for start in range(0, len(part.index), max(1, size)):
                yield part._replace(index=part.index[start : start + size])


class _Store:
    """Embeddings of distortions (b, S, P, F, M), filled slot by slot.

    Encoders that only cut the waveform into frames are kept as waveforms, a view of which is the
    embedding: P times F frames of them would take up to receptive_field/hop of the memory.
    """

    def __init__(self, encoder: Encoder, waves: Tensor, count: int) -> None:
        self.encoder = encoder
        self.views = isinstance(encoder, WaveformEncoder)
        self.like, self.shape = waves, (*waves.shape[:2], count)
        self.kept: Tensor | None = None

    def put(self, slots: tuple[Tensor, Tensor, Tensor], waves: Tensor) -> None:
        if len(waves) == 0:
            return
        values = waves if self.views else check_embeddings(self.encoder(waves), self.encoder)
        if self.kept is None:
            self.kept = values.new_zeros((*self.shape, *values.shape[1:]))
        self.kept[slots] = values

    def embeddings(self, most: int) -> Tensor:
        assert self.kept is not None
        kept = self.kept[:, :, :most]
        return self.encoder(kept) if self.views else kept


class _Canvas:
    """(B, S', F) tensors that parts are written to."""

    def __init__(self, shape: tuple[int, int, int], like: Tensor) -> None:
        self.shape, self.device = shape, like.device
        self.dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self._parts: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def put(self, name: str, group: Group, index: Tensor, values: Tensor) -> None:
        """Write (n, S') values to the frames ``index`` (n, 2) of a group's mixtures."""
        items = torch.tensor(group.items, device=index.device)[index[:, 0]]
        self._parts.setdefault(name, []).append((items * self.shape[2] + index[:, 1], values))

    def __getitem__(self, name: str) -> Tensor:
        batch, outputs, frames = self.shape
        dtype = torch.bool if name == "active" else self.dtype
        blank = torch.zeros(batch * frames, outputs, dtype=dtype, device=self.device)
        parts = self._parts.get(name, [])
        if parts:
            places = torch.cat([place for place, _ in parts])
            values = torch.cat([value.to(dtype) for _, value in parts])
            blank = blank.index_put((places,), values)
        return blank.reshape(batch, frames, outputs).transpose(1, 2)

    def scores(self, times: Tensor) -> Scores:
        names = ("ps", "pm", "log_pm", "active", "attributed_distance", "foreign_distance")
        return Scores(**{name: self[name] for name in names}, times=times)


# ------------------------------------------------------------------------------------------------
# Small parts
# ------------------------------------------------------------------------------------------------


def _gather(part: _Part, place: int, index: tuple[int, ...], active: Tensor) -> _checks.Clouds:
    """The embeddings of the frames of a part, frame first."""
    encoded = (part.group.separation, part.group.match)[place]
    outputs = part.outputs[place]
    assert encoded is not None
    assert outputs is not None
    item, frame = part.index.unbind(-1)
    references = encoded.references.transpose(1, 2)[item, frame]
    distortions = encoded.distortions.permute(0, 3, 1, 2, 4)[item, frame]
    chosen = outputs.transpose(1, 2)[item, frame]
    # A non-finite output would spoil its frame's graph; it is not scored, so any point will do.
    chosen = torch.where(
        chosen.isfinite().all(-1, keepdim=True), chosen, references[:, list(index)]
    )
    return _checks.Clouds(
        outputs=chosen,
        references=references,
        distortions=distortions,
        attributed=index,
        active=None if bool(active.all()) else active,
        mask=None if encoded.mask is None else encoded.mask[item],
        lead=torch.Size([len(item)]),
    )


def _frame_bytes(encoded: Encoded | None) -> int:
    if encoded is None:
        return 0
    _, s, p, _, m = encoded.distortions.shape
    return s * (p + 1) * m * encoded.distortions.element_size()


def _usable(encoded: Encoded) -> Tensor:
    """(b, F) frames in which all embeddings of references and distortions are finite."""
    # A sum over features keeps NaN and infinity, and does not copy a view.
    references = encoded.references.sum(-1).isfinite().all(1)
    return references & encoded.distortions.sum(-1).isfinite().all(1).all(1)


def _choose(
    parts: list[_Part], frames: int | None, generator: torch.Generator | None
) -> list[_Part]:
    """At most ``frames`` of the scored frames of all parts, drawn without replacement."""
    total = sum(len(part.index) for part in parts)
    if frames is None or frames >= total:
        return parts
    if frames < 1:
        raise ValueError(f"frames must be at least 1, or None for all, got {frames}.")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(total, generator=generator)[:frames].sort().values
    chosen, start = [], 0
    for part in parts:
        stop = start + len(part.index)
        mine = drawn[(drawn >= start) & (drawn < stop)] - start
        chosen.append(part._replace(index=part.index[mine.to(part.index.device)]))
        start = stop
    return chosen


def _without_unsound(group: Group, sound: Tensor, index: tuple[int, ...]) -> Group:
    """Mixtures with a non-finite estimate are not scored."""
    active = group.active & sound.all(-1)[:, None, None]
    return replace(group, active=active)


def _padding_cleared(waves: Tensor, lengths: Sequence[int]) -> Tensor:
    samples = torch.arange(waves.shape[-1], device=waves.device)
    inside = samples < torch.tensor(lengths, device=waves.device)[:, None, None]
    return torch.where(inside, waves, 0.0)


def _by_length(lengths: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    found: dict[int, list[int]] = {}
    for item, length in enumerate(lengths):
        found.setdefault(length, []).append(item)
    return [(tuple(items), length) for length, items in found.items()]


def _check_batches(waves: Tensor, other: Tensor, estimates: Any, references: Any) -> None:
    if waves.shape[0] != other.shape[0] or estimates.ndim != references.ndim:
        raise ValueError(
            "estimates (B, S', T) and references (B, S, T) must hold the same B mixtures, got "
            f"{tuple(estimates.shape)} and {tuple(references.shape)}. Nothing is broadcast."
        )


def _unequal(estimates: int, references: int) -> str:
    return (
        f"estimates have {estimates} samples and references {references}. They must be aligned "
        "sample by sample; if one only has a longer tail, pass trim=True to cut both to the shorter."
    )


def _warn_unscored(bank: ReferenceBank) -> None:
    empty = []
    for group in bank.groups:
        counts = torch.bincount(group.scored[:, 0].cpu(), minlength=len(group.items))
        empty += [item for item, count in zip(group.items, counts.tolist()) if count == 0]
    if empty:
        warnings.warn(
            f"mixtures {sorted(empty)} have no frame in which two sources are active: their scores "
            "are undefined (NaN in means, left out of losses).",
            stacklevel=3,
        )


def _shared_grid(first: Encoder, second: Encoder) -> Grid:
    """The frames of both encoders whose centres coincide."""
    wide = max(first.receptive_field, second.receptive_field)
    skips = [(wide - e.receptive_field) / (2 * e.hop) for e in (first, second)]
    same = first.sample_rate == second.sample_rate and first.hop == second.hop
    if not same or any(skip != int(skip) for skip in skips):
        raise ValueError(
            "the encoders of PS and PM must share rate, hop and frame centres, got "
            f"{first.name!r} ({first.sample_rate} Hz, hop {first.hop}, receptive field "
            f"{first.receptive_field}) and {second.name!r} ({second.sample_rate} Hz, hop "
            f"{second.hop}, receptive field {second.receptive_field}). Score them in two MAPSS."
        )
    return Grid(first.sample_rate, first.hop, wide, (int(skips[0]), int(skips[1])))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


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


def _member_key(member: Any) -> str:
    function = member.function
    return f"{member.name}:{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}:{sorted(map(str, dict(member.parameters).items()))}"

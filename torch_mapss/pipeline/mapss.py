"""The scorer, :class:`MAPSS`: its settings and its methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.core.eager import eager
from torch_mapss.core.settings import MapSettings, checked
from torch_mapss.distortions import DistortionBank
from torch_mapss.encoders import Encoder
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.call import Call, make_call
from torch_mapss.pipeline.config import Config, Grid, distortion_banks
from torch_mapss.pipeline.estimates import GAINS
from torch_mapss.pipeline.inputs import checked_excerpts, checked_frames
from torch_mapss.pipeline.lazy_encoders import EncoderChoice, lazy_encoders
from torch_mapss.pipeline.measures import checked_measures, with_encoder
from torch_mapss.pipeline.memory import budget, checked_memory
from torch_mapss.pipeline.prepare import prepare
from torch_mapss.pipeline.score import bound_functions, score
from torch_mapss.pipeline.scores import ScoreBounds, Scores
from torch_mapss.pipeline.segments import OnSegment

DEFAULT_ENCODER = "wav2vec2-large"


class MAPSS(nn.Module):
    """Frame scores of separated sources, differentiable in the estimates.

    Args:
        encoder: encoder for PS, and for PM unless ``match_encoder`` is given: a name (``torch-mapss
            encoders`` lists them), local folder or hub id of a checkpoint, an
            :class:`~torch_mapss.encoders.Encoder`, or any callable with ``sample_rate``, ``hop``
            and ``receptive_field``. ``"mel"`` needs no download. Weights are loaded at first use.
        layer: layer of the encoder; the encoder's default if None.
        match_encoder: another encoder for PM, on the same rate and hop; ``encoder`` if None.
        decomposition_encoder: encoder for clearance and fidelity. ``"mel"`` means log-mel spectra
            on the frames of the other encoders. The split needs features in which a mixture lies
            near the line between its sources: from layer 1 of a transformer on, fidelity follows
            the noise in an output.
        decomposition_layer: layer of ``decomposition_encoder``, if that is a name; its default if
            None.
        separation_bank: distortions for PS; the paper's 70 if None. A smaller one
            (``DistortionBank("separation", size=20)``) is faster but coarser.
        match_bank: distortions for PM; the paper's up to 83 if None.
        decomposition_bank: distortions for clearance and fidelity; 20 members of PS's bank, evenly
            spaced, if None.
        measures: measures to compute by default, one or several of ``"decomposition"`` (clearance
            and fidelity), ``"separation"`` (PS), ``"match"`` (PM) and ``"bleed"``; None: all.
            Measures you leave out cost nothing. Their encoders are not loaded and may have another
            rate and hop: ``MAPSS("mel", decomposition_encoder="mert", measures="decomposition")``
            scores on the frames of MERT and refuses PS and PM.
        seed: seed of the noise in the default banks. Equal seeds give equal scores.
        sample_rate: sample rate of your waveforms in Hz; they are resampled to the encoder's rate.
            None means they are already at that rate.
        fs: alias of ``sample_rate``.
        trim: cut estimates and references to the shorter length instead of raising an error. A
            reference bank is never cut.
        align_polarity: flip an estimate whose correlation with its reference is negative. Encoders
            react to polarity, listeners do not.
        gain: level of estimates for PS and PM. ``"own"`` (the paper's): each estimate is brought to
            the loudness by its own gates, so anything it adds in the pauses of its source changes
            its level. ``"reference"``: by the blocks of 400 ms that pass the gates of its
            reference, as clearance, fidelity and bleed always do.
        alpha, time, energy, max_dimension, convention, eigh: settings of the diffusion map, see
            :func:`torch_mapss.functional.perceptual_separation`.
        loudness: loudness in LUFS that every waveform is normalised to.
        activity: a source is active where its RMS exceeds this share of its RMS over all samples.
        check_finite: refuse NaN and infinite samples. If False, a mixture with such a sample is
            left unscored instead, and a training step on an accelerator synchronises twice instead
            of four times.
        segment: longest clip in seconds that is scored whole. Longer clips are distorted, encoded
            and scored in segments of at most this length, without gradients; memory then grows only
            by a few copies of the waveforms. Encoders whose frames depend only on their receptive
            field (``"mel"``, ``"waveform"``) give the scores of the whole clip up to rounding.
            Transformers receive each segment with one more second on each side, so their scores
            depend on this setting. ``"auto"`` is 60, or less if the encoder accepts less. None:
            every clip is scored whole.
        memory: working memory, in addition to waveforms, weights and results: a number of bytes, a
            text like ``"2GiB"``, or ``"auto"``: 1 GiB on a CPU (or a quarter of the free memory, if
            that is less), a quarter of the free memory on CUDA. It decides how many distortions are
            made, clips encoded and frames scored at a time, and does not change scores.
        dtype, device, local_files_only, cache_dir: for encoders given by name, see
            :func:`torch_mapss.load_encoder`.

    The encoder is frozen and shared, and is neither part of ``state_dict()`` nor of
    ``parameters()``; ``to(device)`` moves it along. ``half()`` and similar have no effect;
    precision is set by ``dtype``, or by the module you pass. The diffusion maps are computed in
    float64 whatever the dtype of the waveforms, also under autocast (the precision of the
    eigendecomposition is ``eigh``; ``dtype`` is the encoder's).

    The map of the code that a call passes through, and the words it uses, are in
    :mod:`torch_mapss.pipeline`.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a setting is out of range, the frames of the encoders of ``measures`` do not
            line up, or a distortion bank is of the other kind (PS's where PM's is expected) or has
            too few members.
        ValueError, OSError, ImportError: at the first use of an encoder, if it cannot be loaded,
            see :func:`torch_mapss.load_encoder`.

    Example:
        >>> import torch
        >>> from torch_mapss import MAPSS
        >>> references = torch.randn(1, 2, 16000)
        >>> scores = MAPSS("mel")(references, references)
        >>> scores.ps.shape
        torch.Size([1, 2, 49])
    """

    @eager
    def __init__(
        self,
        encoder: EncoderChoice = DEFAULT_ENCODER,
        layer: int | None = None,
        *,
        match_encoder: EncoderChoice | None = None,
        decomposition_encoder: EncoderChoice = "mel",
        decomposition_layer: int | None = None,
        separation_bank: DistortionBank | None = None,
        match_bank: DistortionBank | None = None,
        decomposition_bank: DistortionBank | None = None,
        measures: str | Iterable[str] | None = None,
        seed: int = 0,
        sample_rate: int | None = None,
        fs: int | None = None,
        trim: bool = False,
        align_polarity: bool = False,
        gain: str = "own",
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
        super().__init__()
        loading = {"layer": layer, "dtype": dtype, "device": device, "cache_dir": cache_dir}
        loading["local_files_only"] = local_files_only or None
        if sample_rate is not None and fs is not None:
            raise ValueError("sample_rate and fs are two names of one setting. Pass one of them.")
        rate = fs if sample_rate is None else sample_rate
        if rate is not None:
            rate = audio.check_source_rate(rate, "sample_rate (fs)")
        if segment not in (None, "auto"):
            why = "Every segment is distorted with several seconds before and after it."
            segment = checks.check_real(segment, "segment", "[1, inf)", why)
        #: All settings, as the functions of the pipeline take them.
        self.config = Config(
            encoders=lazy_encoders(
                encoder, match_encoder, decomposition_encoder, loading, decomposition_layer
            ),
            banks=distortion_banks(separation_bank, match_bank, decomposition_bank, seed),
            measures=checked_measures(measures),
            settings=checked(MapSettings(alpha, time, energy, convention, max_dimension, eigh)),
            rate=rate,
            trim=trim,
            align_polarity=align_polarity,
            gain=checks.check_choice(gain, "gain", GAINS),
            loudness=checks.check_real(loudness, "loudness", "[-70, 0]"),
            activity=checks.check_real(activity, "activity", "[0, 1)", "0.1 is the default."),
            check_finite=check_finite,
            segment_setting=segment,
            memory=checked_memory(memory),
        )

    # ------------------------------------------------------------------------- settings

    @property
    def encoder(self) -> Encoder:
        """The encoder of PS (and of PM, unless another was given); loads its weights."""
        return self.config.encoders["encoder"].load()

    @property
    def match_encoder(self) -> Encoder:
        """The encoder of PM."""
        return self.config.encoders["match_encoder"].load()

    @property
    def decomposition_encoder(self) -> Encoder:
        """The encoder of clearance and fidelity."""
        return self.config.encoders["decomposition_encoder"].load()

    @property
    def separation_bank(self) -> DistortionBank:
        """Distortions for PS."""
        return self.config.banks["separation_bank"]

    @property
    def match_bank(self) -> DistortionBank:
        """Distortions for PM."""
        return self.config.banks["match_bank"]

    @property
    def decomposition_bank(self) -> DistortionBank:
        """Distortions for clearance and fidelity."""
        return self.config.banks["decomposition_bank"]

    @property
    def measures(self) -> tuple[str, ...]:
        """Measures computed by default."""
        return self.config.measures

    @property
    def grid(self) -> Grid:
        """The grid of frames that the encoders share."""
        return self.config.grid

    @property
    def sample_rate(self) -> int:
        """Sample rate of the user's waveforms in Hz."""
        return self.config.sample_rate

    @property
    def key(self) -> str:
        """Short hash of everything that a :class:`ReferenceBank` depends on."""
        return self.config.key

    def describe(self) -> dict[str, Any]:
        """All settings that a score depends on, as plain values."""
        return self.config.describe()

    def times(self, frames: int) -> Tensor:
        """(F,) times in seconds: the centre of each frame's receptive field."""
        return self.config.grid.times(frames)

    def extra_repr(self) -> str:
        """The settings that its measures depend on, for ``print``; nothing is loaded."""
        shown: dict[str, Any] = {}
        for measure in with_encoder(self.measures):
            shown[measure.encoder] = self.config.encoders[measure.encoder]
            shown[measure.bank] = self.config.banks[measure.bank]
        field_names = (f.name for f in fields(self.config) if f.name not in ("encoders", "banks"))
        shown |= {name: getattr(self.config, name) for name in field_names}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    def _apply(self, fn: Any, recurse: bool = True) -> MAPSS:
        super()._apply(fn, recurse)
        for encoder in set(self.config.encoders.values()):
            encoder.move(fn)
        return self

    # ------------------------------------------------------------------------- references

    @eager
    def prepare(
        self,
        references: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        measures: str | Iterable[str] | None = None,
        *,
        excerpts: Sequence[tuple[int, int]] | None = None,
    ) -> ReferenceBank:
        """Distort and encode references once, for any number of calls.

        Args:
            references: (B, S, T) or (S, T) waveforms, S at least 2.
            lengths: (B,) true lengths in samples; T by default.
            measures: one or several measures to prepare; those of the constructor if None.
            excerpts: parts of a single mixture to score, each by its first sample and the sample
                after its last, in order and without overlap; by default everything. Loudness and
                activity are those of the whole signal, and so is bleed, which costs little. Scores
                of excerpts have no gradients.

        Returns:
            A :class:`ReferenceBank`.

        Raises:
            TypeError: not a tensor of a type that holds audio.
            ValueError: shapes, lengths or samples that cannot be scored, see the message; or a
                source with too few distortions, because its distortion bank holds few families.
        """
        config = self.config
        measures = config.measures if measures is None else checked_measures(measures)
        memory = budget(config.memory, references)
        if excerpts is not None:
            excerpts = checked_excerpts(excerpts, references)
        return prepare(config, references, lengths, measures, memory, warn=True, excerpts=excerpts)

    # ------------------------------------------------------------------------- scores

    @eager
    def forward(
        self,
        estimates: Tensor,
        references: Tensor | ReferenceBank,
        attributed: Sequence[int] | Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        measures: str | Iterable[str] | None = None,
        frames: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Scores:
        """Score estimates against references; :mod:`torch_mapss.pipeline` maps the code.

        Args:
            estimates: (B, S', T) or (S', T) waveforms.
            references: (B, S, T) or (S, T) waveforms, or a reference bank made by :meth:`prepare`.
            attributed: (S',) index of the reference of each estimate; by default all references in
                order. To score only a target, pass one estimate and ``attributed=(0,)``.
            lengths: (B,) true lengths in samples of estimates and references; a bank has its own.
            measures: one or several measures to compute; by default those of the constructor,
                restricted to what the bank was prepared for. Fields of other measures are None.
            frames: largest number of frames to score, drawn at random from the scored frames of the
                batch: a cheap, unbiased estimate of the mean over frames. All by default. Bleed
                always uses all frames.
            generator: CPU generator for drawing the frames. By default every call makes the same
                draw, so that it can be repeated. All batches then use the same draw, so its error
                does not average out; pass one generator to all calls for independent draws.

        Returns:
            :class:`Scores` with fields (B, S', F); for unbatched input B is 1.

        Raises:
            TypeError: not tensors of a type that holds audio.
            ValueError: shapes, lengths, devices or samples that do not fit, see the message;
                ``attributed`` missing or wrong; a reference bank of other settings.
        """
        config, frames = self.config, checked_frames(frames)
        memory = budget(config.memory, estimates)
        call = make_call(
            config, estimates, references, attributed, lengths, measures, memory, warn=True
        )
        (values,) = score(config, [call], frames, generator)
        return values.scores()

    @eager
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
        measures: str | Iterable[str] | None = None,
        frames: int | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> ScoreBounds:
        """Error of every frame score: a truncation radius and a confidence half-width.

        The scores are computed from the same maps and returned as well, which is cheaper than a
        separate call.

        Args:
            estimates, references, attributed, lengths, measures, frames, generator: as in
                :meth:`forward`.
            confidence: confidence of the half-width of each measure, in (0, 1).
            convention: convention for PS and PM, ``"paper"``, ``"reference"`` or ``"derived"``;
                that of the scores by default. :mod:`torch_mapss.bounds` says what each guarantees.
                Clearance and fidelity have a half-width by jackknife over distortions.
            options: further settings of :func:`torch_mapss.functional.separation_bounds` and
                ``match_bounds``, e.g. ``tail="bootstrap"``.

        Returns:
            :class:`ScoreBounds`, without gradients.

        Raises:
            TypeError, ValueError: as :meth:`forward`, and for options that are unknown or out of
                range.
        """
        config, frames = self.config, checked_frames(frames)
        functions, settings = bound_functions(config, confidence, convention, options)
        memory = budget(config.memory, estimates)
        call = make_call(
            config, estimates, references, attributed, lengths, measures, memory, warn=True
        )
        (values,) = score(config, [call], frames, generator, functions=functions, settings=settings)
        return values.bounds(confidence)

    # ------------------------------------------------------------------------- several systems

    @eager
    @torch.no_grad()
    def score_systems(
        self,
        estimates: Sequence[Tensor],
        bank: ReferenceBank,
        attributed: Sequence[Any] | None = None,
        *,
        measures: str | Iterable[str] | None = None,
        frames: int | None = None,
        generator: torch.Generator | None = None,
        on_segment: OnSegment | None = None,
    ) -> list[Scores]:
        """Score the estimates of several systems for the same mixtures.

        Equal to one call per system, without gradients; but for clips longer than ``segment``,
        distortions are made and encoded only once for all systems.

        Args:
            estimates: waveforms (B, S', T) or (S', T) of each system.
            bank: made by :meth:`prepare`.
            attributed: attribution of each system, as in :meth:`forward`; None: all in order.
            measures: as in :meth:`forward`.
            frames, generator: as in :meth:`forward`; all systems share the frames drawn.
            on_segment: progress callback ``(done, total)`` for the segments of a long clip, called
                at the beginning and after each segment.

        Returns:
            The :class:`Scores` of each system.

        Raises:
            TypeError, ValueError: as :meth:`forward`.
        """
        calls, frames = self._calls(estimates, bank, attributed, measures), checked_frames(frames)
        values_by_system = score(self.config, calls, frames, generator, on_segment)
        return [values.scores() for values in values_by_system]

    @eager
    @torch.no_grad()
    def bound_systems(
        self,
        estimates: Sequence[Tensor],
        bank: ReferenceBank,
        confidence: float = 0.95,
        attributed: Sequence[Any] | None = None,
        convention: str | None = None,
        *,
        measures: str | Iterable[str] | None = None,
        frames: int | None = None,
        generator: torch.Generator | None = None,
        on_segment: OnSegment | None = None,
        **options: Any,
    ) -> list[ScoreBounds]:
        """Bound the scores of several systems, as :meth:`bounds` and :meth:`score_systems` do.

        Args:
            estimates, bank, attributed, measures, frames, generator, on_segment: as in
                :meth:`score_systems`.
            confidence, convention, options: as in :meth:`bounds`.

        Returns:
            The :class:`ScoreBounds` of each system.

        Raises:
            TypeError, ValueError: as :meth:`bounds`.
        """
        functions, settings = bound_functions(self.config, confidence, convention, options)
        calls, frames = self._calls(estimates, bank, attributed, measures), checked_frames(frames)
        values_by_system = score(
            self.config, calls, frames, generator, on_segment, functions, settings
        )
        return [values.bounds(confidence) for values in values_by_system]

    def _calls(
        self,
        estimates: Sequence[Tensor],
        bank: ReferenceBank,
        attributed: Sequence[Any] | None,
        measures: str | Iterable[str] | None,
    ) -> list[Call]:
        indices = [None] * len(estimates) if attributed is None else list(attributed)
        if len(indices) != len(estimates) or not indices:
            raise ValueError(
                "estimates must contain at least one system, and attributed must have one entry "
                f"per system, got {len(estimates)} and {len(indices)}."
            )
        if not isinstance(bank, ReferenceBank):
            raise TypeError(
                "bank must be a ReferenceBank, which all systems share, got "
                f"{type(bank).__name__}. Make it once: bank = mapss.prepare(references)."
            )
        measures = None if measures is None else checked_measures(measures)
        memory = budget(self.config.memory, bank)
        return [
            make_call(self.config, waves, bank, index, None, measures, memory)
            for waves, index in zip(estimates, indices)
        ]


def resolve(
    mapss: MAPSS | None,
    encoder: EncoderChoice | None,
    options: dict[str, Any],
    measures: str | Iterable[str] | None,
    seed: int = 0,
) -> MAPSS:
    """Return ``mapss``, or make a MAPSS from the other arguments that computes ``measures``.

    Args:
        mapss: an existing MAPSS, or None.
        encoder: encoder of a new MAPSS; None stands for ``DEFAULT_ENCODER``.
        options: further keywords of :class:`MAPSS`.
        measures: measures of a new MAPSS.
        seed: seed of a new MAPSS. Losses and metrics also draw frames with it, so it may be given
            together with ``mapss``.

    Raises:
        TypeError: ``mapss`` is not a MAPSS, or an option is unknown.
        ValueError: ``mapss`` is given together with an encoder or options.
    """
    if mapss is None:
        encoder = DEFAULT_ENCODER if encoder is None else encoder
        return MAPSS(encoder, **options, measures=measures, seed=seed)
    if not isinstance(mapss, MAPSS):
        raise TypeError(
            f"mapss must be a torch_mapss.MAPSS, got {type(mapss).__name__}. An encoder is passed "
            "by keyword: encoder='mel'."
        )
    extra = sorted(options) + ([] if encoder is None else ["encoder"])
    if extra:
        raise ValueError(
            f"{', '.join(extra)} cannot be applied to the MAPSS that was given. Set them when "
            "making it: MAPSS(encoder, ...)."
        )
    return mapss

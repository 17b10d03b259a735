"""The scorer itself: its settings, and its calls step by step."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.core.settings import Settings, map_settings
from torch_mapss.core.torch_defaults import with_torch_defaults
from torch_mapss.distortions import DistortionBank
from torch_mapss.encoders import Encoder
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.config import (
    Config,
    EncoderChoice,
    EncoderSlot,
    Grid,
    checked_segment,
)
from torch_mapss.pipeline.inputs import Call, validate, validate_references
from torch_mapss.pipeline.measures import MEASURES, checked_measures, encoded
from torch_mapss.pipeline.memory import checked_memory, explained
from torch_mapss.pipeline.prepare import prepare, prepared, warn_unscored
from torch_mapss.pipeline.score import (
    OnSegment,
    Task,
    bounds_of,
    score_frames,
    scores_of,
    scoring,
)
from torch_mapss.pipeline.scores import ScoreBounds, Scores

DEFAULT_ENCODER = "wav2vec2-large"
DECOMPOSITION_MEMBERS = 20  # distortions a source, of the default bank


class MAPSS(nn.Module):
    """Frame scores of separated sources, differentiable in the estimates.

    Args:
        encoder: of PS, and of PM unless ``match_encoder`` is given: a name (``torch-mapss
            encoders`` lists them), local folder or hub id of a checkpoint, an
            :class:`~torch_mapss.encoders.Encoder`, or any callable with ``sample_rate``, ``hop``
            and ``receptive_field``. ``"mel"`` needs no download. Weights are loaded at first use.
        layer: of the encoder; its default if None.
        match_encoder: another encoder for PM, on the same rate and hop; ``encoder`` if None.
        decomposition_encoder: of clearance and fidelity. ``"mel"`` is log-mel spectra on the frames
            of the others. The split needs features in which a mixture lies near the line between
            its sources: from layer 1 of a transformer on, fidelity follows the noise in an output.
        separation_bank: distortions for PS; the paper's 70 if None. A smaller one
            (``DistortionBank("separation", size=20)``) is faster and coarser.
        match_bank: distortions for PM; the paper's up to 83 if None.
        decomposition_bank: distortions for clearance and fidelity; 20 members of PS's bank, evenly
            spaced, if None.
        measures: computed unless a call asks for others: a name or several of ``"decomposition"``
            (clearance and fidelity), ``"separation"`` (PS), ``"match"`` (PM) and ``"bleed"``; None:
            all. Those that are left out cost nothing and load no encoder.
        seed: of the noise in the default banks. Equal seeds give equal scores.
        sample_rate: of the waveforms handed in, in Hz; they are resampled to the encoder's rate,
            which None says they already have.
        fs: another name of ``sample_rate``.
        trim: cut estimates and references to the shorter of them instead of refusing.
        align_polarity: flip an estimate whose correlation with its reference is negative.
            Checkpoints react to polarity, listeners do not.
        alpha, time, energy, max_dimension, convention, eigh: of the diffusion map, see
            :func:`torch_mapss.functional.perceptual_separation`.
        loudness: target of the normalisation of every waveform, in LUFS.
        activity: a source is active where its RMS exceeds this share of its RMS over all samples.
        check_finite: look for NaN and infinite samples and refuse them. Without, the mixture of
            such a source is left out, undefined; a training step on an accelerator then
            synchronises twice instead of four times.
        segment: seconds. Longer clips are distorted, encoded and scored in segments of at most so
            much, in memory that grows with them by some copies of their waveforms alone; they have
            no gradients. Encoders whose frames depend on their receptive field alone (``"mel"``,
            ``"waveform"``) give the scores of the whole clip up to rounding. Transformers receive
            the segment with a second more on each side, so that scores depend on it. ``"auto"`` is
            60, or what the encoder accepts at once. None: everything is scored whole.
        memory: to work in, beside waveforms, weights and results: bytes, a text like ``"2GiB"``,
            or ``"auto"``: 1 GiB on a CPU (a quarter of what is free, if that is less), a quarter of
            what is free on CUDA. How many distortions are made, clips encoded and frames scored at
            a time follows from it, and no score.
        dtype, device, local_files_only, cache_dir: of an encoder that is given by name.

    The encoder is frozen and shared, and is neither part of ``state_dict()`` nor of
    ``parameters()``; ``to(device)`` moves it along, while ``half()`` and its like change nothing:
    its precision is ``dtype``, or a module's own. The diffusion maps run in float64 inside whatever
    the dtype of the waveforms and under autocast (their eigendecomposition in ``eigh``, not to be
    confused with ``dtype``).

    Raises:
        TypeError: an argument of another type.
        ValueError: a setting out of its range, encoders on different frames, or a bank of the
            other measure or with too few members.
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

    @with_torch_defaults
    def __init__(
        self,
        encoder: EncoderChoice = DEFAULT_ENCODER,
        layer: int | None = None,
        *,
        match_encoder: EncoderChoice | None = None,
        decomposition_encoder: EncoderChoice = "mel",
        separation_bank: DistortionBank | None = None,
        match_bank: DistortionBank | None = None,
        decomposition_bank: DistortionBank | None = None,
        measures: str | Iterable[str] | None = None,
        seed: int = 0,
        sample_rate: int | None = None,
        fs: int | None = None,
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
        super().__init__()
        options = {"layer": layer, "dtype": dtype, "device": device, "cache_dir": cache_dir}
        options["local_files_only"] = local_files_only or None
        slots = _slots(encoder, match_encoder, decomposition_encoder, options)
        separation = _checked_bank(separation_bank, "separation_bank", seed)
        if decomposition_bank is None:
            decomposition_bank = thinned(separation, DECOMPOSITION_MEMBERS)
        self._config = Config(
            encoders=slots,
            banks={
                "separation_bank": separation,
                "match_bank": _checked_bank(match_bank, "match_bank", seed),
                "decomposition_bank": _checked_bank(decomposition_bank, "decomposition_bank", seed),
            },
            measures=checked_measures(measures),
            settings=map_settings(
                alpha=alpha,
                time=time,
                energy=energy,
                convention=convention,
                max_dimension=max_dimension,
                eigh=eigh,
            ),
            given_rate=_checked_rate(sample_rate, fs),
            trim=trim,
            align_polarity=align_polarity,
            loudness=checks.check_real(loudness, "loudness"),
            activity=_checked_activity(activity),
            check_finite=check_finite,
            given_segment=checked_segment(segment),
            memory=checked_memory(memory),
        )
        if all(slot.is_known for slot in slots.values()):
            self._config.validate()

    # ------------------------------------------------------------------------- settings

    @property
    def config(self) -> Config:
        """All settings, as the functions of the pipeline take them."""
        return self._config

    @property
    def encoder(self) -> Encoder:
        """The encoder of PS (and of PM, unless another was given); loads its weights."""
        return self._config.encoders["encoder"].encoder

    @property
    def match_encoder(self) -> Encoder:
        """The encoder of PM."""
        return self._config.encoders["match_encoder"].encoder

    @property
    def decomposition_encoder(self) -> Encoder:
        """The encoder of clearance and fidelity."""
        return self._config.encoders["decomposition_encoder"].encoder

    @property
    def separation_bank(self) -> DistortionBank:
        """Distortions for PS."""
        return self._config.banks["separation_bank"]

    @property
    def match_bank(self) -> DistortionBank:
        """Distortions for PM."""
        return self._config.banks["match_bank"]

    @property
    def decomposition_bank(self) -> DistortionBank:
        """Distortions for clearance and fidelity."""
        return self._config.banks["decomposition_bank"]

    @property
    def measures(self) -> tuple[str, ...]:
        """Computed unless a call asks for others."""
        return self._config.measures

    @property
    def settings(self) -> Settings:
        """Of the diffusion maps."""
        return self._config.settings

    @property
    def grid(self) -> Grid:
        """The frames that all encoders share."""
        return self._config.grid

    @property
    def sample_rate(self) -> int:
        """Of the waveforms handed in, in Hz."""
        return self._config.sample_rate

    @property
    def segment(self) -> float | None:
        """Seconds; longer clips are scored in segments. None: none are."""
        return self._config.segment

    @property
    def key(self) -> str:
        """A short name of everything that a :class:`ReferenceBank` depends on."""
        return self._config.key

    def describe(self) -> dict[str, Any]:
        """All settings that a score depends on, as plain values."""
        return self._config.describe()

    def is_long(self, samples: int) -> bool:
        """Whether a clip of so many samples at the encoder's rate is scored in segments."""
        return self._config.is_long(samples)

    def times(self, frames: int) -> Tensor:
        """(F,) seconds, the centre of each frame's receptive field."""
        return self._config.times(frames)

    def extra_repr(self) -> str:
        """The settings, for ``print``."""
        return ", ".join(f"{name}={value!r}" for name, value in self._config.brief().items())

    def _apply(self, fn: Any, recurse: bool = True) -> MAPSS:
        super()._apply(fn, recurse)
        for slot in {id(slot): slot for slot in self._config.encoders.values()}.values():
            slot.move(fn)
        return self

    # ------------------------------------------------------------------------- references

    @with_torch_defaults
    @explained()
    def prepare(
        self,
        references: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        measures: str | Iterable[str] | None = None,
    ) -> ReferenceBank:
        """Distort and encode references once, for any number of calls.

        Args:
            references: (B, S, T) or (S, T) waveforms, S at least 2.
            lengths: (B,) true lengths in samples; T by default.
            measures: a name or several to prepare; those of the constructor if None.

        Returns:
            A :class:`ReferenceBank`.

        Raises:
            TypeError: not a tensor of a type that holds audio.
            ValueError: shapes, lengths or samples that cannot be scored, see the message; or a
                source that has too few distortions, as its bank holds few families.
        """
        config = self.config
        wanted = config.measures if measures is None else checked_measures(measures)
        bank = prepare(config, validate_references(config, references, lengths), wanted)
        warn_unscored(bank)
        return bank

    # ------------------------------------------------------------------------- scores

    @with_torch_defaults
    @explained()
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
        """Score estimates against references.

        Args:
            estimates: (B, S', T) or (S', T) waveforms.
            references: (B, S, T) or (S, T) waveforms, or a bank made of them by :meth:`prepare`.
            attributed: (S',) which reference each estimate belongs to; all in order by default.
                Score a target alone with one estimate and ``attributed=(0,)``.
            lengths: (B,) true lengths in samples, of estimates and references alike. A bank has
                its own.
            measures: a name or several to compute; by default those of the constructor, or of them
                those that the bank was prepared for. The fields of the others are None.
            frames: score at most so many frames, drawn at random from the scored frames of the
                batch: a cheap, unbiased estimate of the mean over frames. All by default. Bleed is
                of all frames.
            generator: a CPU generator to draw them with; a fixed one by default.

        Returns:
            :class:`Scores`, (B, S', F) each; for unbatched input B is 1.

        Raises:
            TypeError: not tensors of a type that holds audio.
            ValueError: shapes, lengths, devices or samples that do not fit, see the message;
                ``attributed`` missing or wrong; a bank of other settings.
        """
        config = self.config
        call = validate(config, estimates, references, attributed, lengths, measures)
        call = prepared(config, call)
        if call.references is not None:
            warn_unscored(call.prepared)
        task = scoring(config, call.measures)
        (written,) = score_frames(config, [call], task, frames, generator)
        return scores_of(config, call, written)

    @with_torch_defaults
    @torch.no_grad()
    @explained()
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

        The scores are read off the same maps and returned along: cheaper than scoring apart.

        Args:
            estimates, references, attributed, lengths, measures, frames, generator: as for scoring.
            confidence: of the half-width of each measure, in (0, 1).
            convention: of PS and PM, ``"paper"``, ``"reference"`` or ``"derived"``; that of the
                scores by default. See :mod:`torch_mapss.bounds` for what each guarantees. Clearance
                and fidelity have a half-width by jackknife over distortions.
            options: further settings of :func:`torch_mapss.functional.separation_bounds` and
                ``match_bounds``, e.g. ``tail="bootstrap"``.

        Returns:
            :class:`ScoreBounds`, without gradients.

        Raises:
            TypeError, ValueError: as for scoring, and for options that are unknown or out of range.
        """
        config = self.config
        task = _bounding(config, confidence, convention, options)
        call = validate(config, estimates, references, attributed, lengths, measures)
        call = prepared(config, call)
        return _bound(config, [call], task, confidence, frames, generator)[0]

    # ------------------------------------------------------------------------- several systems

    @with_torch_defaults
    @torch.no_grad()
    @explained()
    def score_systems(
        self,
        estimates: Sequence[Tensor],
        bank: ReferenceBank,
        attributed: Sequence[Any] | None = None,
        *,
        measures: str | Iterable[str] | None = None,
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
            measures: as for scoring.
            frames: as for scoring; every system has the same frames drawn.
            on_segment: called with how many segments of a long clip are scored, and of how many:
                as scoring begins, and after each.

        Returns:
            The :class:`Scores` of each.

        Raises:
            TypeError, ValueError: as for scoring.
        """
        config = self.config
        calls = _calls(config, estimates, bank, attributed, measures)
        task = scoring(config, calls[0].measures)
        written = score_frames(config, calls, task, frames, None, on_segment)
        return [scores_of(config, call, each) for call, each in zip(calls, written)]

    @with_torch_defaults
    @torch.no_grad()
    @explained()
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
        on_segment: OnSegment | None = None,
        **options: Any,
    ) -> list[ScoreBounds]:
        """What :meth:`bounds` returns, of several systems as :meth:`score_systems` takes them.

        Args:
            estimates, bank, attributed, measures, frames, on_segment: as for
                :meth:`score_systems`.
            confidence, convention, options: as for :meth:`bounds`.

        Returns:
            The :class:`ScoreBounds` of each.

        Raises:
            TypeError, ValueError: as :meth:`bounds`.
        """
        config = self.config
        task = _bounding(config, confidence, convention, options)
        calls = _calls(config, estimates, bank, attributed, measures)
        return _bound(config, calls, task, confidence, frames, None, on_segment)


# ------------------------------------------------------------------------------------------------
# Several calls, and bounds
# ------------------------------------------------------------------------------------------------


def _calls(
    config: Config,
    estimates: Sequence[Tensor],
    bank: ReferenceBank,
    attributed: Sequence[Any] | None,
    measures: str | Iterable[str] | None,
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
    wanted = measures if measures is None or isinstance(measures, str) else tuple(measures)
    pairs = zip(estimates, indices)
    return [validate(config, each, bank, index, None, wanted) for each, index in pairs]


def _bounding(
    config: Config, confidence: float, convention: str | None, options: dict[str, Any]
) -> Task:
    """Scores of all measures together with their bounds."""
    from torch_mapss.bounds import frames as bounds

    convention = convention or config.settings.convention
    unknown = set(options) - set(bounds.Options._fields)
    if unknown:
        raise TypeError(
            f"bounds takes no {', '.join(sorted(unknown))}; it takes "
            f"{', '.join(bounds.Options._fields)}."
        )
    checked = bounds.check_options(bounds.Options(confidence, convention, **options))
    functions = {
        measure.name: getattr(bounds, str(measure.errors))(checked, scores=True)
        for measure in encoded(MEASURES)
    }
    graph = "reference" if convention == "reference" else "paper"
    return Task(functions, config.settings._replace(convention=graph))


def _bound(
    config: Config,
    calls: Sequence[Call],
    task: Task,
    confidence: float,
    frames: int | None,
    generator: torch.Generator | None,
    on_segment: OnSegment | None = None,
) -> list[ScoreBounds]:
    wanted = {m.name: task.functions[m.name] for m in encoded(calls[0].measures)}
    task = task._replace(functions=wanted)
    written = score_frames(config, calls, task, frames, generator, on_segment)
    same = task.settings == config.settings  # else the maps are not those of the scores
    return [
        bounds_of(call, each, confidence, scores_of(config, call, each) if same else None)
        for call, each in zip(calls, written)
    ]


# ------------------------------------------------------------------------------------------------
# Arguments
# ------------------------------------------------------------------------------------------------


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


def _slots(
    encoder: EncoderChoice,
    match_encoder: EncoderChoice | None,
    decomposition_encoder: EncoderChoice,
    options: dict[str, Any],
) -> dict[str, EncoderSlot]:
    """The encoders by argument; those that are equal are one."""
    first = EncoderSlot(encoder, options)
    rest = {**options, "layer": None}

    def another(given: EncoderChoice) -> EncoderSlot:
        same = isinstance(given, str) and given == encoder and options["layer"] is None
        if same or given is encoder:
            return first
        return EncoderSlot(given, rest if isinstance(given, str | PathLike) else {})

    second = first if match_encoder is None else another(match_encoder)
    if decomposition_encoder == "mel" and encoder != "mel":
        third = EncoderSlot("mel", {}, like=first)
    else:
        third = another(decomposition_encoder)
    if third.pretrained:
        checks.warn_user(
            f"decomposition_encoder={third.name!r} is a transformer: from its layer 1 on, fidelity "
            "follows the noise in an output instead of its distortion. 'mel' is the default."
        )
    return {"encoder": first, "match_encoder": second, "decomposition_encoder": third}


def thinned(bank: DistortionBank, count: int) -> DistortionBank:
    """At most ``count`` members of a bank, evenly spaced; random members keep their noise."""
    total = len(bank.members)
    if total <= count:
        return bank
    smaller = copy.copy(bank)
    smaller.members = tuple(bank.members[(2 * k + 1) * total // (2 * count)] for k in range(count))
    return smaller


def _checked_bank(bank: DistortionBank | None, name: str, seed: int) -> DistortionBank:
    """The bank given, or the full one of its kind."""
    kind = "match" if name == "match_bank" else "separation"
    if bank is None:
        return DistortionBank(kind, seed=seed)
    if not isinstance(bank, DistortionBank):
        raise TypeError(
            f"{name} must be a torch_mapss.DistortionBank, got {bank!r}. Make one, e.g. "
            f'DistortionBank("{kind}", size=20), or leave it out for the default.'
        )
    if bank.kind != kind:
        raise ValueError(
            f"{name} is a DistortionBank({bank.kind!r}), made for another measure: its members "
            f'differ. Make a DistortionBank("{kind}", ...).'
        )
    return bank


def _checked_rate(sample_rate: int | None, fs: int | None) -> int | None:
    if sample_rate is not None and fs is not None:
        raise ValueError(
            f"fs={fs!r} is another name of sample_rate={sample_rate!r}. Pass one of them."
        )
    name, rate = ("sample_rate", sample_rate) if fs is None else ("fs", fs)
    if rate is None:
        return None
    rate = checks.check_whole(rate, name, 1)
    audio.check_source_rate(rate, name)
    return rate


def _checked_activity(activity: float) -> float:
    share = checks.check_real(activity, "activity")
    if not 0.0 <= share < 1.0:
        raise ValueError(
            f"activity must be a share of a source's own RMS, at least 0 and below 1, got "
            f"{activity}: at 1 and above a steady source is active nowhere. 0.1 is the default."
        )
    return share

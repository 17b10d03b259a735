"""The common interface of encoders, with its checks and its chunking of batches to fit memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from torch_mapss.core.checks import check_floating
from torch_mapss.core.lengths import frame_count

MEMORY_BUDGET = 2**30  # 1 GiB; bytes of activations per chunk
ABSURD = 1e30  # an embedding this large overflows float32 when squared


class EncoderRow(NamedTuple):
    """Row of the table of encoders."""

    name: str  # name for load_encoder
    checkpoint: str | None  # hub id; None: nothing to load
    sample_rate: int  # Hz
    layer: int | None  # default layer; None: there are no layers
    hop: int = 320  # samples between frames
    receptive_field: int = 400  # samples
    maximum_samples: int | None = None  # longest clip that it accepts; None: no limit

    @property
    def frames_per_second(self) -> float:
        """Frames per second of audio."""
        return self.sample_rate / self.hop

    @property
    def needs_download(self) -> bool:
        """Whether there are weights to fetch."""
        return self.checkpoint is not None


class Encoder(nn.Module):
    """Turns waveforms into one feature vector per frame; weights are frozen, gradients pass.

    A subclass sets the attributes through `__init__` and implements `_encode`, from (N, T) to (N,
    F, M). Frames lie on a regular grid: frame f covers samples `[f * hop, f * hop +
    receptive_field)`, and nothing is padded (but see `overhang`).

    Autocast is switched off inside: the precision is always the encoder's `dtype`, so a score does
    not depend on where it is computed. `train()` leaves an encoder in evaluation mode.

    Attributes:
        settings: names of the attributes that features depend on, without those of the frame grid.
            A :class:`~torch_mapss.ReferenceBank` fits only encoders with equal values of them.
        local: whether a frame depends only on its receptive field (no attention, no norm over the
            clip), so that a clip may be encoded in pieces. False unless a subclass says otherwise.
        overhang: samples beyond each end of its receptive field that a frame also depends on; zeros
            beyond the ends of the clip. 0 unless a subclass says otherwise.

    Args:
        name: name of the encoder in tables and messages.
        sample_rate: sample rate of its input in Hz.
        hop: samples between two frames.
        receptive_field: samples that a frame covers; also the length of the shortest waveform that
            can be encoded.
        feature_size: M, features per frame; None if unknown before a call.
        layer: layer that the features are read from; None if there are no layers.
        maximum_samples: length of the longest waveform that has positions; None: no limit.
        dtype: dtype of the computation; None: the waveform's own, at least float32.
        memory_budget: bytes of activations to aim at when no gradient is needed. The batch is then
            encoded in chunks of as many items as fit (at least one); a smaller budget is slower.
        activation_checkpointing: with gradients, keep only the waveform of each chunk and encode it
            once more in the backward pass: about a third slower, but far less memory.
    """

    settings: ClassVar[tuple[str, ...]] = ("layer", "dtype", "feature_size")

    def __init__(
        self,
        *,
        name: str,
        sample_rate: int,
        hop: int,
        receptive_field: int,
        feature_size: int | None,
        layer: int | None = None,
        maximum_samples: int | None = None,
        dtype: torch.dtype | None = None,
        memory_budget: int = MEMORY_BUDGET,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.local = False
        self.overhang = 0
        self.name = name
        self.sample_rate = sample_rate
        self.hop = hop
        self.receptive_field = receptive_field
        self.feature_size = feature_size
        self.layer = layer
        self.maximum_samples = maximum_samples
        self.dtype = dtype
        self.memory_budget = memory_budget
        self.activation_checkpointing = activation_checkpointing
        self.training = False

    def frame_count(self, samples: int) -> int:
        """F, the number of frames in `samples` samples; 0 for less than one frame."""
        return frame_count(samples, self.receptive_field, self.hop)

    def forward(self, waveform: Tensor, memory: int | None = None) -> Tensor:
        """Encode waveforms.

        Args:
            waveform: (..., T) floating point, at `sample_rate`, T of at least `receptive_field`
                and at most `maximum_samples`.
            memory: bytes of activations to aim at, if less than `memory_budget`.

        Returns:
            (..., F, M) features, F = `frame_count(T)`, in float32 or better.

        Raises:
            TypeError: the waveform is not a floating-point tensor.
            ValueError: it is shorter than one frame, longer than the encoder accepts, or on another
                device than the weights.
        """
        self._check(waveform)
        samples = waveform.shape[-1]
        frames = self.frame_count(samples)
        with torch.autocast(waveform.device.type, enabled=False):
            flat = self._cast(waveform).reshape(-1, samples)
            # Items whose activations fit the budget are encoded at once. A graph keeps all
            # activations, so chunks save nothing there, unless the backward pass encodes again.
            budget = min(memory or self.memory_budget, self.memory_budget)
            chunks = flat.split(max(1, budget // max(1, self._item_bytes(samples))))
            encode: Callable[[Tensor], Any] = self._encode
            has_graph = torch.is_grad_enabled() and flat.requires_grad
            if has_graph and self.activation_checkpointing:
                # Nothing random runs in evaluation mode, so the generators' state is not saved.
                encode = functools.partial(
                    recompute_in_backward, encode, use_reentrant=False, preserve_rng_state=False
                )
            elif has_graph:
                chunks = (flat,)
            encoded_chunks = []
            if len(flat) == 0 and self.feature_size is not None:
                chunks = ()
                encoded_chunks = [flat.new_zeros(0, frames, self.feature_size)]
            for chunk in chunks:
                embeddings = encode(chunk)
                is_float = isinstance(embeddings, Tensor) and embeddings.is_floating_point()
                if not is_float or embeddings.shape[:-1] != (len(chunk), frames):
                    raise ValueError(self._unfit(embeddings, chunk))
                encoded_chunks.append(embeddings)
            embeddings = encoded_chunks[0]
            if len(encoded_chunks) > 1:
                embeddings = torch.cat(encoded_chunks)
            embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        return embeddings.reshape(*waveform.shape[:-1], *embeddings.shape[-2:])

    def _check(self, waveform: Tensor) -> None:
        """Raise for a waveform that cannot be encoded, see `forward`."""
        check_floating(waveform, "waveform")
        samples, shortest = waveform.shape[-1] if waveform.dim() else 0, self.receptive_field
        rate, longest = self.sample_rate, self.maximum_samples
        if samples < shortest:
            raise ValueError(
                f"waveform has {samples} samples ({1000 * samples / rate:.1f} ms), but encoder "
                f"{self.name!r} needs at least {shortest} samples "
                f"({1000 * shortest / rate:.1f} ms) at {rate} Hz for a single frame. Pass a longer "
                "signal, with time on the last axis."
            )
        if longest is not None and samples > longest:
            subject = f"the waveform of {samples} samples"
            raise ValueError(too_long(subject, samples / rate, self.name, longest / rate))

    def _cast(self, waveform: Tensor) -> Tensor:
        """Cast to the dtype of the computation; half precision is lifted to float32."""
        return waveform.to(self.dtype or torch.promote_types(waveform.dtype, torch.float32))

    def _encode(self, flat: Tensor) -> Tensor:
        """(N, T) -> (N, F, M)."""
        raise NotImplementedError

    def _unfit(self, embeddings: Any, flat: Tensor) -> str:
        """Message for features of (N, T) that are off the grid or not floating point."""
        got = type(embeddings).__name__
        if isinstance(embeddings, Tensor):
            got = f"{tuple(embeddings.shape)}, {embeddings.dtype}"
        expected = f"({len(flat)}, {self.frame_count(flat.shape[-1])}, M)"
        return (
            f"encoder {self.name!r} should turn a waveform of shape {tuple(flat.shape)} into "
            f"floating-point features of shape {expected}, but gave {got}. Frames follow from hop "
            f"{self.hop} and receptive field {self.receptive_field}: set these to match the "
            "encoder, or trim its output; take the magnitude of complex features."
        )

    def _item_bytes(self, samples: int) -> int:
        """Peak bytes of activations for one item of `samples` samples."""
        return 4 * samples

    def train(self, mode: bool = True) -> Encoder:
        """Stay in evaluation mode: dropout, layer drop and masking would make scores random."""
        super().train(False)
        return self

    def extra_repr(self) -> str:
        """Name, layer and frame grid, for `print`."""
        layer = "" if self.layer is None else f", layer={self.layer}"
        grid = f"receptive_field={self.receptive_field}, hop={self.hop}"
        return f"{self.name!r}{layer}, sample_rate={self.sample_rate}, {grid}"


def too_long(subject: str, seconds: float, encoder: str, longest: float) -> str:
    """Message for a signal longer than the ``longest`` seconds that an encoder accepts."""
    return (
        f"{subject} has {seconds:.6g} s, but encoder {encoder!r} accepts at most {longest:g} s. "
        'Score it in segments: MAPSS(..., segment="auto"), which is the default of '
        "torch_mapss.evaluate and of the command line."
    )


def is_usable(embeddings: Tensor) -> Tensor:
    """() bool tensor, whether any value is finite and below 1e30; reading it synchronises."""
    return (embeddings.detach().abs() < ABSURD).any()


def broken(encoder: Encoder, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> str:
    """Message for an encoder whose embeddings are unusable."""
    name = getattr(encoder, "checkpoint", encoder.name)
    return (
        f"encoder {name!r} (layer {encoder.layer}, dtype {encoder.dtype or dtype}, "
        f"device {device}) returned no usable value: all of shape "
        f"{tuple(shape)} are NaN, infinite or above {ABSURD:g}. The model is broken or "
        "overflows: check the checkpoint, or load it with dtype=torch.float32."
    )

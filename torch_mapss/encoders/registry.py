"""The table of named encoders, and `load_encoder`."""

from __future__ import annotations

import difflib
import os
from typing import Any

import torch

from torch_mapss.encoders.base import MEMORY_BUDGET, Encoder, EncoderRow
from torch_mapss.encoders.custom import CustomEncoder
from torch_mapss.encoders.mel import MelEncoder
from torch_mapss.encoders.transformer import Source, checked_device, described, load_transformer
from torch_mapss.encoders.waveform import WaveformEncoder

_TABLE = (
    EncoderRow("wav2vec2-large", "facebook/wav2vec2-large-lv60", 16_000, 2),
    EncoderRow("wav2vec2-base", "facebook/wav2vec2-base", 16_000, 2),
    EncoderRow("wav2vec2-xlsr", "facebook/wav2vec2-large-xlsr-53", 16_000, 2),
    EncoderRow("wavlm-large", "microsoft/wavlm-large", 16_000, 3),
    EncoderRow("wavlm-base", "microsoft/wavlm-base", 16_000, 2),
    EncoderRow("hubert-large", "facebook/hubert-large-ll60k", 16_000, 3),
    EncoderRow("hubert-base", "facebook/hubert-base-ls960", 16_000, 2),
    EncoderRow("mert", "m-a-p/MERT-v1-95M", 24_000, 3),
    *(
        EncoderRow(name, f"openai/{name}", 16_000, 1, maximum_samples=480_000)
        for name in ("whisper-tiny", "whisper-tiny.en", "whisper-base", "whisper-base.en")
    ),
    EncoderRow("waveform", None, 16_000, None),
    EncoderRow("mel", None, 16_000, None),
    EncoderRow("mel-44k", None, 44_100, None, hop=882, receptive_field=1102),
)


def encoder_table() -> tuple[EncoderRow, ...]:
    """All named encoders; any folder or hub id of the same architectures works as well.

    `mert` reads layer 3 by default; layer 1 suits drums better. `mel-44k` has 128 bands up to 20
    kHz, for music.
    """
    return _TABLE


def load_encoder(
    name_or_path: str | os.PathLike[str],
    *,
    layer: int | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    local_files_only: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    activation_checkpointing: bool = False,
) -> Encoder:
    """Load an encoder by name, folder or hub id.

    A pretrained encoder is read only up to its layer, and shares its weights with all encoders of
    equal checkpoint, layer, dtype and device; see `TransformerEncoder`. Files are looked up in the
    hub's cache first, and only missing ones are fetched from the network.

    Args:
        name_or_path: a name of `encoder_table()`, a local folder, or a hub id (`owner/name`).
        layer: 0 for the input of the first transformer block, k for the output of the k-th; None:
            the default of the table. `mel` and `waveform` have no layers.
        dtype: precision of weights and arithmetic; half precision is faster on a GPU and accurate
            to two or three digits. None: float32, or for `mel` and `waveform` the waveform's own.
        device: device of the weights; None: CPU. `mel` and `waveform` work on the waveform's
            device.
        local_files_only: never use the network.
        cache_dir: folder of the hub's files; None: the hub's own choice.
        memory_budget: bytes of activations at a time when no gradient is needed, see `Encoder`.
        activation_checkpointing: with gradients, trade time for memory, see `Encoder`.

    Returns:
        The encoder: frozen, in evaluation mode.

    Raises:
        ValueError: unknown name, missing folder, nonexistent layer, unsuitable dtype or device, or
            a checkpoint that lacks a weight.
        OSError: the checkpoint is not cached and cannot be fetched.
        ImportError: transformers is missing.
    """
    name = os.fspath(name_or_path)
    options: dict[str, Any] = {
        "dtype": as_dtype(dtype),
        "memory_budget": memory_budget,
        "activation_checkpointing": activation_checkpointing,
    }
    row = known_row(name)
    if row is not None and not row.needs_download:
        checked_device(device or "cpu")
        return _built_in(name, layer, options)
    source = Source(
        name=name,
        checkpoint=checkpoint_of(name),
        layer=row.layer if layer is None and row is not None else layer,
        device=str(device or "cpu"),
        local_files_only=local_files_only,
        cache_dir=None if cache_dir is None else os.path.abspath(cache_dir),
        **{**options, "dtype": options["dtype"] or torch.float32},
    )
    return load_transformer(source)


def as_encoder(encoder: Any, **options: Any) -> Encoder:
    """Make an encoder from any of the forms that a user may pass.

    Args:
        encoder: an `Encoder` (returned unchanged); a name, folder or hub id (`load_encoder` with
            the options); or any callable with `sample_rate`, `hop` and `receptive_field` that turns
            (N, T) into (N, F, M), see `CustomEncoder`.
        options: options of `load_encoder`, if a name is passed.

    Raises:
        TypeError: it is none of these.
        ValueError: options are passed with an existing encoder.
    """
    if isinstance(encoder, str | os.PathLike):
        return load_encoder(encoder, **options)
    option_names = sorted(name for name, value in options.items() if value is not None)
    if option_names:
        raise ValueError(
            f"{', '.join(option_names)} cannot be applied to an encoder that is already made "
            f"({type(encoder).__name__}): pass a name, or set it when making the encoder."
        )
    return encoder if isinstance(encoder, Encoder) else CustomEncoder(encoder)


def encoder_row(
    name_or_path: str | os.PathLike[str],
    *,
    local_files_only: bool = False,
    cache_dir: str | None = None,
    **_: Any,
) -> EncoderRow:
    """Row of an encoder: from the table, or read from the settings of another checkpoint.

    No weights are loaded or fetched.

    Args:
        name_or_path, local_files_only, cache_dir: as in `load_encoder`, whose other options are
            accepted but ignored.

    Raises:
        ValueError, OSError, ImportError: as `load_encoder`.
    """
    name = os.fspath(name_or_path)
    if (row := known_row(name)) is not None:
        return row
    rows = described(checkpoint_of(name), local_files_only, cache_dir, weights=False)
    return rows[-1]._replace(name=name)


def known_row(name: str) -> EncoderRow | None:
    """Row of the table for a name or checkpoint; None if there is none."""
    return next((row for row in _TABLE if name in (row.name, row.checkpoint)), None)


def checkpoint_of(name: str) -> str:
    """Resolve a name, folder or hub id to an absolute folder or a hub id.

    Raises:
        ValueError: it is none of these.
    """
    row = known_row(name)
    if row is not None and row.checkpoint is not None:
        return row.checkpoint
    folder = os.path.expanduser(name)
    if os.path.isdir(folder):
        return os.path.abspath(folder)
    if "/" in name or os.sep in name or name.startswith("~"):
        return name
    names = [row.name for row in _TABLE]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(
        f"encoder {name!r} is not a known name, a folder or a hub id (owner/name).{hint} "
        f"Names are {', '.join(names)}."
    )


def _built_in(name: str, layer: int | None, options: dict[str, Any]) -> Encoder:
    if layer is not None:
        raise ValueError(
            f"layer={layer} was passed, but encoder {name!r} has no layers: nothing could be read "
            "there. Leave layer out, or choose a pretrained encoder."
        )
    if options["dtype"] not in (None, torch.float32, torch.float64):
        raise ValueError(
            f"encoder {name!r} computes in float32 or float64, not {options['dtype']}, in which "
            "its energies overflow or lose their digits. Leave dtype out."
        )
    if name == "waveform":
        return WaveformEncoder(dtype=options["dtype"])
    if name == "mel":
        return MelEncoder(**options)
    return MelEncoder(
        128, sample_rate=44_100, hop=882, window=1102, highest=20_000, name=name, **options
    )


_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Resolve a floating-point dtype or the name of one.

    Raises:
        ValueError: there is no such dtype.
    """
    resolved = getattr(torch, _SHORT.get(dtype, dtype), dtype) if isinstance(dtype, str) else dtype
    if resolved is not None and not (
        isinstance(resolved, torch.dtype) and resolved.is_floating_point
    ):
        raise ValueError(
            f"dtype should be float32, float64, bfloat16 or float16, not {dtype!r}: an encoder "
            "computes in floating point. Pass one of these, as a name or a torch.dtype."
        )
    return resolved

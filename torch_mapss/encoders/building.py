"""Builds a model of transformers without storage and fills it with a checkpoint's weights.

`transformers` is imported here and nowhere else, when the first pretrained encoder is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .checkpoint import Checkpoint
from .settings import TransformerSettings
from .tensors import read_tensors


def import_transformers() -> Any:
    """The package, imported only here.

    Raises:
        ImportError: it is not installed, or fails to import.
    """
    try:
        import transformers
    except Exception as error:  # missing, or broken by another package
        raise ImportError(
            f"this encoder needs transformers, which cannot be imported ({error}). Install it by "
            "`pip install transformers`, or use the encoders 'mel' or 'waveform', which need none."
        ) from error
    return transformers


@contextmanager
def built_empty(settings: TransformerSettings) -> Iterator[dict[str, Any]]:
    """Within, a model has no storage: its weights cost no time, memory or random number.

    Yields the options that choose the attention; a model that has none such is an error.
    """
    options = {} if settings.attention is None else {"attn_implementation": settings.attention}
    try:
        with torch.device("meta"):
            yield options
    except (ValueError, ImportError) as error:
        raise ValueError(
            f"encoder {settings.name!r} cannot be built with attention={settings.attention!r} "
            f"({str(error).splitlines()[0]}). Leave attention out to get one that works."
        ) from error


_QUIET = {"output_hidden_states": False, "output_attentions": False}
# Keys of config.json that speak about loading, training or heads, none of which happens here.
_DROPPED = ("architectures", "auto_map", "gradient_checkpointing", "torch_dtype", "dtype")


def full_config(checkpoint: Checkpoint, kind: str, changes: dict[str, Any]) -> Any:
    """The checkpoint's settings as transformers holds them for its architecture `kind`."""
    values = {key: value for key, value in checkpoint.config.items() if key not in _DROPPED}
    values.pop("model_type")
    config_class = type(import_transformers().AutoConfig.for_model(kind))
    return config_class.from_dict({**values, **changes, **_QUIET})


def filled(model: Any, checkpoint: Checkpoint, settings: TransformerSettings) -> Any:
    """The empty model with the checkpoint's weights, frozen.

    Raises:
        ValueError: a weight is missing or has the wrong shape; see `read_tensors`.
    """
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    tensors = read_tensors(checkpoint, wanted)
    model.load_state_dict(
        {name: _in_dtype(tensor, settings.dtype) for name, tensor in tensors.items()}, assign=True
    )
    return model.to(settings.device).eval().requires_grad_(False)


def _in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # Cloned: a tensor read from a file may map it, and files change.
    return tensor.to(dtype, copy=True) if tensor.is_floating_point() else tensor.clone()

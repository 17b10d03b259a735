"""Weights that are held once: by all encoders of equal checkpoint, layer, dtype and device."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_WEIGHTS: weakref.WeakValueDictionary[tuple[Any, ...], nn.Module] = weakref.WeakValueDictionary()
_LOCK = threading.RLock()


def clear_encoder_cache() -> None:
    """Forget all loaded weights: the next encoder reads its checkpoint again.

    Encoders in use keep theirs. The memory itself is freed with the last encoder (or metric, loss,
    …) that uses the weights, so `del` is all that is needed to release it.
    """
    with _LOCK:
        _WEIGHTS.clear()


def shared_weights(key: tuple[Any, ...], build: Callable[[], nn.Module]) -> nn.Module:
    """The weights of this key, built if nobody holds them; its last part names the device."""
    with _LOCK:
        model = _WEIGHTS.get(key)
        if model is None:
            model = _tagged(build(), key)
            _WEIGHTS[key] = model
    return model


def _tagged(model: nn.Module, key: tuple[Any, ...]) -> nn.Module:
    model.__dict__["_mapss_key"] = key
    return model


def moved_weights(model: nn.Module, device: torch.device) -> nn.Module:
    """The same weights on another device, shared with whoever has them there."""
    key = (*model.__dict__["_mapss_key"][:-1], str(device))
    return shared_weights(key, lambda: copy.deepcopy(model).to(device))

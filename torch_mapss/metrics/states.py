"""What a metric keeps: sums of a set in float64, and on request the scores of every item.

All sums have a fixed size, so that processes that saw nothing can be reduced with the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchmetrics.utilities import dim_zero_cat

from torch_mapss.core.devices import working_device
from torch_mapss.core.pooling import masked_mean
from torch_mapss.encoders import CustomEncoder
from torch_mapss.metrics.values import item_means
from torch_mapss.pipeline.mapss import MAPSS

MAX_SOURCES = 64
# Of every state. Sums of float32 would depend on how an epoch is split into batches.
DTYPES = {
    **dict.fromkeys(("item_sum", "source_sum"), torch.float64),
    **dict.fromkeys(("items", "seen", "source_count", "sources", "fingerprint"), torch.int64),
    **{"history": torch.float32, "shapes": torch.int64},
}


def sums() -> list[tuple[str, Tensor, str]]:
    """The states every metric has: name, value at the start, how processes are reduced."""
    zero = torch.zeros((), dtype=torch.float64)
    count = torch.zeros((), dtype=torch.int64)
    many = torch.zeros(MAX_SOURCES, dtype=torch.float64)
    return [
        ("item_sum", zero, "sum"),  # of the items that have a value
        ("items", count, "sum"),  # how many have one
        ("seen", count, "sum"),  # how many were handed in
        ("source_sum", many, "sum"),  # the same, for each source by its place
        ("source_count", many.long(), "sum"),
        ("sources", count.clone(), "max"),  # S'
    ]


def fingerprint(mapss: MAPSS, *settings: Any) -> Tensor:
    """(32,) bytes that differ between metrics of different settings.

    A MetricCollection merges metrics whose states are equal after the first batch. Two of
    different encoders may agree there by chance, e.g. if that batch is silent; this state never
    does. Bytes, since every dtype that somebody may convert them to holds them exactly.
    """
    slots = mapss.config.encoders.values()
    made = [slot.encoder for slot in slots if not slot.pretrained]
    custom = [id(encoder.function) for encoder in made if isinstance(encoder, CustomEncoder)]
    text = json.dumps([mapss.key, mapss.describe(), custom, *settings], default=str)
    return torch.tensor(list(hashlib.sha256(text.encode()).digest()))


def in_precision(name: str, value: Any) -> Any:
    """A state in the precision of its kind, whoever sets it.

    Wrappers convert the states of the metric inside along with themselves: half-precision sums
    would stand still after a few thousand items. A state that is right is handed back itself, since
    the metrics of a collection share theirs.
    """
    dtype = DTYPES[name]
    if isinstance(value, list):
        found = [_precise(entry, dtype) for entry in value]
        return value if all(a is b for a, b in zip(value, found)) else found
    return _precise(value, dtype)


def _precise(x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float64 and working_device(x.device) != x.device:
        dtype = torch.float32
    return x.to(dtype)


# ------------------------------------------------------------------------------------------------
# Adding
# ------------------------------------------------------------------------------------------------


def batch_sums(values: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a batch adds to the sums.

    Args:
        values: (B, S') scores, NaN where undefined.
        dtype: of the sums.

    Returns:
        Name of a state -> what is added to it. The sum is differentiable in ``values``.

    Raises:
        ValueError: more sources than ``MAX_SOURCES``.
    """
    count, sources = values.shape
    if sources > MAX_SOURCES:
        raise ValueError(f"at most {MAX_SOURCES} sources can be averaged, got {sources}.")
    means, defined = item_means(values), ~values.isnan()
    missing = (0, MAX_SOURCES - sources)
    return {
        "item_sum": means.nan_to_num(0.0).to(dtype).sum(),
        "items": (~means.isnan()).sum(),
        "seen": torch.tensor(count, device=values.device),
        "source_sum": pad(values.nan_to_num(0.0).to(dtype).sum(0), missing),
        "source_count": pad(defined.sum(0), missing),
    }


def rows_of(values: Tensor) -> tuple[Tensor, Tensor]:
    """The scores (B, S', F) of a batch, flat and on the CPU, and S' and F of every item, flat."""
    shape = torch.tensor(values.shape[1:]).repeat(len(values))
    return values.detach().to("cpu", torch.float32).flatten(), shape


# ------------------------------------------------------------------------------------------------
# Reading
# ------------------------------------------------------------------------------------------------


def ratio(total: Tensor, count: Tensor) -> Tensor:
    """total/count, NaN (without a gradient) where nothing was counted."""
    return torch.where(count > 0, total / count.clamp(min=1), torch.nan)


def items_of(history: Sequence[Tensor], shapes: Sequence[Tensor]) -> list[Tensor]:
    """(S', F) of every item kept."""
    if not len(history):
        return []
    values = dim_zero_cat([each.cpu() for each in history])
    sizes = dim_zero_cat([each.cpu() for each in shapes]).reshape(-1, 2).tolist()
    found, start = [], 0
    for sources, frames in sizes:
        found.append(values[start : start + sources * frames].reshape(sources, frames))
        start += sources * frames
    return found


def padded(items: Sequence[Tensor]) -> Tensor:
    """(S', F) of each item as one (n, S', F) float32, filled up with NaN."""
    sources = max((len(item) for item in items), default=0)
    frames = max((item.shape[1] for item in items), default=0)
    table = torch.full((len(items), sources, frames), torch.nan, dtype=torch.float32)
    for row, item in zip(table, items):
        row[: len(item), : item.shape[1]] = item
    return table


def item_rows(history: Sequence[Tensor], shapes: Sequence[Tensor]) -> Tensor:
    """(n, S') of every item kept: the mean over its frames, NaN where undefined."""
    items = items_of(history, shapes)
    means = [masked_mean(i.nan_to_num(0.0), ~i.isnan()).unsqueeze(-1) for i in items]
    return padded(means).squeeze(-1) if means else torch.zeros(0, 0)

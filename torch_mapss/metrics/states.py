"""States of a metric: float64 sums over a set, and on request the scores of every item.

All sums have a fixed size, so that processes without data can be reduced with the others.
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchmetrics.utilities import dim_zero_cat

from torch_mapss.core.devices import working_device
from torch_mapss.encoders import CustomEncoder
from torch_mapss.metrics.scored_batch import item_means
from torch_mapss.pipeline.mapss import MAPSS

MAX_SOURCES = 64
# Sums in float32 would depend on how an epoch is split into batches.
DTYPES = {
    "item_sum": torch.float64,
    "source_sum": torch.float64,
    "items": torch.int64,
    "seen": torch.int64,
    "source_count": torch.int64,
    "sources": torch.int64,
    "fingerprint": torch.int64,
    "history": torch.float32,
    "shapes": torch.int64,
}


def sums(scores: int) -> list[tuple[str, Tensor, str]]:
    """States of every metric: name, default, and reduction over processes.

    Args:
        scores: number of scores K that are summed.
    """
    zero = functools.partial(torch.zeros, device="cpu")
    return [
        ("item_sum", zero(scores, dtype=torch.float64), "sum"),  # over items that have a value
        ("items", zero(scores, dtype=torch.int64), "sum"),  # number of items that have a value
        ("seen", zero((), dtype=torch.int64), "sum"),  # number of items seen
        # The same per source, by its index.
        ("source_sum", zero(scores, MAX_SOURCES, dtype=torch.float64), "sum"),
        ("source_count", zero(scores, MAX_SOURCES, dtype=torch.int64), "sum"),
        ("sources", zero((), dtype=torch.int64), "max"),  # S'
    ]


def fingerprint(mapss: MAPSS, *settings: Any) -> Tensor:
    """(32,) bytes that differ between metrics with different settings.

    A MetricCollection merges metrics whose states are equal after the first batch. Metrics with
    different encoders may agree there by chance, e.g. if that batch is silent; this state never
    does. It holds bytes, because every dtype that it may be converted to represents them exactly.
    """
    lazy = mapss.config.encoders.values()
    encoders = [encoder.load() for encoder in lazy if not encoder.pretrained]
    custom = [id(encoder.function) for encoder in encoders if isinstance(encoder, CustomEncoder)]
    text = json.dumps([mapss.key, mapss.describe(), custom, *settings], default=str)
    digest = hashlib.sha256(text.encode()).digest()
    return torch.tensor(list(digest), dtype=torch.int64, device="cpu")


def in_precision(name: str, value: Any) -> Any:
    """Convert a state to the precision of its kind.

    Wrappers convert the states of the metric inside along with themselves: half-precision sums
    would stop growing after a few thousand items. A state that already has the right dtype is
    returned as is, since the metrics of a collection share theirs.
    """
    dtype = DTYPES[name]
    if not isinstance(value, list):
        return _precise(value, dtype)
    converted = [_precise(entry, dtype) for entry in value]
    unchanged = all(map(operator.is_, value, converted))
    return value if unchanged else converted


def _precise(x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float64 and working_device(x.device) != x.device:
        dtype = torch.float32
    return x.to(dtype)


# ------------------------------------------------------------------------------------------------
# Adding
# ------------------------------------------------------------------------------------------------


def check_sources(sources: int) -> None:
    """Raise ValueError for more sources than the sums have room for."""
    if sources > MAX_SOURCES:
        raise ValueError(f"at most {MAX_SOURCES} sources can be averaged, got {sources}.")


def batch_sums(values: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Contributions of a batch to the sums.

    Args:
        values: (B, K, S') scores, NaN where undefined.
        dtype: dtype of the sums.

    Returns:
        Name of a state -> what is added to it. The sums are differentiable in ``values``.
    """
    batch, _, sources = values.shape
    means, defined = item_means(values), ~values.isnan()
    padding = (0, MAX_SOURCES - sources)
    return {
        "item_sum": means.nan_to_num(0.0).to(dtype).sum(0),
        "items": (~means.isnan()).sum(0),
        "seen": torch.tensor(batch, dtype=torch.int64, device=values.device),
        "source_sum": pad(values.nan_to_num(0.0).to(dtype).sum(0), padding),
        "source_count": pad(defined.sum(0), padding),
    }


def history_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (B, K, S', F) of a batch, flat and on the CPU, and S' and F of every item, flat."""
    shape = torch.tensor(values.shape[2:], dtype=torch.int64, device="cpu").repeat(len(values))
    return values.detach().to("cpu", torch.float32).flatten(), shape


# ------------------------------------------------------------------------------------------------
# Reading
# ------------------------------------------------------------------------------------------------


def ratio(total: Tensor, count: Tensor) -> Tensor:
    """total/count, NaN (without a gradient) where nothing was counted."""
    return torch.where(count > 0, total / count.clamp(min=1), torch.nan)


def history_items(history: Sequence[Tensor], shapes: Sequence[Tensor], scores: int) -> list[Tensor]:
    """Frame values (K, S', F) of every item kept, for K scores."""
    if not len(history):
        return []
    values = dim_zero_cat([rows.cpu() for rows in history])
    sizes = dim_zero_cat([shape.cpu() for shape in shapes]).reshape(-1, 2).tolist()
    lengths = [scores * sources * frames for sources, frames in sizes]
    return [
        flat.reshape(scores, sources, frames)
        for flat, (sources, frames) in zip(values.split(lengths), sizes)
    ]


def padded(items: Sequence[Tensor]) -> Tensor:
    """Stack the (S', F) of all items to (n, S', F) float32, padded with NaN."""
    sources = max((len(item) for item in items), default=0)
    frames = max((item.shape[1] for item in items), default=0)
    table = torch.full((len(items), sources, frames), torch.nan, dtype=torch.float32, device="cpu")
    for row, item in zip(table, items):
        row[: len(item), : item.shape[1]] = item
    return table


def item_rows(items: Sequence[Tensor]) -> Tensor:
    """(n, S') of the (S', 1 + F) of each item: its pooled scores, NaN where undefined."""
    if not items:
        return torch.zeros(0, 0, dtype=torch.float32, device="cpu")
    return padded([item[:, :1] for item in items]).squeeze(-1)

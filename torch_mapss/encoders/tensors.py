"""Reads the tensors asked for from a checkpoint's files.

Nothing here builds a model: tensors are read as they lie on disk, so that every weight can be
accounted for by name, whatever the version of `transformers`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checkpoint import CONFIG, Checkpoint

# A head (pre-training, CTC) keeps its encoder under the name of the family.
# (Whisper's whole model: "model"); its decoder is never a weight of ours under another name.
_PREFIX = re.compile(r"^(wav2vec2|hubert|wavlm|model)\.")
_DECODER = "decoder."
# Weight norm, w = g · v / ‖v‖: old names on the right, PyTorch's parametrization on the left.
_RENAMED = {
    ".parametrizations.weight.original0": ".weight_g",
    ".parametrizations.weight.original1": ".weight_v",
}


def _canonical(name: str) -> str:
    name = _PREFIX.sub("", name)
    for new, old in _RENAMED.items():
        if name.endswith(new):
            return name[: -len(new)] + old
    return name


def read_tensors(checkpoint: Checkpoint, wanted: dict[str, torch.Size]) -> dict[str, Tensor]:
    """Read the wanted tensors, each of which must be there in the right shape.

    Args:
        checkpoint: where to read.
        wanted: the shape of every tensor needed, by its name in the bare model with weight norm
            folded into `weight`.

    Returns:
        The tensors, by the same names.

    Raises:
        ValueError: a tensor is missing or has another shape; the message names it.
    """
    halves = {name[: -len("weight")] + half for name in wanted for half in ("weight_g", "weight_v")}
    names: list[str] = []
    found: dict[str, Tensor] = {}
    for name, read in _all_tensors(checkpoint.weights):
        names.append(name)
        canonical = _canonical(name)
        if canonical in wanted or canonical in halves:
            found[canonical] = read()
    _fold_weight_norm(found)
    _check_tensors(checkpoint, wanted, found, names)
    return {name: found[name] for name in wanted}


def _fold_weight_norm(tensors: dict[str, Tensor]) -> None:
    """Replace g and v by w = g · v / ‖v‖, the norm taken over all but the last axis."""
    for name in [name for name in tensors if name.endswith(".weight_g")]:
        base = name[: -len("_g")]
        if base + "_v" in tensors:
            g, v = tensors[name].float(), tensors[base + "_v"].float()
            tensors[base] = g * v / v.norm(dim=(0, 1), keepdim=True)


def _check_tensors(
    checkpoint: Checkpoint,
    wanted: dict[str, torch.Size],
    found: dict[str, Tensor],
    names: list[str],
) -> None:
    strangers = _strangers(names, {*wanted, *found})
    problems = [_missing(name, found, strangers) for name in wanted if name not in found] + [
        f"{name} has shape {tuple(found[name].shape)} instead of {tuple(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name].shape != shape
    ]
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError(
            f"checkpoint {checkpoint.name!r} should hold every weight of the layers in use, but "
            f"{'; '.join(problems[:5])}{more}. The encoder would run on random weights: use a "
            f"complete checkpoint whose names and shapes agree with its {CONFIG}."
        )


def _missing(name: str, found: dict[str, Tensor], strangers: Iterable[str]) -> str:
    """What is missing, in the checkpoint's own words, and what it may have been renamed to."""
    halves = [name + "_g", name + "_v"]
    absent = [half for half in halves if half not in found]
    if len(absent) == 1:
        name = absent[0]
    originals = {_canonical(stranger): stranger for stranger in strangers}
    close = difflib.get_close_matches(name, originals, n=1, cutoff=0.9)
    return f"{name} is missing" + (f" (renamed to {originals[close[0]]}?)" if close else "")


def _strangers(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Names in the file that are no weight of this model, in whatever layer."""

    def kind(name: str) -> str:
        return re.sub(r"\d+", "#", _canonical(name))

    kinds = {kind(name) for name in known}
    strangers = (name for name in names if kind(name) not in kinds)
    return [name for name in strangers if not _canonical(name).startswith(_DECODER)]


def _all_tensors(files: Iterable[Path]) -> Iterator[tuple[str, Any]]:
    """Names of all tensors, each with a function that reads it."""
    for file in files:
        yield from _safe_tensors(file) if file.suffix == ".safetensors" else _pickled(file)


def _safe_tensors(file: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        opened = safe_open(file, framework="pt")
    except SafetensorError as error:
        raise ValueError(_unreadable(file, error)) from error
    with opened as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a dict
            yield name, lambda name=name: tensors.get_tensor(name)


def _pickled(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises whatever the file makes it raise
        raise ValueError(_unreadable(file, error)) from error
    for name, tensor in tensors.items():
        yield name, lambda tensor=tensor: tensor


def _unreadable(file: Path, error: Exception) -> str:
    reason = str(error).strip().splitlines()[:1]
    return (
        f"{file} should hold plain tensors but cannot be read ({type(error).__name__}: "
        f"{''.join(reason)}): it is damaged, or holds code, which is never run. Two ways out: "
        "fetch the checkpoint again; or convert it where you trust it, by loading it with "
        "transformers and save_pretrained(FOLDER, safe_serialization=True)."
    )

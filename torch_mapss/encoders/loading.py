"""Finding of checkpoints, in a folder or on the hub, and loading of their first layers.

`transformers` and `huggingface_hub` are imported when the first pretrained encoder is loaded.
"""

from __future__ import annotations

import copy
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_mapss.core.checks import import_package

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
# In order of preference: safetensors load faster and cannot run code.
_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"),
)


class Checkpoint(NamedTuple):
    """A checkpoint on disk."""

    name: str  # as the user wrote it: folder or hub id
    folder: Path
    config: dict[str, Any]  # config.json
    preprocessor: dict[str, Any] | None  # preprocessor_config.json; None if there is none

    @property
    def family(self) -> Any:
        """The checkpoint's `model_type`."""
        return self.config.get("model_type")

    def fingerprint(self) -> tuple[Any, ...]:
        """Settings, and path, time and size of each weight file; equal for equal weights."""
        files = [(path.resolve(), path.stat()) for path in _weight_files(self.folder)]
        states = [(str(path), stat.st_mtime_ns, stat.st_size) for path, stat in files]
        return json.dumps(self.config, sort_keys=True), *states


def import_transformers() -> Any:
    """Import the package transformers.

    Raises:
        ImportError: it is not installed, or its import fails.
    """
    hint = ", or use the encoders 'mel' or 'waveform', which need none"
    return import_package("transformers", "this encoder", hint)


# --- Finding ------------------------------------------------------------------------------------


def find_checkpoint(
    name: str, local_files_only: bool = False, cache_dir: str | None = None, weights: bool = True
) -> Checkpoint:
    """Find a checkpoint in a local folder, in the hub's cache, or on the hub, in that order.

    Args:
        name: a folder, or a hub id such as `facebook/wav2vec2-base`.
        local_files_only: never use the network.
        cache_dir: folder of the hub's files; None: the hub's own choice (`HF_HOME`).
        weights: whether the weights are needed, or only the settings.

    Raises:
        ValueError: the folder does not exist or lacks a file.
        OSError: the hub's files are not in the cache and cannot be fetched.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        hub_id = name.count("/") == 1 and not name.startswith((".", "~", "/")) and "\\" not in name
        if not hub_id or folder.is_file():
            problem = "is a file" if folder.is_file() else "does not exist"
            raise ValueError(
                f"encoder {name!r} must be a folder with {CONFIG} and weights, but {problem}."
            )
        folder = _hub_folder(name, local_files_only, cache_dir, weights)
    lacking = weights and not _weight_files(folder)
    for file in (CONFIG, *((_WEIGHTS[0][0],) if lacking else ())):
        if not (folder / file).is_file():
            raise ValueError(
                f"folder {folder} of encoder {name!r} has no {file}. Pass the folder that "
                "save_pretrained() or a download left; only PyTorch weights can be read."
            )
    settings = folder / PREPROCESSOR
    preprocessor = _read_json(settings) if settings.is_file() else None
    return Checkpoint(name, folder, _read_json(folder / CONFIG), preprocessor)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        content = error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {content!r}. Fetch it again.")
    return content


def _weight_files(folder: Path) -> list[Path]:
    """Weight files in the preferred format, including the index; empty if there are none."""
    for patterns in _WEIGHTS:
        if any((folder / file).is_file() for file in patterns[:2]):
            return sorted(path for pattern in patterns for path in folder.glob(pattern))
    return []


def _hub_folder(name: str, local_files_only: bool, cache_dir: str | None, weights: bool) -> Path:
    """Folder of the cached snapshot, completed from the hub if need be."""
    import huggingface_hub

    def fetch(local: bool) -> Path:
        options: dict[str, Any] = {"cache_dir": cache_dir, "local_files_only": local}
        for patterns in _WEIGHTS if weights else ((),):  # pickles only if there are no safetensors
            options["allow_patterns"] = [CONFIG, PREPROCESSOR, *patterns]
            folder = Path(huggingface_hub.snapshot_download(name, **options))
            if _weight_files(folder):
                break
        return folder

    cached = None
    with suppress(OSError):
        folder = fetch(local=True)
        if (folder / CONFIG).is_file() and (not weights or _weight_files(folder)):
            cached = folder
    if cached is not None and (local_files_only or (cached / PREPROCESSOR).is_file()):
        return cached
    problem = "is not in the cache, and local_files_only is set"
    if not local_files_only:
        try:
            return fetch(local=False)
        except Exception as error:  # every client raises its own connection errors
            if cached is not None:  # complete except for the preprocessor's settings
                return cached
            problem = f"is not in the cache and cannot be fetched ({type(error).__name__}: {error})"
    raise OSError(
        f"encoder {name!r} {problem}. Two ways out: pass a local folder that holds {CONFIG}, "
        f"{PREPROCESSOR} and the weights instead of the name; or fetch it on a machine with "
        f"network by `hf download {name} --local-dir FOLDER` (older: huggingface-cli download) "
        "and copy FOLDER here. The encoders 'mel' and 'waveform' need no download."
    )


# --- Loading ------------------------------------------------------------------------------------


# Keys of config.json for loading, training or heads, which are not used here.
_DROPPED = ("model_type", "architectures", "auto_map", "gradient_checkpointing")
_ALWAYS = {"output_hidden_states": False, "output_attentions": False}


def full_config(checkpoint: Checkpoint, kind: str, changes: dict[str, Any]) -> Any:
    """The checkpoint's settings, as a config of transformers for the architecture `kind`."""
    # Without a dtype: weights are read in their own and converted afterwards.
    dropped = (*_DROPPED, "torch_dtype", "dtype")
    values = {key: value for key, value in checkpoint.config.items() if key not in dropped}
    return import_transformers().AutoConfig.for_model(kind, **{**values, **changes, **_ALWAYS})


def load_weights(model_class: Any, config: Any, checkpoint: Checkpoint) -> Any:
    """Load a model of transformers with the checkpoint's weights, in float32 on the CPU.

    Raises:
        ValueError: a file is damaged, or a weight is missing or has the wrong shape.
    """
    try:
        with _quiet(), torch.device("cpu"), torch.random.fork_rng(devices=[]):
            model, report = model_class.from_pretrained(
                str(checkpoint.folder),
                config=config,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are in the report
            )
    except Exception as error:  # file readers may raise anything on bad content
        reason = f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[:1])}"
        raise ValueError(
            f"checkpoint {checkpoint.name!r} cannot be read ({reason}): it is damaged, or "
            "contains code, which is never executed. Either fetch it again, or, if you trust it, "
            "convert it: load it with transformers and call save_pretrained(FOLDER)."
        ) from error
    _check_report(checkpoint, report)
    # Cloned: weights may be memory-mapped to their file, and files change.
    return model._apply(lambda x: x.to(torch.float32, copy=True) if x.is_floating_point() else x)


def _check_report(checkpoint: Checkpoint, report: dict[str, Any]) -> None:
    # PyTorch itself reads weight norm under its old names, but transformers 4.40 calls it missing.
    ignored = {_bare(name) for name in report["unexpected_keys"]}
    missing = (_old_name(name) for name in sorted(report["missing_keys"]))
    problems = [f"{name} is missing" for name in missing if _bare(name) not in ignored]
    for name, shape, expected in report["mismatched_keys"]:
        problems.append(f"{name} has shape {tuple(shape)} instead of {tuple(expected)}")
    if problems:
        omitted = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError(
            f"checkpoint {checkpoint.name!r} must hold every weight of the layers in use, but "
            f"{'; '.join(problems[:5])}{omitted}. They would be random: use a complete checkpoint "
            f"that agrees with its {CONFIG}."
        )


def _old_name(name: str) -> str:
    name = name.replace("parametrizations.weight.original0", "weight_g")
    return name.replace("parametrizations.weight.original1", "weight_v")


def _bare(name: str) -> str:
    """Name of a weight without the prefix used in checkpoints with a head."""
    prefix, _, bare = name.partition(".")
    return bare if prefix in ("wav2vec2", "hubert", "wavlm", "model") else name


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' report (of layers left out on purpose) and its progress bars."""
    logging = import_transformers().logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


# --- Sharing ------------------------------------------------------------------------------------


_SHARED: weakref.WeakValueDictionary[tuple[Any, ...], nn.Module] = weakref.WeakValueDictionary()
_LOCK = threading.RLock()


def clear_encoder_cache() -> None:
    """Forget all loaded weights, so that the next encoder reads its checkpoint again.

    Encoders in use keep theirs. The memory itself is freed with the last encoder (or metric, loss,
    …) that uses the weights, so `del` is all that is needed to release it.
    """
    with _LOCK:
        _SHARED.clear()


def shared_weights(key: tuple[Any, ...], build: Callable[[], nn.Module]) -> nn.Module:
    """Weights of a key, built if no encoder holds them; the last part of the key is the device."""
    with _LOCK:
        model = _SHARED.get(key)
        if model is None:
            model = build()
            model.__dict__["_mapss_key"] = key
            _SHARED[key] = model
    return model


def moved_weights(model: nn.Module, device: torch.device) -> nn.Module:
    """The same weights on another device, shared with all encoders that use them there."""
    key = (*model.__dict__["_mapss_key"][:-1], str(device))
    return shared_weights(key, lambda: copy.deepcopy(model).to(device))

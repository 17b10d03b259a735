"""Finds a checkpoint, in a folder or on the hub, and reads its settings."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
# In order of preference: safetensors load faster, in part, and cannot run code.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
CONNECT_TIMEOUT = 5.0  # seconds to wait for the hub before saying that it cannot be reached


class Checkpoint(NamedTuple):
    """A checkpoint on disk."""

    name: str  # as the user gave it: folder or hub id
    config: dict[str, Any]  # config.json
    preprocessor: dict[str, Any] | None  # preprocessor_config.json; None if there is none
    weights: tuple[Path, ...]  # the files that hold its tensors

    def fingerprint(self) -> tuple[Any, ...]:
        """Settings, and path, time and size of every weight file: what tells two checkpoints apart.

        Two folders may link to the same weights and read them as other models.
        """
        states = [(path.resolve(), path.stat()) for path in self.weights]
        files = ((str(path), state.st_mtime_ns, state.st_size) for path, state in states)
        return json.dumps(self.config, sort_keys=True), *files


def find_checkpoint(
    name: str, *, local_files_only: bool = False, cache_dir: str | None = None
) -> Checkpoint:
    """Find a checkpoint in a local folder, in the hub's cache, or on the hub, in that order.

    Args:
        name: a folder, or a hub id such as `facebook/wav2vec2-base`.
        local_files_only: never use the network.
        cache_dir: where the hub's files are kept; None: the hub's own choice (`HF_HOME`).

    Raises:
        ValueError: the folder does not exist or lacks a file.
        OSError: the hub's files are not in the cache and cannot be fetched.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if _looks_like_a_path(name):
            raise ValueError(_no_folder(name, folder))
        folder = _hub_folder(name, local_files_only, cache_dir)
    return _read_folder(name, folder)


def _looks_like_a_path(name: str) -> bool:
    return (
        name.count("/") != 1
        or name.startswith((".", "~", "/"))
        or "\\" in name
        or Path(name).is_file()
    )


def _no_folder(name: str, folder: Path) -> str:
    what = "is a file" if folder.is_file() else "does not exist"
    return (
        f"an encoder's folder should hold {CONFIG} and its weights, but {name!r} {what}. "
        "Pass the folder itself, as save_pretrained() or a download leaves it."
    )


def _read_folder(name: str, folder: Path) -> Checkpoint:
    if not (folder / CONFIG).is_file():
        raise ValueError(
            f"an encoder's folder should hold {CONFIG}, but {folder} does not: without it the "
            "architecture is unknown. Pass the folder that save_pretrained() or a download left."
        )
    preprocessor = folder / PREPROCESSOR
    return Checkpoint(
        name=name,
        config=_read_json(folder / CONFIG),
        preprocessor=_read_json(preprocessor) if preprocessor.is_file() else None,
        weights=_weight_files(folder),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} should be JSON but cannot be read ({error}): the checkpoint is incomplete or "
            "damaged. Fetch it again."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} should hold a JSON object but holds a {type(content).__name__}: this is no "
            "checkpoint's settings. Fetch it again."
        )
    return content


def _weight_files(folder: Path) -> tuple[Path, ...]:
    for file in WEIGHTS:
        if (folder / file).is_file():
            return _listed_files(folder / file)
    raise ValueError(
        f"an encoder's folder should hold its weights, but {folder} has none of "
        f"{', '.join(WEIGHTS)}: only PyTorch weights can be read. Save the model with "
        "save_pretrained() from PyTorch, or complete the download."
    )


def _listed_files(path: Path) -> tuple[Path, ...]:
    """The file itself, or the files an index names."""
    if path.suffix != ".json":
        return (path,)
    files = tuple(path.parent / name for name in _indexed_names(path))
    for file in files:
        if not file.is_file():
            raise ValueError(
                f"{path.name} lists {file.name}, but {file.parent} does not hold it: the "
                "checkpoint is incomplete. Fetch the missing file."
            )
    return files


def _indexed_names(index: Path) -> list[str]:
    return sorted(set(_read_json(index).get("weight_map", {}).values()))


# --- The hub ------------------------------------------------------------------------------------


def _hub_folder(name: str, local_only: bool, cache_dir: str | None) -> Path:
    """The folder of the hub's cache that holds the checkpoint, filled first if need be."""
    cached = _cached_folder(name, cache_dir)
    if cached is not None and (local_only or (cached / PREPROCESSOR).is_file()):
        return cached
    try:
        return _fetch(name, local_only, cache_dir)
    except OSError:
        if cached is None:
            raise
        return cached  # complete but for the preprocessor's settings, and no network to look


def _cached_folder(name: str, cache_dir: str | None) -> Path | None:
    """The cached snapshot, if it holds settings and weights."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.utils import HFValidationError

    try:
        config = try_to_load_from_cache(name, CONFIG, cache_dir=cache_dir)
    except HFValidationError as error:
        raise ValueError(
            f"{name!r} should be a folder or a hub id of the form owner/name, but is neither: "
            "nothing can be looked up. Check the spelling."
        ) from error
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if any((folder / file).is_file() for file in WEIGHTS) else None


def _fetch(name: str, local_only: bool, cache_dir: str | None) -> Path:
    """Download what is needed, and no more."""
    from huggingface_hub.utils import RepositoryNotFoundError

    if local_only:
        raise OSError(_not_available(name, "is not in the cache and local_files_only is set"))
    try:
        _reach(name)
        config = _fetch_file(name, CONFIG, cache_dir)
        _fetch_file(name, PREPROCESSOR, cache_dir)
        _fetch_weights(name, cache_dir)
    except RepositoryNotFoundError as error:
        problem = "does not exist on the hub, or needs a login (huggingface_hub.login())"
        raise OSError(_not_available(name, problem)) from error
    except Exception as error:  # every client raises its own connection errors
        problem = f"is not in the cache and cannot be fetched ({type(error).__name__}: {error})"
        raise OSError(_not_available(name, problem)) from error
    if config is None:
        raise ValueError(f"{name!r} on the hub has no {CONFIG}: it is no transformers checkpoint.")
    return config.parent


def _not_available(name: str, problem: str) -> str:
    return (
        f"encoder {name!r} {problem}. Two ways out: pass a local folder that holds {CONFIG}, "
        f"{PREPROCESSOR} and the weights instead of the name; or fetch it on a machine with "
        f"network by `hf download {name} --local-dir FOLDER` (older: huggingface-cli download) "
        "and copy FOLDER here. The encoders 'mel' and 'waveform' need no download."
    )


def _reach(name: str) -> None:
    """One question to the hub, without the client's retries, which go on for half a minute."""
    from huggingface_hub import constants, hf_hub_url

    if constants.HF_HUB_OFFLINE:
        return  # the client says so itself, at once
    question = urllib.request.Request(hf_hub_url(name, CONFIG), method="HEAD")
    try:
        urllib.request.urlopen(question, timeout=CONNECT_TIMEOUT).close()
    except urllib.error.HTTPError:
        return  # there was an answer, and the client knows better what it means
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # the client has certificates of its own
            raise


def _fetch_file(name: str, file: str, cache_dir: str | None) -> Path | None:
    """Download one file; None if the checkpoint has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file, cache_dir=cache_dir))
    except LocalEntryNotFoundError:
        raise  # the connection failed; a kind of EntryNotFoundError all the same
    except EntryNotFoundError:
        return None


def _fetch_weights(name: str, cache_dir: str | None) -> None:
    for file in WEIGHTS:
        path = _fetch_file(name, file, cache_dir)
        if path is not None:
            parts = _indexed_names(path) if path.suffix == ".json" else []
            for part in parts:
                _fetch_file(name, part, cache_dir)
            return

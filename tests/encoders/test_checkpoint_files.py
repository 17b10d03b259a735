"""Checkpoints on disk, in the hub's cache and on the hub: what is read, fetched and refused."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import (
    FAMILIES,
    edit_weights,
    old_name,
)
from torch import nn
from waveforms import noise

from torch_mapss.encoders import (
    load_encoder,
)

SAMPLES = 4000


def used_names(path: Path) -> list[str]:
    from safetensors.torch import load_file

    names = list(load_file(path / "model.safetensors"))
    if any(name.startswith("model.encoder.") for name in names):  # Whisper's
        return [n for n in names if n.startswith("model.encoder.") and "layers.2" not in n]
    return [n for n in names if not n.startswith(("masked_spec_embed", "encoder.layers.2."))]


@pytest.mark.parametrize(
    ("family", "missing"),
    [
        ("whisper", 6),
        ("wavlm", 5),
        ("hubert", 7),
        *(pytest.param(f, 1, marks=pytest.mark.slow) for f in (*FAMILIES, "whisper")),
    ],
)
def test_every_missing_weight_is_named(own_folder, family, missing):
    whisper = family == "whisper"  # with its decoder, which has weights of nearly the same names
    path = own_folder(family, **({"head": "ForConditionalGeneration"} if whisper else {}))
    full = (path / "model.safetensors").read_bytes()
    names = used_names(path)
    assert len(names) == 7 + 2 * 15 if whisper else len(names) > 40  # Whisper's k has no bias
    for name in names[::missing]:
        edit_weights(path, lambda tensors, name=name: tensors.pop(name))
        shown = old_name(name.removeprefix("model."))
        # Older releases of transformers name the weights of Whisper with their prefix.
        words = f"but (model.)?{shown} is missing".replace(".", r"\.")
        with pytest.raises(ValueError, match=words):
            load_encoder(path, layer=2)
        (path / "model.safetensors").write_bytes(full)
    edit_weights(path, lambda t: [t.pop(n) for n in list(t) if n not in names])
    (path / "pytorch_model.bin").write_bytes(b"not read")
    load_encoder(path, layer=2)  # neither a decoder nor what is above the layer is needed
    name = "model.encoder.conv1.weight" if whisper else "feature_projection.projection.weight"
    edit_weights(path, lambda t: t.update({name: t[name][:, :-1].contiguous()}))
    shape = r"\(32, 79, 3\)" if whisper else r"\(32, 11\)"
    with pytest.raises(ValueError, match=rf"\.weight has shape {shape} instead of"):
        load_encoder(path, layer=2)


def test_pickles_that_hold_code_are_not_run(own_folder):
    path = own_folder("hubert")
    (path / "model.safetensors").unlink()
    torch.save({"model": nn.Linear(1, 1)}, path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"cannot be read.*Either fetch it"):
        load_encoder(path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "JSON object"),
        ("config.json", "[]", "JSON object"),
        ("config.json", None, "has no config.json"),
        ("config.json", '{"model_type": "bert"}', "model_type 'bert'"),
        ("config.json", '{"model_type": "mert_model", "deepnorm": true}', "deepnorm"),
        ("config.json", "{}", "model_type None"),
        ("model.safetensors", None, "has no model.safetensors"),
        ("model.safetensors", "cut off", "damaged"),
    ],
)
def test_incomplete_folders(own_folder, file, content, message):
    path = own_folder("hubert")
    (path / file).unlink()
    if content is not None:
        (path / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_encoder(path)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every connection fails; returns the seconds that anything asked to wait before the next."""
    waits: list[float] = []

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("network is blocked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


WAYS_OUT = r"facebook/wav2vec2-large-lv60.*local folder.*hf download"


def test_a_name_that_is_not_cached_fails_at_once(folder, tmp_path, no_network):
    load_encoder(folder("wav2vec2", True, seed=3))  # a folder needs no network
    with pytest.raises(OSError, match=f"(?s){WAYS_OUT}"):
        load_encoder("wav2vec2-large", cache_dir=tmp_path)
    assert sum(no_network) < 8.0  # no retries with growing pauses
    with pytest.raises(OSError, match=r"lv60.*local_files_only.*local folder.*hf download"):
        load_encoder("facebook/wav2vec2-large-lv60", cache_dir=tmp_path, local_files_only=True)


def fake_hub(monkeypatch: pytest.MonkeyPatch, source: Path, cache: Path) -> list[list[str]]:
    """A hub with one checkpoint, whose client stores files as the real one does."""
    import huggingface_hub

    asked: list[list[str]] = []
    snapshot = cache / "models--some--model" / "snapshots" / "abc"

    def download(name: str, *, allow_patterns: list[str], local_files_only: bool, **_: Any) -> str:
        if not local_files_only:
            asked.append(allow_patterns)
            snapshot.mkdir(parents=True, exist_ok=True)
            for file in source.iterdir():
                if any(file.match(pattern) for pattern in allow_patterns):
                    shutil.copy(file, snapshot)
        if not snapshot.is_dir():
            raise huggingface_hub.utils.LocalEntryNotFoundError("not cached")
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


@pytest.mark.parametrize("safe", [True, False])
def test_download_fetches_needed_files_once(folder, tmp_path, monkeypatch, safe):
    source = folder("hubert", safe=safe)
    asked = fake_hub(monkeypatch, source, tmp_path)
    encoder = load_encoder("some/model", cache_dir=tmp_path)
    assert ("pytorch_model.bin" in asked[-1]) is not safe  # pickles where there is nothing else
    assert torch.equal(encoder(noise(1, SAMPLES)), load_encoder(source)(noise(1, SAMPLES)))
    count = len(asked)
    load_encoder("some/model", cache_dir=tmp_path, local_files_only=True)
    load_encoder("some/model", cache_dir=tmp_path)
    assert len(asked) == count


def test_missing_transformers_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    load_encoder("mel")
    with pytest.raises(ImportError, match="pip install"):
        load_encoder("wav2vec2-base")

"""CTranslate2's Whisper files become folders of transformers."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import random_whisper

from torch_mapss.encoders import load_encoder

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "whisper_from_ctranslate2.py"
KINDS = {np.dtype("float32"): 0, np.dtype("int8"): 1, np.dtype("int16"): 2, np.dtype("float16"): 4}
LINEAR = {"weight": "weight", "bias": "bias"}
NORM = {"gamma": "weight", "beta": "bias"}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("whisper_from_ctranslate2", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def variables(model: Any) -> dict[str, np.ndarray]:
    """A model as CTranslate2's converter lays it out."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    found: dict[str, np.ndarray] = {}

    def put(name: str, fields: dict[str, str], *parts: str) -> None:
        for theirs, ours in fields.items():
            missing = np.zeros(len(state[f"{parts[0]}.weight"]), np.float32)  # of the keys' bias
            found[f"{name}/{theirs}"] = np.concatenate(
                [state.get(f"{part}.{ours}", missing) for part in parts]
            )

    for name in ("conv1", "conv2"):
        put(f"encoder/{name}", LINEAR, f"model.encoder.{name}")
    for side in ("encoder", "decoder"):
        put(f"{side}/layer_norm", NORM, f"model.{side}.layer_norm")
        found[f"{side}/position_encodings/encodings"] = state[
            f"model.{side}.embed_positions.weight"
        ]
        found[f"{side}/num_heads"] = np.array(2, np.int16)
        for layer in range(getattr(model.config, f"{side}_layers")):
            there, here = f"{side}/layer_{layer}", f"model.{side}.layers.{layer}"
            heads = [f"{here}.self_attn.{x}_proj" for x in "qkv"]
            put(f"{there}/self_attention/linear_0", LINEAR, *heads)
            put(f"{there}/self_attention/linear_1", LINEAR, f"{here}.self_attn.out_proj")
            put(f"{there}/self_attention/layer_norm", NORM, f"{here}.self_attn_layer_norm")
            put(f"{there}/ffn/linear_0", LINEAR, f"{here}.fc1")
            put(f"{there}/ffn/linear_1", LINEAR, f"{here}.fc2")
            put(f"{there}/ffn/layer_norm", NORM, f"{here}.final_layer_norm")
            if side == "decoder":
                other = [f"{here}.encoder_attn.{x}_proj" for x in "qkv"]
                put(f"{there}/attention/linear_0", LINEAR, other[0])
                put(f"{there}/attention/linear_1", LINEAR, *other[1:])
                put(f"{there}/attention/linear_2", LINEAR, f"{here}.encoder_attn.out_proj")
                put(f"{there}/attention/layer_norm", NORM, f"{here}.encoder_attn_layer_norm")
    found["decoder/embeddings/weight"] = state["model.decoder.embed_tokens.weight"]
    found["decoder/activation"] = np.array(3, np.int8)
    return found


def write(folder: Path, content: dict[str, np.ndarray], kind: str = "WhisperSpec") -> Path:
    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    data = struct.pack("<I", 6) + text(kind) + struct.pack("<II", 3, len(content))
    for name, array in content.items():
        data += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        data += struct.pack("<BI", KINDS[array.dtype], array.nbytes) + array.tobytes()
    folder.mkdir()
    (folder / "model.bin").write_bytes(data + struct.pack("<I", 0))
    return folder


@pytest.mark.parametrize("half", [False, True])
def test_a_converted_model_is_the_model(script: ModuleType, tmp_path: Path, half: bool) -> None:
    model = random_whisper(head="ForConditionalGeneration")
    content = variables(model)
    if half:
        model = model.half().float()  # what half precision rounds
        content = {n: a.astype("f2") if a.dtype == np.float32 else a for n, a in content.items()}
    source = write(tmp_path / "source", content)
    converted = script.convert(source, tmp_path / "target").state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(converted[name], tensor), name
    model.save_pretrained(tmp_path / "own")
    wave = 0.1 * torch.randn(1, 6000, generator=torch.Generator().manual_seed(0))
    found, expected = (load_encoder(tmp_path / name, layer=2)(wave) for name in ("target", "own"))
    assert torch.equal(found, expected)


def test_what_is_refused(script: ModuleType, tmp_path: Path) -> None:
    content = variables(random_whisper(head="ForConditionalGeneration"))
    name = "encoder/layer_1/ffn/linear_1/weight"
    broken = {
        "missing": ({n: a for n, a in content.items() if n != name}, r"layers\.1\.fc2\.weight"),
        "shape": ({**content, name: content[name][:, 1:].copy()}, "size mismatch"),
        "over": ({**content, "encoder/conv3/weight": content[name]}, "conv3.weight"),
        "quantised": ({**content, name: content[name].astype(np.int8)}, "quantised"),
        "bias": (
            {**content, "encoder/layer_0/self_attention/linear_0/bias": np.ones(96, np.float32)},
            "bias of keys",
        ),
    }
    for case, (changed, message) in broken.items():
        with pytest.raises(ValueError, match=message):
            script.convert(write(tmp_path / case, changed), tmp_path / "target")
    with pytest.raises(ValueError, match="holds a TransformerSpec"):
        script.convert(write(tmp_path / "kind", content, "TransformerSpec"), tmp_path / "target")

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

from torch_mapss import MAPSS
from torch_mapss.encoders import load_encoder

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "whisper_from_ctranslate2.py"
KINDS = {np.dtype("float32"): 0, np.dtype("int8"): 1, np.dtype("int16"): 2, np.dtype("float16"): 4}
# Of a transformer block: CTranslate2's names, and those of transformers.
BLOCK = {
    "self_attention/linear_0": [f"self_attn.{x}_proj" for x in "qkv"],
    "self_attention/linear_1": ["self_attn.out_proj"],
    "self_attention/layer_norm": ["self_attn_layer_norm"],
    "ffn/linear_0": ["fc1"],
    "ffn/linear_1": ["fc2"],
    "ffn/layer_norm": ["final_layer_norm"],
}
CROSS = {
    "attention/linear_0": ["encoder_attn.q_proj"],
    "attention/linear_1": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "attention/linear_2": ["encoder_attn.out_proj"],
    "attention/layer_norm": ["encoder_attn_layer_norm"],
}


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
    arrays: dict[str, np.ndarray] = {}

    def put(name: str, *names: str) -> None:
        theirs = ("gamma", "beta") if name.endswith("norm") else ("weight", "bias")
        for kind, ours in zip(theirs, ("weight", "bias")):
            missing = np.zeros(len(state[f"{names[0]}.weight"]), np.float32)  # of the keys' bias
            parts_of = [state.get(f"{joined_name}.{ours}", missing) for joined_name in names]
            arrays[f"{name}/{kind}"] = np.concatenate(parts_of)

    for name in ("conv1", "conv2"):
        put(f"encoder/{name}", f"model.encoder.{name}")
    for side, block in (("encoder", BLOCK), ("decoder", {**BLOCK, **CROSS})):
        put(f"{side}/layer_norm", f"model.{side}.layer_norm")
        positions = state[f"model.{side}.embed_positions.weight"]
        arrays[f"{side}/position_encodings/encodings"] = positions
        arrays[f"{side}/num_heads"] = np.array(2, np.int16)
        for layer in range(getattr(model.config, f"{side}_layers")):
            for theirs, ours in block.items():
                prefix = f"model.{side}.layers.{layer}"
                put(
                    f"{side}/layer_{layer}/{theirs}",
                    *(f"{prefix}.{joined_name}" for joined_name in ours),
                )
    arrays["decoder/embeddings/weight"] = state["model.decoder.embed_tokens.weight"]
    arrays["decoder/activation"] = np.array(3, np.int8)
    return arrays


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
def test_a_converted_model_is_the_model(script, tmp_path, half):
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
    frames, expected = (load_encoder(tmp_path / name, layer=2)(wave) for name in ("target", "own"))
    assert torch.equal(frames, expected)


def test_invalid_input_is_refused(script, tmp_path):
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


@pytest.mark.filterwarnings("ignore:decomposition_encoder")
def test_frames_and_gain_of_the_pair_are_kept_under_converted_weights(script, tmp_path):
    content = variables(random_whisper(head="ForConditionalGeneration"))
    script.convert(write(tmp_path / "source", content), tmp_path / "target")
    generator = torch.Generator().manual_seed(1)
    references = 0.1 * torch.randn(1, 2, 9600, generator=generator)
    references[0, 0, 5000:] = 0.0  # the first source pauses
    estimates = references + 0.3 * references.flip(1)
    scores = {}
    for name in ("mel", "learned"):
        layer = "mel" if name == "mel" else load_encoder(tmp_path / "target", layer=2)
        mapss = MAPSS("mel", decomposition_encoder=layer, measures="decomposition")
        bank = mapss.prepare(references)
        scores[name] = mapss(estimates, bank)
        assert float(mapss(references, bank).clearance[scores[name].clearance_defined].min()) == 1.0
        quiet = mapss(0.01 * estimates, bank)
        torch.testing.assert_close(quiet.fidelity, scores[name].fidelity, atol=1e-4, rtol=0)
    for field in ("active", "clearance_defined", "times"):
        assert torch.equal(*(getattr(of_both, field) for of_both in scores.values())), field
    assert not torch.allclose(scores["mel"].clearance, scores["learned"].clearance, atol=0.01)

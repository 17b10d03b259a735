"""Turn a Whisper in CTranslate2's format into a folder of transformers, for its real weights.

    python benchmarks/whisper_from_ctranslate2.py FOLDER OUT

FOLDER holds ``model.bin``, as faster-whisper and programs around it ship it (16 or 32 bit floats;
quantised files are refused). OUT then serves as an encoder: ``load_encoder(OUT, layer=1)``.

The sizes are read from the weights and the whole model, decoder included, is built from them: every
weight of the architecture must be there in its shape, and nothing may be left over.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

FLOATS = {0: np.float32, 4: np.float16}
INTEGERS = {1: np.int8, 2: np.int16, 3: np.int32}
# CTranslate2 -> transformers. `linear_0` of an attention holds queries, keys and values as one.
PARTS = {
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
    "ffn/layer_norm": ("final_layer_norm",),
}
FIELDS = {"gamma": "weight", "beta": "bias", "weight": "weight", "bias": "bias"}
WHOLE = {
    "encoder/position_encodings/encodings": "model.encoder.embed_positions.weight",
    "decoder/position_encodings/encodings": "model.decoder.embed_positions.weight",
    "decoder/embeddings/weight": "model.decoder.embed_tokens.weight",
}


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """Name -> array of every variable of a ``model.bin``.

    Raises:
        ValueError: the file holds another model, or numbers that are no plain floats.
    """
    with path.open("rb") as file:
        version, kind = _number(file, "I"), _string(file)
        if version < 4 or kind != "WhisperSpec":
            raise ValueError(
                f"{path} should hold a WhisperSpec in version 4 of the format or later, but holds "
                f"a {kind} in version {version}. Convert the model again with CTranslate2."
            )
        _number(file, "I")  # revision of the spec
        return dict(_variable(file, path) for _ in range(_number(file, "I")))


def _number(file: BinaryIO, kind: str) -> int:
    return int(struct.unpack(f"<{kind}", file.read(struct.calcsize(f"<{kind}")))[0])


def _string(file: BinaryIO) -> str:
    return file.read(_number(file, "H"))[:-1].decode()  # it ends on a zero


def _variable(file: BinaryIO, path: Path) -> tuple[str, np.ndarray]:
    name = _string(file)
    shape = [_number(file, "I") for _ in range(_number(file, "B"))]
    kind, data = _number(file, "B"), file.read(_number(file, "I"))
    known = FLOATS if name.rsplit("/", 1)[-1] in {*FIELDS, "encodings"} else {**FLOATS, **INTEGERS}
    if kind not in known:
        raise ValueError(
            f"{name} of {path} should be of 16 or 32 bit floats, but is of kind {kind}: quantised "
            "weights are not those of the model. Take the float16 or float32 conversion."
        )
    return name, np.frombuffer(data, known[kind]).reshape(shape)


def to_transformers(variables: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """The weights under the names of transformers' whole model."""
    tensors: dict[str, Tensor] = {}
    for name, array in variables.items():
        field = FIELDS.get(name.rsplit("/", 1)[-1])
        if name in WHOLE:
            tensors[WHOLE[name]] = torch.from_numpy(array.astype(np.float32))
        elif field is not None:
            tensors.update(_renamed(name, field, array))
    tensors["proj_out.weight"] = tensors["model.decoder.embed_tokens.weight"]
    return tensors


def _renamed(name: str, field: str, array: np.ndarray) -> Iterator[tuple[str, Tensor]]:
    side, *middle = name.split("/")[:-1]
    targets, block = ("/".join(middle),), ""
    if middle[0].startswith("layer_") and middle[0] != "layer_norm":
        block = f"layers.{middle[0].removeprefix('layer_')}."
        targets = PARTS["/".join(middle[1:])]
    for target, part in zip(targets, np.split(array.astype(np.float32), len(targets)), strict=True):
        if target.endswith("k_proj") and field == "bias":
            if part.any():
                raise ValueError(f"{name} has a bias of keys, of which Whisper has none.")
            continue
        yield f"model.{side}.{block}{target}.{field}", torch.from_numpy(part.copy())


def read_config(variables: dict[str, np.ndarray]) -> Any:
    """The architecture, by the shapes of its weights."""
    from transformers import WhisperConfig

    def layers(side: str) -> int:
        return len({n.split("/")[1] for n in variables if n.startswith(f"{side}/layer_")}) - 1

    width, bands, _ = variables["encoder/conv1/weight"].shape
    vocabulary = len(variables["decoder/embeddings/weight"])
    return WhisperConfig(
        d_model=width,
        num_mel_bins=bands,
        vocab_size=vocabulary,
        encoder_layers=layers("encoder"),
        decoder_layers=layers("decoder"),
        encoder_attention_heads=int(variables["encoder/num_heads"]),
        decoder_attention_heads=int(variables["decoder/num_heads"]),
        encoder_ffn_dim=len(variables["encoder/layer_0/ffn/linear_0/weight"]),
        decoder_ffn_dim=len(variables["decoder/layer_0/ffn/linear_0/weight"]),
        max_source_positions=len(variables["encoder/position_encodings/encodings"]),
        max_target_positions=len(variables["decoder/position_encodings/encodings"]),
        **_special_tokens(vocabulary),
    )


def _special_tokens(vocabulary: int) -> dict[str, int]:
    """The end of text: 50256 of the English vocabulary, 50257 of the others; Whisper's sizes."""
    end = min(50_256 if vocabulary == 51_864 else 50_257, vocabulary - 2)
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    return {**dict.fromkeys(names, end), "decoder_start_token_id": end + 1}


def convert(source: Path, target: Path) -> Any:
    """Write the folder and return the model.

    Raises:
        ValueError: a weight is missing, left over or of another shape.
    """
    import transformers

    variables = read_variables(source / "model.bin")
    config = read_config(variables)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    try:
        model.load_state_dict(to_transformers(variables), strict=True)
    except RuntimeError as error:
        raise ValueError(f"{source} does not hold the Whisper its sizes say: {error}") from error
    model.save_pretrained(target)
    transformers.WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(target)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="folder with model.bin")
    parser.add_argument("target", type=Path, help="folder to write")
    arguments = parser.parse_args()
    config = convert(arguments.source, arguments.target).config
    print(
        f"{arguments.target}: {config.encoder_layers} + {config.decoder_layers} blocks of "
        f"{config.d_model}, {config.encoder_attention_heads} heads, {config.num_mel_bins} bands, "
        f"{config.vocab_size} tokens; every weight there, none left over"
    )


if __name__ == "__main__":
    main()

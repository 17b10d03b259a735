"""Convert a Whisper from CTranslate2's format to a folder that transformers reads.

    python benchmarks/whisper_from_ctranslate2.py FOLDER OUT

FOLDER holds ``model.bin``, as faster-whisper and related programs distribute it (16 or 32 bit
floats; quantised files are refused). OUT is then an encoder: ``load_encoder(OUT, layer=1)``.

The whole model, decoder included, is built with the sizes of the weights: every weight of the
architecture must be present in its shape, and none may be left over.
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
# CTranslate2 -> transformers. `linear_0` of an attention holds queries, keys and values in one
# matrix.
BLOCK_WEIGHTS = {
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
OTHER_WEIGHTS = {
    "encoder/position_encodings/encodings": "model.encoder.embed_positions.weight",
    "decoder/position_encodings/encodings": "model.decoder.embed_positions.weight",
    "decoder/embeddings/weight": "model.decoder.embed_tokens.weight",
}


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """Name -> array of every variable of a ``model.bin``.

    Raises:
        ValueError: the file holds another model, or weights that are quantised.
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
    return file.read(_number(file, "H"))[:-1].decode()  # without the zero byte at its end


def _variable(file: BinaryIO, path: Path) -> tuple[str, np.ndarray]:
    name = _string(file)
    shape = [_number(file, "I") for _ in range(_number(file, "B"))]
    kind, data = _number(file, "B"), file.read(_number(file, "I"))
    is_weight = name.rsplit("/", 1)[-1] in {*FIELDS, "encodings"}
    dtypes = FLOATS if is_weight else {**FLOATS, **INTEGERS}
    if kind not in dtypes:
        raise ValueError(
            f"{name} of {path} should be of 16 or 32 bit floats, but is of kind {kind}: quantised "
            "weights are not those of the model. Take the float16 or float32 conversion."
        )
    return name, np.frombuffer(data, dtypes[kind]).reshape(shape)


def to_transformers(variables: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """The weights under their names in `WhisperForConditionalGeneration`."""
    tensors: dict[str, Tensor] = {}
    for name, array in variables.items():
        field = FIELDS.get(name.rsplit("/", 1)[-1])
        if name in OTHER_WEIGHTS:
            tensors[OTHER_WEIGHTS[name]] = torch.from_numpy(array.astype(np.float32))
        elif field is not None:
            tensors.update(_renamed(name, field, array))
    tensors["proj_out.weight"] = tensors["model.decoder.embed_tokens.weight"]
    return tensors


def _renamed(name: str, field: str, array: np.ndarray) -> Iterator[tuple[str, Tensor]]:
    side, *middle = name.split("/")[:-1]
    targets, block = ("/".join(middle),), ""
    if middle[0].startswith("layer_") and middle[0] != "layer_norm":
        block = f"layers.{middle[0].removeprefix('layer_')}."
        targets = BLOCK_WEIGHTS["/".join(middle[1:])]
    weights = np.split(array.astype(np.float32), len(targets))
    for target, weight in zip(targets, weights, strict=True):
        if target.endswith("k_proj") and field == "bias":
            if weight.any():
                raise ValueError(f"{name} has a bias of keys, which Whisper does not have.")
            continue
        yield f"model.{side}.{block}{target}.{field}", torch.from_numpy(weight.copy())


def read_config(variables: dict[str, np.ndarray]) -> Any:
    """The architecture, inferred from the shapes of its weights."""
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
    """Ids of special tokens: the end of text is 50256 in the English vocabulary, else 50257."""
    end = min(50_256 if vocabulary == 51_864 else 50_257, vocabulary - 2)
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    return {**dict.fromkeys(names, end), "decoder_start_token_id": end + 1}


def convert(source: Path, target: Path) -> Any:
    """Write the folder; returns the model.

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
        raise ValueError(
            f"the weights of {source} do not fit the Whisper of their sizes: {error}"
        ) from error
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

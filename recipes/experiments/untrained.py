"""Encoders with random weights: how well does a score work when nothing was learned?

    python recipes/experiments/untrained.py whisper-tiny.en runs/tiny-random
    python recipes/experiments/listeners.py --encoders runs/tiny-random@1 ...

A network of the same shape before training is a set of random filters. Where scores with it agree
with listeners as well as those with the trained network, the merit is that of the front end and the
geometry, not of learning.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import toolkit
import torch

from torch_mapss.encoders import encoder_table

_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "do_stable_layer_norm": True,
    "feat_extract_norm": "layer",
    "conv_bias": True,
}
# The shapes of the published checkpoints. Settings that are not listed are the defaults of
# transformers for that kind of model, which are those of the size "base".
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "wav2vec2-large": ("wav2vec2", _LARGE),
    "wav2vec2-base": ("wav2vec2", {}),
    "wav2vec2-xlsr": ("wav2vec2", _LARGE),
    "wavlm-large": ("wavlm", {**_LARGE, "conv_bias": False}),
    "wavlm-base": ("wavlm", {}),
    "hubert-large": ("hubert", _LARGE),
    "hubert-base": ("hubert", {}),
    "mert": ("hubert", {}),
    "whisper-tiny.en": ("whisper", {"d_model": 384, "encoder_layers": 4, "heads": 6}),
    "whisper-base.en": ("whisper", {"d_model": 512, "encoder_layers": 6, "heads": 8}),
}


def untrained(name: str, folder: Path) -> Path:
    """Write a checkpoint of an architecture in `SHAPES` with randomly initialised weights."""
    import transformers

    kind, shape = SHAPES[name]
    settings = dict(shape)
    rate = next(row.sample_rate for row in encoder_table() if row.name == name)
    preprocessor = {"sampling_rate": rate, "do_normalize": "feat_extract_norm" in settings}
    if kind == "whisper":  # the decoder is never run, so it is as small as possible
        heads, width = settings.pop("heads"), settings["d_model"]
        settings |= {"encoder_attention_heads": heads, "encoder_ffn_dim": 4 * width}
        settings |= {"decoder_attention_heads": heads, "num_mel_bins": 80}
        settings |= {"decoder_layers": 1, "decoder_ffn_dim": 4, "max_target_positions": 4}
    config = transformers.AutoConfig.for_model(kind, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(toolkit.SEED)
        model = transformers.AutoModel.from_config(config)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=SHAPES, metavar="NAME", help=f"one of {', '.join(SHAPES)}")
    parser.add_argument("folder", type=Path, help="to write, for --encoders FOLDER@LAYER")
    options = parser.parse_args(arguments)
    return untrained(options.name, options.folder)


if __name__ == "__main__":
    main()

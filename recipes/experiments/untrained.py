"""Encoders with random weights: what is left of a score when nothing was learned?

Features that only look learned must not be credited to learning. A network of the same shape, as it
was before training began, is a set of random filters; where it scores as well as the trained one,
the front end and the geometry do the work.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from torch_mapss.encoders import encoder_table
from torch_mapss.encoders.loading import PREPROCESSOR, find_checkpoint

MARK = " (random)"
_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "do_stable_layer_norm": True,
    "feat_extract_norm": "layer",
    "conv_bias": True,
}
# The shapes of the published checkpoints, for machines that have none of them. Whatever is not
# said is what transformers takes for that kind of model, which is the size "base".
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "wav2vec2-large": ("wav2vec2", _LARGE),
    "wav2vec2-base": ("wav2vec2", {}),
    "wav2vec2-xlsr": ("wav2vec2", _LARGE),
    "wavlm-large": ("wavlm", {**_LARGE, "conv_bias": False}),
    "wavlm-base": ("wavlm", {}),
    "hubert-large": ("hubert", _LARGE),
    "hubert-base": ("hubert", {}),
    "mert": ("hubert", {}),
    "whisper-tiny": ("whisper", {"d_model": 384, "encoder_layers": 4, "heads": 6}),
    "whisper-tiny.en": ("whisper", {"d_model": 384, "encoder_layers": 4, "heads": 6}),
    "whisper-base": ("whisper", {"d_model": 512, "encoder_layers": 6, "heads": 8}),
    "whisper-base.en": ("whisper", {"d_model": 512, "encoder_layers": 6, "heads": 8}),
}


def untrained(name: str, folder: Path, seed: int = 0) -> Path:
    """Write a checkpoint of the same architecture with the weights training would begin from.

    Args:
        name: of an encoder: a folder or cached hub id, whose shape is read; or a name of the
            library, whose published shape is known here.
        folder: where to; left alone if it holds a checkpoint already.
        seed: of the weights.

    Returns:
        The folder.
    """
    if (folder / "config.json").is_file():
        return folder
    import transformers

    kind, settings, preprocessor = _shape(name)
    if kind == "whisper":  # the decoder is never read
        settings |= {"decoder_layers": 1, "decoder_ffn_dim": 4, "max_target_positions": 4}
    config = transformers.AutoConfig.for_model(kind, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModel.from_config(config)
    model.save_pretrained(folder)
    (folder / PREPROCESSOR).write_text(json.dumps(preprocessor))
    return folder


def _shape(name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Kind of model, its settings, those of its preprocessor."""
    if name not in SHAPES:
        checkpoint = find_checkpoint(name, local_files_only=True)
        settings = dict(checkpoint.config)
        kind = {"mert_model": "hubert"}.get(settings["model_type"], settings["model_type"])
        for key in ("model_type", "auto_map", "architectures", "torch_dtype", "dtype"):
            settings.pop(key, None)
        return kind, settings, dict(checkpoint.preprocessor or {})
    kind, given = SHAPES[name]
    settings = dict(given)
    rate = next(row.sample_rate for row in encoder_table() if row.name == name)
    preprocessor = {"sampling_rate": rate, "do_normalize": "feat_extract_norm" in settings}
    if kind == "whisper":
        heads, width = settings.pop("heads"), settings["d_model"]
        settings |= {"encoder_attention_heads": heads, "encoder_ffn_dim": 4 * width}
        settings |= {"decoder_attention_heads": heads, "num_mel_bins": 80}
    return kind, settings, preprocessor

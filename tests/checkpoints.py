"""Small random checkpoints of every encoder family, written to disk as the real ones are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FAMILIES = ("wav2vec2", "hubert", "wavlm", "mert")
LAYERS = 3
WIDTH = 32
_CLASSES = {"wav2vec2": "Wav2Vec2", "hubert": "Hubert", "wavlm": "WavLM", "mert": "Hubert"}


def small_config(family: str, large: bool, **changes: Any) -> Any:
    """Settings with the real convolutions (400 samples, hop 320), narrow and three blocks deep."""
    import transformers

    settings: dict[str, Any] = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": 37,
        "conv_dim": (12,) * 7,
        "conv_bias": large,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
        "do_stable_layer_norm": large,
        "feat_extract_norm": "layer" if large else "group",
        "layerdrop": 0.5,  # anything random that is left on would show
        "hidden_dropout": 0.3,
        "initializer_range": 0.2,  # or all layers would nearly be the identity
        **changes,
    }
    return getattr(transformers, _CLASSES[family] + "Config")(**settings)


def random_model(
    family: str, large: bool, seed: int = 0, head: str = "Model", **changes: Any
) -> Any:
    """A model of transformers in evaluation mode, random in every weight, norms included."""
    import transformers

    config = small_config(family, large, **changes)
    return randomize(getattr(transformers, _CLASSES[family] + head)(config).eval(), seed)


def randomize(model: Any, seed: int) -> Any:
    """Every parameter random, at a size that keeps the features of one order of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            keep = 1.0 if _is_scale(name, parameter) else 0.0
            parameter.copy_(keep + noise * (0.2 if parameter.dim() < 2 else _spread(parameter)))
    return model


def _is_scale(name: str, parameter: nn.Parameter) -> bool:
    return "norm.weight" in name or name.endswith(("weight_g", "original0"))


def _spread(parameter: nn.Parameter) -> float:
    return float(parameter[0].numel()) ** -0.5


def write_checkpoint(
    folder: Path,
    family: str,
    large: bool = False,
    *,
    do_normalize: bool | None = None,
    safe: bool = True,
    preprocessor: bool = True,
    **options: Any,
) -> Any:
    """Save a random model with `save_pretrained`, and its preprocessor's settings.

    Args:
        folder: where to; made if need be.
        family: one of `FAMILIES`.
        large: layer-norm convolutions and pre-norm blocks, as the "large" models have.
        do_normalize: what the preprocessor says; default: True for large.
        safe: safetensors, else a pickled `pytorch_model.bin` with the old weight-norm names.
        preprocessor: whether to write `preprocessor_config.json`.
        options: of `random_model`.

    Returns:
        The full model.
    """
    model = random_model(family, large, **options)
    model.save_pretrained(folder)
    if not safe:
        pickle_weights(folder, model)
    if family == "mert":
        _disguise_as_mert(folder)
    if preprocessor:
        settings = {
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "do_normalize": large if do_normalize is None else do_normalize,
            "sampling_rate": 24_000 if family == "mert" else 16_000,
            "feature_size": 1,
            "padding_value": 0.0,
            "return_attention_mask": large,
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model


WHISPER_POSITIONS = 40  # 0.8 s


def random_whisper(seed: int = 0, head: str = "Model", **changes: Any) -> Any:
    """A whole Whisper, decoder included, random in every weight, positions included."""
    import transformers

    settings: dict[str, Any] = {
        "d_model": WIDTH,
        "encoder_layers": LAYERS,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 37,
        "encoder_layerdrop": 0.5,
        "decoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 16,
        "max_source_positions": WHISPER_POSITIONS,
        "max_target_positions": 8,
        "vocab_size": 50,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
        "dropout": 0.3,
        **changes,
    }
    config = transformers.WhisperConfig(**settings)
    model = getattr(transformers, "Whisper" + head)(config).eval()
    return randomize(model, seed)


def write_whisper(folder: Path, *, preprocessor: bool = True, **options: Any) -> Any:
    """Save a random Whisper as the published ones are, and return it."""
    import transformers

    model = random_whisper(**options)
    model.save_pretrained(folder)
    if preprocessor:
        bands = model.config.num_mel_bins
        transformers.WhisperFeatureExtractor(feature_size=bands).save_pretrained(folder)
    return model


def pickle_weights(folder: Path, model: nn.Module) -> None:
    """Replace safetensors by the older format, with the names of the older weight norm."""
    state = {old_name(name): tensor for name, tensor in model.state_dict().items()}
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def old_name(name: str) -> str:
    """A weight's name before weight norm became a parametrization."""
    name = name.replace("parametrizations.weight.original0", "weight_g")
    return name.replace("parametrizations.weight.original1", "weight_v")


def _disguise_as_mert(folder: Path) -> None:
    """The settings as the published MERT has them: remote code, and keys of its CQT branch."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(
        model_type="mert_model",
        architectures=["MERTModel"],
        auto_map={"AutoConfig": "configuration_MERT.MERTConfig", "AutoModel": "x.MERTModel"},
        feature_extractor_cqt=False,
        feature_extractor_cqt_bins=336,
        deepnorm=False,
        attention_relax=-1.0,
        sample_rate=24_000,
    )
    path.write_text(json.dumps(config))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.detach() - expected).abs().max() / expected.abs().max())


def check_gradient(
    encoder: Any, wave: Tensor, direction: Tensor, weights: Tensor, step: float
) -> float:
    """The slope of weighted features along a direction, which must be that of differences."""

    def value(x: Tensor) -> Tensor:
        return (encoder(x) * weights).sum()

    wave = wave.requires_grad_()
    (gradient,) = torch.autograd.grad(value(wave), wave)
    with torch.no_grad():
        difference = value(wave + step * direction) - value(wave - step * direction)
    slope = float((gradient * direction).sum())
    assert abs(float(difference) / (2 * step) - slope) < 1e-4 * abs(slope)
    assert all(p.grad is None and not p.requires_grad for p in encoder.model.parameters())
    return abs(slope)


def edit_weights(path: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the weights of a folder by ``edit``, which gets them by name."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def first_weight(encoder: Any) -> Tensor:
    return next(encoder.model.parameters())

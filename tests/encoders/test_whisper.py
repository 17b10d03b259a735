"""Whisper's encoder: equality with transformers, frames, what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import (
    LAYERS,
    WHISPER_POSITIONS,
    WIDTH,
    check_gradient,
    random_whisper,
    relative_error,
    write_whisper,
)
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank
from torch_mapss.encoders import TransformerEncoder, encoder_table, load_encoder, log_mel

SAMPLES = 9600
Folder = Callable[..., Path]


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Coloured, with a silent part: parts of the spectrum lie on each of the two floors."""
    white = np.random.default_rng(seed).standard_normal(shape)
    wave = np.cumsum(white, -1)
    wave -= wave.mean(-1, keepdims=True)
    wave[..., 2000:3500] *= 1e-9
    return torch.from_numpy(0.1 * wave / np.abs(wave).max())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    written: dict[str, Path] = {}

    def get(**options: Any) -> Path:
        key = str(sorted(options.items()))
        if key not in written:
            written[key] = tmp_path_factory.mktemp("whisper")
            write_whisper(written[key], **options)
        return written[key]

    return get


def stock_features(waves: Tensor, bands: int = 80) -> Tensor:
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=bands)
    features = extractor(
        list(waves.float().numpy()),
        sampling_rate=16_000,
        padding="do_not_pad",
        return_tensors="pt",
    )
    return features.input_features


def stock_states(waves: Tensor, **options: Any) -> list[Tensor]:
    """transformers' own forward, of a model that has as many positions as the clip frames."""
    features = stock_features(waves)
    frames = features.shape[-1] // 2
    assert features.shape[-1] == 2 * frames  # it takes no others
    whole = random_whisper(**options)
    short = random_whisper(max_source_positions=frames, **options)
    weights = whole.state_dict()
    for name in [name for name in weights if name.endswith("encoder.embed_positions.weight")]:
        weights[name] = weights[name][:frames]
    short.load_state_dict(weights)
    encoder = short.get_encoder()
    with torch.no_grad():
        return list(encoder(features, output_hidden_states=True).hidden_states)


# --- Equality with transformers -----------------------------------------------------------------


@pytest.mark.parametrize("samples", [9600, 9599, 9761, 201])
@pytest.mark.parametrize("bands", [80, 128])
def test_log_mel_equals_the_feature_extractor(samples: int, bands: int) -> None:
    waves = noise(2, 9761)[:, :samples]
    waves[1] *= 1e-3  # the floor is each clip's own
    found, expected = log_mel(waves.float(), bands), stock_features(waves, bands)
    assert found.shape == expected.shape == (2, bands, samples // 160)
    assert relative_error(found, expected) < 1e-5
    assert relative_error(log_mel(waves, bands), expected) < 1e-5


def test_log_mel_reaches_both_floors() -> None:
    spectrum = log_mel(noise(SAMPLES))
    lowest = spectrum == spectrum.amin()
    assert torch.isclose(spectrum.amin(), spectrum.amax() - 2)  # eight decades, over four
    assert 0.05 < float(lowest.float().mean()) < 0.9
    assert torch.equal(log_mel(torch.zeros(SAMPLES)), torch.full((80, 60), (-10 + 4) / 4))


@pytest.mark.parametrize("head", ["Model", "ForConditionalGeneration"])
def test_every_layer_equals_the_full_model(folder: Folder, head: str) -> None:
    path, waves = folder(head=head), noise(2, SAMPLES).float()
    states = stock_states(waves, head=head)
    assert len(states) == LAYERS + 1
    for layer, expected in enumerate(states):
        encoder = load_encoder(path, layer=layer)
        found = encoder(waves)
        assert found.shape == (2, encoder.frame_count(SAMPLES), WIDTH)
        assert relative_error(found, expected[:, : found.shape[1]]) < 1e-5
        assert len(encoder.model.encoder.layers) == layer  # nothing above is even built
    # Neighbouring layers are far apart, so a layer off by one would show; and so are frames.
    assert min(relative_error(a, b) for a, b in pairwise(states)) > 0.1
    assert relative_error(states[1][:, 1:], states[1][:, :-1]) > 0.1


def test_a_clip_as_long_as_the_positions_equals_the_model_as_it_is(folder: Folder) -> None:
    waves = noise(1, 320 * WHISPER_POSITIONS).float()
    with torch.no_grad():
        expected = (
            random_whisper()
            .get_encoder()(stock_features(waves), output_hidden_states=True)
            .hidden_states
        )
    for layer, state in enumerate(expected):
        found = load_encoder(folder(), layer=layer)(waves)
        assert found.shape[1] == WHISPER_POSITIONS - 1  # the last one hangs over the end
        assert relative_error(found, state[:, :-1]) < 1e-5


def test_without_preprocessor_settings_it_is_whisper(folder: Folder) -> None:
    waves = noise(1, SAMPLES)
    found = load_encoder(folder(preprocessor=False), layer=2)(waves)
    assert torch.equal(found, load_encoder(folder(), layer=2)(waves))


# --- Gradient and precision ---------------------------------------------------------------------


def test_gradient_against_differences(folder: Folder) -> None:
    encoder = load_encoder(folder(), layer=LAYERS, dtype="float64")
    wave, direction = noise(1, 2000, seed=1), noise(1, 2000, seed=2)
    assert check_gradient(encoder, wave, direction, noise(1, 6, WIDTH, seed=3), 1e-7) > 1e-3


def test_gradient_of_silence_is_finite(folder: Folder) -> None:
    wave = torch.zeros(1, SAMPLES, requires_grad=True)
    load_encoder(folder())(wave).sum().backward()
    assert wave.grad is not None
    assert wave.grad.isfinite().all()


@pytest.mark.parametrize(("dtype", "digits"), [("float16", 0.02), ("bf16", 0.15)])
def test_half_precision(folder: Folder, dtype: str, digits: float) -> None:
    waves = noise(1, SAMPLES).float()
    found = load_encoder(folder(), layer=2, dtype=dtype)(waves)
    assert found.dtype == torch.float32
    assert relative_error(found, load_encoder(folder(), layer=2)(waves)) < digits


def test_an_item_is_encoded_as_if_it_were_alone(folder: Folder) -> None:
    encoder, waves = load_encoder(folder(), layer=2), noise(2, SAMPLES).float()
    waves[1] *= 1e-4
    together = encoder(waves)
    for item in (0, 1):
        assert relative_error(together[item], encoder(waves[item])) < 1e-5


# --- Frames -------------------------------------------------------------------------------------


def test_the_grid_is_that_of_the_other_encoders(folder: Folder) -> None:
    encoder, mel = load_encoder(folder()), load_encoder("mel")
    for name in ("sample_rate", "hop", "receptive_field"):
        assert getattr(encoder, name) == getattr(mel, name)
    for samples in (400, 401, 559, 560, 719, 720, 721, 1039, 1040, 5000):
        frames = encoder(noise(1, samples))
        assert frames.shape == (1, encoder.frame_count(samples), WIDTH)
        assert encoder.frame_count(samples) == mel.frame_count(samples)


def test_a_frame_sees_five_windows_and_no_more(folder: Folder) -> None:
    encoder = load_encoder(folder(), layer=0, dtype="float64")
    # White noise has no point eight decades down, so no frame depends on the loudest one.
    white = np.random.default_rng(0).standard_normal((1, 6400))
    wave, frame = torch.from_numpy(0.1 * white).requires_grad_(), 9
    (gradient,) = torch.autograd.grad(encoder(wave)[0, frame].square().sum(), wave)
    seen = gradient[0].nonzero().flatten()
    # Of 400 samples, 160 apart, about sample 320 f; the first under a Hann window has no weight.
    assert (int(seen[0]), int(seen[-1])) == (320 * frame - 519, 320 * frame + 519)
    assert len(seen) == 1039


def test_longer_than_the_positions(folder: Folder) -> None:
    encoder = load_encoder(folder())
    assert encoder.maximum_samples == 320 * WHISPER_POSITIONS
    whole = noise(1, encoder.maximum_samples + 1)
    encoder(whole[:, :-1])
    with pytest.raises(ValueError, match=r"12801 samples \(0\.80 s\).*at most 12800.*segment"):
        encoder(whole)


# --- Loading ------------------------------------------------------------------------------------


def test_table() -> None:
    rows = {row.name: row for row in encoder_table()}
    for name in ("whisper-tiny", "whisper-base", "whisper-tiny.en", "whisper-base.en"):
        assert rows[name] == (name, f"openai/{name}", 16_000, 1, 320, 400, 480_000)


def test_the_default_layer_is_the_first(folder: Folder) -> None:
    encoder = load_encoder(folder())
    assert isinstance(encoder, TransformerEncoder)
    assert (encoder.layer, encoder.feature_size) == (1, WIDTH)


def test_every_missing_weight_is_named(folder: Folder, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = Path(shutil.copytree(folder(head="ForConditionalGeneration"), tmp_path / "own"))
    file = path / "model.safetensors"
    tensors = load_file(file)
    used = [n for n in tensors if n.startswith("model.encoder.") and "layers.2" not in n]
    assert len(used) == 7 + 2 * 15  # k has no bias
    save_file({name: tensors[name] for name in used}, file, metadata={"format": "pt"})
    load_encoder(path, layer=2)  # neither the decoder nor what is above the layer is needed
    for name in used:
        save_file({n: t for n, t in tensors.items() if n != name}, file, metadata={"format": "pt"})
        bare = name.removeprefix("model.")
        # The decoder has a weight of nearly the same name, which is no renamed one.
        with pytest.raises(ValueError, match=rf"but {bare} is missing\.".replace(".", r"\.", 1)):
            load_encoder(path, layer=2)
    name = "model.encoder.conv1.weight"
    save_file(
        {**tensors, name: tensors[name][:, :-1].contiguous()}, file, metadata={"format": "pt"}
    )
    with pytest.raises(ValueError, match=r"conv1\.weight has shape \(32, 79, 3\) instead of"):
        load_encoder(path)


# --- Scoring ------------------------------------------------------------------------------------


def test_scores_and_their_gradient(folder: Folder) -> None:
    waves = torch.stack([noise(SAMPLES, seed=seed).float() for seed in (5, 6)])
    estimates = (waves + 0.1 * waves.flip(0)).requires_grad_()
    banks: dict[str, Any] = {
        f"{kind}_bank": DistortionBank(kind, size=8) for kind in ("separation", "match")
    }
    mapss = MAPSS(folder(), layer=1, **banks)
    scores = mapss(estimates, waves)
    assert scores.ps.shape == (1, 2, 29)
    assert scores.times[0] == pytest.approx(0.0125)
    assert scores.active.any()
    scores.ps[scores.active].mean().backward()
    assert estimates.grad is not None
    assert estimates.grad.isfinite().all()
    assert estimates.grad.abs().max() > 0


@pytest.mark.slow
def test_clips_longer_than_the_positions_are_scored_in_segments(folder: Folder) -> None:
    # Positions for 3.2 s: a segment of 1 s with a second on each side fits in.
    path = folder(max_source_positions=160)
    rows = [torch.cat([noise(SAMPLES, seed=k + s).float() for k in range(7)]) for s in (20, 40)]
    waves = torch.stack(rows)
    estimates = waves + 0.2 * waves.flip(0)
    banks: dict[str, Any] = {
        f"{kind}_bank": DistortionBank(kind, size=6) for kind in ("separation", "match")
    }
    with pytest.raises(ValueError, match=r"positions for at most 51200.*segment"):
        MAPSS(path, **banks)(estimates, waves)
    with pytest.raises(ValueError, match=r"segment must be at most 1\.2 s"):
        MAPSS(path, segment=2.0, **banks)(estimates, waves)
    with torch.no_grad():
        scores = MAPSS(path, segment=1.0, **banks)(estimates, waves)
    assert scores.ps.shape == (1, 2, (7 * SAMPLES - 400) // 320 + 1)
    assert scores.active.any(-1).all()
    assert scores.ps[scores.active].isfinite().all()
    assert 0.5 < float(scores.ps[scores.active].mean()) < 1.0

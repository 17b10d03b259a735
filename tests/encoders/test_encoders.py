"""Encoders: equality with the full models, what is refused, what is shared."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from bursts import noise
from checkpoints import (
    FAMILIES,
    LAYERS,
    WHISPER_POSITIONS,
    WIDTH,
    check_gradient,
    old_name,
    random_model,
    random_whisper,
    relative_error,
    write_checkpoint,
)
from torch import Tensor, nn

from torch_mapss.encoders import (
    CustomEncoder,
    Encoder,
    MelEncoder,
    WaveformEncoder,
    as_encoder,
    clear_encoder_cache,
    encoder_table,
    load_encoder,
    log_mel,
    registry,
)
from torch_mapss.encoders.base import is_usable

SAMPLES = 4000
Folder = Callable[..., Path]


def speech(*shape: int, seed: int = 0) -> Tensor:
    """Coloured, with a silent part: parts of a log spectrum lie on each of Whisper's two floors."""
    wave = noise(*shape, seed=seed, dtype=torch.float64).cumsum(-1)
    wave = wave - wave.mean(-1, keepdim=True)
    wave[..., 2000:3500] *= 1e-9
    return 0.1 * wave / wave.abs().max()


def stock_features(waves: Tensor, bands: int = 80) -> Tensor:
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(feature_size=bands)(
        list(waves.float().numpy()), sampling_rate=16_000, padding="do_not_pad", return_tensors="pt"
    ).input_features


def stock_states(family: str, large: bool, waves: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """transformers' own forward; of a Whisper that has as many positions as the clip frames."""
    if family != "whisper":
        with torch.no_grad():
            states = random_model(family, large, **options)(waves, output_hidden_states=True)
        return states.hidden_states
    features = stock_features(waves)
    frames = features.shape[-1] // 2  # it takes no others
    weights = random_whisper(**options).state_dict()
    for name in [name for name in weights if name.endswith("encoder.embed_positions.weight")]:
        weights[name] = weights[name][:frames]
    short = random_whisper(max_source_positions=frames, **options)
    short.load_state_dict(weights)
    with torch.no_grad():
        return short.get_encoder()(features, output_hidden_states=True).hidden_states


@pytest.mark.parametrize(
    ("family", "large", "options", "samples"),
    [
        *((family, large, {}, SAMPLES) for family in FAMILIES for large in (False, True)),
        *(("whisper", False, {"head": h}, 9600) for h in ("Model", "ForConditionalGeneration")),
        ("whisper", False, {}, 320 * WHISPER_POSITIONS),  # as long as the positions
    ],
)
def test_every_layer_equals_the_full_model(folder, family, large, options, samples):
    path, wave = folder(family, large, **options), noise(2, samples)
    wave = wave - wave.mean(-1, keepdim=True)  # what a model gets that normalises its input
    wave = wave / wave.square().mean(-1, keepdim=True).sqrt()
    wave = speech(2, samples).float() if family == "whisper" else wave
    states = stock_states(family, large, wave, **options)
    assert len(states) == LAYERS + 1
    for layer, expected in enumerate(states):
        encoder = load_encoder(path, layer=layer)
        frames = encoder.frame_count(samples)  # Whisper's last one hangs over the end
        assert expected.shape[1] - frames == (family == "whisper")
        assert relative_error(encoder(wave), expected[:, :frames]) < 2e-5
        assert len(encoder.model.encoder.layers) == layer  # nothing above is even built
    # Neighbouring layers are far apart, so a layer off by one would show; and so are frames.
    assert min(relative_error(a, b) for a, b in pairwise(states)) > 0.1
    assert relative_error(states[1][:, 1:], states[1][:, :-1]) > 0.1


@pytest.mark.parametrize("head", ["ForCTC", "ForPreTraining"])
@pytest.mark.parametrize("safe", [True, False])
def test_checkpoints_with_a_head_and_old_names(folder, head, safe):
    options: dict[str, Any] = {"proj_codevector_dim": 16, "codevector_dim": 16}
    path = folder("wav2vec2", head=head, safe=safe, do_normalize=False, **options)
    full = random_model("wav2vec2", False, head=head, **options).wav2vec2
    with torch.no_grad():
        expected = full(noise(1, SAMPLES), output_hidden_states=True).hidden_states[2]
    assert relative_error(load_encoder(path, layer=2)(noise(1, SAMPLES)), expected) < 1e-5


def test_sharded_checkpoints(tmp_path):
    model = write_checkpoint(tmp_path, "hubert")
    expected = load_encoder(tmp_path, layer=2)(noise(1, SAMPLES))
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    final = sorted(tmp_path.glob("model-*.safetensors"))[-1]
    assert torch.equal(load_encoder(tmp_path, layer=2)(noise(1, SAMPLES)), expected)
    final.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        load_encoder(tmp_path, layer=2)


@pytest.mark.parametrize("do_normalize", [False, True])
@pytest.mark.parametrize("family", ["wav2vec2", "mert"])
def test_equals_the_stock_pipeline(folder, family, do_normalize):
    from transformers import Wav2Vec2FeatureExtractor

    path = folder(family, do_normalize=do_normalize)
    encoder = load_encoder(path, layer=2)
    wave = 3 * noise(2, SAMPLES) + 0.5  # neither centred nor scaled
    wave[1] *= 0.01  # items are normalised one by one
    extractor = Wav2Vec2FeatureExtractor.from_pretrained(path)
    inputs = extractor(list(wave.numpy()), sampling_rate=encoder.sample_rate, return_tensors="pt")
    with torch.no_grad():
        stock = random_model(family, False)(inputs.input_values, output_hidden_states=True)
    assert relative_error(encoder(wave), stock.hidden_states[2]) < 1e-5
    assert encoder.normalize is do_normalize


def test_mert_is_a_hubert_at_24_khz_and_what_holds_without_a_preprocessor(folder):
    encoder = load_encoder(folder("mert"))
    assert (encoder.sample_rate, encoder.receptive_field, encoder.hop) == (24_000, 400, 320)
    for family, large, rate in (("hubert", False, 16_000), ("hubert", True, 16_000)):
        with pytest.warns(UserWarning, match="has no preprocessor_config"):
            encoder = load_encoder(folder(family, large, preprocessor=False))
        assert (encoder.normalize, encoder.sample_rate) == (large, rate)  # as the norms say
    with pytest.warns(UserWarning, match="24000 Hz"):
        assert load_encoder(folder("mert", preprocessor=False)).sample_rate == 24_000
    wave = speech(1, SAMPLES)
    actual = load_encoder(folder("whisper", preprocessor=False), layer=2)(wave)
    assert torch.equal(actual, load_encoder(folder("whisper"), layer=2)(wave))


@pytest.mark.parametrize(
    ("family", "dtype", "digits"),
    [("hubert", "float16", 0.02), ("wavlm", "bf16", 0.15), ("whisper", "float16", 0.02)],
)
def test_half_precision(folder, family, dtype, digits):
    wave = speech(1, SAMPLES).float().requires_grad_()
    single = load_encoder(folder(family), layer=2)
    exact = single(wave)
    assert single(wave.half()).dtype == single(wave.double()).dtype == torch.float32
    half = load_encoder(folder(family), layer=2, dtype=dtype)
    assert first_weight(half).dtype == half.dtype
    actual = half(wave)
    assert actual.dtype == torch.float32
    assert relative_error(actual, exact.detach()) < digits
    actual.square().sum().backward()
    assert wave.grad.isfinite().all()
    assert wave.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("family", "large", "samples", "step", "smallest_slope"),
    [
        *((family, large, 1200, 1e-5, 1e-6) for family in FAMILIES for large in (False, True)),
        ("whisper", False, 2000, 1e-7, 1e-3),
    ],
)
def test_gradient_against_differences(folder, family, large, samples, step, smallest_slope):
    encoder = load_encoder(folder(family, large), layer=LAYERS, dtype="float64")
    wave, direction = (speech(1, samples, seed=seed) for seed in (1, 2))
    weights = noise(1, encoder.frame_count(samples), WIDTH, seed=3, dtype=torch.float64)
    assert check_gradient(encoder, wave, direction, weights, step) > smallest_slope


@pytest.mark.parametrize("kind", [("hubert", True), ("whisper",), ("mel",)])
def test_silence_has_a_finite_gradient_and_autocast_changes_nothing(folder, kind):
    encoder = load_encoder("mel" if kind == ("mel",) else folder(*kind))
    wave = torch.zeros(1, SAMPLES, requires_grad=True)
    encoder(wave).sum().backward()
    assert wave.grad.isfinite().all()
    expected = encoder(noise(1, SAMPLES))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoder(noise(1, SAMPLES)), expected)


def test_chunks_change_nothing(folder, monkeypatch):
    encoder, wave = load_encoder(folder("wavlm"), layer=2), noise(5, SAMPLES)
    full = encoder(wave)
    sizes: list[int] = []
    encode = encoder._encode
    monkeypatch.setattr(encoder, "_encode", lambda x: sizes.append(len(x)) or encode(x))
    encoder.memory_budget = 2 * encoder._item_bytes(SAMPLES)
    assert relative_error(encoder(wave), full) < 1e-5
    assert sizes == [2, 2, 1]
    encoder.memory_budget = 1  # never less than an item
    encoder(wave)
    assert sizes[3:] == [1] * 5
    encoder.memory_budget = 2**30
    encoder(wave, 1)  # of this call alone
    assert sizes[8:] == [1] * 5
    encoder(wave.requires_grad_())  # a graph keeps everything anyhow
    assert sizes[13:] == [5]


def test_activation_checkpointing_gives_the_same_gradient(folder):
    wave = noise(3, SAMPLES).requires_grad_()
    plain = load_encoder(folder("hubert"), layer=2)
    thrifty = load_encoder(folder("hubert"), layer=2, activation_checkpointing=True)
    thrifty.memory_budget = 1
    sizes: dict[Any, list[int]] = {plain: [], thrifty: []}
    gradients = []
    for encoder, recorded in sizes.items():
        hooks = lambda x, recorded=recorded: recorded.append(x.numel()) or x, lambda x: x
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            loss = encoder(wave).square().sum()
        gradients.append(torch.autograd.grad(loss, wave)[0])
    assert relative_error(gradients[1], gradients[0]) < 1e-5
    assert sum(sizes[thrifty]) < sum(sizes[plain]) / 10


def test_training_mode_and_the_global_generator_are_left_alone(folder):
    path = folder("wavlm", seed=3)  # not loaded before
    before = torch.get_rng_state()
    encoder = load_encoder(path, layer=2)
    parent = nn.ModuleList([encoder]).train()
    parent.requires_grad_(True)
    wave = noise(1, SAMPLES).requires_grad_()
    earlier = encoder(wave)
    assert torch.equal(earlier, encoder(wave))  # dropout 0.3 and layer drop 0.5 are off
    earlier.sum().backward()
    assert not any(module.training for module in encoder.modules())
    assert all(p.grad is None and not p.requires_grad for p in encoder.model.parameters())
    assert torch.equal(torch.get_rng_state(), before)


ODD = {"conv_kernel": (9, 4, 3, 5, 2, 2, 2), "conv_stride": (4, 3, 1, 2, 2, 2, 2)}


@pytest.mark.parametrize("name", ["waveform", "mel", "context", "hubert", "odd", "whisper"])
def test_frame_count_is_what_comes_out(folder, name):
    paths = {"hubert": ("hubert", {}), "odd": ("wavlm", ODD), "whisper": ("whisper", {})}
    if name in paths:
        family, options = paths[name]
        encoder = load_encoder(folder(family, **options), layer=0)
    else:
        encoder = MelEncoder(context=2) if name == "context" else load_encoder(name)
    earlier, hop = encoder.receptive_field, encoder.hop
    assert name in ("context", "odd") or (encoder.sample_rate, hop, earlier) == (16_000, 320, 400)
    assert encoder.frame_count(earlier - 1) == 0
    for samples in [earlier, earlier + 1, earlier + hop - 1, earlier + hop, earlier + 1999]:
        frames = encoder(noise(1, samples))
        assert frames.shape == (1, encoder.frame_count(samples), encoder.feature_size)


@pytest.mark.parametrize("encoder", [MelEncoder(context=1), WaveformEncoder()], ids=["mel", "wave"])
def test_a_frame_sees_its_receptive_field_and_no_more(encoder):
    wave = noise(1, 4000, dtype=torch.float64).requires_grad_()
    frame = 3
    (gradient,) = torch.autograd.grad(encoder(wave)[0, frame].square().sum(), wave)
    seen = gradient[0].nonzero().flatten()
    first_sample = frame * encoder.hop
    # The first sample under a Hann window has no weight.
    assert first_sample <= int(seen[0]) <= first_sample + 1
    assert int(seen[-1]) == first_sample + encoder.receptive_field - 1


@pytest.mark.parametrize("lead", [(), (0,), (1,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("name", ["mel", "waveform", "hubert", "whisper"])
def test_leading_dimensions(folder, name, lead):
    encoder = load_encoder(folder(name) if name in ("hubert", "whisper") else name)
    wave = noise(*lead, SAMPLES)
    if lead and lead != (0,):
        wave[-1] *= 1e-4  # the level of an item does not change the others
    actual = encoder(wave)
    assert actual.shape == (*lead, encoder.frame_count(SAMPLES), encoder.feature_size)
    for position in (0, -1) if lead != (0,) else ():
        index = (position,) * len(lead)
        assert relative_error(actual[index], encoder(wave[index])) < 1e-5


@pytest.mark.parametrize("family", [*FAMILIES, "whisper"])
def test_default_layers(folder, family):
    table = {row.name: row.layer for row in encoder_table()}
    if family == "whisper":
        assert load_encoder(folder(family)).layer == table["whisper-tiny"] == 1
        return
    late = table["mert" if family == "mert" else f"{family}-large"]
    for layers, expected in ((2, 2), (24, late)):
        sizes = {"num_hidden_layers": layers, "hidden_size": 8, "intermediate_size": 8}
        assert load_encoder(folder(family, **sizes)).layer == expected


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda path: load_encoder(path, layer=-1), ValueError, f"from 0 to {LAYERS} .*is -1"),
        (lambda path: load_encoder(path, layer=LAYERS + 1), ValueError, f"is {LAYERS + 1}"),
        (lambda path: load_encoder(path, layer=True), TypeError, "whole number"),
        (lambda path: load_encoder("mel", layer=2), ValueError, "has no layers"),
        (lambda path: load_encoder("mel", dtype="float16"), ValueError, "Leave dtype out"),
        (lambda path: load_encoder("mel", device="nonsense"), ValueError, "cannot be used"),
        (lambda path: load_encoder(path, device="cuda:99"), ValueError, "cannot be used here"),
        (lambda path: load_encoder(path, dtype="int16"), ValueError, "dtype should be"),
        (lambda path: load_encoder(path, dtype="Tensor"), ValueError, "dtype should be"),
        (lambda path: load_encoder(path, dtype=torch.int16), ValueError, "dtype should be"),
        (lambda path: load_encoder("wav2vec-large"), ValueError, "Did you mean 'wav2vec2-large'"),
        (lambda path: load_encoder("./no/such/folder"), ValueError, "does not exist"),
        (lambda path: load_encoder(__file__), ValueError, "is a file"),
        (lambda path: as_encoder(nn.Identity()), TypeError, "lacks sample_rate"),
        (lambda path: as_encoder(3), TypeError, "int lacks"),
        (lambda path: as_encoder(MelEncoder(), layer=2), ValueError, "layer cannot be applied"),
    ],
)
def test_arguments_that_cannot_be(folder, call, error, words):
    with pytest.raises(error, match=words):
        call(folder())


@pytest.mark.parametrize("name", ["mel", "waveform", "hubert", "whisper"])
def test_waveforms_that_cannot_be_encoded(folder, name):
    encoder = load_encoder(folder(name) if name in ("hubert", "whisper") else name)
    waves: list[tuple[Any, type[Exception], str]] = [
        (noise(1, 399), ValueError, r"399 samples.*400 samples \(25\.0 ms\)"),
        (torch.tensor(0.0), ValueError, "0 samples"),
        (noise(1, SAMPLES).numpy(), TypeError, "got ndarray"),
        (torch.zeros(1, SAMPLES, dtype=torch.int16), TypeError, r"torch\.int16.*32768"),
    ]
    if name == "whisper":
        assert encoder.maximum_samples == 320 * WHISPER_POSITIONS
        assert encoder(noise(1, 12_800)).shape[1] == WHISPER_POSITIONS - 1
        words = r"12801 samples \(0\.80 s\).*at most 12800.*segment"
        waves.append((noise(1, 12_801), ValueError, words))
    if name == "hubert":
        elsewhere = torch.empty(1, SAMPLES, device="meta")
        waves.append((elsewhere, ValueError, "waveform is on meta"))
    for wave, error, words in waves:
        with pytest.raises(error, match=words):
            encoder(wave)


def test_table(monkeypatch):
    rows = {row.name: row for row in encoder_table()}
    assert rows["mert"][:4] == ("mert", "m-a-p/MERT-v1-95M", 24_000, 3)
    assert (rows["mert"].frames_per_second, rows["mert"].needs_download) == (75.0, True)
    name = "whisper-base.en"
    assert rows[name] == (name, f"openai/{name}", 16_000, 1, 320, 400, 480_000)
    for name in ("mel", "mel-44k", "waveform"):
        encoder, row = load_encoder(name), rows[name]
        for field in ("name", "sample_rate", "hop", "receptive_field", "maximum_samples"):
            assert getattr(row, field) == getattr(encoder, field)
        assert not row.needs_download
    seen: dict[str, Any] = {}
    monkeypatch.setattr(registry, "load_transformer", lambda s: seen.__setitem__(s.name, s))
    loaded = [row for row in rows.values() if row.needs_download]
    for row in loaded:
        for name in (row.name, row.checkpoint):
            load_encoder(name)
            assert (seen[name].checkpoint, seen[name].layer) == (row.checkpoint, row.layer)
    assert len(loaded) == 12


def edit_weights(path: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


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
        with pytest.raises(ValueError, match=f"but {shown} is missing".replace(".", r"\.")):
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
    with pytest.raises(ValueError, match=r"cannot be read.*Two ways out"):
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
def test_a_download_fetches_what_is_needed_once(folder, tmp_path, monkeypatch, safe):
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


def first_weight(encoder: Any) -> Tensor:
    return next(encoder.model.parameters())


def test_equal_settings_share_weights_that_go_with_the_last_encoder(folder):
    left, two = (load_encoder(folder("hubert", seed=5), layer=2) for _ in range(2))
    assert left is not two
    assert first_weight(left) is first_weight(two)
    for variant in ({"layer": 1}, {"layer": 2, "dtype": "float64"}):
        assert load_encoder(folder("hubert", seed=5), **variant).model is not left.model
    weights = weakref.ref(left.model)
    del left
    gc.collect()
    assert weights() is two.model
    clear_encoder_cache()
    assert load_encoder(folder("hubert", seed=5), layer=2).model is not two.model
    del two
    gc.collect()
    assert weights() is None


def test_other_weights_or_settings_are_another_model(own_folder):
    path = own_folder("hubert")
    variant = path.with_name("other")
    shutil.copytree(path, variant, copy_function=os.symlink)
    config = json.loads((path / "config.json").read_text())
    (variant / "config.json").unlink()
    (variant / "config.json").write_text(json.dumps({**config, "num_attention_heads": 1}))
    left, two = load_encoder(path, layer=2), load_encoder(variant, layer=2)
    assert left.model is not two.model
    assert not torch.equal(left(noise(1, SAMPLES)), two(noise(1, SAMPLES)))
    edit_weights(path, lambda t: t["feature_projection.projection.weight"].mul_(2))
    assert load_encoder(path, layer=2).model is not left.model


def test_moving_or_casting_one_encoder_leaves_the_others_alone(folder):
    left, two, three = (load_encoder(folder(), layer=2) for _ in range(3))
    expected = two(noise(1, SAMPLES))
    nn.ModuleList([left]).to("meta")
    assert (left.device.type, first_weight(left).device.type) == ("meta", "meta")
    assert (two.device.type, first_weight(two).device.type) == ("cpu", "cpu")
    nn.ModuleList([three]).half().to(torch.bfloat16).double()  # precision is a setting
    assert first_weight(three).dtype == torch.float32
    assert torch.equal(three(noise(1, SAMPLES)), expected)
    assert load_encoder(folder(), layer=2).to("meta").model is left.model


def test_state_dict_holds_no_frozen_weights(folder):
    class Model(nn.Module):
        def __init__(self, path: Path) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)
            self.encoder = load_encoder(path, layer=2)

    model, variant = Model(folder()), Model(folder("hubert", seed=7))
    expected = variant.encoder(noise(1, SAMPLES))
    assert set(model.state_dict()) == {"head.weight", "head.bias"}
    variant.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(variant.head.weight, model.head.weight)
    foreign = {f"encoder.model.{k}": v for k, v in model.encoder.model.state_dict().items()}
    variant.load_state_dict({**model.state_dict(), **foreign}, strict=True)
    assert torch.equal(variant.encoder(noise(1, SAMPLES)), expected)


def test_copies_share_and_pickles_reload(folder):
    encoder = load_encoder(folder(), layer=1)
    encoder.memory_budget = 12_345
    encoder(noise(1, SAMPLES).requires_grad_())
    clone = copy.deepcopy(nn.ModuleList([encoder]))[0]
    content = pickle.dumps(encoder)
    assert len(content) < 3000
    for variant in (clone, copy.copy(encoder), pickle.loads(content)):
        assert first_weight(variant) is first_weight(encoder)
        assert (variant.layer, variant.memory_budget) == (1, 12_345)
    clone.to("meta")
    assert encoder.device.type == "cpu"
    for encoder in (MelEncoder(40, context=1).half(), WaveformEncoder().half()):
        expected = encoder(noise(1, SAMPLES))
        for variant in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
            assert torch.equal(variant(noise(1, SAMPLES)), expected)


@pytest.mark.slow
def test_a_pickle_works_in_a_new_process(folder, tmp_path):
    encoder, wave = load_encoder(folder(), layer=1), noise(1, SAMPLES)
    (tmp_path / "all").write_bytes(pickle.dumps((encoder, wave, encoder(wave))))
    code = f"""
import pickle
encoder, wave, expected = pickle.load(open({str(tmp_path / "all")!r}, "rb"))
assert (encoder(wave) - expected).abs().max() < 1e-5
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("samples", [9600, 9599, 9761, 201])
@pytest.mark.parametrize("bands", [80, 128])
def test_log_mel_equals_the_feature_extractor(samples, bands):
    waves = speech(2, 9761, seed=1)[:, :samples]
    waves[1] *= 1e-3  # the floor is each clip's own
    actual, expected = log_mel(waves.float(), bands), stock_features(waves, bands)
    assert actual.shape == expected.shape == (2, bands, samples // 160)
    assert relative_error(actual, expected) < 1e-5
    assert relative_error(log_mel(waves, bands), expected) < 1e-5


def test_a_frame_of_whisper_sees_five_windows_and_no_more(folder):
    encoder = load_encoder(folder("whisper"), layer=0, dtype="float64")
    # White noise has no point eight decades down, so no frame depends on the loudest one.
    wave, frame = noise(1, 6400, dtype=torch.float64).requires_grad_(), 9
    (gradient,) = torch.autograd.grad(encoder(wave)[0, frame].square().sum(), wave)
    seen = gradient[0].nonzero().flatten()
    # Of 400 samples, 160 apart, about sample 320 f; the first under a Hann window has no weight.
    assert (int(seen[0]), int(seen[-1])) == (320 * frame - 519, 320 * frame + 519)
    assert len(seen) == 1039


class Stub(nn.Module):
    """Mean of each frame, and its double."""

    sample_rate, hop, receptive_field = 8_000, 100, 200

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, wave: Tensor) -> Tensor:
        assert wave.dim() == 2
        return wave.unfold(-1, 200, 100).mean(-1, keepdim=True) * self.scale


def test_own_encoder():
    stub = Stub()
    encoder = as_encoder(stub)
    assert isinstance(encoder, CustomEncoder)
    assert as_encoder(encoder) is encoder
    wave = noise(2, 3, 1000).requires_grad_()
    frames = encoder(wave)
    assert frames.shape == (2, 3, encoder.frame_count(1000), 2)
    frames.sum().backward()
    assert wave.grad.abs().sum() > 0
    assert stub.scale.grad is None
    assert not encoder.train().function.training
    for cast in (encoder.half, encoder.bfloat16, encoder.double):  # it keeps its precision
        cast()
        assert stub.scale.dtype == torch.float32
        assert torch.equal(encoder(wave.double()), frames)
    stub.forward = lambda wave: wave.new_full((2, 9, 40), 2000.0).half()  # type: ignore[method-assign]
    assert encoder(noise(2, 1000)).dtype == torch.float32
    assert encoder.to("meta").function.scale.device.type == "meta"


def test_own_encoder_may_belong_to_a_model_that_is_trained():
    stub = nn.Sequential(nn.Dropout(0.5), Stub())
    for name in ("sample_rate", "hop", "receptive_field"):
        setattr(stub, name, getattr(Stub, name))
    encoder = as_encoder(stub)
    parent = nn.ModuleDict({"shared": stub}).train().requires_grad_(True)
    earlier = encoder(noise(2, 1000))
    assert parent["shared"] is stub
    assert torch.equal(earlier, encoder(noise(2, 1000)))
    assert not earlier.requires_grad


class Late(Encoder):
    """An encoder that gives a frame too few."""

    def _encode(self, flat: Tensor) -> Tensor:
        return flat.unfold(-1, 200, 100)[:, 1:]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda wave: wave, r"gave \(2, 1000\)"),
        (lambda wave: wave.new_zeros(2, 8, 3), r"\(2, 9, M\), but gave \(2, 8, 3\)"),
        (lambda wave: None, "gave NoneType"),
        (lambda wave: wave.new_ones(2, 9, 3) > 0, "torch.bool"),
        (lambda wave: wave.new_zeros(2, 9, 3).to(torch.complex64), "take the magnitude"),
    ],
)
def test_own_encoder_with_other_frames(output, message):
    stub = Stub()
    stub.forward = output  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=message):
        as_encoder(stub)(noise(2, 1000))
    late = Late(name="late", sample_rate=8_000, hop=100, receptive_field=200, feature_size=200)
    with pytest.raises(ValueError, match=r"'late'.*\(2, 9, M\), but gave \(2, 8, 200\)"):
        late(noise(2, 1000))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e37])
def test_embeddings_beyond_use(value):
    embeddings = torch.full((2, 3, 4), value)
    assert not is_usable(embeddings)
    embeddings[1, 2, 3] = 1.0  # a single valid place: the caller can name the bad ones
    assert is_usable(embeddings)

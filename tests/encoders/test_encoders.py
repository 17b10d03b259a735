"""Encoders of speech transformers against the models of transformers: values, gradients, frames."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from checkpoints import (
    FAMILIES,
    LAYERS,
    WHISPER_POSITIONS,
    WIDTH,
    check_gradient,
    first_weight,
    random_model,
    random_whisper,
    relative_error,
    write_checkpoint,
)
from torch import Tensor, nn
from waveforms import interrupted_noise, noise

from torch_mapss.encoders import (
    MelEncoder,
    WaveformEncoder,
    as_encoder,
    encoder_table,
    load_encoder,
    log_mel,
    registry,
)

SAMPLES = 4000


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
    wave = interrupted_noise(2, samples).float() if family == "whisper" else wave
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
    wave = interrupted_noise(1, SAMPLES)
    actual = load_encoder(folder("whisper", preprocessor=False), layer=2)(wave)
    assert torch.equal(actual, load_encoder(folder("whisper"), layer=2)(wave))


@pytest.mark.parametrize(
    ("family", "dtype", "digits"),
    [("hubert", "float16", 0.02), ("wavlm", "bf16", 0.15), ("whisper", "float16", 0.02)],
)
def test_half_precision(folder, family, dtype, digits):
    wave = interrupted_noise(1, SAMPLES).float().requires_grad_()
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
    wave, direction = (interrupted_noise(1, samples, seed=seed) for seed in (1, 2))
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


def test_chunks_change_nothing(folder):
    encoder, wave = load_encoder(folder("wavlm"), layer=2), noise(5, SAMPLES)
    full = encoder(wave)
    sizes: list[int] = []
    encoder.model.register_forward_pre_hook(lambda model, inputs: sizes.append(len(inputs[0])))
    largest_chunks = []
    for exponent in range(16, 22):
        encoder.memory_budget = 2**exponent
        assert relative_error(encoder(wave), full) < 1e-5
        assert sum(sizes) == 5
        largest_chunks.append(max(sizes))
        sizes.clear()
    assert largest_chunks == sorted(largest_chunks)
    assert {1, 5} < {*largest_chunks}
    encoder.memory_budget = 1  # never less than an item
    encoder(wave)
    assert sizes == [1] * 5
    sizes.clear()
    encoder.memory_budget = 2**30
    encoder(wave, 1)  # of this call alone
    assert sizes == [1] * 5
    sizes.clear()
    encoder(wave.requires_grad_())  # a graph keeps everything anyhow
    assert sizes == [5]


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
def test_frame_count_equals_the_output(folder, name):
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
        words = r"12801 samples has 0\.80006\d s.*at most 0\.8 s.*segment"
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


@pytest.mark.parametrize("samples", [9600, 9599, 9761, 201])
@pytest.mark.parametrize("bands", [80, 128])
def test_log_mel_equals_the_feature_extractor(samples, bands):
    waves = interrupted_noise(2, 9761, seed=1)[:, :samples]
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

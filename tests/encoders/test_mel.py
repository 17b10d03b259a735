"""Log-mel frames on any grid, and the waveform itself."""

from __future__ import annotations

import pytest
import torch
import torchaudio
from waveforms import noise

from torch_mapss.encoders import (
    MelEncoder,
    WaveformEncoder,
    load_encoder,
    mel_filterbank,
    mel_on_grid,
)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float32, torch.float64])
def test_filters_have_equal_area_whatever_the_default_dtype(default):
    torch.set_default_dtype(default)
    try:
        area = mel_filterbank(20, 16_000, 2**16).sum(0) * 16_000 / 2**16
        filters = mel_filterbank(31, 16_000, 512)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.allclose(area, torch.ones(20, dtype=torch.float64), atol=1e-4)
    assert torch.equal(filters, mel_filterbank(31, 16_000, 512))


@pytest.mark.parametrize(
    ("bands", "rate", "size", "top"),
    [
        (80, 16_000, 512, None),
        (128, 44_100, 2048, 20_000.0),
        (23, 8000, 256, 800.0),
        (40, 11_025, 512, None),
    ],
)
def test_filters_are_those_of_torchaudio_in_double(bands, rate, size, top):
    torch.set_default_dtype(torch.float64)
    try:
        scale = torchaudio.transforms.MelScale(
            bands, rate, 0.0, top, size // 2 + 1, norm="slaney", mel_scale="slaney"
        )
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(mel_filterbank(bands, rate, size, top), scale.fb, rtol=1e-13, atol=0)


def test_making_filters_sets_no_default_of_the_process(monkeypatch):
    def refuse(_: object) -> None:
        raise AssertionError("another thread would see it")

    monkeypatch.setattr(torch, "set_default_dtype", refuse)
    assert mel_filterbank(17, 16_000, 512).dtype == torch.float64


@pytest.mark.parametrize(("bands", "floor", "context"), [(80, 1e-5, 0), (40, 1e-3, 2)])
def test_mel_by_hand(bands, floor, context):
    encoder = MelEncoder(bands, floor, context)
    wave = noise(2400, dtype=torch.float64)
    time = torch.arange(400, dtype=torch.float64)
    window = 0.5 - 0.5 * torch.cos(2 * torch.pi * time / 400)
    angle = -2 * torch.pi * torch.outer(torch.arange(257, dtype=torch.float64), time) / 512
    spectra = []
    for frame in range((2400 - 400) // 320 + 1):  # a plain Fourier sum, one frame at a time
        piece = window * wave[320 * frame : 320 * frame + 400]
        power = (angle.cos() @ piece) ** 2 + (angle.sin() @ piece) ** 2
        spectra.append((mel_filterbank(bands, 16_000, 512).T @ power + floor).log())
    expected = [
        torch.cat(spectra[f - context : f + context + 1])
        for f in range(context, len(spectra) - context)
    ]
    assert torch.allclose(encoder(wave), torch.stack(expected), rtol=1e-10, atol=1e-10)


def test_mel_keeps_double_and_lifts_half():
    encoder = MelEncoder()
    assert encoder(noise(800, dtype=torch.float64)).dtype == torch.float64
    half = noise(800).half()
    assert torch.equal(encoder(half), encoder(half.float()))
    assert MelEncoder(dtype=torch.float64)(noise(800)).dtype == torch.float64


def test_the_pair_s_mel_has_windows_of_two_and_a_half_hops_and_a_floor_of_the_same_power():
    encoder = mel_on_grid(16_000, 320, 400)
    assert (encoder.window, encoder.fft_size, encoder.floor) == (800, 1024, pytest.approx(4e-5))
    assert encoder(noise(4000)).shape == MelEncoder()(noise(4000)).shape


def test_mel_gradient_also_after_inference_mode():
    wave = noise(1, 1100, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(MelEncoder(12, context=1), wave)
    encoder = MelEncoder(37)  # filters that no other test has made
    with torch.inference_mode():
        encoder(noise(800))
    wave = noise(800).requires_grad_()
    encoder(wave).sum().backward()
    assert wave.grad.abs().sum() > 0


BAD = {"bands": (0, 400), "context": (-1,), "floor": (0.0, float("nan")), "hop": (0,)}
BAD |= {"window": (1,), "highest": (8001,)}


@pytest.mark.parametrize("name", BAD)
def test_mel_arguments(name):
    for value in BAD[name]:
        with pytest.raises(ValueError, match=name):
            MelEncoder(**{name: value})


@pytest.mark.parametrize(
    ("rate", "hop", "field"),
    [(24_000, 320, 400), (16_000, 160, 4000), (8_000, 80, 200), (11_025, 128, 301),
     (48_000, 480, 101)],
)  # fmt: skip
def test_mel_on_the_grid_of_another_encoder(rate, hop, field):
    encoder = mel_on_grid(rate, hop, field)
    assert (encoder.sample_rate, encoder.hop, encoder.receptive_field) == (rate, hop, field)
    wave = noise(1, field + 4 * hop + 7, dtype=torch.float64).requires_grad_()
    frames = encoder(wave)
    assert frames.shape == (1, 5, 80)
    (gradient,) = torch.autograd.grad(frames[0, 2].sum(), wave)
    used = gradient[0].nonzero().flatten()
    # Symmetric about the centre of the receptive field but for the zero at the window's start.
    assert int(used[0] + used[-1]) - 1 == 2 * (2 * hop) + field - 1
    window = max(5 * hop // 2, round(0.025 * rate))
    assert len(used) == window + (window - field) % 2 - 1


def test_mel_44k_reaches_20_khz_at_50_frames_a_second():
    encoder = load_encoder("mel-44k")
    assert (encoder.hop, encoder.feature_size) == (882, 128)
    time = torch.arange(44_100, dtype=torch.float64) / 44_100
    for hertz, band in ((15_000.0, 118), (19_900.0, 127)):
        spectrum = encoder(0.1 * torch.sin(2 * torch.pi * hertz * time)).mean(0)
        assert abs(int(spectrum.argmax()) - band) <= 1
    above = encoder(0.1 * torch.sin(2 * torch.pi * 21_000 * time))
    assert float(above.amax()) < -8  # the window's side lobes alone


def test_waveform_is_a_view():
    wave = noise(2, 3, 5 * 320 + 80)
    frames = WaveformEncoder()(wave)
    assert frames.shape == (2, 3, 5, 400)
    assert frames.untyped_storage().data_ptr() == wave.untyped_storage().data_ptr()
    assert torch.equal(frames[1, 2, 3], wave[1, 2, 960:1360])

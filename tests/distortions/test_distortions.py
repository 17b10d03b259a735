"""Each family of distortions has the effect that the paper's table states."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.signal
import torch
from paper_banks import TONES
from torch import Tensor
from waveforms import RATE, noise64, red_bursts, rms, sine

from torch_mapss.distortions import DistortionBank
from torch_mapss.distortions.dynamics import gate
from torch_mapss.distortions.pitch import shift_pitch, vibrato
from torch_mapss.distortions.reference_features import ReferenceFeatures


def impulse(length: int, at: int = 0) -> Tensor:
    wave = torch.zeros(length, dtype=torch.float64)
    wave[at] = 1
    return wave


def only(kind: str, name: str, wave: Tensor, **settings: object) -> Tensor:
    """One member's copy of one waveform."""
    made = DistortionBank(kind, only=(name,), **settings)(wave[None], RATE)  # type: ignore[arg-type]
    assert made.names == (name,)
    return made.waveforms[0, 0]


def gain_db(system: Tensor, wave: Tensor, frequency: float, rate: int = RATE) -> float:
    """Level change at one frequency, by projection on the middle of the signal."""
    time = torch.arange(wave.shape[-1], dtype=torch.float64) / rate
    hann = torch.hann_window(wave.shape[-1], dtype=torch.float64)
    probe = torch.exp(-2j * math.pi * frequency * time) * hann
    ratio = (system * probe).sum().abs() / (wave * probe).sum().abs()
    return 20 * math.log10(max(float(ratio), 1e-12))


def pitch_of(wave: Tensor, rate: int = RATE) -> float:
    """Frequency of a sine from the mean phase advance of its analytic signal's middle."""
    middle = slice(wave.shape[-1] // 4, 3 * wave.shape[-1] // 4)
    phase = np.unwrap(np.angle(scipy.signal.hilbert(wave.numpy())))[middle]
    return float(np.polyfit(np.arange(len(phase)), phase, 1)[0] * rate / (2 * math.pi))


@pytest.mark.parametrize(
    ("family", "hertz"),
    [
        *(("notch", f) for f in (500, 1000, 2000, 4000, 8000)),
        *(("lowpass", f) for f in (2000, 3000, 4000, 6000)),
        *(("highpass", f) for f in (100, 800)),
    ],
)
def test_filters_remove_the_band_they_name(family: str, hertz: int) -> None:
    made = only("separation", f"{family}/{hertz}Hz", impulse(32000, 16000))
    response = torch.fft.rfft(made, 1 << 16)
    level = 20 * response.abs().clamp(min=1e-12).log10().numpy()
    grid = np.arange(len(level)) * RATE / (1 << 16)
    if family == "notch":
        assert level[np.abs(grid - hertz) < 49].max() < -40  # of the one at 8 kHz the top 50 Hz
        assert np.abs(level[np.abs(grid - hertz) > 71]).max() < 0.1
        return
    assert np.interp(hertz, grid, level) == pytest.approx(-3.01, abs=0.05)
    passed = grid < 0.7 * hertz if family == "lowpass" else grid > 1.5 * hertz
    assert np.abs(level[passed]).max() < 0.05
    beyond, smallest = (1.3 * hertz, -15) if family == "lowpass" else (hertz / 1.5, -25)
    assert np.interp(beyond, grid, level) < smallest


def test_match_notches_sit_on_the_spectral_peaks() -> None:
    partials = (300, 750, 1200, 2600, 5000)
    levels = (0.05, 0.4, 0.1, 0.02, 0.2)
    wave = sum((sine(f, 2.0, level=a) for f, a in zip(partials, levels)), start=torch.zeros(32000))
    made = DistortionBank("match", only=("notch",))(wave[None].double(), RATE)
    assert made.mask[0].tolist() == [True] * 5 + [False] * 15
    by_strength = [f for _, f in sorted(zip(levels, partials), reverse=True)]
    for copy, gone in zip(made.waveforms[0], by_strength):
        for partial in partials:
            change = gain_db(copy, wave, partial)
            assert change < -40 if partial == gone else abs(change) < 0.01
    assert torch.equal(made.waveforms[0, 7], wave.double())  # a masked slot holds the reference


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_peaks_keep_their_band_and_distance(rate: int) -> None:
    peaks = ReferenceFeatures(noise64(4, 2 * rate), rate).peaks
    assert peaks.shape == (4, 20)
    for row in peaks:
        actual = row[~row.isnan()]
        assert len(actual) >= (8 if rate == 8000 else 15)
        assert ((actual >= 80) & (actual <= 0.45 * rate)).all()
        gaps = actual.sort().values.diff()
        assert gaps.min() >= 300


def test_match_cutoffs_are_energy_quantiles_from_zero_up() -> None:
    wave = red_bursts(3, 2 * RATE)
    bank = DistortionBank("match", only=("lowpass", "highpass"))
    power = np.abs(np.fft.rfft(wave.numpy())) ** 2
    power[:, 1:-1] *= 2
    hertz = np.fft.rfftfreq(2 * RATE, 1 / RATE)
    shares = np.cumsum(power, -1) / power.sum(-1, keepdims=True)
    features = ReferenceFeatures(wave, RATE)
    for member in bank.members:
        share = int(member.name.split("q")[1]) / 100
        expected = [max(100, 100 * round(np.interp(share, row, hertz) / 100)) for row in shares]
        assert member.measured["cutoff"](features).squeeze(-1).tolist() == expected


def test_energy_counts_the_mean_once_and_waves_twice() -> None:
    wave = 0.1 + sine(1000, level=0.1 * math.sqrt(2))  # Parseval: mean and sine carry 0.01 each
    shares = ReferenceFeatures(wave, RATE).cumulative_energy
    assert float(shares[500]) == pytest.approx(0.5, abs=1e-9)
    assert float(shares[1000]) == pytest.approx(1, abs=1e-9)


def test_equal_cutoffs_are_one_member() -> None:
    for family, hertz, ratio, error in (
        ("lowpass", 1234, 1234 / 1200, 0.1),
        ("highpass", 1234, 1200 / 1234, 0.1),
        ("lowpass", 7900, 7900 / 7200, 0.05),
        ("highpass", 30, 100 / 30, 0.5),
    ):
        wave = sine(hertz, 2.0)
        made = DistortionBank("match", only=(family,))(wave[None], RATE)
        assert made.mask[0].tolist() == [True, False, False, False]
        gain = -10 * math.log10(1 + ratio**16)
        assert gain_db(made.waveforms[0, 0], wave, hertz) == pytest.approx(gain, abs=error)


@pytest.mark.parametrize("kind", ["separation", "match"])
def test_comb_and_echo_equal_their_recursions(kind: str) -> None:
    wave = noise64(5000)
    for member in DistortionBank(kind, only=("comb", "echo")).members:
        lag = round(member.parameters["delay"] * RATE)
        b, a = np.zeros((2, lag + 1))
        b[0] = a[0] = 1
        (a if member.family == "comb" else b)[lag] = member.parameters["gain"]
        a[1:] *= -1
        expected = scipy.signal.lfilter(b, a, wave.numpy())
        np.testing.assert_allclose(only(kind, member.name, wave), expected, rtol=0, atol=1e-13)


EARLY = {0.005: math.log(1000) / 0.3, 0.02: math.log(1000) / 1.1}  # decay by seconds
LATE = {0.05: 0.3, 0.1: 0.5, 0.2: 0.7, 0.4: 0.9}  # gain by seconds
REVERBS = [  # kind, seconds, sources drawn, decay, tolerance, energy of the tail
    # the early slope's standard error is about 1.5 (of 23) and 1 (of 6.3) per second
    *(
        ("separation", t, 10000 if t < 0.01 else 4000, decay, 2.5, 1 - math.exp(-2 * decay * t))
        for t, decay in EARLY.items()
    ),
    *(("match", t, 64, 6 / t, 0.18 / t, gain**2) for t, gain in LATE.items()),
]


@pytest.mark.parametrize(("kind", "length", "sources", "decay", "error", "energy"), REVERBS)
def test_reverb_has_its_length_decay_and_scaling(
    kind: str, length: float, sources: int, decay: float, error: float, energy: float
) -> None:
    """Impulse responses after the direct sound, of many sources' draws."""
    bank, taps = DistortionBank(kind, only=(f"reverb/{1000 * length:g}ms",)), round(length * RATE)
    actual = bank(impulse(taps + 200).expand(sources, -1), RATE).waveforms[:, 0]
    torch.testing.assert_close(actual[:, 0], torch.ones(sources, dtype=torch.float64))
    assert actual[:, taps + 1 :].abs().max() < 1e-12
    assert (actual[:, taps - 2 : taps + 1].abs().amax(-1) > 1e-7).all()  # it is that long, too
    tails = actual[:, 1 : taps + 1].square()
    # Amplitude decay in nepers per second, from a line through the log of the mean energy.
    time = np.arange(taps) / RATE
    slope = -np.polyfit(time, np.log(tails.mean(0).numpy()), 1)[0] / 2
    assert slope == pytest.approx(decay, abs=error)
    assert tails.sum(-1).numpy() == pytest.approx(energy, rel=2e-4)
    wave = noise64(2, taps + 200)  # a linear convolution with them
    expected = [np.convolve(w, k)[: taps + 200] for w, k in zip(wave.numpy(), actual.numpy())]
    np.testing.assert_allclose(bank(wave, RATE).waveforms[:, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["separation", "match"])
def test_noise_has_its_ratio_and_slope(kind: str) -> None:
    wave = red_bursts(1, 5 * RATE)
    made = DistortionBank(kind, only=("noise",))(wave, RATE)
    added = (made.waveforms - wave[:, None])[0]
    ratio = 10 * torch.log10(wave.square().mean() / added.square().mean(-1))
    expected = [float(name.split("/")[2].removesuffix("dB")) for name in made.names]
    assert ratio.numpy() == pytest.approx(expected, abs=0.01)
    hertz, power = scipy.signal.welch(added.numpy(), RATE, nperseg=4096)
    band = (hertz > 50) & (hertz < 7000)
    slopes = -np.polyfit(np.log(hertz[band]), np.log(power[:, band]).T, 1)[0]
    exponent = {"white": 0, "pink": 1, "brown": 2}
    expected_slopes = [exponent[name.split("/")[1]] for name in made.names]
    assert slopes == pytest.approx(expected_slopes, abs=0.1)


def test_colored_noise_starts_at_twenty_hertz_and_is_gaussian() -> None:
    wave = noise64(1, 30 * RATE)
    added = only("separation", "noise/brown/0dB", wave[0]) - wave[0]
    power = torch.fft.rfft(added).abs().square()
    assert power[: 15 * 30].sum() < 1e-3 * power.sum()  # the edge is some 4 Hz wide on each side
    assert power[: 25 * 30].sum() > 0.05 * power.sum()
    pink = only("separation", "noise/pink/0dB", wave[0]) - wave[0]
    kurtosis = pink.pow(4).mean() / pink.square().mean() ** 2
    assert float(kurtosis) == pytest.approx(3, abs=0.15)


@pytest.mark.parametrize(("hertz", "factor"), zip(TONES, (0.4, 0.6, 0.8, 1.0)))
def test_tone_has_its_frequency_and_amplitude(hertz: int, factor: float) -> None:
    wave = noise64(RATE)
    levels = {"separation": TONES[hertz], "match": factor * float(rms(wave))}
    for kind, level in levels.items():
        added = only(kind, f"tone/{hertz}Hz", wave) - wave
        torch.testing.assert_close(added, sine(hertz, level=level))


@pytest.mark.parametrize(
    ("rate", "depth"), [(1, 0.3), (2, 0.3 + 0.7 / 3), (4, 0.3 + 1.4 / 3), (6, 1.0)]
)
def test_tremolo_has_its_rate_and_depth(rate: int, depth: float) -> None:
    for kind, expected in (("separation", depth), ("match", 1.0)):
        gain = only(kind, f"tremolo/{rate}Hz", torch.ones(2 * RATE, dtype=torch.float64))
        assert float(gain.max()) == pytest.approx(1, abs=1e-6)
        assert float(gain.min()) == pytest.approx(1 - expected, abs=1e-6)
        spectrum = torch.fft.rfft(gain - gain.mean()).abs()
        assert int(spectrum.argmax()) == 2 * rate


@pytest.mark.parametrize("threshold", [0.005, 0.01, 0.02, 0.04])
def test_gate_silences_samples_below_its_threshold(threshold: float) -> None:
    level = torch.full((3 * RATE,), 1.02 * threshold, dtype=torch.float64)
    level[RATE : 2 * RATE] = 0.98 * threshold
    wave = level * sine(60, 3.0, level=1.0)
    gated = only("separation", f"gate/{threshold:g}", wave)
    margin = round(0.02 * RATE)
    assert gated[RATE + margin : 2 * RATE - margin].abs().max() == 0
    for loud in (slice(0, RATE - margin), slice(2 * RATE + margin, 3 * RATE)):
        assert torch.equal(gated[loud], wave[loud])
    assert (gated.abs() <= wave.abs()).all()


@pytest.mark.parametrize("factor", [0.3, 0.5, 0.7])
def test_clipping_has_its_level(factor: float) -> None:
    wave = red_bursts(1, RATE)[0]
    a95 = float(np.percentile(wave.abs().numpy(), 95))
    for kind, name, level, x in (
        ("separation", f"{factor:g}", factor, sine(100, level=1.0)),
        ("match", f"{factor:g}xA95", factor * a95, wave),
    ):
        clipped = only(kind, f"clipping/{name}", x)
        np.testing.assert_allclose(clipped, x.clamp(-level, level), rtol=0, atol=1e-15)


def test_match_gates_scale_with_the_95th_percentile() -> None:
    wave = red_bursts(1, RATE)[0]
    a95 = float(np.percentile(wave.abs().numpy(), 95))
    for factor in (0.05, 0.1, 0.2, 0.4):
        gated = only("match", f"gate/{factor:g}xA95", wave)
        torch.testing.assert_close(gated, gate(wave, RATE, threshold=factor * a95))
    torch.testing.assert_close(only("match", "gate/0.4xA95", 10 * wave), 10 * gated)
    assert not torch.equal(gated, wave)


@pytest.mark.parametrize("length", [1, 2, 7, 100, 1001])
def test_the_95th_percentile_interpolates_as_numpy(length: int) -> None:
    values = noise64(3, length)
    expected = np.percentile(values.abs().numpy(), 95, axis=-1, keepdims=True)
    np.testing.assert_allclose(ReferenceFeatures(values, RATE).a95, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("rate", "frequency", "seconds", "cents"),
    [
        *((RATE, frequency, 2.0, 1) for frequency in (110.0, 1234.5, 3000.0)),
        *((rate, 440.0, 1.0, 2) for rate in (8000, 22050, 44100, 48000)),
    ],
)
def test_pitch_moves_a_sine_by_the_semitones_asked(
    rate: int, frequency: float, seconds: float, cents: float
) -> None:
    wave = sine(frequency, seconds, rate)
    middle = slice(len(wave) // 4, 3 * len(wave) // 4)
    same = shift_pitch(wave, rate, semitones=0)
    torch.testing.assert_close(same, wave, rtol=0, atol=1e-9)  # phases count 2^-32 of a turn
    with pytest.raises(ValueError, match="semitones"):
        shift_pitch(wave, rate, semitones=40)
    for semitones in (-4, -2, 2, 4) if rate == RATE else (-12, -4, 4, 12):
        moved = shift_pitch(wave, rate, semitones=semitones)
        assert moved.shape == wave.shape
        actual = 1200 * math.log2(pitch_of(moved, rate) / frequency)
        assert actual == pytest.approx(100 * semitones, abs=cents)
        ratio = float(moved[middle].square().mean() / wave[middle].square().mean())
        assert rate != RATE or ratio == pytest.approx(1, abs=0.1)
        if rate == RATE:
            assert torch.equal(moved, only("separation", f"pitch/{semitones:+d}st", wave))


@pytest.mark.parametrize("semitones", [-4, -2, 2, 4])
@pytest.mark.parametrize("at", [0.05, 0.4, 0.9333, 1.5])
def test_pitch_keeps_a_click_in_its_place(semitones: int, at: float) -> None:
    position = round(at * RATE)
    for floor in (0.0, 1e-3):
        wave = impulse(2 * RATE, position) + noise64(2 * RATE, level=floor)
        moved = only("separation", f"pitch/{semitones:+d}st", wave)
        near = moved[max(position - 800, 0) : position + 800].square()
        time = torch.arange(len(near), dtype=torch.float64) - min(position, 800)
        centre = float((near * time).sum() / near.sum())
        assert abs(int(moved.abs().argmax()) - position) < 0.004 * RATE
        assert abs(centre) < 0.004 * RATE


@pytest.mark.parametrize(("rate", "depth"), [(3, 0.001), (5, 0.002), (7, 0.003)])
def test_vibrato_has_its_rate_and_depth(rate: int, depth: float) -> None:
    carrier = 1000.0
    wave = sine(carrier, 2.0)
    for kind in ("separation", "match"):
        if kind == "match":  # a sine: A_RMS / A_peak = 1/√2
            factor = {3: 1.0, 5: 1.3, 7: 1.6}[rate]
            depth = min(max(0.03 * factor / math.sqrt(2), 0.01), 0.05)
        actual = only(kind, f"vibrato/{rate}Hz", wave)
        phase = np.unwrap(np.angle(scipy.signal.hilbert(actual.numpy())))
        change = np.gradient(phase)[2000:-2000] * RATE / (2 * math.pi * carrier) - 1
        spectrum = np.abs(np.fft.rfft(change * np.hanning(len(change)), n=1 << 18))
        actual = np.argmax(spectrum) * RATE / (1 << 18)
        assert actual == pytest.approx(rate, abs=0.1)
        smooth = scipy.signal.savgol_filter(change, 401, 2)
        assert smooth.max() == pytest.approx(depth, rel=0.03)
        assert smooth.min() == pytest.approx(-depth, rel=0.03)


def test_match_vibrato_depth_is_the_median_over_active_frames() -> None:
    wave = red_bursts(2, 3 * RATE)  # bursts and near-silence
    wave[1] *= 30
    frames = wave[:, : 150 * 320].reshape(2, 150, 320)
    active = rms(frames) > 0.1 * rms(wave)[:, None]
    assert 0.3 < active.double().mean() < 0.9
    ratio = (rms(frames) / frames.abs().amax(-1)).numpy()
    expected = [np.median(ratio[row][active[row]]) for row in range(2)]
    assert float(rms(wave[0]) / wave[0].abs().max()) < 0.7 * expected[0]
    assert ReferenceFeatures(torch.zeros(1, RATE), RATE).steadiness.tolist() == [[0.0]]
    steady = torch.stack([impulse(RATE), torch.ones(RATE, dtype=torch.float64)])
    for waves, ratios in ((wave, expected), (steady, [320**-0.5, 1.0])):
        features = ReferenceFeatures(waves, RATE)
        assert features.steadiness.flatten().tolist() == pytest.approx(ratios, rel=1e-9)
        for member in DistortionBank("match", only=("vibrato",)).members:
            factor = {"3Hz": 1.0, "5Hz": 1.3, "7Hz": 1.6}[member.name.split("/")[1]]
            depth = member.measured["depth"](features).flatten().tolist()
            assert depth == pytest.approx([min(max(0.03 * factor * r, 0.01), 0.05) for r in ratios])


@pytest.mark.parametrize(("frequency", "decibels"), [(500.0, -100), (3900.0, -88), (7500.0, -58)])
def test_vibrato_interpolates_as_exactly_as_it_says(frequency: float, decibels: float) -> None:
    rate, depth = 5.0, 0.02
    actual = vibrato(sine(frequency, 1.0, level=1.0), RATE, rate=rate, depth=depth)
    time = torch.arange(RATE, dtype=torch.float64) / RATE
    warped = time + depth / (2 * math.pi * rate) * torch.sin(2 * math.pi * rate * time)
    expected = torch.sin(2 * math.pi * frequency * warped)
    error = (actual - expected)[2000:-2000].square().mean() / expected.square().mean()
    assert 10 * math.log10(float(error)) < decibels

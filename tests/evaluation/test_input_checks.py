"""What a reader of scores must know about the signals: each case red without its look."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from separations import RATE, leaky, small_mapss, sources, write, write_all
from torch import Tensor

from torch_mapss import MAPSS, Report, evaluate
from torch_mapss.audio import resample, shift


@pytest.fixture(scope="module")
def mapss() -> MAPSS:
    return small_mapss()


@pytest.fixture(scope="module")
def truth() -> Tensor:
    return sources()


def found(report: Report, kind: str) -> list[str]:
    return [finding.text for finding in report.findings if finding.kind == kind]


def scored(mapss: MAPSS, estimates: Any, references: Any, **options: Any) -> Report:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return evaluate(estimates=estimates, references=references, mapss=mapss, **options)


def test_plain_separations_are_nothing_to_tell(mapss: MAPSS, truth: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = evaluate(estimates=leaky(truth), references=truth, mapss=mapss)
    assert report.findings == ()
    for row in report.rows:
        assert (row.silent, row.muted_frames, row.lag_ms, row.shift_ms) == (False, 0, 0.0, 0.0)
        assert row.estimate_bandwidth == row.reference_bandwidth == RATE / 2


# ------------------------------------------------------------------------------------------------
# Silence
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.0, 0.25])
def test_a_silent_estimate_is_told_and_counted(mapss: MAPSS, truth: Tensor, level: float) -> None:
    made = leaky(truth)
    made[1] = level  # digital silence, or a constant
    with pytest.warns(UserWarning, match="'estimate 2' is silent"):
        report = evaluate(estimates=made, references=truth, mapss=mapss)
    assert [row.silent for row in report.rows] == [False, True]
    assert "1 is silent" in report.summary()
    assert "Warning: 'estimate 2' is silent" in report.summary()
    assert math.isfinite(report.rows[1].log_pm)


def test_muted_frames_are_counted_and_bounded_means_resist_them(
    mapss: MAPSS, truth: Tensor
) -> None:
    made = leaky(truth)
    made[0, 3000:5000] = 0.0
    report = scored(mapss, made, truth)
    starts = torch.arange(len(report.times)) * 320
    inside = (starts >= 3000) & (starts + 400 <= 5000) & report.active[0]
    assert report.rows[0].muted_frames == int(inside.sum()) > 0
    whole = scored(mapss, leaky(truth), truth).rows[0]
    muted = report.rows[0]
    assert muted.log_pm_compressed > 5 * whole.log_pm_compressed
    assert muted.log_pm < 10 * whole.log_pm


def test_what_is_far_below_its_reference_is_told(mapss: MAPSS, truth: Tensor) -> None:
    made = leaky(truth)
    made[0] *= 1e-4
    (text,) = found(scored(mapss, made, truth), "faint")
    assert "'estimate 1' lies 8" in text


# ------------------------------------------------------------------------------------------------
# Channels, rates, bands
# ------------------------------------------------------------------------------------------------


def test_channels_that_cancel_are_named(tmp_path: Path, mapss: MAPSS, truth: Tensor) -> None:
    made = leaky(truth)
    good = write(tmp_path / "good.wav", torch.stack([made[0], 0.5 * made[0]]))
    unlike = torch.randn(2, 8000, generator=torch.Generator().manual_seed(0))
    apart = write(tmp_path / "apart.wav", made[1] + 0.1 * unlike)
    assert not found(scored(mapss, [good, apart], write_all(tmp_path / "r", truth)), "channels")
    paths = [
        write(tmp_path / "silence.wav", torch.stack([made[0], -made[0]])),
        write(tmp_path / "residue.wav", torch.stack([made[1], -0.99 * made[1]])),
    ]
    texts = found(scored(mapss, paths, write_all(tmp_path / "r", truth)), "channels")
    assert "silence.wav': its 2 channels cancel each other; their mean is silence" in texts[0]
    assert "residue.wav': its 2 channels cancel each other; their mean lies 46 dB" in texts[1]


def test_low_rates_are_told(tmp_path: Path, mapss: MAPSS) -> None:
    truth = sources(rate=8000)
    paths = [write(tmp_path / f"{k}.wav", wave, 8000) for k, wave in enumerate(truth)]
    report = scored(mapss, paths, paths)
    (text,) = found(report, "rate")
    assert "sampled at 8000 Hz, below the encoder's 16000 Hz" in text
    assert not found(report, "band")  # once is enough
    assert not found(scored(mapss, sources(), sources()), "rate")


def test_narrow_bands_are_told_where_no_reference_is_wider(mapss: MAPSS, truth: Tensor) -> None:
    narrow = resample(resample(truth, RATE, 8000), 8000, RATE)
    report = scored(mapss, leaky(narrow), narrow)
    (text,) = found(report, "band")
    assert "kHz in any reference" in text
    assert 3500 < report.rows[0].reference_bandwidth < 5000
    one_wide = torch.stack([narrow[0], truth[1]])
    assert not found(scored(mapss, leaky(one_wide), one_wide), "band")


@pytest.mark.parametrize("rate", [1000, 3999, 400_000])
def test_absurd_rates_are_refused(tmp_path: Path, mapss: MAPSS, rate: int) -> None:
    truth = sources()
    with pytest.raises(ValueError, match="4000 to 384000 Hz"):
        evaluate(estimates=truth, references=truth, sample_rate=rate, mapss=mapss)
    with pytest.raises(ValueError, match="4000 to 384000 Hz"):
        MAPSS("mel", sample_rate=rate)
    paths = [write(tmp_path / f"{k}.wav", wave, rate) for k, wave in enumerate(truth)]
    with pytest.raises(ValueError, match=r"0\.wav' is at .* 4000 to 384000 Hz"):
        evaluate(estimates=paths, references=paths, mapss=mapss)


# ------------------------------------------------------------------------------------------------
# Delay
# ------------------------------------------------------------------------------------------------


def late(waves: Tensor, milliseconds: float) -> Tensor:
    return shift(waves, -round(milliseconds * RATE / 1000))


@pytest.mark.parametrize("delay", [40.0, -30.0])
def test_a_delay_is_told_with_its_size(mapss: MAPSS, truth: Tensor, delay: float) -> None:
    with pytest.warns(UserWarning, match=rf"{abs(delay)} ms (late|early) against .*--align"):
        report = evaluate(estimates=late(truth, delay), references=truth, mapss=mapss)
    assert [row.lag_ms for row in report.rows] == [delay, delay]
    assert [row.shift_ms for row in report.rows] == [0.0, 0.0]
    assert not found(scored(mapss, late(truth, 15.0), truth), "lag")  # less than a frame


@pytest.mark.parametrize("delay", [40.0, -30.0])
def test_alignment_removes_a_lag_and_what_it_leaves_bare(
    mapss: MAPSS, truth: Tensor, delay: float
) -> None:
    report = scored(mapss, late(truth, delay), truth, align="shift", bounds=True)
    plain = scored(mapss, truth, truth)
    assert [row.shift_ms for row in report.rows] == [delay, delay]
    assert not found(report, "lag")
    assert f"a lag of {delay:.2f} ms was removed" in report.summary()
    assert report.settings["align"] == "shift"
    starts = torch.arange(len(report.times)) * 320
    gone = round(delay * RATE / 1000)
    reached = (starts >= -gone) & (starts + 400 <= 8000 - gone)
    assert torch.equal(report.active, plain.active & reached)
    assert report.ps[~report.active].isnan().all()
    # What is left scores as the reference does: the two ends aside, they are one signal.
    assert report.rows[0].pm > 0.5 > scored(mapss, late(truth, delay), truth).rows[0].pm
    assert report.rows[0].muted_frames == 0
    assert report.rows[0].ps_tail > 0


def test_lags_beyond_the_limit_are_told_and_left(mapss: MAPSS) -> None:
    truth = torch.randn(2, 3 * RATE, generator=torch.Generator().manual_seed(0))
    report = scored(mapss, late(truth, 700.0), truth, align="shift", sample_frames=3)
    assert [row.shift_ms for row in report.rows] == [0.0, 0.0]
    assert "700.0 ms late" in found(report, "lag")[0]
    assert "more than the 500 ms" in found(report, "lag")[0]


def test_no_lag_is_told_of_what_is_unlike(mapss: MAPSS, truth: Tensor) -> None:
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    report = scored(mapss, noise, truth, align="shift")
    assert all(math.isnan(row.lag_ms) for row in report.rows)
    assert not found(report, "lag")
    with pytest.raises(ValueError, match="align must be None or 'shift'"):
        scored(mapss, truth, truth, align="warp")


# ------------------------------------------------------------------------------------------------
# Twins, mixtures, order
# ------------------------------------------------------------------------------------------------


def test_the_same_signal_twice_is_told(mapss: MAPSS, truth: Tensor) -> None:
    made = leaky(truth)
    (text,) = found(scored(mapss, torch.stack([made[0], -0.3 * made[0]]), truth), "twins")
    assert "estimates 'estimate 1' and 'estimate 2' are the same signal" in text
    three = sources(3)
    three[2] = 0.5 * three[0]
    texts = found(scored(mapss, leaky(three), three), "twins")
    assert "references 'reference 1' and 'reference 3'" in texts[0]


def test_the_mixture_as_an_estimate_is_told(mapss: MAPSS, truth: Tensor) -> None:
    made = leaky(truth)
    report = scored(mapss, torch.stack([truth.sum(0), made[1]]), truth)
    assert "'estimate 1' is the sum of the references itself" in found(report, "mixture")[0]
    mixture = truth[0] + 0.4 * truth[1]
    report = scored(mapss, torch.stack([made[0], 2 * mixture]), truth, mixture=mixture)
    (text,) = found(report, "mixture")
    assert "'estimate 2' is the mixture" in text
    # A source that is all there is to hear is its own mixture.
    alone = torch.stack([truth[0], 1e-3 * truth[1]])
    assert not found(scored(mapss, alone, alone), "mixture")


@pytest.mark.parametrize("gains", [(1.0, 1.0), (0.6, 1.3)])
def test_a_reference_that_is_the_sum_of_others_is_told(
    mapss: MAPSS, gains: tuple[float, float]
) -> None:
    three = sources(3)
    both = gains[0] * three[1] + gains[1] * three[2]
    four = torch.stack([*three, both])
    names = ["vocals", "drums", "bass", "accompaniment"]
    (text,) = found(scored(mapss, leaky(four), four, names=names, measures="bleed"), "sum")
    assert "'accompaniment' is the sum of drums and bass" in text
    assert "--sources vocals drums bass" in text
    every = torch.stack([three.sum(0), *three])  # the mixture under another name
    (text,) = found(scored(mapss, leaky(every), every, measures="bleed"), "sum")
    assert "'reference 1' is the sum of reference 2 and reference 3 and reference 4" in text
    rest = torch.stack([*three, both + 0.05 * three[0].flip(0)])
    assert not found(scored(mapss, leaky(rest), rest, measures="bleed"), "sum")


def test_a_reference_that_is_the_mixture_is_told(mapss: MAPSS) -> None:
    three = sources(3)
    mixture = three.sum(0)
    given = torch.stack([three[0], three[1], mixture])  # one source has no file of its own
    report = scored(mapss, leaky(given), given, mixture=mixture, measures="bleed")
    (text,) = found(report, "mixture")
    assert "reference 'reference 3' is the mixture" in text


def test_the_references_as_a_system_are_told(mapss: MAPSS, truth: Tensor) -> None:
    (text,) = found(scored(mapss, truth.clone(), truth), "same")
    assert "'estimate 1', 'estimate 2': the same as the reference" in text
    assert not found(scored(mapss, 0.5 * truth, truth), "same")


def test_a_constant_offset_is_told_with_its_size(
    tmp_path: Path, mapss: MAPSS, truth: Tensor
) -> None:
    quiet = 0.2 * truth
    quiet[0, :4000] = 0.0
    paths = write_all(tmp_path / "r", quiet + torch.tensor([[0.005], [0.0]]))
    made = leaky(quiet) + torch.tensor([[0.0], [-0.01]])
    texts = found(scored(mapss, write_all(tmp_path / "e", made), paths), "offset")
    assert len(texts) == 2
    assert "r/a.wav' has a constant offset of 0.005 (" in texts[0]
    assert "e/b.wav' has a constant offset of -0.0099 (" in texts[1]
    low = torch.sin(2 * torch.pi * 40 * torch.arange(RATE) / RATE + 0.3)
    given = torch.stack([low, sources(2, 1.0)[1]])
    assert not found(scored(mapss, leaky(given), given), "offset")


def test_another_order_is_told(mapss: MAPSS, truth: Tensor) -> None:
    made = leaky(truth)
    (text,) = found(scored(mapss, made.flip(0), truth), "order")
    assert "'estimate 1' fits 'reference 2' by" in text
    assert "--permute" in text
    assert 'pit="si_sdr"' in text
    assert not found(scored(mapss, made.flip(0), truth, permute=True), "order")
    three = sources(3)
    assert found(scored(mapss, leaky(three)[[0, 2, 1]], three), "order")
    # One that fits better elsewhere, where another one does not, is a matter of quality.
    poor = torch.stack([made[1], made[1] + 0.3 * made[0]])
    assert not found(scored(mapss, poor, truth), "order")
    assert found(scored(mapss, made[1:], truth, attributed=(0,)), "order")


def test_findings_do_not_change_scores(mapss: MAPSS, truth: Tensor) -> None:
    made = leaky(truth).flip(0)
    report, scores = scored(mapss, made, truth), mapss(made, truth)
    assert torch.equal(report.ps[report.active], scores.ps[0][scores.active[0]])


def test_samples_that_were_not_looked_at_do_not_stop_it(truth: Tensor) -> None:
    made = leaky(truth)
    made[0, 100] = torch.nan
    loose = small_mapss(check_finite=False)
    report = scored(loose, made, truth, align="shift")
    assert math.isnan(report.rows[0].ps)

"""What a reader of scores must know about the signals: each case red without its look."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from separations import small_mapss, write, write_all
from torch import Tensor
from waveforms import RATE, leaky, tones

from torch_mapss import MAPSS, Report, evaluate
from torch_mapss.audio import resample, shift

TRUTH = tones()
MADE = leaky(TRUTH)
THREE = tones(3)


def found(report: Report, kind: str) -> list[str]:
    return [finding.text for finding in report.findings if finding.kind == kind]


def scored(mapss: MAPSS, estimates: Any, references: Any = TRUTH, **options: Any) -> Report:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return evaluate(estimates=estimates, references=references, mapss=mapss, **options)


def late(waves: Tensor, milliseconds: float) -> Tensor:
    return shift(waves, -round(milliseconds * RATE / 1000))


def test_plain_separations_are_nothing_to_tell(mapss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = evaluate(estimates=MADE, references=TRUTH, mapss=mapss)
    assert report.findings == ()
    for row in report.rows:
        assert (row.silent, row.muted_frames, row.lag_ms, row.shift_ms) == (False, 0, 0.0, 0.0)
        assert row.estimate_bandwidth == row.reference_bandwidth == RATE / 2


# Arrays: kind, estimates, references, words (None: nothing is told), options

NARROW = resample(resample(TRUTH, RATE, 8000), 8000, RATE)
ONE_WIDE = torch.stack([NARROW[0], TRUTH[1]])
NOISE = torch.randn(TRUTH.shape, generator=torch.Generator().manual_seed(0))
LOW = torch.stack([torch.sin(0.3 + 80 * torch.pi * torch.arange(8000) / RATE), TRUTH[1]])
MIX = TRUTH[0] + 0.4 * TRUTH[1]
ALONE = torch.stack([TRUTH[0], 1e-3 * TRUTH[1]])
TWICE = torch.stack([*THREE[:2], 0.5 * THREE[0]])
GIVEN = torch.stack([*THREE[:2], THREE.sum(0)])  # one source has no file of its own
BOTH, UNEVEN = THREE[1] + THREE[2], 0.6 * THREE[1] + 1.3 * THREE[2]
NAMES = ["vocals", "drums", "bass", "accompaniment"]
EVERY = torch.stack([THREE.sum(0), *THREE])  # the mixture under another name
SUMS = [
    torch.stack([*THREE, combined]) for combined in (BOTH, UNEVEN, BOTH + 0.05 * THREE[0].flip(0))
]
CASES: list[tuple[str, Tensor, Tensor, str | None, dict[str, Any]]] = [
    ("faint", MADE * torch.tensor([[1e-4], [1.0]]), TRUTH, "'estimate 1' lies 8", {}),
    ("rate", TRUTH, TRUTH, None, {}),
    ("band", leaky(NARROW), NARROW, "kHz in any reference", {}),
    ("band", leaky(ONE_WIDE), ONE_WIDE, None, {}),  # only where no reference is wider
    ("lag", late(TRUTH, 40), TRUTH, "40.0 ms late relative to 'reference 1', more than", {}),
    (
        "lag",
        late(TRUTH, -30),
        TRUTH,
        '30.0 ms early relative to|--align (align="shift") removes',
        {},
    ),
    ("lag", late(TRUTH, 15), TRUTH, "15.0 ms late relative to 'reference 1'. Delay", {}),
    ("lag", late(TRUTH, 2), TRUTH, "2.0 ms late", {}),
    ("lag", late(TRUTH, 1), TRUTH, None, {}),
    # Within a frame a lag that the other estimates have not may be a guess.
    ("lag", torch.stack([late(TRUTH, 10)[0], TRUTH[1]]), TRUTH, None, {}),
    ("lag", NOISE, TRUTH, None, {"align": "shift"}),  # of what is unlike
    ("twins", MADE[[0, 0]] * torch.tensor([[1], [-0.3]]), TRUTH, "estimates 'estimate 1' and", {}),
    ("twins", leaky(TWICE), TWICE, "references 'reference 1' and 'reference 3' are the same", {}),
    ("mixture", torch.stack([TRUTH.sum(0), MADE[1]]), TRUTH, "'estimate 1' is the sum of", {}),
    ("mixture", torch.stack([MADE[0], 2 * MIX]), TRUTH, "'estimate 2' is the", {"mixture": MIX}),
    ("mixture", ALONE, ALONE, None, {}),  # a source that is all there is to hear
    ("mixture", leaky(GIVEN), GIVEN, "'reference 3' is the mixture", {"mixture": GIVEN[2]}),
    ("sum", leaky(SUMS[0]), SUMS[0], "is the sum of drums and bass|vocals drums", {"names": NAMES}),
    ("sum", leaky(SUMS[1]), SUMS[1], "'reference 4' is the sum of reference 2 and", {}),
    ("sum", leaky(SUMS[2]), SUMS[2], None, {}),
    ("sum", leaky(EVERY), EVERY, "'reference 1' is the sum of reference 2 and reference 3 and", {}),
    ("same", TRUTH.clone(), TRUTH, "'estimate 1', 'estimate 2': the same as the reference", {}),
    ("same", 0.5 * TRUTH, TRUTH, None, {}),
    ("offset", leaky(LOW), LOW, None, {}),  # a low tone has a mean as well
    ("order", MADE.flip(0), TRUTH, "'estimate 1' fits 'reference 2' 30|--permute|\"si_sdr\"", {}),
    ("order", MADE.flip(0), TRUTH, None, {"permute": True}),
    ("order", leaky(THREE)[[0, 2, 1]], THREE, "'estimate 2' fits 'reference 3'", {}),
    # One that fits better elsewhere, where another one does not, is a matter of quality.
    ("order", torch.stack([MADE[1], MADE[1] + 0.3 * MADE[0]]), TRUTH, None, {}),
    ("order", MADE[1:], TRUTH, "fits 'reference 2'", {"attributed": (0,)}),
]


@pytest.mark.parametrize(("kind", "estimates", "references", "words", "options"), CASES)
def test_faults_of_arrays_are_reported(mapss, kind, estimates, references, words, options):
    told = "; ".join(found(scored(mapss, estimates, references, measures="bleed", **options), kind))
    assert bool(told) == (words is not None)
    for fragment in (words or "").split("|"):
        assert fragment in told


def test_channels_that_cancel_are_named(tmp_path, mapss):
    unlike = torch.randn(2, 8000, generator=torch.Generator().manual_seed(0))
    channels = {
        "good": torch.stack([MADE[0], 0.5 * MADE[0]]),
        "apart": MADE[1] + 0.1 * unlike,
        "silence": torch.stack([MADE[0], -MADE[0]]),
        "residue": torch.stack([MADE[1], -0.99 * MADE[1]]),
    }
    paths = [write(tmp_path / f"{name}.wav", wave) for name, wave in channels.items()]
    truth = write_all(tmp_path / "r", TRUTH)
    assert not found(scored(mapss, paths[:2], truth, measures="bleed"), "channels")
    texts = found(scored(mapss, paths[2:], truth, measures="bleed"), "channels")
    assert "silence.wav': its 2 channels cancel each other; their mean is silence" in texts[0]
    assert "residue.wav': its 2 channels cancel each other; their mean lies 46 dB" in texts[1]


def test_low_rates_are_reported(tmp_path, mapss):
    paths = [write(tmp_path / f"{k}.wav", x, 8000) for k, x in enumerate(tones(rate=8000))]
    report = scored(mapss, paths, paths, measures="bleed")
    (text,) = found(report, "rate")
    assert "sampled at 8000 Hz, below the encoder's 16000 Hz" in text
    assert not found(report, "band")  # once is enough
    assert 3500 < report.rows[0].reference_bandwidth < 5000


@pytest.mark.parametrize("rate", [1000, 3999, 400_000])
def test_absurd_rates_are_refused(tmp_path, mapss, rate):
    paths = [write(tmp_path / f"{k}.wav", wave, rate) for k, wave in enumerate(TRUTH)]
    for samples, options, message in (
        (TRUTH, {"sample_rate": rate}, "sample_rate"),
        (paths, {}, "0.wav'"),
    ):
        with pytest.raises(ValueError, match=f"{message}.* must .*{rate}"):
            evaluate(estimates=samples, references=samples, mapss=mapss, **options)
    with pytest.raises(ValueError, match=f"sample_rate.* must .*{rate}"):
        MAPSS("mel", sample_rate=rate)


def test_constant_offset_is_reported_with_its_size(tmp_path, mapss):
    (quiet := 0.2 * TRUTH)[0, :4000] = 0.0
    paths = write_all(tmp_path / "r", quiet + torch.tensor([[0.005], [0.0]]))
    made = write_all(tmp_path / "e", leaky(quiet) + torch.tensor([[0.0], [-0.01]]))
    texts = found(scored(mapss, made, paths, measures="bleed"), "offset")
    assert len(texts) == 2
    assert "r/a.wav' has a constant offset of 0.005 (" in texts[0]
    assert "e/b.wav' has a constant offset of -0.0099 (" in texts[1]


@pytest.mark.parametrize("level", [0.0, 0.25])  # digital silence, or a constant
def test_silent_estimate_is_reported_and_counted(mapss, level):
    (made := MADE.clone())[1] = level
    with pytest.warns(UserWarning, match="'estimate 2' is silent"):
        report = evaluate(estimates=made, references=TRUTH, mapss=mapss)
    assert [row.silent for row in report.rows] == [False, True]
    assert all(x in report.summary() for x in ("1 is silent", "Warning: 'estimate 2' is silent"))
    assert math.isfinite(report.rows[1].log_pm)


def test_muted_frames_are_counted_and_bounded_means_resist_them(mapss):
    (made := MADE.clone())[0, 3000:5000] = 0.0
    report = scored(mapss, made)
    starts = torch.arange(len(report.times)) * 320
    inside = (starts >= 3000) & (starts + 400 <= 5000) & report.active[0]
    muted, unmuted = report.rows[0], scored(mapss, MADE).rows[0]
    assert muted.muted_frames == int(inside.sum()) > 0
    assert muted.log_pm_compressed > 5 * unmuted.log_pm_compressed
    assert muted.log_pm < 10 * unmuted.log_pm


@pytest.mark.parametrize("delay", [40.0, -30.0])
def test_alignment_removes_a_lag_and_uncovered_samples(mapss, delay):
    delayed = late(TRUTH, delay)
    report, left = scored(mapss, delayed, align="shift", bounds=True), scored(mapss, delayed)
    assert [(row.lag_ms, row.shift_ms) for row in left.rows] == [(delay, 0.0)] * 2
    assert [(row.lag_ms, row.shift_ms) for row in report.rows] == [(delay, delay)] * 2
    assert not found(report, "lag")
    assert f"a lag of {delay:.2f} ms was removed" in report.summary()
    assert report.settings["align"] == "shift"
    starts = torch.arange(len(report.times)) * 320
    gone = round(delay * RATE / 1000)
    reached = (starts >= -gone) & (starts + 400 <= 8000 - gone)
    assert torch.equal(report.active, scored(mapss, TRUTH).active & reached)
    assert report.ps[~report.active].isnan().all()
    # What is left scores as the reference does: the two ends aside, they are one signal.
    assert report.rows[0].pm > 0.5 > left.rows[0].pm
    assert report.rows[0].muted_frames == 0
    assert report.rows[0].ps_tail > 0


def test_lags_that_are_not_removed(mapss):
    truth = torch.randn(2, 3 * RATE, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"align": "shift", "measures": "bleed"}
    report = scored(mapss, late(truth, 700.0), truth, **options)
    assert [row.shift_ms for row in report.rows] == [0.0, 0.0]
    assert all(x in found(report, "lag")[0] for x in ("700.0 ms late", "more than the 500 ms"))
    assert all(math.isnan(row.lag_ms) for row in scored(mapss, NOISE, **options).rows)
    with pytest.raises(ValueError, match=r"align must be .*'warp'"):
        scored(mapss, TRUTH, align="warp")


def test_findings_and_samples_that_were_not_looked_at_do_not_stop_it(mapss):
    report, scores = scored(mapss, MADE.flip(0)), mapss(MADE.flip(0), TRUTH)
    assert torch.equal(report.ps[report.active], scores.ps[0][scores.active[0]])
    (made := MADE.clone())[0, 100] = torch.nan
    report = scored(small_mapss(check_finite=False), made, align="shift")
    assert math.isnan(report.rows[0].ps)


def stereo(left: Tensor, right: Tensor) -> Tensor:
    """(S, 2, T) of two channels."""
    return torch.stack([left, right], 1)


ANOTHER = tones(seed=1)  # the right channel
TWO = stereo(TRUTH, ANOTHER)
CHANNELS = [
    ("dead channel", stereo(TRUTH, 0 * ANOTHER), "channel 2 is silent, but not in its reference: "),
    (
        "inverted channel",
        stereo(TRUTH, -ANOTHER),
        "channel 2 is inverted, but not in its reference",
    ),
    ("channel delay", stereo(TRUTH, late(ANOTHER, 4)), "channel "),  # by 4 ms, or less a period
    (None, stereo(leaky(TRUTH), leaky(ANOTHER)), ""),
    (None, stereo(-TRUTH, -ANOTHER), ""),  # as a whole it is no matter of channels
    (None, stereo(late(TRUTH, 4), late(ANOTHER, 4)), ""),
]


@pytest.mark.parametrize(("kind", "made", "words"), CHANNELS)
def test_faults_of_single_channels_are_reported(tmp_path, mapss, kind, made, words):
    """The mean of the channels, which is scored, hides them."""
    references = [write(tmp_path / f"t{k}.wav", wave) for k, wave in enumerate(TWO)]
    estimates = [write(tmp_path / f"e{k}.wav", wave) for k, wave in enumerate(made)]
    report = scored(mapss, estimates, references, measures="bleed")
    kinds = {finding.kind for finding in report.findings if "channel" in finding.kind}
    assert kinds == ({kind} if kind else set())
    for text in found(report, kind) if kind else ():
        assert text.startswith(words)  # the page shows the beginning of a long remark
        assert "--channels each" in text


@pytest.mark.parametrize(("late_channel", "prompt_channel"), [(1, 2), (2, 1)])
def test_a_late_channel_is_named(tmp_path, mapss, late_channel, prompt_channel):
    """Noise has no period, so that its lag is clear."""
    truth = stereo(NOISE, NOISE.roll(2000, -1))
    made = truth.clone()
    made[:, late_channel - 1] = late(truth[:, late_channel - 1], 4)
    paths = [write_all(tmp_path / name, waves) for name, waves in (("e", made), ("t", truth))]
    texts = found(scored(mapss, *paths, measures="bleed"), "channel delay")
    words = f"channel {late_channel} is 4.0 ms later than channel {prompt_channel}, but not in its"
    assert len(texts) == 2
    assert all(text.startswith(words) for text in texts)


def test_an_absent_target(mapss):
    """No warning of silence where there should be silence; what sounds there is told, with dB."""
    truth = TRUTH * torch.tensor([[0.0], [1.0]])
    silent = torch.stack([torch.zeros(8000), MADE[1]])
    report = scored(mapss, silent, truth, measures="decomposition")
    assert report.findings == ()
    report = scored(mapss, torch.stack([0.5 * truth[1], MADE[1]]), truth, measures="decomposition")
    (text,) = found(report, "absent")
    assert "'reference 1' is silent, the estimate is not (-6 dB relative to the sum" in text
    assert [*report.scores["estimate_level_db"]] == pytest.approx([-6.02, 0.5], abs=0.6)
    assert {finding.kind for finding in report.findings} <= {"absent", "twins"}


def test_findings_name_only_computed_measures(mapss):
    (made := MADE.clone())[1] = 0.0
    for measures, mentions_match in (("decomposition", False), ("match", True)):
        (text,) = found(scored(mapss, made, measures=measures), "silent")
        assert ("log PM" in text) == mentions_match
        # The measures of a call that names none are those of its MAPSS.
        (text,) = found(scored(small_mapss(measures=measures), made), "silent")
        assert ("log PM" in text) == mentions_match
        assert "leaving it out would reward silence" in text

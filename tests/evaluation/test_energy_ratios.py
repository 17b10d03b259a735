"""SI-SDR, SDR, SIR and SAR over the same files: against fast_bss_eval and mir_eval by hand."""

from __future__ import annotations

import math
import warnings
from typing import Any

import fast_bss_eval
import mir_eval.separation
import numpy as np
import pytest
import torch
from separations import small_mapss, write, write_all
from torch import Tensor
from waveforms import leaky, tones

from torch_mapss import compare, evaluate
from torch_mapss.audio import shift, si_sdr
from torch_mapss.evaluation.results import load_results

NAMES = ("sdr", "sir", "sar")
TRUTH = tones(3, 0.6)
NOISE = 0.02 * torch.randn(TRUTH.shape, generator=torch.Generator().manual_seed(0))
MADE = leaky(TRUTH, 0.2) + NOISE


def scored(estimates: Any, references: Any = TRUTH, **settings: Any) -> Any:
    """The table of a report with all four ratios."""
    options = {"mapss": small_mapss(), "measures": ("bss", "bleed"), **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return evaluate(estimates=estimates, references=references, **options).scores


def by_hand(truth: Tensor, made: Tensor) -> dict[str, Any]:
    """What both packages give, and that they agree."""
    waves = truth.double(), made.double()
    fast_ratios = fast_bss_eval.bss_eval_sources(*waves, compute_permutation=False)
    fast = [values.numpy() for values in fast_ratios[:3]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated
        slow_ratios = mir_eval.separation.bss_eval_sources(
            truth.double().numpy(), made.double().numpy(), compute_permutation=False
        )
    np.testing.assert_allclose(fast, slow_ratios[:3], atol=1e-3)
    return dict(zip(NAMES, fast))


def test_all_in_order_and_permuted():
    expected = by_hand(TRUTH, MADE)
    for table, order in (
        (scored(MADE), [0, 1, 2]),
        (scored(MADE[[2, 0, 1]], permute=True), [2, 0, 1]),
        (scored(MADE[[1, 2, 0]], attributed=(1, 2, 0)), [1, 2, 0]),
    ):
        assert [*table["source_index"]] == order
        for name in NAMES:
            np.testing.assert_allclose(table[name], expected[name][order], atol=1e-4)
        values = si_sdr(MADE.double(), TRUTH.double())[order]
        np.testing.assert_allclose(table["si_sdr"], values, atol=1e-5)


def test_the_target_alone_and_missing_estimates():
    """An estimate has the same ratios whether others are there or not."""
    expected = by_hand(TRUTH, MADE)
    for table, kept in (
        (scored(MADE[1:2], attributed=(1,)), [1]),
        (scored([MADE[0], None, MADE[2]]), [0, 2]),
    ):
        for name in NAMES:
            np.testing.assert_allclose(table[name], expected[name][kept], atol=1e-4)


def test_files_at_their_own_rate_and_the_mean_of_their_channels(tmp_path):
    """As somebody reads them by hand, whatever rate the encoder takes."""
    truth = tones(2, 0.6, rate=44_100)
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1))
    made = leaky(truth, 0.1) + 0.01 * noise  # also above what the encoder receives
    stereo = torch.stack([made + 0.1 * noise, made - 0.1 * noise], 1)
    references = [write(tmp_path / f"t{k}.wav", wave, 44_100) for k, wave in enumerate(truth)]
    estimates = [write(tmp_path / f"e{k}.wav", wave, 44_100) for k, wave in enumerate(stereo)]
    table, expected = scored(estimates, references), by_hand(truth, stereo.mean(1))
    for name in NAMES:
        np.testing.assert_allclose(table[name], expected[name], atol=1e-3)
    np.testing.assert_allclose(table["si_sdr"], si_sdr(stereo.mean(1), truth), atol=1e-3)
    low = scored([*estimates[:1], write(tmp_path / "low.wav", tones(2, 0.6)[1])], references)
    assert np.isfinite(low[["si_sdr", *NAMES]]).all(axis=None)  # of two rates: at the encoder's


def test_alignment_and_channels_that_are_scored_each():
    late = shift(MADE, -160)
    table = scored(late, align="shift")
    assert (table["shift_ms"] != 0.0).all()
    lags = [round(16 * lag) for lag in table["shift_ms"]]
    moved = torch.stack([shift(wave, lag) for wave, lag in zip(late, lags)])
    np.testing.assert_allclose(table["si_sdr"], si_sdr(moved.double(), TRUTH.double()), atol=1e-5)
    assert (scored(late)["si_sdr"] < table["si_sdr"]).all()
    two_channels = torch.stack([MADE, leaky(TRUTH, 0.5)], 1)
    table = scored(two_channels, torch.stack([TRUTH, TRUTH], 1), channels="each")
    means = (
        si_sdr(two_channels[:, 0].double(), TRUTH.double()) + si_sdr(two_channels[:, 1], TRUTH)
    ) / 2
    np.testing.assert_allclose(table["si_sdr"], means, atol=1e-4)


def test_silence():
    """A silent reference has no ratio; a silent estimate a low one, not none."""
    truth, made = TRUTH.clone(), MADE.clone()
    truth[2] = 0.0
    made[1] = 0.0
    table = scored(made, truth)
    assert table.loc[2, ["si_sdr", *NAMES]].isna().all()
    assert table.loc[1, "si_sdr"] == table.loc[1, "sdr"] == pytest.approx(-156.5, abs=0.1)
    assert table.loc[1, ["sir", "sar"]].isna().all()
    padded = torch.stack([made[0], MADE[1]])
    assert table.loc[0, "sdr"] == pytest.approx(by_hand(truth[:2], padded)["sdr"][0], abs=1e-4)
    alone = truth * torch.tensor([[1.0], [0.0], [0.0]])  # nothing to interfere
    assert math.isnan(scored(made, alone).loc[0, "sir"])


def test_they_are_columns_like_the_others(tmp_path):
    """By name of a score or of the measure; ranked by compare."""
    for settings, names in (
        ({"measures": "bss"}, ["si_sdr", *NAMES]),
        ({"measures": ("sdr", "clearance")}, ["clearance", "fidelity", "si_sdr", *NAMES]),
        ({"measures": "si_sdr"}, ["si_sdr"]),
        ({"measures": "bleed"}, ["bleed_db", "si_sdr"]),
    ):
        report = evaluate(estimates=MADE, references=TRUTH, mapss=small_mapss(), **settings)
        assert [*report.means()] == names
    paths = write_all(tmp_path, MADE)
    for system, amount in {"good": 0.1, "bad": 0.6}.items():
        made = write_all(tmp_path / system, leaky(TRUTH, amount))
        saved = evaluate(estimates=made, references=paths, encoder="mel", measures="bss")
        saved.save(tmp_path / "out", system=system)
    comparison = compare(load_results(tmp_path / "out"))
    assert comparison.measures == ("si_sdr", *NAMES)


def test_without_the_package_it_is_named_before_anything_is_scored(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fast_bss_eval", None)
    with pytest.raises(ImportError, match=r"measures bss needs fast_bss_eval.*torch_mapss\[bss\]"):
        scored(MADE)

"""Prepared references: joined, saved, loaded, and refused where settings differ."""

from __future__ import annotations

import copy
import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import small_scorers
import torch
from small_scorers import assert_scores_equal
from waveforms import impaired, voices

from torch_mapss import (
    MAPSS,
    DistortionBank,
    MatchLoss,
    ReferenceBank,
)
from torch_mapss.distortions import Distortion
from torch_mapss.distortions.reference_features import scaled_amplitude
from torch_mapss.encoders import MelEncoder

small = functools.partial(small_scorers.small, size=10)


@pytest.fixture(scope="module")
def mapss() -> MAPSS:
    return small()


def test_banks_are_joined_saved_and_loaded(mapss, tmp_path):
    references = voices(3)
    estimates = impaired(references, 0.3)
    banks = [mapss.prepare(references[b]) for b in range(2)]
    banks.append(mapss.prepare(references[2, :, :6000]))
    joined = ReferenceBank.join(banks)
    assert joined.batch == 3
    assert len(joined.groups) == 2
    of_batch = mapss(estimates, joined)
    lone = mapss(estimates, references, lengths=(8000, 8000, 6000))
    assert_scores_equal(of_batch, lone, rtol=1e-5, atol=1e-6)
    assert repr(joined).endswith("encoders: mel)")  # bleed has none
    banks[0].save(tmp_path / "bank.pt")
    reloaded = ReferenceBank.load(tmp_path / "bank.pt")
    assert_scores_equal(
        mapss(estimates[:1], reloaded), mapss(estimates[:1], banks[0]), rtol=0, atol=0
    )
    padded = mapss.prepare(references[1:], (8000, 6000))
    assert padded.nbytes == banks[1].nbytes + banks[2].nbytes  # no padding is kept
    (tmp_path / "other.pt").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="no saved ReferenceBank"):
        ReferenceBank.load(tmp_path / "other.pt")
    with pytest.raises(ValueError, match="other settings"):
        small(seed=0, activity=0.2)(estimates[:1], reloaded)
    for options in ({"highest": 4000}, {"window": 200, "margin": 100}):  # on the same frames
        with pytest.raises(ValueError, match="other settings"):
            small(MelEncoder(**options))(estimates[:1], reloaded)
    with pytest.raises(ValueError, match="exactly the mixtures"):
        mapss(estimates, reloaded)


def clip(waveform, sample_rate, threshold, weights=1.0):
    return (waveform * weights).clamp(min=-threshold, max=threshold)


ONES = torch.ones(8000)
HOLED = ONES.index_fill(0, torch.tensor(2000), 0.0)


def member(scaled=None, lowest_rate=0, **settings) -> Distortion:
    measured = (
        {"threshold": functools.partial(scaled_amplitude, feature="a95", factor=scaled)}
        if scaled
        else {}
    )
    settings |= {} if scaled else {"threshold": settings.get("threshold", 0.1)}
    return Distortion("a", "a", clip, settings, measured=measured, lowest_rate=lowest_rate)


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        (member(), member(threshold=0.2)),
        (member(scaled=0.1), member(scaled=0.9)),
        (member(weights=ONES), member(weights=HOLED)),
        (member(), member(lowest_rate=8000)),
    ],
)
def test_a_bank_of_other_distortions_is_refused(made, refused):
    def scorer(member):
        return small(match_bank=DistortionBank("match", only=("echo",), extra=(member,)))

    references = voices()
    bank = scorer(made).prepare(references)
    assert scorer(made).match_bank == scorer(copy.deepcopy(made)).match_bank
    scorer(copy.deepcopy(made))(references, bank)
    assert scorer(made).match_bank != scorer(refused).match_bank
    with pytest.raises(ValueError, match="other settings"):
        scorer(refused)(references, bank)


def test_a_bank_made_in_inference_mode_serves_in_training(tmp_path):
    references = voices()
    mapss = small()
    with torch.inference_mode():
        bank = mapss.prepare(references.clone())
        bank.save(tmp_path / "bank.pt")
        read = ReferenceBank.load(tmp_path / "bank.pt")
        made = bank.recombined([[0, 0]]), ReferenceBank.join([bank, bank]), read
    for own_bank in (bank, *made):
        estimates = (
            impaired(references, 0.3).expand(own_bank.batch, -1, -1).clone().requires_grad_()
        )
        MatchLoss(mapss)(estimates, own_bank).backward()
        assert estimates.grad.abs().sum() > 0


def test_banks_are_loaded_in_threads(mapss, tmp_path):
    paths = [tmp_path / f"{seed}.pt" for seed in range(4)]
    for seed, path in enumerate(paths):
        mapss.prepare(voices(seed=seed), measures="decomposition").save(path)
    with ThreadPoolExecutor(8) as pool:
        banks = list(pool.map(ReferenceBank.load, paths * 50))
    assert [bank.nbytes for bank in banks] == [banks[0].nbytes] * 200

"""Pieces of long references are distorted as the whole is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from waveforms import RATE, bursts

from torch_mapss.distortions import Distortion, DistortionBank, additive, pitch

FIRST, LAST = round(3.3 * RATE) + 77, round(4.1 * RATE) + 5  # used of the piece


def halve(waveform: Tensor, sample_rate: int, *, factor: float) -> Tensor:
    return factor * waveform


def used_copies(bank: DistortionBank, waves: Tensor, begin: int, end: int) -> Tensor:
    """Copies (S, P, last - first) made of no more than the bank says it needs."""
    before, after = (round(seconds * RATE) for seconds in bank.reach(RATE))
    piece_begin, stop = max(begin - before, 0), min(end + after, waves.shape[-1])
    measured = bank.measure(waves, RATE)
    pieces = bank.chunks(waves[:, piece_begin:stop], RATE, measured=measured, start=piece_begin)
    copies = torch.cat([copies for _, copies, _ in pieces], -2)
    return copies[..., begin - piece_begin : end - piece_begin]


@pytest.fixture(scope="module")
def waves() -> Tensor:
    return bursts(6.0).double()


def errors(bank: DistortionBank, waves: Tensor, begin: int, end: int) -> dict[str, float]:
    """By member, RMS of the difference between piece and whole, in units of the reference's."""
    full = bank(waves, RATE)
    expected = full.waveforms[..., begin:end]
    error = (used_copies(bank, waves, begin, end) - expected).square().mean(-1).sqrt()
    error = error / waves.square().mean(-1, keepdim=True).sqrt()
    return {name: float(e) for name, e in zip(full.names, error.amax(0))}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["separation", "match"])
def test_a_piece_is_distorted_as_the_whole(kind: str, waves: Tensor) -> None:
    bank = DistortionBank(kind)
    assert torch.equal(bank.measure(waves, RATE).mask, bank(waves, RATE).mask)
    actual = errors(bank, waves, FIRST, LAST)
    assert max(actual.values()) < 3e-6, actual


@pytest.mark.parametrize(("begin", "end"), [(0, 4000), (FIRST, LAST), (93_000, 96_000)])
def test_a_piece_of_every_family(begin: int, end: int, waves: Tensor) -> None:
    actual = errors(DistortionBank("match", size=15), waves[:1], begin, end)
    # At the ends of a file its own filters wrap round a little, after 0.2 s of silence.
    assert max(actual.values()) < (3e-6 if begin == FIRST else 5e-5), actual
    if begin == FIRST:  # in float32; a gate opens at a threshold, which rounding can cross
        bank = DistortionBank("match", without=("gate",), size=24)
        assert max(errors(bank, waves[:1].float(), begin, end).values()) < 1e-5


def test_features_in_pieces_equal_the_whole(waves: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = DistortionBank(only=("noise", "pitch"))
    expected = bank.measure(waves, RATE).context
    monkeypatch.setattr(additive, "PIECE", 7000)
    monkeypatch.setattr(pitch, "PIECE", 30_000)
    repeated = bank.measure(waves, RATE).context
    assert set(expected) == set(bank.names())
    for name, value in expected.items():
        torch.testing.assert_close(repeated[name], value, rtol=1e-6, atol=1e-6)


def test_phases_are_carried_on_where_there_is_no_onset() -> None:
    time = torch.arange(14 * RATE, dtype=torch.float64) / RATE
    steady = 0.1 * torch.sin(2 * torch.pi * 441.7 * time)[None]  # one onset, at its start
    bank = DistortionBank(only=("pitch",))
    full = bank(steady, RATE).waveforms
    earlier, final = 12 * RATE, 13 * RATE
    error = used_copies(bank, steady, earlier, final) - full[..., earlier:final]
    assert float(error.abs().max()) < 1e-6
    with pytest.raises(ValueError, match="vocoder_phases"):
        pitch.shift_pitch(steady, RATE, semitones=2.0, start=5)


def test_pieces_are_refused_where_they_cannot_be_like_the_whole(waves: Tensor) -> None:
    custom = DistortionBank(
        only=("echo",), extra=(Distortion("mine", "own", halve, {"factor": 0.5}),)
    )
    with pytest.raises(ValueError, match=r"'mine'.*reach=.*segment=None"):
        custom.measure(waves, RATE)
    with pytest.raises(ValueError, match=r"bank.measure"):
        next(DistortionBank().chunks(waves, RATE, start=100))
    stated = Distortion("mine", "own", halve, {"factor": 0.5}, reach=(0.0, 0.0))
    bank = DistortionBank(only=("echo",), extra=(stated,))
    assert bank.reach(RATE) == pytest.approx((0.04, 0.02))
    actual = used_copies(bank, waves, FIRST, LAST)[:, -1]
    torch.testing.assert_close(actual, 0.5 * waves[:, FIRST:LAST])

"""Excerpts: where they lie, and that what they say is of the whole signal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from waveforms import RATE, bursts, impaired

import torch_mapss
from torch_mapss import MAPSS

near = torch.testing.assert_close
OPTIONS = {"sample_rate": RATE, "encoder": "mel", "measures": ("decomposition", "bleed")}


def seldom(seconds: float = 16.0, begin: float = 7.0, end: float = 10.0) -> Tensor:
    """Sources that play for three seconds, and dither."""
    waves = bursts(seconds)
    time = torch.arange(waves.shape[-1]) / RATE
    dither = 1e-5 * torch.randn(waves.shape, generator=torch.Generator().manual_seed(1))
    return torch.where((time >= begin) & (time < end), waves, dither)


def test_frames_of_excerpts_are_those_of_the_whole():
    """Levels and activity are of the whole, also of an excerpt that is softer than the rest."""
    references = bursts(6.0)
    references[:, 32_000:64_000] *= 0.2
    estimates = impaired(references)
    mapss = MAPSS("mel", measures=("decomposition", "bleed"))
    complete = mapss(estimates, references)
    bank = mapss.prepare(references, excerpts=[(0, 16_000), (40_000, 56_000)])
    excerpted = mapss(estimates, bank)
    inside = (excerpted.times * RATE + 200 <= 16_000) | (
        (excerpted.times * RATE - 200 >= 40_000) & (excerpted.times * RATE + 200 <= 56_000)
    )
    for field in ("clearance", "fidelity"):
        defined = complete.defined(field) & inside
        assert torch.equal(excerpted.defined(field), defined)
        # Copies are levelled by what is heard of them, which moves single frames a little.
        near(excerpted.of(field)[defined], complete.of(field)[defined], rtol=0, atol=0.05)
        near(
            excerpted.of(field)[defined].mean(),
            complete.of(field)[defined].mean(),
            rtol=0,
            atol=0.01,
        )
    near(excerpted.bleed_db, complete.bleed_db, equal_nan=True)


@pytest.mark.parametrize(
    "excerpts",
    [
        [],
        [(0, 100_001)],
        [(9000, 8000)],
        [(0, 9000), (8000, 16_000)],
        [(-1, 9000)],
        [(5, 5)],
        [(0, 8000, 16_000)],
        [(0, 8000), (9000,)],
        [0, 8000],
        [(0.5, 8000)],
    ],
)
def test_excerpts_lie_in_the_signal_one_after_another(excerpts):
    with pytest.raises((ValueError, TypeError), match="excerpts must be"):
        MAPSS("mel").prepare(bursts(1.0), excerpts=excerpts)


def test_excerpts_are_pairs_of_any_whole_numbers():
    edges = torch.tensor([[0, 8000], [8000, 16_000]])
    mapss = MAPSS("mel", measures="decomposition")
    banks = [mapss.prepare(bursts(1.0), excerpts=pairs) for pairs in (edges, edges.numpy())]
    expected = mapss.prepare(bursts(1.0), excerpts=[(0, 8000), (8000.0, 16_000)])
    for bank in banks:
        assert torch.equal(bank.groups[0].scored, expected.groups[0].scored)


@pytest.mark.parametrize("draw", ["a", "b"])
def test_excerpts_stay_within_active_parts(draw):
    references = seldom()
    estimates = impaired(references)
    common = {"estimates": estimates, "references": references, **OPTIONS}
    report = torch_mapss.evaluate(**common, excerpts=6, excerpt_seconds=1.0, mixture_id=draw)
    (note,) = [note for note in report.notes if note.startswith("excerpts scored")]
    assert "instead of 6: the active passages hold no more" in note
    begins_and_ends = note.split(": ", 1)[1].split(" (")[0].split(", ")
    assert 2 <= len(begins_and_ends) <= 4
    for text in begins_and_ends:
        begin, end = map(float, text.split("-"))
        assert (begin + end) / 2 + 0.5 >= 7.0
        assert begin < 10.0
    complete = torch_mapss.evaluate(**common).scores
    scores = report.scores
    for name in ("clearance", "fidelity"):  # of dither the fidelity would be half as much
        assert ((scores[name] - complete[name]).abs() < 4 * scores[f"{name}_se"] + 0.05).all()
    assert scores["bleed_db"].tolist() == pytest.approx(
        complete["bleed_db"].tolist(), abs=0.01, nan_ok=True
    )
    assert "bleed_db_se" not in scores


@pytest.mark.parametrize("channels", ["mean", "each"])
@pytest.mark.parametrize("options", [{"excerpts": 3}, {"excerpts": 1, "excerpt_seconds": 1.0}])
def test_a_single_excerpt_has_no_standard_error(options, channels):
    """It is drawn alone, or the mixture is so short that excerpts would cover it."""
    references = bursts(2.0)
    estimates = impaired(references)
    if channels == "each":
        references, estimates = (
            waves.unsqueeze(1).expand(-1, 2, -1) for waves in (references, estimates)
        )
    report = torch_mapss.evaluate(
        estimates=estimates,
        references=references,
        sample_rate=RATE,
        encoder="mel",
        bank_size=10,
        channels=channels,
        **options,
    )
    scores = report.scores
    for name in ("clearance", "fidelity", "ps", "pm"):
        assert scores[name].notna().all()
        assert scores[f"{name}_se"].isna().all()
    assert "bleed_db_se" not in scores
    assert "std. error" in str(report)


def test_frames_are_drawn_anew_for_every_mixture_and_alike_for_its_systems():
    references = bursts(1.5)
    drawn = []
    for key, leakage in (("m0", 0.1), ("m0", 0.4), ("m1", 0.1)):
        report = torch_mapss.evaluate(
            estimates=impaired(references, leakage),
            references=references,
            mapss=MAPSS("mel", measures="decomposition"),
            measures="decomposition",
            mixture_id=key,
            sample_frames=6,
            device="cpu",
        )
        drawn.append(~report.frames["clearance"].isnan())
    assert int(drawn[0].any(0).sum()) == 6
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_numbers_of_a_table_count_excerpts_and_frames():
    """Tables give whole numbers as floats."""
    references = bursts(4.0)
    common = {"estimates": impaired(references), "references": references, **OPTIONS}
    counts = {"excerpts": 2, "excerpt_seconds": 1, "sample_frames": 20}
    as_floats = {name: float(count) for name, count in counts.items()}
    whole, floats = (torch_mapss.evaluate(**common, **how) for how in (counts, as_floats))
    assert whole.scores.equals(floats.scores)
    assert whole.settings == floats.settings

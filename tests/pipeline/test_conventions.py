"""Leakage members and the largest dimension, from waveforms on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, ReferenceBank

FAMILIES = ("echo", "tone", "comb", "leakage")
SMALL = DistortionBank("separation", size=6)


def voices(batch: int = 2, sources: int = 2, samples: int = 4000, seed: int = 0) -> Tensor:
    """Noise of several colours, so that sources differ."""
    generator = torch.Generator().manual_seed(seed)
    waves = torch.randn(batch, sources, samples, generator=generator)
    return torch.stack(
        [w if i % 2 else w.cumsum(-1) * 0.1 for i, w in enumerate(waves.unbind(1))], 1
    )


def scorer(convention: str = "paper", leakage: int = 4, **options: object) -> MAPSS:
    bank = DistortionBank("match", only=FAMILIES[: 4 if leakage else 3], leakage=leakage)
    return MAPSS("mel", convention=convention, separation_bank=SMALL, match_bank=bank, **options)


def leaking(references: Tensor, amount: float = 0.3) -> Tensor:
    return references + amount * references.roll(1, 1)


def assert_same(scores, whole, item: int, frames: int) -> None:
    for name in ("ps", "pm", "log_pm"):
        one, other = getattr(scores, name), getattr(whole, name)
        torch.testing.assert_close(one[0], other[item, :, :frames], rtol=1e-3, atol=1e-3)


def test_leakage_members_raise_pm_under_leakage_and_leave_ps_alone():
    references = voices()
    plain, with_members = scorer(leakage=0), scorer(leakage=7)
    estimates = leaking(references, 0.1)
    few, many = (m(estimates, references).utterance() for m in (plain, with_members))
    assert (many.pm > few.pm + 0.1).all()
    torch.testing.assert_close(many.ps, few.ps, rtol=0, atol=0)
    perfect = with_members(references, references).utterance()
    assert (perfect.pm > 0.99).all()


def with_each_alone(alone: int) -> MAPSS:
    bank = DistortionBank("match", only=FAMILIES, leakage=4, leakage_alone=alone)
    return MAPSS("mel", separation_bank=SMALL, match_bank=bank)


def test_members_of_each_other_source_alone():
    references = voices()
    scores = with_each_alone(0)(leaking(references), references)
    same = with_each_alone(2)(leaking(references), references)
    torch.testing.assert_close(same.log_pm, scores.log_pm)  # of two sources they are not there
    references = voices(1, 3)
    estimates = references + 0.5 * references[:, [1, 2, 0]]  # one other leaks
    few, many = (with_each_alone(a)(estimates, references).utterance() for a in (0, 2))
    assert (many.log_pm > few.log_pm + 2.0).all()
    order = [2, 0, 1]
    turned = with_each_alone(2)(estimates[:, order], references[:, order]).utterance()
    torch.testing.assert_close(turned.log_pm, many.log_pm[:, order], rtol=1e-5, atol=1e-6)


def test_items_of_several_lengths_score_as_alone():
    mapss = scorer()
    references = voices(3, 3)
    lengths = torch.tensor([4000, 2500, 4000])
    references[1, :, 2500:] = 7.0  # padding may hold anything
    estimates = leaking(references)
    whole = mapss(estimates, references, lengths=lengths)
    for item, length in enumerate(lengths.tolist()):
        part = slice(item, item + 1)
        alone = mapss(estimates[part, :, :length], references[part, :, :length])
        assert_same(alone, whole, item, alone.ps.shape[-1])
    target = mapss(estimates[:, 1:2], references, attributed=(1,), lengths=lengths)
    assert target.pm.shape[1] == 1
    assert target.match_dimension.shape == target.pm[:, 0].shape


def test_sources_prepared_apart_still_get_their_whole_mixture():
    """A small budget makes the copies of one source at a time."""
    references = voices(2, 3, samples=12000)
    estimates = leaking(references)
    whole, parts = (scorer(memory=m)(estimates, references, frames=6) for m in ("1GiB", "16MiB"))
    torch.testing.assert_close(parts.pm, whole.pm, rtol=1e-3, atol=1e-4)


def test_silent_other_sources_leave_their_slots_masked():
    mapss = scorer()
    references = voices(1, 3)
    references[0, 2] = 0.0
    two = mapss(leaking(references[:, :2]), references[:, :2])
    three = mapss(leaking(references[:, :2]), references, attributed=(0, 1))
    torch.testing.assert_close(three.pm, two.pm, rtol=1e-4, atol=1e-4)
    alone = references.clone()
    alone[0, 1] = 0.0
    with pytest.warns(UserWarning, match="no frame in which two sources"):
        (group,) = mapss.prepare(alone).groups
    leaky = 4
    count = group.match.mask.sum(-1)[0]
    # The only source that sounds has no leakage members; the silent ones have its.
    assert (count[1:] - count[0] >= leaky).all()


def test_banks_with_leakage_members_are_not_recombined(tmp_path):
    mapss = scorer()
    bank = mapss.prepare(voices(3))
    assert bank.mixes
    for given in (bank, ReferenceBank.join([bank, bank])):
        with pytest.raises(ValueError, match="cannot be recombined"):
            given.recombined([[0, 1]])
    picked = bank.recombined([[2, 2], [0, 0]])
    estimates = leaking(voices(3))
    torch.testing.assert_close(
        mapss(estimates[[2, 0]], picked).pm, mapss(estimates, bank).pm[[2, 0]]
    )
    bank.save(tmp_path / "bank.pt")
    assert ReferenceBank.load(tmp_path / "bank.pt").mixes
    plain = scorer(leakage=0).prepare(voices(3))
    assert not plain.mixes
    plain.recombined([[0, 1]])
    with pytest.raises(ValueError, match="other settings"):
        scorer(leakage=0)(estimates, bank)


def test_leakage_of_the_default_bank():
    mapss = MAPSS("mel", leakage=7)
    assert mapss.match_bank == DistortionBank("match", leakage=7)
    assert mapss.describe()["match_bank"]["families"]["leakage"] == 7
    assert mapss.key != MAPSS("mel").key
    with pytest.raises(ValueError, match="leakage=7"):
        MAPSS("mel", leakage=7, match_bank=DistortionBank("match", size=9))


def test_dimensions_are_told_and_capped():
    references = voices()
    references[1, 1, :2000] = 0.0  # frames with one active source
    estimates = leaking(references)
    scores = scorer()(estimates, references)
    for dimension in (scores.separation_dimension, scores.match_dimension):
        assert dimension.shape == (2, scores.ps.shape[-1])
        assert dimension.dtype == torch.int64
        assert ((dimension > 0) == scores.active.any(1)).all()
    capped = scorer(max_dimension=5)(estimates, references)
    assert capped.match_dimension.max() == 5
    assert capped.separation_dimension.max() == 5
    assert scores.match_dimension.max() > 5
    alone = scorer()(estimates, references, measures="match")
    assert (alone.separation_dimension == 0).all()

"""Cost that stays bounded without changing a score; times are measured by the benchmarks.

Weights kept once and released: test_edge_encoders. States of metrics: test_edge_states.
"""

from __future__ import annotations

import torch
from edge import MEMBERS, Stub, leaky, scores_of, small, voices
from torchmetrics import MetricCollection

from torch_mapss import PerceptualMatch, PerceptualSeparation, SeparationLoss, audio

near = torch.testing.assert_close


def test_a_subset_of_frames_bounds_the_cost(mapss):
    references = voices(2)
    scores = mapss(leaky(references), references, frames=7)
    assert int(scores.active.any(1).sum()) == 7
    full = mapss(leaky(references), references)
    chosen = scores.active
    near(scores.ps[chosen], full.ps[chosen])
    assert SeparationLoss(mapss, frames=7)(leaky(references), references).isfinite()


def test_chunks_do_not_change_scores():
    references = voices(seconds=4.0)
    estimates = leaky(references)
    mapss = small()
    whole = mapss(estimates, references)
    parts = small(memory="16MiB")
    parts.encoder.memory_budget = 2**16
    cut = parts(estimates, references)
    assert torch.equal(cut.active, whole.active)
    near(cut.ps, whole.ps, rtol=0, atol=1e-3)
    near(cut.pm, whole.pm, rtol=0, atol=1e-3)


def test_loudness_is_batched_and_differentiable():
    waves = voices(20, 7, seconds=0.5).reshape(140, -1).requires_grad_()
    together = audio.normalize_loudness(waves, 16000)
    alone = torch.stack([audio.normalize_loudness(wave, 16000) for wave in waves[:3]])
    near(together[:3], alone)
    (slope,) = torch.autograd.grad(together.square().sum(), waves)
    assert slope.isfinite().all()


def test_a_batch_is_encoded_in_one_go():
    references = voices(4, seconds=0.25)
    counts = []
    for batches in ([references], references.split(1)):
        stub = Stub()
        mapss = small(stub)
        for batch in batches:
            scores_of(mapss, leaky(batch), batch)
        counts.append((stub.calls, stub.waveforms))
    assert counts[0][1] == counts[1][1]
    assert 4 * counts[0][0] == counts[1][0]


def test_both_measures_of_a_batch_encode_it_once():
    references = voices(2)
    estimates = leaky(references)
    counts = []
    for joint in (True, False):
        stub = Stub()
        mapss = small(stub)
        if joint:
            MetricCollection([PerceptualSeparation(mapss), PerceptualMatch(mapss)]).update(
                estimates, references
            )
        else:
            mapss(estimates, references, measures="separation")
            mapss(estimates, references, measures="match")
        counts.append(stub.waveforms)
    signals = 2 * 2
    assert counts == [signals * (2 + 2 * MEMBERS), signals * (4 + 2 * MEMBERS)]
    stub = Stub()
    small(stub)(estimates, references)
    assert stub.waveforms == counts[0]

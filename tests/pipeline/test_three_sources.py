"""Three and more sources: the sum of the others, at the levels of the mixture, and their order."""

from __future__ import annotations

import numpy as np
import oracle_decomposition as oracle
import pytest
import torch
from torch import Tensor
from waveforms import RATE, impaired, voices

from torch_mapss import MAPSS, DistortionBank, audio
from torch_mapss.audio.loudness import at_loudness, passing_blocks

near = torch.testing.assert_close
LEVELS = torch.tensor([1.0, 0.5, 0.25])  # of the sources in the mixture


def mixture(samples: int = 9600) -> tuple[Tensor, Tensor]:
    """References (3, T) at the levels of their mixture, and estimates."""
    references = LEVELS.unsqueeze(-1) * voices(1, 3, samples)[0]
    return references, impaired(references, 0.4)


def test_the_sum_of_the_others_is_that_of_the_mixture():
    """Against the oracle, with sums made in NumPy of the references as they are handed in."""
    references, estimates = mixture()
    mapss = MAPSS("mel", measures="decomposition")
    bank = mapss.prepare(references)
    scores = mapss(estimates, bank)
    clips, encoded = bank.groups[0], bank.groups[0].encoded["decomposition"]
    gates = passing_blocks(references, RATE, -23.0)
    outputs = mapss.decomposition_encoder(at_loudness(estimates, RATE, -23.0, gates=gates))
    waves = references.double().numpy()
    sums = np.stack([np.delete(waves, own, 0).sum(0) for own in range(3)])
    levelled = audio.normalize_loudness(torch.from_numpy(sums), RATE)
    others = mapss.decomposition_encoder(levelled).numpy()
    for frame in clips.scored[:: max(1, len(clips.scored) // 6), 1].tolist():
        for own in range(3):
            expected = oracle.pair(
                outputs[own, frame].double().numpy(),
                encoded.references[0, :, frame].double().numpy(),
                encoded.distortions[0, :, :, frame].double().numpy(),
                own,
                active=clips.active[0, :, frame].numpy(),
                mask=None if encoded.mask is None else encoded.mask[0].numpy(),
                others=others[:, frame],
            )
            for name in ("clearance", "fidelity"):
                value = float(getattr(scores, name)[0, own, frame])
                is_defined = bool(scores.defined(name)[0, own, frame])
                assert is_defined == np.isfinite(getattr(expected, name))
                assert value == pytest.approx(
                    getattr(expected, name) if is_defined else 0, abs=1e-4
                )


def test_the_level_of_one_reference_changes_the_sums_that_it_is_in():
    references, _ = mixture()
    estimates = references + 0.7 * (references.sum(0) - references)
    mapss = MAPSS("mel", measures="decomposition")
    clearance = mapss(estimates, references).clearance[0]
    softer = references * torch.tensor([[1.0], [1.0], [0.1]])
    scaled = mapss(estimates, softer).clearance[0]
    near(scaled[2], clearance[2], rtol=0, atol=1e-4)  # its own sum is of the two others
    assert (scaled[:2] - clearance[:2]).abs().amax(-1).min() > 0.02
    near(mapss(estimates, 0.1 * references).clearance[0], clearance, rtol=0, atol=1e-4)
    # With two sources there is no sum, and levels are free.
    pair = mapss(estimates[:2], references[:2]).clearance
    other_levels = references[:2] * torch.tensor([[1.0], [0.1]])
    near(mapss(estimates[:2], other_levels).clearance, pair, rtol=0, atol=1e-4)


def reversed_scores(mapss: MAPSS, name: str) -> tuple[Tensor, Tensor]:
    """Scores (3, F) of the sources in their order, and in the reverse one, put back."""
    references, estimates = mixture()
    scores = getattr(mapss(estimates, references), name)[0]
    reverse = getattr(mapss(estimates.flip(0), references.flip(0)), name)[0]
    return scores, reverse.flip(0)


DRAWN = ("noise", "reverb")  # families of distortions that draw noise, by the place of a source


@pytest.mark.parametrize(
    ("name", "largest"), [("clearance", 0.02), ("fidelity", 0.02), ("ps", 0.2), ("log_pm", None)]
)
def test_another_order_of_sources_draws_other_noise_and_changes_nothing_else(name, largest):
    scores, reverse = reversed_scores(MAPSS("mel"), name)
    difference = float((scores - reverse).abs().max())
    # log PM is unbounded: of frames far outside of their cluster it moves by hundreds.
    assert 1e-3 < difference < (largest or torch.inf)
    banks = {
        f"{kind}_bank": DistortionBank(kind, without=DRAWN) for kind in ("separation", "match")
    }
    near(*reversed_scores(MAPSS("mel", **banks), name), rtol=1e-3, atol=1e-4)

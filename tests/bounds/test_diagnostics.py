"""Diagnostics of the assumptions behind the bounds."""

from __future__ import annotations

import math

import numpy as np
import oracle
import oracle_bounds
import pytest
import scipy.stats
import torch
from clouds import clouds

from torch_mapss.bounds import diagnostics
from torch_mapss.bounds.bootstrap import bootstrap_separation
from torch_mapss.core.diffusion_map import embed
from torch_mapss.core.points import Points
from torch_mapss.core.settings import MapSettings


def test_gamma_test_is_scipys_kolmogorov_smirnov() -> None:
    outputs, references, distortions = clouds(3, sources=2, distortions=17, seed=1)
    mask = torch.ones(3, 2, 17, dtype=torch.bool)
    mask[1, 0, 4:7] = False
    tests = diagnostics.gamma_fit_test(outputs, references, distortions, mask=mask)
    for f in range(3):
        points = (x[f].numpy() for x in (outputs, references, distortions))
        frame = oracle.embed_frame(*points, mask=mask[f].numpy())
        assert frame is not None
        for o in range(2):
            fit = oracle_bounds.gamma_fit(frame, o, "paper")
            k, theta = oracle.gamma_moments(fit.g)
            expected = scipy.stats.kstest(fit.g, scipy.stats.gamma(k, scale=theta).cdf)
            statistic, p_value, *parameters = (x[f, o].item() for x in tests)
            assert [statistic, *parameters] == pytest.approx([expected.statistic, k, theta], 1e-8)
            assert p_value == pytest.approx(expected.pvalue, abs=0.03)


def test_kolmogorov_tail_is_scipys() -> None:
    statistic = torch.linspace(0.0, 0.5, 101, dtype=torch.float64)
    for n in (10, 70, 1000):
        probability = diagnostics.kolmogorov_tail(statistic, torch.tensor(n))
        limit = scipy.stats.kstwobign.sf((math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * statistic)
        np.testing.assert_allclose(probability.numpy(), limit, atol=1e-5)
        exact = scipy.stats.kstwo.sf(statistic.numpy(), n)
        np.testing.assert_allclose(probability.numpy(), exact, atol=0.03)


def test_a_bad_fit_is_found() -> None:
    """Distortions of two strengths, far apart: their squared distances are no Gamma."""
    outputs, references, distortions = clouds(sources=2, distortions=60, features=6, seed=2)
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(2, 60, 6, generator=generator, dtype=torch.float64)
    noise = noise / noise.norm(dim=-1, keepdim=True)
    strength = torch.where(torch.arange(60) % 2 == 0, 0.01, 0.6)[:, None]
    distortions[0] = references[0] + (strength * noise)[0]
    fit = diagnostics.gamma_fit_test(outputs, references, distortions, energy=0.9)
    assert fit.p_value[0] < 1e-3
    assert fit.p_value[1] > 0.05
    collapsed = distortions.clone()
    collapsed[1] = references[1]
    fit = diagnostics.gamma_fit_test(outputs, references, collapsed)
    assert (fit.statistic[1], fit.p_value[1]) == (0.0, 1.0)


def test_bank_correlation_agrees_with_the_oracle() -> None:
    outputs, references, distortions = clouds(2, sources=3, distortions=20, seed=4)
    distortions = distortions.cumsum(-2) / torch.arange(1, 21)[:, None].sqrt()
    active = torch.ones(2, 3, dtype=torch.bool)
    active[1, 2] = False
    totals, shares = diagnostics.bank_correlation(outputs, references, distortions, active=active)
    for f in range(2):
        points = (x[f].numpy() for x in (outputs, references, distortions))
        frame = oracle.embed_frame(*points, active=active[f].numpy())
        assert frame is not None
        for j in frame.sources:
            cluster = frame.map.retained[frame.cluster_rows(j)]
            share = oracle_bounds.bartlett_sample_size(cluster) / len(cluster)
            assert shares[f, j].item() == pytest.approx(min(share, 1.0), rel=1e-8)
            total = (1.0 / share - 1.0) / 2.0
            assert totals[f, j].item() == pytest.approx(total, abs=1e-8)
    assert (totals[1, 2], shares[1, 2]) == (0.0, 1.0)


def test_errors_of_ps_go_together_and_those_of_pm_do_not() -> None:
    points = clouds(20, sources=2, distortions=20, spread=0.8, seed=7)
    mean_ps, matrix_ps = diagnostics.source_correlation(*points, draws=300)
    mean_pm, matrix_pm = diagnostics.source_correlation(*points, measure="match", draws=300)
    for mean, matrix in ((mean_ps, matrix_ps), (mean_pm, matrix_pm)):
        torch.testing.assert_close(matrix.diagonal(), torch.ones(2, dtype=torch.float64))
        torch.testing.assert_close(mean, matrix[0, 1])
    assert abs(mean_ps) > 0.2
    assert abs(mean_pm) < 0.1
    with pytest.raises(ValueError, match="at least 2 outputs"):
        diagnostics.source_correlation(points[0][:, :1], *points[1:], attributed=(0,))
    with pytest.raises(ValueError, match="'match'"):
        diagnostics.source_correlation(*points, measure="ps")


def test_source_correlation_is_numpys_of_the_centred_errors() -> None:
    points = clouds(3, sources=3, seed=6)
    mean, matrix = diagnostics.source_correlation(*points, draws=40)
    record = Points(*points, (0, 1, 2))
    maps = embed(record, MapSettings())
    _, draws = bootstrap_separation(maps, record, MapSettings(), 40, 0)  # (draws, F, S')
    errors = (draws - draws.mean(0)).permute(2, 1, 0).reshape(3, -1)
    expected = torch.from_numpy(np.corrcoef(errors.numpy()))
    torch.testing.assert_close(matrix, expected, rtol=1e-6, atol=1e-6)
    off = ~torch.eye(3, dtype=torch.bool)
    torch.testing.assert_close(mean, expected[off].mean(), rtol=1e-6, atol=1e-6)

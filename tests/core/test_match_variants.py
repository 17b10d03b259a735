"""The mathematics of the benchmarks of PM's conformal convention."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def variants() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("match_variants")


@pytest.fixture(scope="module")
def page(variants: ModuleType) -> ModuleType:
    return importlib.import_module("conformal_page")


def points(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Deviations of which the first coordinates vary most."""
    return np.random.default_rng(seed).normal(size=(n, d)) / np.arange(1, d + 1)


def sizes(n: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(n, dtype=torch.float64), torch.tensor(d, dtype=torch.float64)


def sum_over_pairs(s: np.ndarray) -> float:
    return sum(s[i, j] * s[j, i] for i in range(len(s)) for j in range(len(s)))


@pytest.mark.parametrize(("n", "d"), [(71, 2), (71, 20), (9, 7), (5, 30)])
def test_the_oas_weight_is_the_limit_of_its_recursion(variants, n, d):
    """Chen et al. (2010) iterate the best weight for Gaussians on their own estimate.

    In it the traces of the unknown Σ² and Σ are those of Σ̂S and Σ̂; the weight is the limit.
    """
    x = points(n, d)
    s = x.T @ x / n
    sphere = np.trace(s) / d * np.eye(d)
    w = 0.9
    for _ in range(20_000):
        estimate = (1 - w) * s + w * sphere
        product = np.trace(estimate @ s)
        trace = np.trace(estimate) ** 2
        above = (1 - 2 / d) * product + trace
        w = min(above / ((n + 1 - 2 / d) * product + (1 - n / d) * trace), 1.0)
    ours = variants.oas_weight(torch.from_numpy(s), *sizes(n, d))
    assert float(ours) == pytest.approx(w, rel=1e-6)


def test_the_oas_weight_in_closed_form(variants):
    x = points(12, 4, seed=3)
    s = x.T @ x / 12
    squares, trace = sum_over_pairs(s), sum(s[i, i] for i in range(4)) ** 2
    w = ((1 - 2 / 4) * squares + trace) / ((12 + 1 - 2 / 4) * (squares - trace / 4))
    ours = variants.oas_weight(torch.from_numpy(s), *sizes(12, 4))
    assert 0.0 < w < 1.0
    assert float(ours) == pytest.approx(w, rel=1e-12)


def test_the_oas_weight_of_a_sphere_is_one(variants):
    found = variants.oas_weight(3.0 * torch.eye(5).double(), *sizes(9, 5))
    assert float(found) == 1.0


@pytest.mark.parametrize("name", ["share", "oas"])
def test_r_is_the_distance_with_the_point_taken_out(variants, name):
    x = points(10, 6, seed=1)
    ridge = variants.share(0.02) if name == "share" else variants.oas
    given = variants.Cluster(
        torch.from_numpy(x), torch.ones(9, dtype=torch.bool), torch.tensor(9), torch.tensor(6)
    )
    found = variants.distances(given, ridge).numpy()
    s = x.T @ x / 10
    a, b = (float(v) for v in ridge(torch.from_numpy(s), *sizes(10, 6)))
    for row, r in zip(x, found, strict=True):
        without = a * (s - np.outer(row, row) / 10) + b * np.eye(6)
        assert r == pytest.approx(row @ np.linalg.solve(without, row), rel=1e-10)


def test_the_variant_of_the_package_is_the_package_on_all_laws(variants):
    generator = torch.Generator().manual_seed(0)
    for kind in variants.KINDS:
        drawn = variants.exchangeable(kind, 3, 20, 15, generator)
        layout, settings = variants.layout(20), variants.Settings()
        values = variants.all_scores(variants.retained(drawn), layout, settings)
        assert variants.named(values).keys() == set(variants.NAMES)
        with pytest.raises(SystemExit, match="differs"):
            variants.named([*values[:-1], values[-1] - 1e-3])


def test_rows_of_a_table_are_replaced_by_their_key_and_others_stay(page, tmp_path):
    path, header = tmp_path / "page.md", ["a", "b", "value"]

    def written(rows: list[list[str]], columns: list[str] = header) -> list[str]:
        found = page.merged_table("s", columns, rows, 2, path)
        path.write_text(f"# Page\n\n<!-- s -->\n\nText | of it\n\n{found}\n\nMore.\n<!-- /s -->\n")
        return found.splitlines()[2:]

    assert written([["x", "1", ""], ["y", "1", "2"]]) == ["| x | 1 |  |", "| y | 1 | 2 |"]
    merged = written([["z", "1", "3"], ["x", "1", "9"]])
    assert merged == ["| x | 1 | 9 |", "| y | 1 | 2 |", "| z | 1 | 3 |"]
    assert written([["x", "1"]], ["a", "b"]) == ["| x | 1 |"]  # other columns: a new table


def test_intervals_over_tracks_have_the_width_of_the_standard_error(variants):
    rated = importlib.import_module("rated_match")
    values = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.rand(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, low, high = rated.interval(values, weights)
    known = float(np.average(values, weights=weights))
    residuals = (weights * (values - known)).numpy()
    error = np.sqrt((residuals**2).sum()) / float(weights.sum())  # of a ratio of sums
    assert mean == pytest.approx(known, rel=1e-12)
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert (high + low) / 2 == pytest.approx(known, abs=0.2 * error)


def test_a_star_marks_a_change_that_all_tracks_share(variants):
    rated = importlib.import_module("rated_match")
    each = torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not rated.mean_over_tracks(each).endswith("*")
    assert not rated.mean_over_tracks(each, each).endswith("*")
    assert rated.mean_over_tracks(each + 0.1, each).endswith("*")
    mixed = torch.tensor([0.1, -0.1, 0.1, -0.1, 0.1, -0.1])
    assert not rated.mean_over_tracks(each + mixed, each).endswith("*")


def test_sections_of_the_page_come_in_order_below_the_reading(page, tmp_path):
    path = tmp_path / "page.md"
    page.write("slopes", "Of slopes.", path)
    page.write("rated-a", "Of ratings.", path)
    path.write_text(path.read_text().replace("**Reading.**", "An old reading."))
    page.write("calibration", "Of laws.", path)
    page.write("rated-a", "Other ratings.", path)
    text = path.read_text()
    assert text.startswith(page.TITLE)
    assert "old reading" not in text
    places = [text.index(x) for x in ("Of laws.", "Other ratings.", "Of slopes.")]
    assert places == sorted(places)
    assert "Of ratings." not in text

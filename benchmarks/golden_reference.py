"""Golden numbers of the reference implementation (PyPI ``mapss-measures`` 1.1.2).

Run once, with the interpreter of an environment where that package is installed::

    python -m venv ref && ref/bin/pip install mapss-measures==1.1.2
    OMP_NUM_THREADS=1 ref/bin/python benchmarks/golden_reference.py tests/golden

It imports only NumPy, torch and ``mapss``. Every case is a frame of random embeddings that NumPy's
``default_rng`` regenerates from the seed in ``CASES`` (``embeddings`` below; the tests import this
file for it), so only the numbers computed by the package are stored, as ``golden_float32.npz`` and
``golden_float64.npz``:

* ``float32``: the package as shipped, on the CPU, called as its own ``engine.py`` calls it.
* ``float64``: the same functions with the one conversion to single precision undone.
  ``diffusion_map_torch`` asks for ``torch.float32`` by name, through the ``torch`` global of its
  module. For the run that global is a proxy whose ``float32`` is ``torch.float64``; every other
  attribute is torch's own. With the default dtype at float64 all that follows (``torch.eye``, the
  covariances, the inverses) is double too, and no line of the package is changed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """One frame: what ``embeddings`` needs to draw it."""

    seed: int
    sources: int
    distortions: int
    features: int
    separation: float  # scale of the cluster centres; the spread within a cluster is about 1
    decay: float  # exponent of the within-cluster spectrum: 0 is round, 1.5 nearly flat
    error: float  # distance of the outputs from their references, in spreads
    leak: float  # how far the outputs lean towards the next source, 0 to 1
    repeats: int = 0  # distortions that leave the reference as it is


CASES: dict[str, Case] = {
    "pair": Case(1, 2, 12, 8, 1.0, 0.0, 0.6, 0.1),
    "pair_wide": Case(2, 2, 40, 64, 1.0, 0.5, 0.3, 0.0),
    "pair_far": Case(3, 2, 24, 32, 2.0, 1.0, 0.7, 0.02),
    "pair_flat": Case(4, 2, 30, 16, 0.7, 1.5, 0.6, 0.03),
    "pair_overlap": Case(5, 2, 20, 24, 0.3, 0.5, 0.5, 0.1),
    "pair_clean": Case(6, 2, 36, 48, 1.5, 0.7, 0.2, 0.0),
    "trio": Case(7, 3, 16, 12, 1.0, 0.5, 0.6, 0.05),
    "trio_wide": Case(8, 3, 32, 40, 1.0, 0.3, 0.3, 0.02),
    "trio_swap": Case(9, 3, 20, 20, 1.0, 0.8, 0.5, 0.9),
    "quartet": Case(10, 4, 14, 10, 1.0, 0.4, 0.6, 0.05),
    "quartet_wide": Case(11, 4, 28, 32, 0.8, 1.0, 0.4, 0.02),
    "pair_repeats": Case(12, 2, 24, 16, 1.0, 0.5, 0.5, 0.1, repeats=3),
    "full": Case(13, 2, 2, 64, 1.0, 0.0, 1.5, 0.0),  # every coordinate is kept: d = N - 1
}


def embeddings(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outputs (S, M), references (S, M) and distortions (S, P, M) of a case, float32 values.

    Clusters of differing size around random centres. Values are rounded to float32 so that both
    precisions of the package, and the tests, start from the same numbers.
    """
    rng = np.random.default_rng(case.seed)
    s, p, m = case.sources, case.distortions, case.features
    spectrum = np.arange(1, m + 1) ** -case.decay
    references = case.separation * rng.standard_normal((s, m))
    size = rng.uniform(0.6, 1.4, (s, 1, 1))
    distortions = references[:, None] + size * spectrum * rng.standard_normal((s, p, m))
    distortions[:, : case.repeats] = references[:, None]
    toward = case.leak * (np.roll(references, -1, axis=0) - references)
    error = case.error * np.linspace(0.6, 1.4, s)[:, None]  # every output at another distance
    outputs = references + toward + error * spectrum * rng.standard_normal((s, m))
    return outputs.astype("f4"), references.astype("f4"), distortions.astype("f4")


# ------------------------------------------------------------------------- the package's side


def labelled(case: Case) -> tuple[np.ndarray, list[str]]:
    """Points in the engine's order, source by source (reference, output, distortions); labels."""
    outputs, references, distortions = embeddings(case)
    rows, labels = [], []
    for s in range(case.sources):
        rows += [references[s], outputs[s], *distortions[s]]
        labels += [f"m__s{s}-ref", f"m__s{s}-out"]
        labels += [f"m__s{s}-d{p}" for p in range(case.distortions)]
    return np.stack(rows), labels


class _DoubleTorch:
    """torch, except that ``float32`` is ``torch.float64``."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


@contextmanager
def double_precision() -> Iterator[None]:
    """Run the package in float64 (see the module's docstring)."""
    import torch
    from mapss import metrics

    metrics.torch = _DoubleTorch(torch)
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        metrics.torch = torch
        torch.set_default_dtype(torch.float32)


def golden(case: Case) -> dict[str, np.ndarray]:
    """The package's results for one frame, called with the arguments of its engine."""
    from mapss.config import DEFAULT_ALPHA, DEFAULT_DELTA_CI
    from mapss.metrics import (
        compute_pm,
        compute_ps,
        diffusion_map_torch,
        pm_ci_components_full,
        ps_ci_components_full,
    )

    points, labels = labelled(case)
    kept, complement, eigenvalues, k_sub_gauss = diffusion_map_torch(
        points,
        labels,
        alpha=DEFAULT_ALPHA,
        eig_solver="full",
        return_eigs=True,
        return_complement=True,
        return_cval=True,
    )
    ps_radius, ps_tail = ps_ci_components_full(
        kept, complement, eigenvalues, labels, delta=DEFAULT_DELTA_CI
    )
    pm_radius, pm_tail = pm_ci_components_full(
        kept, complement, eigenvalues, labels, delta=DEFAULT_DELTA_CI, K=k_sub_gauss
    )
    scores_by_label = {
        "ps": compute_ps(kept, labels, 0),
        "pm": compute_pm(kept, labels, "gamma", 0),
        "ps_radius": ps_radius,
        "ps_tail": ps_tail,
        "pm_radius": pm_radius,
        "pm_tail": pm_tail,
    }
    out = {}
    for name, scores in scores_by_label.items():
        of_sources = [scores[f"m__s{s}"] for s in range(case.sources)]
        out[name] = np.array(of_sources, dtype=np.float64)
    out["eigenvalues"] = eigenvalues
    out["d"] = np.array(kept.shape[1])
    # Coordinates are defined only up to a rotation, so distances are stored: of point 0 (the first
    # reference) from every point, in the kept coordinates and in all of them.
    full = np.concatenate([kept, complement], axis=1)
    out["kept_distances"] = np.sqrt(((kept - kept[0]) ** 2).sum(axis=1))
    out["full_distances"] = np.sqrt(((full - full[0]) ** 2).sum(axis=1))
    return out


def write(path: Path) -> None:
    """Write all cases at the current precision, with the versions that computed them."""
    from importlib.metadata import version

    import torch

    arrays: dict[str, np.ndarray] = {
        "versions": np.array(
            f"mapss-measures {version('mapss-measures')}, torch {torch.__version__}, "
            f"numpy {np.__version__}"
        )
    }
    for name, case in CASES.items():
        for key, value in golden(case).items():
            arrays[f"{name}/{key}"] = value
    np.savez_compressed(path, **arrays)
    print(f"{path}: {len(CASES)} cases, {path.stat().st_size / 1024:.1f} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path("tests/golden"), help="to write"
    )
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "golden_float32.npz")
    with double_precision():
        write(folder / "golden_float64.npz")


if __name__ == "__main__":
    main()

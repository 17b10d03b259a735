r"""Points -> scores: what PS and PM are, on tensors alone.

The N points of a frame (outputs, references, distortions) become a kernel, the kernel a Markov
chain, its eigenvectors coordinates, and the position of an output among the clusters gives its
scores. Modules:

* :mod:`torch_mapss.core.kernel`: Gaussian kernel at the median bandwidth [eq:K];
* :mod:`torch_mapss.core.spectrum`: α-normalisation and eigenpairs, exact backward at ties;
* :mod:`torch_mapss.core.diffusion_map`: both joined, the diffusion maps of a batch of frames;
* :mod:`torch_mapss.core.points`: which points are what, and which are present;
* :mod:`torch_mapss.core.mahalanobis`: distances to a cluster [eq:ps_distance];
* :mod:`torch_mapss.core.separation`: PS from A and B [eq:PS_final];
* :mod:`torch_mapss.core.match`: PM, the Gamma tail [eq:pm_gamma_mm_short];
* :mod:`torch_mapss.core.decomposition`: clearance and fidelity, without eigenvectors;
* :mod:`torch_mapss.core.gamma`: Q(k, x) and log Q with derivatives in both;
* :mod:`torch_mapss.core.frame_batches`: many frames in bounded memory;
* :mod:`torch_mapss.core.pooling`: frames -> utterance [app:agg].

``checks``, ``devices``, ``lengths``, ``linalg``, ``autograd``, ``settings`` and ``eager``
serve every subpackage. Users call :mod:`torch_mapss.functional`.

Conventions. ``"paper"`` follows the printed equations where they can be computed, ``"reference"``
the released implementation from embeddings on, frame by frame, to check published numbers. Read
differently from print everywhere: the Schur complement carries its ridge, the eigenvalue sum runs
to N - 1, the last pooling window counts, and N_p is at least 2.

Example:
    >>> import torch
    >>> from torch_mapss.core import diffusion_map
    >>> points = torch.randn(30, 8, dtype=torch.float64)        # (N, M)
    >>> m = diffusion_map(points)
    >>> m.eigenvalues.shape, bool(m.eigenvalues[0] < 1.0)       # N - 1 non-trivial ones
    (torch.Size([29]), True)
    >>> bool(torch.isclose(m.stationary.sum(), torch.tensor(1.0, dtype=torch.float64)))
    True
"""

from __future__ import annotations

from torch_mapss.core.diffusion_map import DiffusionMap, diffusion_map

__all__ = ["DiffusionMap", "diffusion_map"]

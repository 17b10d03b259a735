r"""Points -> scores: the kernels of every frame score, on tensors alone.

The N points of a frame (outputs, references, distortions) become a kernel, the kernel becomes a
Markov chain, and its eigenvectors become coordinates. The position of an output among the clusters
then gives PS and PM. Clearance and fidelity use the same chain without eigenvectors; bleed needs no
chain, only the power of each frame. Modules:

* :mod:`torch_mapss.core.kernel`: Gaussian kernel at the median bandwidth [eq:K];
* :mod:`torch_mapss.core.spectrum`: α-normalisation and eigenpairs, exact backward at ties;
* :mod:`torch_mapss.core.diffusion_map`: kernel and spectrum joined: the diffusion maps of a batch
  of frames;
* :mod:`torch_mapss.core.points`: the role of every point, and which points are present;
* :mod:`torch_mapss.core.mahalanobis`: distances to a cluster [eq:ps_distance];
* :mod:`torch_mapss.core.separation`: PS from A and B [eq:PS_final];
* :mod:`torch_mapss.core.match`: PM, the Gamma tail [eq:pm_gamma_mm_short];
* :mod:`torch_mapss.core.decomposition`: clearance and fidelity, without eigenvectors;
* :mod:`torch_mapss.core.gamma`: Q(k, x) and log Q, differentiable in both arguments;
* :mod:`torch_mapss.core.frame_batches`: scoring many frames in bounded memory;
* :mod:`torch_mapss.core.pooling`: frames -> utterance [app:agg].

``checks``, ``devices``, ``lengths``, ``linalg``, ``autograd``, ``settings`` and ``eager``
serve every subpackage. Users call :mod:`torch_mapss.functional`.

Conventions. ``"paper"`` follows the printed equations where they can be computed, ``"reference"``
the released implementation from embeddings on, frame by frame, to check published numbers. Both
conventions depart from the printed equations in four places: the Schur complement carries its
ridge, the eigenvalue sum runs to N - 1, the last pooling window counts, and N_p is at least 2.

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

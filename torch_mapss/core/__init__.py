"""Points -> scores: what PS and PM are, on tensors alone.

The points of a frame (outputs, references, distortions) become a kernel, the kernel a Markov
chain, its eigenvectors coordinates, and the place of an output among the clusters its scores:

    ``kernel``       Gaussian kernel at the median bandwidth [eq:K]
    ``spectrum``     α-normalisation, eigenpairs, and a backward pass that is exact at ties
    ``manifold``     both joined: diffusion maps of a batch of frames
    ``layout``       which points are what, and which are there
    ``mahalanobis``  distances to a cluster under its ridge covariance [eq:ps_distance]
    ``separation``   PS from A and B [eq:PS_final]
    ``match``        PM, the Gamma tail [eq:pm_gamma_mm_short]
    ``conformal``    PM with the output counted among its distortions: rank and smooth form
    ``scores``       all that is read off one map, in any convention
    ``gamma``        Q(k, x) and log Q with derivatives in both
    ``chunks``       many frames in bounded memory
    ``aggregate``    frames -> utterance [app:agg]

and the leaves that every wing may use: ``checks``, ``devices``, ``linalg``, ``autograd``,
``settings``. Users meet all of it through :mod:`torch_mapss.functional`.
"""

from __future__ import annotations

from torch_mapss.core.aggregate import masked_mean, pool_match, pool_separation
from torch_mapss.core.gamma import gammaincc, log_gammaincc
from torch_mapss.core.manifold import DiffusionMap, diffusion_map

__all__ = [
    "DiffusionMap",
    "diffusion_map",
    "gammaincc",
    "log_gammaincc",
    "masked_mean",
    "pool_match",
    "pool_separation",
]

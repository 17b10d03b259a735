"""Waveforms -> frame scores: admit, normalise, encode, choose frames, score, place.

* :mod:`torch_mapss.pipeline.inputs`: the gate; one record of plain, checked, resampled waveforms;
* :mod:`torch_mapss.pipeline.prepare`: references distorted and encoded, once for any number of
  calls;
* :mod:`torch_mapss.pipeline.scoring`: admitted calls -> scores, or their bounds;
* :mod:`torch_mapss.pipeline.frames`: frames chosen, gathered, chunked, written back;
* :mod:`torch_mapss.pipeline.records`: what comes out.

How to read what comes out:

* PS is B/(A + B): A the distance of an output to the cluster of its own source, B to the closest
  other one. 1: no leakage; ½: as near to both; 0: another source. PS divides by A and so reacts to
  strong distortion as well; B alone (``foreign_distance``) does not.
* PM is the share of a source's own distortions that lie farther out than the output. It saturates:
  an audible artefact is often 1e-50. ``log_pm`` keeps ranking there and has a gradient.
* A frame is scored for its active sources when at least two are active; ``active`` says where.
  Elsewhere scores are 0 in the record (never in a mean), NaN in metrics, tables and files.
* ``utterance()`` gives means over the scored frames, and ``ps_pesq``, the paper's PESQ-like pooling
  with its own range [1.085, 1.315].
* Compare scores of one encoder, one layer and one bank only.

Example:
    >>> import torch
    >>> from torch_mapss import MAPSS
    >>> references = torch.randn(1, 2, 8000)             # (B, S, T), 16 kHz
    >>> mapss = MAPSS("mel")
    >>> bank = mapss.prepare(references)
    >>> scores = mapss(references + 0.3 * references.flip(1), bank)
    >>> scores.ps.shape                                  # (B, S', F)
    torch.Size([1, 2, 24])
    >>> scores.utterance().ps.shape
    torch.Size([1, 2])
"""

from __future__ import annotations

from torch_mapss.pipeline.mapss import MAPSS
from torch_mapss.pipeline.records import (
    FrameBounds,
    ReferenceBank,
    ScoreBounds,
    Scores,
    UtteranceScores,
)

__all__ = ["MAPSS", "FrameBounds", "ReferenceBank", "ScoreBounds", "Scores", "UtteranceScores"]

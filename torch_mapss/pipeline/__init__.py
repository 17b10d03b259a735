"""Waveforms -> frame scores. The path of a call ``mapss(estimates, references)``:

1. :meth:`torch_mapss.MAPSS.forward`, with the settings of :mod:`~torch_mapss.pipeline.config`
   and the encoders of :mod:`~torch_mapss.pipeline.lazy_encoders`;
2. :mod:`~torch_mapss.pipeline.call`: arguments are checked (:mod:`~torch_mapss.pipeline.inputs`),
   and references that are not yet a reference bank are prepared: from here on there always is one;
3. :mod:`~torch_mapss.pipeline.prepare`: references are normalised and embedded
   (:mod:`~torch_mapss.pipeline.embedder`), and their activity is measured
   (:mod:`~torch_mapss.pipeline.activity`);
4. :mod:`~torch_mapss.pipeline.copies`, called by ``prepare``: distortions are made and embedded,
   each once for all measures;
5. :mod:`~torch_mapss.pipeline.bank`: all of this in one record, for any number of calls
   (``mapss.prepare`` ends here);
6. :mod:`~torch_mapss.pipeline.score`: estimates are brought to their level
   (:mod:`~torch_mapss.pipeline.estimates`), then one loop runs over blocks of frames, whose
   embeddings come from memory (:mod:`~torch_mapss.pipeline.frames`) or, for a long clip, are made
   on demand (:mod:`~torch_mapss.pipeline.segments`);
7. :mod:`torch_mapss.core.frame_batches`: each block is scored in batches that fit the memory;
8. the score function of each of the :mod:`~torch_mapss.pipeline.measures`, in
   :mod:`torch_mapss.core`;
9. :mod:`~torch_mapss.pipeline.frame_values`: values are written to their frames, together with
   :mod:`~torch_mapss.pipeline.bleed`, which needs no embeddings;
10. :mod:`~torch_mapss.pipeline.scores`: the record that is returned.

The classes on this path, in order:

* ``Config``: all settings of a scorer, checked. ``LazyEncoder``: an encoder and how to load it.
  ``Budget``: the working memory of a call, by what it is for;
* ``Call``: checked estimates, with the ``ReferenceBank`` to compare them with;
* ``ReferenceBank``: ``PreparedClips`` for each length of its mixtures, or a ``LongClip`` if they
  are longer than a segment. Prepared clips hold ``Clusters`` for each measure: embedded references,
  each with its distortions;
* ``Embedder``: waveforms -> embeddings on the shared ``Grid`` of frames. ``CopyPlan``: which
  distortions to make, and for which measures;
* ``Block``: a few frames to score. A ``StoredBlock`` reads prepared clips, a ``SegmentBlock`` makes
  the distortions of a long clip. ``BlockScorer`` scores them and writes to ``FrameValues``, from
  which ``Scores`` or ``ScoreBounds`` are made.

Words:

* A *member* of a distortion bank is a recipe; a *copy* is the waveform that it makes of a
  reference; a *distortion* is the embedding of a copy. A *distortion bank* holds members, a
  *reference bank* holds prepared references with their distortions.
* An *estimate* is a separated signal; :mod:`torch_mapss.core` calls its embedding an *output*.
* *Others* is the sum of all references but one, which clearance needs with three sources or more.

Masks, in the order in which they arise (a frame is *scored* where at least two sources are active,
and is a *pause* where one is):

==========  ===============  ==================================================================
audible     (b, S, F)        the source is loud enough by itself
valid       (b, S, F)        samples and embeddings of the source are finite
active      (b, S, F)        audible, and all sources of the frame are valid
active      (B, S', F)       of values and scores: its own source and another one are active
plays       (b, S)           the source is active in at least one frame
present     (n, S)           sources that are points of a frame's graph: the active ones
usable      (n,)             all samples and embeddings of the frame are finite, estimates included
exposed     (B · F, S')      another source is active, and its own plays: leakage counts
==========  ===============  ==================================================================

How to read the scores:

* Clearance says how far an output is from the other sources (1: as far as the true source),
  fidelity how little distortion it has apart from leakage (1: none). Read them together: an output
  that is another source has clearance 0, and its fidelity is undefined.
* PS is B/(A + B): A the distance of an output to the cluster of its own source, B to the closest
  other one. 1: no leakage; ½: equally far from both; 0: another source. PS also reacts to strong
  distortion, because A grows with it; B alone (``foreign_distance``) does not.
* PM is the share of a source's own distortions that lie farther out than the output, by a Gamma
  distribution fitted to their distances. It saturates: an audible artefact often scores 1e-50.
  ``log_pm`` still ranks there and has a gradient.
* Fidelity, PS and PM score a frame for its active sources if at least two are active; ``active``
  says where. Clearance also scores the pauses of a source, wherever another one is active, so that
  leakage there counts. A source that is silent throughout has no score. ``defined(field)`` says
  where a field has a value; elsewhere it is 0 (``bleed_db``: NaN) and left out of means, and NaN in
  metrics, tables and files. Fields that were not computed are None.
* Bleed is what an output adds in the pauses of its source while another one is active, in dB
  relative to the source's level where it plays; NaN elsewhere. No output has less than the
  reference.
* Clearance has a ceiling: outputs of masks have holes and lie farther from the others than the
  reference does, so many frames of good systems score 1, and clearance hardly tells these systems
  apart.
* For clearance, fidelity and bleed an output is levelled by the blocks of 400 ms that pass the
  gates of its *reference*: leakage into pauses does not change its level. PS and PM level it by its
  own gates, as the paper does, or by the reference's with ``MAPSS(gain="reference")``.
* The log-mel frames of clearance and fidelity have windows of two and a half hops, so that nothing
  falls between two frames; what a separator learns on one grid holds on others. In training mode
  the losses with clearance or fidelity draw a grid for every call, if references are waveforms; a
  bank has a fixed grid.
* ``utterance()`` gives means over the scored frames, and ``ps_pesq``, the paper's PESQ-like pooling
  which has its own range, [1.085, 1.315].
* Scores are comparable only with the same encoder, layer and distortion bank.

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

from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.mapss import MAPSS
from torch_mapss.pipeline.scores import ScoreBounds, Scores, UtteranceScores

__all__ = ["MAPSS", "ReferenceBank", "ScoreBounds", "Scores", "UtteranceScores"]

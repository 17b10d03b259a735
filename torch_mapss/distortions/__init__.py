"""The distortion banks that surround a reference with its cluster [app:distortionsbank].

All measures but bleed judge an output by where it lies among distorted copies of the references.
This package makes those copies, in thirteen families, from the loudness-normalised references::

    bank = DistortionBank("separation")                # PS: 70 members; "match": PM, up to 83
    made = bank(references, 16000)                     # (..., S, T) -> (..., S, P, T), mask, names
    bank.chunks(references, 16000)                     # the same, a few members at a time
    DistortionBank("match", without=("noise",))        # leave a family (or one member) out
    DistortionBank(extra=(Distortion("gain/-6dB", "gain", halve),))   # add one of your own
    DistortionBank().subset(13)                        # a small bank for training

Modules:

- ``distortion``: `Distortion` (one member), `Distorted` (the result of a bank) and `Measured` (the
  properties of an entire signal that are needed to distort its segments consistently).
- ``bank``: `DistortionBank`; ``bank_members`` selects its members, ``distorted_copies`` calls them,
  one call per formula; ``noise`` draws their noise by position.
- ``reference_features``: quantities that members measure on the reference (A_RMS, A_95, peaks,
  quantiles).
- ``filters`` (notch, lowpass, highpass), ``echoes`` (comb, reverb, echo), ``additive`` (noise,
  tone), ``dynamics`` (tremolo, gate, clipping), ``pitch`` (pitch, vibrato): the families. Each
  file holds plain functions ``(waveform (..., T), sample_rate, *, parameters) -> (..., T)`` in
  physical units, and below them the two columns of the paper's table, `SEPARATION` and `MATCH`.
- ``signal``: Fourier helpers shared by the families.
"""

from __future__ import annotations

from torch_mapss.distortions.bank import DistortionBank
from torch_mapss.distortions.bank_members import FAMILIES
from torch_mapss.distortions.distortion import Distorted, Distortion, Measured

__all__ = ["FAMILIES", "Distorted", "Distortion", "DistortionBank", "Measured"]

"""Protocol ids: a short hash of the settings and weights that make scores comparable.

The *protocol id* is a hash of every setting that a score depends on: encoder (its weights, not
their location), layer, all banks with all members, kernel and convention, loudness, activity,
precision, treatment of the input and the version of this package. Results with the same id belong
in one table. The id does not cover the hardware, repetitions, or bounds.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch_mapss.evaluation import io
from torch_mapss.evaluation.settings import ENCODERS

if TYPE_CHECKING:
    from torch_mapss.encoders.base import Encoder
    from torch_mapss.evaluation.settings import ScoringSettings
    from torch_mapss.pipeline.mapss import MAPSS

#: Settings that no score depends on.
NEUTRAL = ("bounds", "confidence", "bounds_convention", "tail", "measures")
# Settings that only locate an encoder; where its weights are hashed, these do not count.
_PLACES = ("name", "checkpoint")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages in use; transformers only if it was used."""
    from torch_mapss import __version__

    numbers = {"torch_mapss": __version__, "python": sys.version.split()[0]}
    for name in ("torch", "torchaudio", "transformers"):
        if name in sys.modules:
            numbers[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    return numbers


def settings_of(mapss: MAPSS, scoring: ScoringSettings) -> dict[str, Any]:
    """All settings of a run, with hashes of the banks' members and of the weights.

    This is the content of ``settings.json``. An encoder that no computed measure reads is
    omitted, and its weights are not loaded.
    """
    from torch_mapss.pipeline.measures import MEASURES

    measures = scoring.pipeline_measures or mapss.measures
    encoders_read = {MEASURES[measure].encoder for measure in measures}
    used = [name for name in ENCODERS if name in encoders_read]
    described = mapss.describe()
    for name in ENCODERS:
        if name not in used:
            del described[name]
    banks = mapss.separation_bank, mapss.match_bank, mapss.decomposition_bank
    members = [member.description for bank in banks for member in bank.members]
    settings = {
        **described,
        "weights": {name: weights_hash(getattr(mapss, name)) for name in used},
        "members": _short_hash(json.dumps(members, default=str)),
        **scoring._asdict(),
        "version": versions()["torch_mapss"],
    }
    if not scoring.bounds:  # nothing depends on it
        del settings["confidence"]
    if scoring.excerpts is None:
        del settings["excerpt_seconds"]
    plain: dict[str, Any] = io.plain(settings)
    return plain


def encoder_text(settings: Mapping[str, Any], slot: str) -> str:
    """Readable name, layer and weights of an encoder in ``settings.json``."""
    encoder, weights = settings[slot], (settings.get("weights") or {}).get(slot)
    layer = f", layer {encoder['layer']}" if encoder.get("layer") is not None else ""
    return f"{encoder['name']}{layer}" + (f", weights {weights}" if weights else "")


def pair_encoder_notes(settings: Mapping[str, Any], scores: Iterable[str]) -> tuple[str, ...]:
    """Note on the encoder of clearance and fidelity, unless it is ``mel``."""
    encoder = settings.get("decomposition_encoder") or {"name": "mel"}
    if encoder["name"] == "mel" or not {"clearance", "fidelity"} & {*scores}:
        return ()
    return (f"clearance and fidelity by {encoder_text(settings, 'decomposition_encoder')}",)


def weights_hash(encoder: Encoder) -> str | None:
    """A hash of an encoder's weights, as they are computed with, and of its input's normalisation.

    It does not depend on their names or device; None if there are no weights.
    """
    module = getattr(encoder, "model", encoder)
    # Hashing takes as long as scoring a short clip, so it is done only when a weight has changed.
    normalization = repr(getattr(encoder, "normalize", None))
    state: list[Any] = [normalization]
    for weight in module.parameters():
        state.append((weight.data_ptr(), 0 if weight.is_inference() else weight._version))
    if module not in _HASHES or _HASHES[module][0] != state:
        _HASHES[module] = state, _hash_of_weights(module, normalization)
    return _HASHES[module][1]


# By module: the state of its weights, and their hash.
_HASHES: WeakKeyDictionary[Any, tuple[Any, str | None]] = WeakKeyDictionary()


def _hash_of_weights(module: Any, normalization: str) -> str | None:
    import torch

    digests = []
    for weight in module.parameters():
        plain = weight.detach().cpu().contiguous()
        content = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        head = f"{tuple(plain.shape)}{plain.dtype}".encode()
        digests.append(hashlib.sha256(head + content).hexdigest())
    # Sorted by value: attribute names changed between transformers releases.
    return _short_hash(normalization + "".join(sorted(digests))) if digests else None


def protocol_id(settings: Mapping[str, Any]) -> str:
    """Protocol id, 16 hexadecimal digits, of settings in the form of ``settings.json``."""
    return _short_hash(json.dumps(io.plain(relevant(settings)), sort_keys=True))


def relevant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a score depends on; encoders with weights are represented by their hash."""
    decisive = {name: value for name, value in settings.items() if name not in NEUTRAL}
    weights = settings.get("weights") or {}
    for name in ENCODERS:
        if isinstance(decisive.get(name), Mapping) and weights.get(name):
            decisive[name] = {k: v for k, v in decisive[name].items() if k not in _PLACES}
    return decisive


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

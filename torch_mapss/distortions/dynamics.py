"""Distortions of the level: tremolo, gate, clipping."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_mapss.distortions.distortion import Distortion
from torch_mapss.distortions.reference_features import scaled_amplitude
from torch_mapss.distortions.signal import cast_like, clock, samples

GATE_WINDOW = 0.010
"""Seconds over which the gate looks for a peak: half a period of 50 Hz, so that it does not chop
the waveform at its zero crossings."""

GATE_FADE = 0.005
"""Seconds of linear fade at each opening and closing."""


def tremolo(
    waveform: Tensor,
    sample_rate: int,
    *,
    rate: float | Tensor,
    depth: float | Tensor,
    start: int = 0,
) -> Tensor:
    """Amplitude modulation between 1 and 1 - depth: 1 - depth (1 - cos 2π rate t) / 2.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        rate: In Hz; a number or, like `depth`, (..., 1) on the CPU.
        depth: 0 leaves the waveform unchanged, 1 swings down to silence.
        start: Position of the first sample in its signal.

    Returns:
        (..., T).
    """
    time = clock(waveform.shape[-1], sample_rate, start)
    gain = 1 - 0.5 * depth * (1 - torch.cos(2 * torch.pi * rate * time))
    return waveform * gain.to(waveform)


def gate(waveform: Tensor, sample_rate: int, *, threshold: float | Tensor) -> Tensor:
    """Noise gate: silence where the peak within ±5 ms stays below the threshold.

    The gate's gain is smoothed over 5 ms; away from its edges it is exactly 0 or exactly 1.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        threshold: Amplitude, a number or (..., 1).

    Returns:
        (..., T).
    """
    loud = waveform.abs() >= cast_like(waveform, threshold)
    opened = centred_mean(loud, samples(GATE_WINDOW, sample_rate), waveform) > 0
    return waveform * centred_mean(opened, samples(GATE_FADE, sample_rate), waveform)


GATING: dict[str, Any] = {"batched": True, "reach": (0.02, 0.02)}
BEATING: dict[str, Any] = {"batched": True, "timed": True, "reach": (0.0, 0.0)}
CLIPPING: dict[str, Any] = {"batched": True, "reach": (0.0, 0.0)}


def centred_mean(flags: Tensor, window: int, waveform: Tensor) -> Tensor:
    """Share of true flags within ±window/2 (inside the signal), (..., T) -> (..., T).

    Computed from differences of integer running sums, hence exact: rounding cannot open a closed
    gate.
    """
    count, half = flags.shape[-1], window // 2
    running = flags.cumsum(-1)
    total = running[..., -1:].expand(*running.shape[:-1], half)
    running = torch.cat([pad(running, (half + 1, 0)), total], -1)
    inside = running[..., 2 * half + 1 :] - running[..., :count]
    sample_index = torch.arange(count, device=flags.device)
    size = (sample_index + half + 1).clamp(max=count) - (sample_index - half).clamp(min=0)
    return inside.to(waveform) / size.to(waveform)


def clip(waveform: Tensor, sample_rate: int, *, threshold: float | Tensor) -> Tensor:
    """Hard clipping to ±threshold.

    Args:
        waveform: (..., T).
        sample_rate: In Hz; unused.
        threshold: Amplitude, a number or (..., 1).

    Returns:
        (..., T).
    """
    bound = torch.as_tensor(threshold, dtype=waveform.dtype, device=waveform.device)
    return torch.minimum(torch.maximum(waveform, -bound), bound)


def tremolo_at(rate: int, depth: float) -> Distortion:
    """Tremolo with a rate in Hz and a depth."""
    parameters = {"rate": float(rate), "depth": depth}
    return Distortion(f"tremolo/{rate}Hz", "tremolo", tremolo, parameters, **BEATING)


def absolute(family: str, threshold: float) -> Distortion:
    """Member for PS: gate or clipping at an absolute threshold."""
    function, settings = THRESHOLDS[family]
    return Distortion(
        f"{family}/{threshold:g}", family, function, {"threshold": threshold}, **settings
    )


def scaled(family: str, factor: float) -> Distortion:
    """Member for PM: gate or clipping at a multiple of A_95."""
    function, settings = THRESHOLDS[family]
    measured = {"threshold": partial(scaled_amplitude, feature="a95", factor=factor)}
    return Distortion(f"{family}/{factor:g}xA95", family, function, {}, measured, **settings)


THRESHOLDS = {"gate": (gate, GATING), "clipping": (clip, CLIPPING)}
TREMOLO_RATES = (1, 2, 4, 6)

SEPARATION = {
    "tremolo": tuple(tremolo_at(r, 0.3 + 0.7 * i / 3) for i, r in enumerate(TREMOLO_RATES)),
    "gate": tuple(absolute("gate", t) for t in (0.005, 0.01, 0.02, 0.04)),
    "clipping": tuple(absolute("clipping", t) for t in (0.3, 0.5, 0.7)),
}
MATCH = {
    "tremolo": tuple(tremolo_at(r, 1.0) for r in TREMOLO_RATES),
    "gate": tuple(scaled("gate", f) for f in (0.05, 0.1, 0.2, 0.4)),
    "clipping": tuple(scaled("clipping", f) for f in (0.3, 0.5, 0.7)),
}

"""torch_mapss: Perceptual Separation (PS) and Perceptual Match (PM) in PyTorch."""

from __future__ import annotations

__version__ = "0.1.0"

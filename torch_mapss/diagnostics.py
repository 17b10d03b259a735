"""The same as :mod:`torch_mapss.bounds.diagnostics`."""

from __future__ import annotations

from torch_mapss.bounds.diagnostics import (
    BankCorrelation,
    FrameCorrelation,
    GammaTest,
    SourceCorrelation,
    bank_correlation,
    frame_correlation,
    gamma_fit_test,
    source_correlation,
)

__all__ = [
    "BankCorrelation",
    "FrameCorrelation",
    "GammaTest",
    "SourceCorrelation",
    "bank_correlation",
    "frame_correlation",
    "gamma_fit_test",
    "source_correlation",
]

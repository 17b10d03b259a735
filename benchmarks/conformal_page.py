"""The page of results of the leakage family and of the conformal convention."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parent / "results" / "conformal.md"
TITLE = "# PM: leakage members and the conformal convention, measured\n"

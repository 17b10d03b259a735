"""A results folder as one HTML file to read and to listen to: ``torch-mapss report``.

* ``sound``: audio files as lossless FLAC in the page, their playing level and their spectrograms;
* ``content``: what the page holds, as plain values, within a budget of bytes;
* ``render``: template, style and script joined into one file that needs no network.

The charts are drawn by plotly, whose script comes from the installed package when the page is made.
"""

from __future__ import annotations

from torch_mapss.evaluation.page.render import write_page

__all__ = ["write_page"]

"""A results folder as one HTML file to read and to listen to: ``torch-mapss report``.

* ``sound``: a sound as an address, its playing level and its spectrogram;
* ``tracks``: which sounds are embedded within the budget, links to the rest;
* ``content``: what else the page holds, as plain values;
* ``render``: template, style and script joined into one file that needs no network.

The charts are drawn by plotly, whose script comes from the installed package when the page is made.
"""

from __future__ import annotations

from torch_mapss.evaluation.page.render import Page, write_page

__all__ = ["Page", "write_page"]

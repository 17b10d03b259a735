"""matplotlib's figure, shown in notebooks without pyplot.

IPython shows a plain ``matplotlib.figure.Figure`` as text until pyplot is imported. Import this
module by way of :func:`torch_mapss.evaluation.plots.new_figure`, which says so if matplotlib is
missing.
"""

from __future__ import annotations

import io

from matplotlib.figure import Figure as _Figure


class Figure(_Figure):
    """A figure that a notebook shows as a picture."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()

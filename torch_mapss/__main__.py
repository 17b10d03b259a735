"""``python -m torch_mapss``: the command ``torch-mapss``."""

from __future__ import annotations

import sys

from torch_mapss.evaluation.cli import main

if __name__ == "__main__":
    sys.exit(main())

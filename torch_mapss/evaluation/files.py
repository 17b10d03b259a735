"""Until all users have moved: :mod:`torch_mapss.evaluation.io`."""

from torch_mapss.evaluation.io import *  # noqa: F403

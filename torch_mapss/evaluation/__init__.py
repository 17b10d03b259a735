"""Files -> reports: one mixture or a whole test set, from Python or the command line.

``torch-mapss score`` and :func:`evaluate` score one mixture; ``torch-mapss evaluate`` and
:func:`evaluate_set` a test set, resumable, by any engine that maps :func:`score_mixture`. All leave
a folder of the same format, which ``compare``, ``worst``, ``verify``, ``listen``, ``report`` and
``correlate`` read. One file per command lies in ``commands``.

From frames to one number: *frame* -> *source* (mean over the scored frames of one estimate) ->
*item* (mean over the estimates of one mixture) -> *set* (mean over mixtures). Undefined numbers are
NaN in their place, left out of the next mean, and counted.

Example:
    >>> import torch
    >>> from torch_mapss import evaluate
    >>> references = torch.randn(2, 8000)
    >>> report = evaluate(
    ...     estimates=references + 0.2 * references.flip(0), references=references,
    ...     sample_rate=16000, encoder="mel", device="cpu",
    ... )
    >>> len(report.rows), report.rows[0].ps > report.rows[0].pm
    (2, True)
"""

from __future__ import annotations

from torch_mapss._lazy import lazy_names

_HOMES = {
    "Comparison": "torch_mapss.evaluation.comparison",
    "Results": "torch_mapss.evaluation.results",
    "compare": "torch_mapss.evaluation.comparison",
    "load_results": "torch_mapss.evaluation.results",
    "Report": "torch_mapss.evaluation.report",
    "evaluate": "torch_mapss.evaluation.score",
    "evaluate_set": "torch_mapss.evaluation.run",
    "score_mixture": "torch_mapss.evaluation.score_mixture",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

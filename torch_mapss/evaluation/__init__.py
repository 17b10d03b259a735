"""Files -> results: one mixture or a whole test set, from Python or the command line.

``torch-mapss score`` and :func:`evaluate` score one mixture. ``torch-mapss evaluate`` and
:func:`evaluate_set` score a test set: they can be interrupted and continued, and use any engine
that maps :func:`score_mixture`. All leave a folder of the same format, which ``compare``,
``worst``, ``verify``, ``listen``, ``report`` and ``correlate`` read. Each command has a file in
``commands``.

The path of ``torch-mapss evaluate set.json --out results``:

1. :mod:`~torch_mapss.evaluation.commands.evaluate`: options become settings, the set is read
   (:mod:`~torch_mapss.evaluation.manifest`, or :mod:`~torch_mapss.evaluation.folders` from
   templates), and the engine is chosen (:mod:`~torch_mapss.evaluation.engines`: a ``map``);
2. :func:`torch_mapss.evaluation.run.score_mixtures`: makes a scorer to describe the settings, and
   claims the folder with them (:mod:`~torch_mapss.evaluation.results_folder`: ``settings.json``,
   ``mixtures.json``); pairs of mixture and system whose records are up to date are skipped;
3. :mod:`~torch_mapss.evaluation.score_mixture`, mapped over the pending mixtures, here or on
   workers: files are decoded and hashed (:mod:`~torch_mapss.evaluation.audio_input`), and every
   system is inspected (:mod:`~torch_mapss.evaluation.input_checks`: lags, silence, clipping, ...)
   and gets its :mod:`~torch_mapss.evaluation.energy_ratios`;
4. :meth:`torch_mapss.evaluation.score.Scorer.reports`: one bank of references, all systems in one
   pass of ``MAPSS.score_systems`` (see :mod:`torch_mapss.pipeline`);
5. :mod:`~torch_mapss.evaluation.pooled` and :mod:`~torch_mapss.evaluation.report_rows`: frame
   scores become one row per estimate of a :class:`Report`;
6. :mod:`~torch_mapss.evaluation.records`: a report becomes a plain record and its frame scores,
   which an engine can send back;
7. ``results_folder.write_scores``: the calling process writes frames and then the record;
8. :func:`load_results`: records become tables (:mod:`~torch_mapss.evaluation.tables`) in
   :class:`Results`, and CSV files once nothing is pending;
9. :mod:`~torch_mapss.evaluation.results_text`: the summary that is printed, and with two or more
   systems their comparison.

The path of ``torch-mapss compare results``:

1. :func:`compare`: every folder is loaded by :func:`load_results`, and settings and references
   must agree;
2. :mod:`~torch_mapss.evaluation.comparison_tables`: one number per mixture, system and score, then
   ranking and tests, with the statistics of :mod:`~torch_mapss.evaluation.significance`;
3. :mod:`~torch_mapss.evaluation.comparison_notes`: warnings on scores at their ceiling, unequal
   lags and unfinished runs;
4. :class:`Comparison`: the answer in a sentence (:mod:`~torch_mapss.evaluation.verdict`), its page
   (:mod:`~torch_mapss.evaluation.text_page`), tables and figures
   (:mod:`~torch_mapss.evaluation.plots`).

From frames to one number: *frame* -> *source* (the defined frames of one estimate, pooled as
:data:`torch_mapss.score_table.SCORES` says: mostly by their mean, fidelity by 1 - RMS(1 - F), bleed
by mean power) -> *item* (mean over the estimates of one mixture) -> *set* (mean over mixtures).
Undefined numbers are NaN at their level, left out of the next mean, and counted.

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
    "evaluate": "torch_mapss.evaluation.single_mixture",
    "evaluate_set": "torch_mapss.evaluation.run",
    "score_mixture": "torch_mapss.evaluation.score_mixture",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

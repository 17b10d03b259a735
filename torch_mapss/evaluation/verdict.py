"""The summary sentence of a comparison: the winner per score, and whether it is significant.

There is one verdict per score. The system with the best mean over the mixtures that all systems
have wins if it beats each other system in more of them than it loses, and if no other system is
ahead of all others in more of them. Otherwise there is no winner, since a single mixture can move a
mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_mapss.evaluation import io, significance
from torch_mapss.evaluation.comparison_tables import ComparedScores, family_of
from torch_mapss.score_table import SCORES

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def answer(scores: ComparedScores, ranking: DataFrame, compared: DataFrame, alpha: float) -> str:
    """Sum up a comparison's tables in one sentence; ``alpha`` is the level of its tests."""
    if not any(values.notna().any(axis=None) for values in scores.values.values()):
        return "No mixture has a score: scores.csv says why, in `status` and `reason`."
    if len(scores.systems) < 2:
        return f"{scores.systems[0]} is the only system: its means follow, without a ranking."
    verdicts = {
        measure: verdict(scores, measure, systems, compared, alpha)
        for measure, systems in _ranked_systems(ranking).items()
    }
    labels_by_text: dict[str, list[str]] = {}
    for measure, (text, _) in verdicts.items():
        labels_by_text.setdefault(text, []).append(SCORES[measure].label)
    clauses = [
        text.replace("{measures}", enumerated(labels)) for text, labels in labels_by_text.items()
    ]
    clauses += coverage(scores)
    proven = [SCORES[measure].label for measure, (_, is_proven) in verdicts.items() if is_proven]
    certainty = _certainty(proven, len(verdicts), compared, alpha)
    sentence = "; ".join([*clauses, f"{certainty}."])
    # Others begin with the name of a system, whose spelling is its own.
    return f"N{sentence[1:]}" if sentence.startswith(("no mixture ", "no system ")) else sentence


def _ranked_systems(ranking: DataFrame) -> dict[str, list[str]]:
    """Systems with a mean by score, best first."""
    with_mean = ranking[ranking["n"] > 0]
    by_measure = with_mean.groupby("measure")["system"].agg(list).to_dict()
    return {measure: by_measure.get(measure, []) for measure in ranking["measure"].unique()}


def verdict(
    scores: ComparedScores,
    measure: str,
    systems: Sequence[str],
    compared: DataFrame,
    alpha: float,
) -> tuple[str, bool]:
    """Decide the winner in one score.

    Args:
        scores: scores of all systems.
        measure: name of the score.
        systems: systems with a mean over the mixtures that all have, best first.
        compared: rows of ``comparison.csv``.
        alpha: level of the tests.

    Returns:
        A clause with ``{measures}`` in place of the labels of scores, and whether a winner is
        significantly better than every other system.
    """
    if not systems or not scores.can_rank(measure):
        return "no mixture has a score of every system on {measures}", False
    leader, *rivals = systems
    if not rivals:
        return f"{leader} is the only system with a score on {{measures}}", False
    common = scores.ranked_values(measure).index
    leads = {rival: scores.lead(measure, leader, rival)[common] for rival in rivals}
    count = len(common)
    least_lead = _least(leads)
    wins, ties = int((least_lead > 0.0).sum()), int((least_lead == 0.0).sum())
    mixtures = f"{count} mixture{'' if count == 1 else 's'}"
    if ties == count:
        equals = [rival for rival, lead in leads.items() if (lead == 0.0).any()]
        text = f"{leader} ties with {io.listed(equals, 3)} on {{measures}} in {ties} of {mixtures}"
        return text, False
    objection = _objection(scores, measure, leader, leads, wins, mixtures)
    if objection:
        text = f"no system is best on {{measures}}: {leader} has the best mean, but {objection}"
        return text, False
    tied = f", tied in {ties}" if ties else ""
    text = f"{leader} is best on {{measures}} in {wins} of {mixtures}{tied}"
    return text, _is_proven(measure, leader, rivals, compared, alpha)


def _least(leads: dict[str, Series]) -> Series:
    """Lead of a system over its best rival, by mixture."""
    from pandas import DataFrame

    return DataFrame(leads).min(axis=1)


def _objection(
    scores: ComparedScores,
    measure: str,
    leader: str,
    leads: dict[str, Series],
    wins: int,
    mixtures: str,
) -> str:
    """Why the system with the best mean is not called best; "" if nothing speaks against it."""
    for rival, lead in leads.items():
        ahead, behind = int((lead > 0.0).sum()), int((lead < 0.0).sum())
        if behind >= ahead and behind > 0:
            return f"{rival} is ahead of it in {behind} of {mixtures} and behind in {ahead}"
    for rival in leads:
        rival_leads = {
            system: scores.lead(measure, rival, system)[next(iter(leads.values())).index]
            for system in scores.systems
            if system != rival and scores.values[measure][system].notna().any()
        }
        rival_wins = int((_least(rival_leads) > 0.0).sum())
        if rival_wins > wins:
            return (
                f"{rival} is ahead of all others in {rival_wins} of {mixtures}, "
                f"{leader} in only {wins}"
            )
    return ""


def _is_proven(
    measure: str, leader: str, rivals: Sequence[str], compared: DataFrame, alpha: float
) -> bool:
    """Whether a system is significantly better than each of its rivals."""
    tests = compared[compared["measure"] == measure]
    for rival in rivals:
        forward = tests[(tests["system_a"] == leader) & (tests["system_b"] == rival)]
        backward = tests[(tests["system_a"] == rival) & (tests["system_b"] == leader)]
        row, sign = (forward, 1.0) if len(forward) else (backward, -1.0)
        p, effect = row[["p_holm", "effect"]].astype(float).iloc[0]
        if not (p <= alpha and sign * effect > 0.0):
            return False
    return True


def coverage(scores: ComparedScores) -> list[str]:
    """Clauses on mixtures that are not ranked because some systems have no score."""
    labels_by_clause: dict[str, list[str]] = {}
    for measure, values in scores.values.items():
        scored = values[values.notna().any(axis=1)]
        ranked = scores.ranked_values(measure)
        left_out = scored.drop(ranked.index)
        # The sentence names the mixtures; several scores share it.
        if left_out.empty or values.notna().any().sum() < 2:
            continue
        lacking = [name for name in scores.systems if values[name].notna().any()]
        lacking = [name for name in lacking if left_out[name].isna().any()]
        clause = (
            f"only {len(ranked)} of {len(scored)} mixtures are ranked{{measures}}, as "
            f"{io.listed(lacking, 3)} {'has' if len(lacking) == 1 else 'have'} no score in the "
            f"rest ({io.listed(map(str, left_out.index), 3)})"
        )
        labels_by_clause.setdefault(clause, []).append(SCORES[measure].label)
    return [
        clause.replace(
            "{measures}", "" if len(labels) == len(scores.values) else f" on {enumerated(labels)}"
        )
        for clause, labels in labels_by_clause.items()
    ]


def _certainty(proven: Sequence[str], score_count: int, compared: DataFrame, alpha: float) -> str:
    """Clause on whether the winners are significantly better than all others, or could be.

    ``proven``: labels of the scores with such a winner, out of ``score_count``.
    """
    level = f"at level {alpha:g}"
    if proven:
        alone = "" if len(proven) == score_count else f" on {enumerated(proven)} alone"
        return f"significantly better than every other system {level}{alone}"
    by_measure = compared.groupby("measure")
    count, tests = max(family_of(rows, alpha) for _, rows in by_measure)
    smallest_p = significance.least_holm_p(count, tests)
    if smallest_p <= alpha:
        return f"nothing is significantly better than every other system {level}"
    needed = significance.least_mixtures(tests, alpha)
    family = f" in {tests} tests" if tests > 1 else ""
    return (
        f"{count} mixture{'' if count == 1 else 's'} cannot prove a difference{family}: the "
        f"smallest attainable p is {significance.p_text(smallest_p)}; {needed} are needed"
    )


def enumerated(names: Sequence[str]) -> str:
    """Names in a sentence.

    Example:
        >>> enumerated(["PS", "PM", "bleed"])
        'PS, PM and bleed'
    """
    return " and ".join(text for text in (", ".join(names[:-1]), *names[-1:]) if text)

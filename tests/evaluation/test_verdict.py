"""The sentence on who wins: one verdict a score, and no winner against the counts."""

from __future__ import annotations

import math
from typing import Any

import pandas
import pytest
from made_up_results import (
    LEVELS,
    compared,
    item_rows,
    ranking_by_system,
    spread,
    three_systems,
)

NAN = math.nan


def clauses(scores: Any, rows: Any = (), **options: Any) -> list[str]:
    """The answer, cut at its semicolons."""
    return compared(scores, rows, **options).answer().removesuffix(".").split("; ")


def one_score(scores: Any) -> list[str]:
    return clauses(item_rows(scores, ["ps"]))


def test_the_best_system_is_named_and_whether_that_can_be_proven():
    assert compared(spread(LEVELS)).answer() == (
        "high is best on PS and log PM in 6 of 6 mixtures; 6 mixtures cannot prove a difference "
        "in 3 tests: the smallest attainable p is 0.094; 7 are needed."
    )
    assert one_score(spread(LEVELS, 12))[1] == (
        "significantly better than every other system at level 0.05"
    )
    close = compared(three_systems(12, seed=3) | {"other": three_systems()["high"]})
    assert "nothing is significantly better" in close.answer()
    assert (len(close.pairs), len(close.shown_pairs())) == (12, 6)  # those with the best


def test_each_score_has_a_verdict_of_its_own():
    rows = item_rows(spread(LEVELS, 12), ("clearance", "ps", "bleed_db"))
    for row in rows:  # in PS the second best is best, but for one mixture
        row["ps"] = {"low": 0.1, "middle": 0.8, "high": 0.7}[row["system"]]
        row["ps"] += 0.2 * (row["mixture_id"] == "m3" and row["system"] == "high")
    comparison = compared(rows, confidence=0.9)
    assert comparison.answer() == (
        "high is best on clearance and bleed in 12 of 12 mixtures; middle is best on PS in 11 of "
        "12 mixtures; significantly better than every other system at level 0.05."
    )
    assert "Lower is better in bleed." in comparison.notes()
    assert [*ranking_by_system(comparison, "bleed_db")] == ["high", "middle", "low"]
    bleed = comparison.pairs.query("measure == 'bleed_db' and system_a == 'low'")
    bleed = bleed[bleed["system_b"] == "high"].iloc[0]
    assert (bleed["wins"], bleed["losses"], bleed["effect"]) == (0, 12, -1.0)
    assert bleed["difference"] > 0.0


def test_leaders_that_tie_are_named_so():
    rows = item_rows(spread(LEVELS, 12), ("clearance", "ps"))
    for row in rows:  # the leaders tie in each mixture, or in all but one
        row["clearance"] = 0.5 if row["system"] == "low" else 1.0
        row["ps"] = row["clearance"] + 0.1 * (row["mixture_id"] + row["system"] == "m3high")
    assert clauses(rows)[:2] == [
        "middle ties with high on clearance in 12 of 12 mixtures",
        "high is best on PS in 1 of 12 mixtures, tied in 11",
    ]


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        # B has a mixture that A lacks, and lost the one that both have.
        ({"A": [0.6, NAN], "B": [0.5, 0.9]}, "A is best on PS in 1 of 1 mixture"),
        # The best mean comes from one mixture, and loses the two others.
        (
            {"mask": [0.9, 0.4, 0.4], "net": [0.1, 0.5, 0.5]},
            "No system is best on PS: mask has the best mean, but net is ahead of it in 2 of 3 "
            "mixtures and behind in 1",
        ),
        # A system that delivered two of six mixtures does not win the others' by walkover.
        (
            {"all": [0.5] * 6, "some": [NAN, 0.6, NAN, 0.7, NAN, NAN]},
            "some is best on PS in 2 of 2 mixtures",
        ),
        # Nor does one that has another in one mixture alone.
        (
            {"A": [0.9] * 12, "B": [0.5] + [NAN] * 11},
            "A is best on PS in 1 of 1 mixture",
        ),
        ({"A": [0.9, NAN], "B": [NAN, 0.5]}, "No mixture has a score of every system on PS"),
        ({"A": [0.9, 0.4], "B": [NAN, NAN]}, "A is the only system with a score on PS"),
    ],
)
def test_the_count_is_over_mixtures_that_all_have_and_agrees_with_the_winner(scores, verdict):
    assert one_score(scores)[0].startswith(verdict)


def test_another_system_that_is_first_more_often_is_an_objection():
    """A is ahead of B and of C in four of seven mixtures each, and of both in one."""
    scores = {
        "A": [0.99, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6],
        "B": [0.10, 0.7, 0.7, 0.7, 0.5, 0.5, 0.5],
        "C": [0.10, 0.5, 0.5, 0.5, 0.7, 0.7, 0.7],
    }
    assert one_score(scores)[0] == (
        "No system is best on PS: A has the best mean, but B is ahead of all others in 3 of 7 "
        "mixtures, A in only 1"
    )


def test_mixtures_that_are_not_ranked_are_counted_and_named():
    scores = {"all": [0.5] * 6, "some": [NAN, 0.6, NAN, 0.7, NAN, NAN]}
    comparison = compared(item_rows(scores, ["ps"]))
    missing = "only 2 of 6 mixtures are ranked, as some has no score in the rest (m0, m2, m4 and 1"
    assert missing in comparison.answer()
    ranking = ranking_by_system(comparison)
    assert {name: row["n"] for name, row in ranking.items()} == {"all": 2, "some": 2}
    assert {name: row["left_out"] for name, row in ranking.items()} == {"all": 4, "some": 0}
    assert "4 mixtures left out" in ranking["all"]["note"]
    # Where nobody has a score, nothing is missing.
    silent = {"A": [0.9, NAN, 0.8], "B": [0.5, NAN, 0.4]}
    assert "ranked" not in compared(silent).answer()


def test_sources_that_a_system_left_out_win_nothing():
    """A system without its worse source is ranked on the sources that all have, and told."""
    rows = [
        {"mixture_id": f"m{k}", "system": system, "source": source, "source_index": index}
        | {"ps": 0.9 - 0.4 * index - 0.1 * (system == "half") + 0.01 * k}
        for k in range(8)
        for index, source in enumerate(("vocals", "drums"))
        for system in ("full", "half")[: 2 - index]
    ]
    means = pandas.DataFrame(rows).groupby(["system", "mixture_id"])["ps"].mean()
    scores = {name: list(means[name]) for name in ("full", "half")}
    assert scores["half"] > scores["full"]  # its means are over the easier source alone
    comparison = compared(item_rows(scores, ["ps"]), rows)
    assert comparison.answer().startswith("full is best on PS in 8 of 8 mixtures")
    assert ranking_by_system(comparison)["full"]["mean"] == pytest.approx(0.935)
    assert "half lacks 8 estimates in 8 mixtures (m0, m1, m2 and 5 more)" in str(comparison.notes())


def test_a_test_against_the_winner_proves_nothing():
    """The mean is moved by one mixture; by ranks another system is better."""
    count = 12
    scores = {"A": [0.5] * (count - 1) + [0.99], "B": [0.52 + 0.001 * k for k in range(count)]}
    scores["B"][-1] = 0.1
    winner, *_, loser = one_score(scores)
    assert winner == (
        "No system is best on PS: A has the best mean, but B is ahead of it in 11 of 12 mixtures "
        "and behind in 1"
    )
    assert loser == "nothing is significantly better than every other system at level 0.05"


def test_few_or_no_scores_are_answered():
    comparison = compared({"one": [0.1, 0.2, 0.3], "none": [NAN] * 3})
    assert [*ranking_by_system(comparison)] == ["one", "none"]
    row = ranking_by_system(comparison)["none"]
    assert (row["n"], row["group"], row["undefined"]) == (0, "", 3)
    blank = comparison.pairs.query("measure == 'ps'").iloc[0]
    assert pandas.isna([row["mean"], row["low"]]).all()
    assert blank["note"] == "n < 2"
    assert pandas.isna([blank[name] for name in ("difference", "p_holm", "wins", "effect")]).all()
    comparison = compared({"one": [NAN] * 3, "none": [NAN] * 3})
    assert comparison.answer().startswith("No mixture has a score")
    assert "are needed" not in comparison.summary()  # it is not for want of mixtures
    assert "6 are needed" in compared({"one": [0.1], "two": [0.2]}).answer()
    alone = compared({"one": [0.1, 0.2, 0.4]})
    assert alone.pairs.empty
    assert ranking_by_system(alone)["one"]["group"] == "a"
    assert "too small" not in ranking_by_system(alone)["one"]["note"]
    assert "only system" in alone.answer()
    rows = item_rows(spread(LEVELS), ("ps", "foreign_distance"), bleed_db=[NAN] * 6)
    assert compared(rows).measures == ("ps",)  # no diagnostic, nothing without a value


def test_the_headline_and_the_table_print_one_p():
    """Three systems of four mixtures: the least p is 3/8, four of two systems 0.125."""
    comparison = compared(item_rows(spread({"low": 0.1, "high": 0.9}, 4), ["ps"]))
    assert "the smallest attainable p is 0.13;" in comparison.answer()
    assert "0.13" in comparison.summary().split("p (Holm)")[1]
    assert "0.12" not in comparison.summary()


@pytest.mark.parametrize(
    ("systems", "answer"),
    [
        (["control:ref"], "control:ref is the only system"),
        (["control:ref", "good"], "good is the only system"),
        (["control:ref", "good", "poor"], "good is best"),
    ],
)
def test_hidden_references_are_in_no_headline(systems, answer):
    scores = {"control:ref": [1.0, 1.0], "good": [0.8, 0.7], "poor": [0.5, 0.6]}
    assert compared({name: scores[name] for name in systems}).answer().startswith(answer)


def test_systems_without_a_common_mixture_have_means_and_no_rank():
    comparison = compared(item_rows({"A": [0.9, 0.7, NAN], "B": [NAN, NAN, 0.5]}, ["ps"]))
    ranking = comparison.ranking.set_index("system")
    assert ranking["mean"].round(6).to_dict() == {"A": 0.8, "B": 0.5}
    assert set(ranking["group"]) == {""}
    assert ranking["note"].str.contains("mean over its own mixtures, not ranked").all()

"""Tables of ratings: how they are read, and how they meet the scores."""

from __future__ import annotations

import pandas
import pytest

from torch_mapss.evaluation.ratings import join, load_ratings, match_names


def rated(*systems: str, source: str = "vocals") -> pandas.DataFrame:
    """One rating of each system; ``control:`` ones are no systems."""
    rows = [
        {"scenario": "all", "question": "q", "track": "t", "source": source, "rating": 50.0}
        | {"system": s.removeprefix("control:"), "is_system": not s.startswith("control:")}
        | {"cluster": "t"}
        for s in systems
    ]
    return pandas.DataFrame(rows)


def outputs(*systems: str, source: str = "vocals", track: str = "t") -> pandas.DataFrame:
    named = {"track": track, "source": source, "ps": 0.5}
    return pandas.DataFrame([{**named, "system": system} for system in systems])


def test_names_of_sources_meet():
    pairs, guessed = match_names(["ref_bass", "ref_drums"], ["drums", "bass"], {})
    assert pairs == guessed == {"ref_bass": "bass", "ref_drums": "drums"}
    assert match_names(["ref"], ["vocals"], {}) == ({"ref": "vocals"}, {"ref": "vocals"})
    assert match_names(["x", "y"], ["u", "v"], {}) == ({}, {})  # no guess among several
    assert match_names(["x", "y"], ["u", "v"], {"x": "v"})[0] == {"x": "v", "y": "u"}
    assert match_names(["bass", "ref_bass"], ["bass"], {}) == ({"bass": "bass"}, {})


def test_controls_are_left_out_unless_asked_for():
    ratings, scores = rated("A", "control:ref"), outputs("A", "control:ref")
    assert list(join(scores, ratings)[0]["system"]) == ["A"]
    assert list(join(scores, ratings, controls=True)[0]["system"]) == ["A", "ref"]
    plain = rated("A", "ref")  # a table without roles
    assert list(join(scores, plain)[0]["system"]) == ["A"]
    # The system is meant where a control has its name.
    with_control = outputs("control:A", "A").assign(ps=[0.1, 0.9])
    assert list(join(with_control, rated("A"), controls=True)[0]["ps"]) == [0.9]


def test_unmatched_rows_are_reported():
    _, notes = join(outputs("A", source="ref"), rated("A", "B"))
    assert len(notes) == 2
    for note, fragment in zip(notes, ("--source-map", "1 of 2 ratings")):
        assert fragment in note
    with pytest.raises(ValueError, match=r"tracks 'u'.*ratings tracks 't'.*--source-map"):
        join(outputs("A", track="u"), rated("A"))


def test_tables_of_ratings_are_read(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("item,system,mos\nx,control:ref,5\nx,A,3\nx,A,4\n")
    loaded, (note,) = load_ratings(path, {"track": "item", "rating": "mos"})
    assert [*zip(loaded["system"], loaded["rating"])] == [("ref", 5.0), ("A", 3.5)]
    assert loaded["is_system"].all()
    assert note.startswith("1 rows")


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("item,system,mos\nx,A,3\n", None, r"mean_rating.*--columns|--columns.*mean_rating"),
        ("track,system,mean_rating\nx,A,good\n", None, "line 2"),
        ("track,system,mean_rating\nx,A,1\nx,B,\n", None, "line 3"),
        ("track,system,mean_rating\n", None, "holds no"),
        ("track,system,mean_rating\nx,A,1\n", {"trck": "a"}, "columns"),
        ("track,system,mean_rating\nx,A,1\n", {"scenario": "z"}, "'z'"),
    ],
)
def test_tables_of_ratings_are_refused(tmp_path, text, columns, message):
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_ratings(tmp_path / "r.csv", columns)


TABLE = "track;system;source;mean_rating\nCaf\u00e9;A;vocals;61,5\nCaf\u00e9;B;vocals;48,25\n"


def test_tables_of_spreadsheets_and_names_in_two_unicode_forms_meet(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text(TABLE, encoding="utf-16")
    loaded, _ = load_ratings(path)
    assert list(loaded["rating"]) == [61.5, 48.25]
    assert len(join(outputs("A", "B", track="Cafe\u0301"), loaded)[0]) == 2


def test_clusters_are_a_column_of_the_ratings(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("track,system,talker,mean_rating\nx,A,f1,3\nx,A,f1,4\ny,A,f1,5\n")
    for cluster, expected in (
        ("talker", ["f1", "f1"]),
        ("system", ["A", "A"]),
        ("track", ["x", "y"]),
    ):
        loaded, _ = load_ratings(path, cluster=cluster)
        assert [[*loaded["rating"]], [*loaded["cluster"]]] == [[3.5, 5.0], expected]
    for text in ("x,A,f1,3\nx,A,f2,4\n", "x,A,,3\n"):  # two talkers of one stimulus, or none
        path.write_text(f"track,system,talker,mean_rating\n{text}")
        for cluster, word in (("talker", "cluster"), ("condition", "'condition'")):
            with pytest.raises(ValueError, match=word):
                load_ratings(path, cluster=cluster)

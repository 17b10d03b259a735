"""Tables of other people's: as spreadsheet programs save them, and refused with file and line."""

from __future__ import annotations

import pytest

from torch_mapss.evaluation.csv_input import TableError, read_csv_table

TABLE = 'mixture_id,ps,reason\nm 1,0.94,"one, or\nmore"\n\nm2,nan,\nm3,,ü\n'
SEMICOLONS = TABLE.replace("one, or", "one; or").replace(",", ";").replace("0.94", "0,94")
TABS = TABLE.replace("one, or", "one\t or").replace(",", "\t").replace("0.94", "0,94")


@pytest.mark.parametrize(
    "content",
    [
        TABLE.encode("utf-8-sig"),
        TABLE.encode("utf-16"),
        TABLE.replace("\n", "\r\n").encode(),
        SEMICOLONS.encode(),
        "\n".join(line and f"{line},," for line in TABLE.split("\n")).encode(),  # empty columns
        TABLE.replace("m2,nan,", "m2,nan,,,").encode(),  # in a row
        b"sep=;\n" + SEMICOLONS.encode(),
        TABS.encode(),
    ],
)
def test_tables_of_spreadsheet_programs_are_read(tmp_path, content):
    (path := tmp_path / "t.csv").write_bytes(content)
    table = read_csv_table(path, ["mixture_id", "ps"], ["ps", "pm"])
    assert list(table.columns) == ["mixture_id", "ps", "reason"]
    assert list(table["mixture_id"]) == ["m 1", "m2", "m3"]
    assert table["ps"].iloc[0] == 0.94
    assert table["ps"].iloc[1:].isna().all()
    assert table["reason"].iloc[2] == "ü"
    stated = content.startswith(b"sep=")
    assert list(table.index - stated) == [2, 4, 5]  # rows as a spreadsheet counts them


def test_blank_lines_come_first_and_marks_in_a_name_separate_nothing(tmp_path):
    (path := tmp_path / "t.csv").write_text('\n;;\na;"b, c, d, or e"\n1;2\n')
    assert read_csv_table(path, ["a"], ["a"])["b, c, d, or e"].tolist() == ["2"]


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        (b"a,b\n1,x\n", ["'ps'", "'a', 'b'"]),
        (b'a,ps\n1,2\n3,"0,94"\n', ["line 3", "ps", "'0,94'"]),
        (b"a,ps\n1,good\n", ["line 2", "'good'"]),
        (b"a,ps\n1,2\na,ps\n", ["line 3 is its header again"]),
        (b"a,ps\n1,2,3\n", ["line 2 has 3 cells and its header 2"]),
        (b"sep=;\na;ps\n1;2;3\n", ["line 3 has 3 cells and its header 2"]),
        (b'a,ps\n1,"2\n', ["line 2 cannot be read"]),
        (b"a,ps,a\n1,2,3\n", ["'a' twice"]),
        ("a,ps\n\né,1\n".encode("cp1252"), ["line 3 is not UTF-8: save it as UTF-8 CSV"]),
        ("a,ps\né,1\n".encode("utf-16-le"), ["UTF-8"]),
        ("a,ps\ne,1\n".encode("utf-16-le"), ["zero bytes, as UTF-16 does"]),
        (b"\n", ["is empty"]),
        (b"", ["is empty"]),
    ],
)
def test_files_that_are_no_tables_are_refused_with_the_cause(tmp_path, content, fragments):
    (path := tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(TableError) as error:
        read_csv_table(path, ["a", "ps"], ["ps"])
    for fragment in [str(path), *fragments]:
        assert fragment in str(error.value)

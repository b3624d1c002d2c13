"""Tables of a corpus: their columns, and rows that are wrong."""

import gzip

import pytest

from raydist.corpus.columns import read_table
from raydist.errors import InputError
from raydist.records import rejected_table


def read_lines(path, content, wanted=("id", "text")):
    """Line and wanted columns of the rows that are kept; line, what, reason and detail of the others."""
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    rejected = []
    rows = [row for block in read_table(path, wanted, rejected=rejected) for row in block.to_pylist()]
    assert {row.file for row in rejected} <= {str(path)}
    assert rejected_table(rejected).num_rows == len(rejected)  # it can be written
    return [(row["line"], *(row[name] for name in wanted)) for row in rows], [
        (row.line, row.what, row.reason, row.detail) for row in rejected
    ]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_line_of_json_that_is_not_utf8_is_refused_alone(tmp_path, name, mark):
    lines = [
        '{"id": "a", "text": "Łódź"}'.encode(),
        '{"id": "b", "text": "Qué"}'.encode("latin-1"),
        b"",
        b'{"id": "c", "text": "\xed\xa0\x80"}',  # a surrogate as bytes
        b'{"id": "d", "text": "It ends."}',
    ]
    for newline in (b"\n", b"\r\n"):
        kept, refused = read_lines(tmp_path / name, mark + newline.join(lines))
        assert kept == [(1, "a", "Łódź"), (5, "d", "It ends.")]
        assert refused == [
            (2, "row", "invalid UTF-8", "byte 24 is 0xe9"),
            (4, "row", "invalid UTF-8", "byte 22 is 0xed"),
        ]
    assert read_lines(tmp_path / name, b"\xff\n\xfe\n") == (
        [],
        [(1, "row", "invalid UTF-8", "byte 1 is 0xff"), (2, "row", "invalid UTF-8", "byte 1 is 0xfe")],
    )


@pytest.mark.parametrize(("suffix", "tab"), [("csv", b","), ("tsv", b"\t"), ("csv.gz", b",")])
def test_a_row_of_cells_that_is_not_utf8_or_too_long_is_refused_alone(tmp_path, suffix, tab):
    lines = [b"id|text", b"a|It flows.", b"b|Qu\xe9", b"c|It is long.|Really.", b"d|It ends.|"]
    kept, refused = read_lines(tmp_path / f"rows.{suffix}", b"\n".join(lines).replace(b"|", tab))
    assert kept == [(2, "a", "It flows."), (5, "d", "It ends.")]
    assert refused == [
        (3, "row", "invalid UTF-8", r"in {'id': 'b', 'text': 'Qu\udce9'}"),
        (4, "row", "wrong number of columns", "3 cells, the header has 2"),
    ]
    kept, refused = read_lines(tmp_path / f"rows.{suffix}", b"id|text|\xe9\na|It flows.|\n".replace(b"|", tab))
    assert (kept, [row[:3] for row in refused]) == ([], [(2, "row", "invalid UTF-8")])  # the header is not


def test_tsv_is_lines_cut_at_tabs_whatever_quotes_they_hold(tmp_path):
    rows = [("8", '"It began.'), ("1", "It went on."), ("2", 'It was said."'), ("3", '"Whole"'), ("4", '5" is ""long""')]
    text = "id\ttext\n" + "".join(f"{id}\t{text}\n" for id, text in rows)
    assert read_lines(tmp_path / "rows.tsv", text.encode()) == ([(at, *row) for at, row in enumerate(rows, 2)], [])
    # in CSV they hold a cell together
    assert read_lines(tmp_path / "rows.csv", b'id,text\n8,"It began.\nIt ends."\n')[0] == [(3, "8", "It began.\nIt ends.")]


def test_a_column_that_is_not_there_and_a_file_that_is_no_table_are_named(tmp_path):
    (tmp_path / "rows.csv").write_text("id,body\n1,text\n")
    with pytest.raises(InputError, match=r"no column 'text', only id, body"):
        list(read_table(tmp_path / "rows.csv", ("id", "text")))
    (tmp_path / "rows.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        list(read_table(tmp_path / "rows.parquet", ("id",)))
    whole = bytearray(gzip.compress(b'{"id": "a"}\n'))
    damaged = whole[:10] + b"\xff" + whole[11:]
    for content in (whole[:-4], damaged):
        (tmp_path / "rows.jsonl.gz").write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as jsonl"):
            list(read_table(tmp_path / "rows.jsonl.gz", ("id",)))
    with pytest.raises(InputError, match="its name does not show what it holds"):
        list(read_table(tmp_path / "rows.bin", ("id",)))

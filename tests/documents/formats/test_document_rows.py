import gzip
import json
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist.corpus.rejected import (
    BROKEN_JSON,
    DAMAGED,
    DUPLICATE_ID,
    EMPTY_DOCUMENT,
    LONE_SURROGATE,
    MISSING_KEY,
    TOO_LARGE,
    WRONG_TYPE,
    WRONG_WIDTH,
    Fault,
)
from raydist.documents.document import File
from raydist.documents.formats.rows import Problem, read


def read_all(path, content=None, **settings):
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = list(read(File(path, path.name, settings.pop("max_bytes", 1 << 28)), settings.get("names")))
    problems = {row.line: row.fault.reason for row in rows if isinstance(row, Problem)}
    return [row for row in rows if not isinstance(row, Problem)], problems


def test_rows_of_json_lines_keep_their_types(tmp_path):
    lines = [
        {
            "id": "a",
            "text": "One.\n\nTwo.",
            "title": "T",
            "language": "de",
            "year": 2020,
            "share": 0.5,
            "open": True,
            "tags": ["x", "y"],
        },
        {"id": 7, "text": "Three.", "year": None, "inner": {"a": 1}},
    ]
    documents, _ = read_all(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert [(one.id, one.title, one.language) for one in documents] == [("a", "T", "de"), ("7", "", "")]
    assert [[(block.text, block.line) for block in one.blocks] for one in documents] == [
        [("One.", 1), ("Two.", 1)],
        [("Three.", 2)],
    ]
    assert documents[0].metadata == {"year": 2020, "share": 0.5, "open": True, "tags": "x, y"}
    assert documents[1].metadata == {"inner": '{"a": 1}'}


def test_cells_of_csv_are_of_the_kind_of_their_whole_column(tmp_path):
    text = "document_id,text,year,share,day,code,open\na,One,2020,1,2020-02-29,007,true\nb,Two,,0.5,,8,false\n"
    documents, _ = read_all(tmp_path / "a.csv", text)
    assert [one.metadata for one in documents] == [
        {"year": 2020, "share": 1.0, "day": date(2020, 2, 29), "code": "007", "open": True},
        {"share": 0.5, "code": "8", "open": False},
    ]


def test_parquet_and_tsv_and_packed_files_are_read_alike(tmp_path):
    rows = [{"id": "a", "text": "One"}, {"id": "b", "text": "Two"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.tsv").write_text("id\ttext\na\tOne\nb\tTwo\n")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    found = [
        [(one.id, one.blocks[0].text) for one in read_all(tmp_path / name)[0]] for name in ("a.parquet", "a.tsv", "a.jsonl.gz")
    ]
    assert found == [[("a", "One"), ("b", "Two")]] * 3


def test_columns_are_mapped_and_an_id_that_is_not_given_is_the_line(tmp_path):
    documents, _ = read_all(tmp_path / "a.csv", "body,head\nOne,A\nTwo,B\n", names={"text": "body", "title": "head"})
    assert [(one.id, one.title) for one in documents] == [("a.csv:2", "A"), ("a.csv:3", "B")]
    with pytest.raises(Fault) as fault:
        read_all(tmp_path / "a.csv")
    assert fault.value.reason == MISSING_KEY
    assert fault.value.detail == "no column 'text' for the text among body, head; map it: documents.columns={text: NAME}"


def test_rows_that_are_no_documents_are_named_and_the_others_go_on(tmp_path):
    lines = ['{"id": 1, "text": "One"}', "{", '{"id": 1, "text": "again"}', '{"id": 2, "text": " "}', '{"id": 3}']
    lines += ['{"id": 4, "text": 5}', '{"id": 5, "text": "\\ud800"}', "[]", '{"id": 6, "text": "Six"}']
    documents, problems = read_all(tmp_path / "a.jsonl", "\n".join(lines))
    assert [one.id for one in documents] == ["1", "6"]
    assert problems == {
        2: BROKEN_JSON,
        3: DUPLICATE_ID,
        4: EMPTY_DOCUMENT,
        5: EMPTY_DOCUMENT,
        6: WRONG_TYPE,
        7: LONE_SURROGATE,
        8: WRONG_TYPE,
    }
    assert read_all(tmp_path / "a.csv", "id,text\n1,One\n2,Two,3\n")[1] == {3: WRONG_WIDTH}


def test_what_unpacks_to_too_much_is_refused_before_it_is_read(tmp_path):
    def refused(name, content=None):
        with pytest.raises(Fault) as fault:
            read_all(tmp_path / name, content, max_bytes=1 << 20)
        return fault.value.reason

    assert refused("a.jsonl.gz", gzip.compress(bytes(8 << 20))) == TOO_LARGE
    assert refused("b.jsonl.gz", gzip.compress(b'{"text": "x"}')[:-9]) == DAMAGED
    few_bytes = pa.table({"text": pa.array(["x" * 1000]).take(pa.array([0] * 100_000))})
    pq.write_table(few_bytes, tmp_path / "c.parquet")
    assert (tmp_path / "c.parquet").stat().st_size < 20_000
    assert refused("c.parquet") == TOO_LARGE

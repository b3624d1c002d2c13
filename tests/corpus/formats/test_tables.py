"""Three tables."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist.corpus.columns import read_table
from raydist.corpus.formats.tables import open_tables


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "jsonl.gz", "tsv"])
def test_mapped_columns_of_every_kind_of_table(tmp_path, suffix):
    rows = [
        {"pid": 7, "body": "It, flows."},
        {"pid": 8, "body": 'It "ends".' + (" Really." if suffix == "tsv" else "\nReally.")},
    ]
    path = tmp_path / f"corpus.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix.startswith("jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    elif suffix == "tsv":
        path.write_text("pid\tbody\n" + "".join(f"{row['pid']}\t{row['body']}\n" for row in rows))
    else:
        import csv

        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, ["pid", "body"])
            writer.writeheader()
            writer.writerows(rows)
    (tmp_path / "q.jsonl").write_text('{"qid": 1, "q": "Where?"}\n')
    (tmp_path / "g.csv").write_text("qid,pid\n1,8\n")
    columns = {
        "corpus": {"sentence_id": "pid", "text": "body"},
        "questions": {"question_id": "qid", "text": "q"},
        "gold": {"question_id": "qid", "sentence_id": "pid"},
    }
    found = open_tables(path, tmp_path / "q.jsonl", tmp_path / "g.csv", columns).whole()
    assert found.sentences["sentence_id"].to_pylist() == ["7", "8"]
    assert found.sentences["text"].to_pylist() == [row["body"] for row in rows]
    assert found.gold.to_pylist() == [{"question_id": "1", "sentence_id": "8", "relevance": 1}]
    blocks = list(read_table(path, ("passage_id", "text"), {"passage_id": "pid", "text": "body"}, block_rows=1))
    assert [block["passage_id"].to_pylist() for block in blocks] == [["7"], ["8"]]

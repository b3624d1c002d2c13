"""Corpora: how tests write and read them."""

import json

from raydist.corpus.formats.beir import open_beir


def write_beir(folder, corpus, queries, qrels):
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{d}\t{s}\n" for q, d, s in qrels)
    )


def read_beir(folder, split="test"):
    return open_beir(folder, split).whole()


def reasons(found):
    return [(row.what, row.reason, row.id, row.line) for row in found.rejected]


CORPUS = [{"_id": "d1", "title": "Oder", "text": "It flows."}, {"_id": "d2", "title": "", "text": "It ends."}]

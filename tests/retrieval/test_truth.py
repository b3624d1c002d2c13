import json
from types import SimpleNamespace

import pyarrow as pa

from raydist.retrieval import truth


def test_kept_pairs_alone_are_counted_and_only_where_they_answer():
    block = pa.table({"question_id": ["q1", "q1", "q2"], "sentence_id": ["s1", "s2", "s1"], "kept": [True, False, True]})
    assert truth.count_right([block, block.slice(0, 0)], {("q1", "s1"), ("q1", "s2")}) == 1


def test_answers_are_known_of_the_sample_alone_and_of_the_questions_that_are_asked(tmp_path, monkeypatch):
    rows = [("q1", "s1"), ("q1", "s2"), ("q9", "s3")]
    lines = [json.dumps({"query-id": question, "corpus-id": sentence}) + "\n" for question, sentence in rows]
    (tmp_path / "restated.jsonl").write_text("".join(lines))
    asked = pa.RecordBatch.from_pydict({"question_id": ["q1", "q2"]})
    corpus = SimpleNamespace(batches=lambda name, columns: [asked])

    def run(files):
        sources = SimpleNamespace(train=SimpleNamespace(files=files))
        sample = SimpleNamespace(data=SimpleNamespace(root=str(tmp_path)), corpus=sources)
        return SimpleNamespace(config=sample)

    monkeypatch.setattr(truth, "SAMPLE", "")  # so that the sample is this folder
    assert truth.known_answers(run(["corpus"]), corpus) == {("q1", "s1"), ("q1", "s2")}
    monkeypatch.undo()
    assert truth.known_answers(run(["corpus"]), corpus) is None

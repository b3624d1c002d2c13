"""Wrong files of a corpus are refused before any machine is asked for; large ones are not read twice."""

import json
import os

import pytest

from raydist.config import load_config
from raydist.corpus.open_set import OpenSet
from raydist.errors import InputError
from raydist.here import Here
from raydist.retrieval import corpus_stages
from raydist.retrieval.flow import index, mine
from raydist.retrieval.prepare import open_corpora
from raydist.runs.run import Run

ROWS = [{"_id": f"d{n}", "title": "", "text": f"Bridge {n} is old."} for n in range(3)]
ASKED = [{"_id": f"q{n}", "text": f"How old is bridge {n}?"} for n in range(3)]
FILES = {
    "corpus.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "queries.jsonl": "".join(json.dumps(row) + "\n" for row in ASKED),
    "qrels/train.tsv": "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(3)),
}
DEEP = "[" * 100_000 + "]" * 100_000


class NoMachine(Here):
    def executor(self, settings):
        raise AssertionError("work began")


def run_on(tmp_path, machine=NoMachine, **changes):
    for name, content in {**FILES, **changes}.items():
        path = tmp_path / "beir" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path) if content is None else path.write_text(content, errors="surrogateescape")
    corpus = f"corpus.train={{files: [{tmp_path / 'beir'}], format: beir, split: train}}"
    return Run(
        load_config(
            "retrieval", [corpus, "corpus.test={}", "corpus.dev_share=0", f"storage={tmp_path}", "index.kind=bm25"]
        ).config,
        machine(),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus.jsonl": ""}, "the corpus is empty"),
        ({"corpus.jsonl": "<html>\n"}, "the corpus is empty.*broken JSON"),
        ({"corpus.jsonl": '{"a": 1}\n'}, "has no column '_id', only a"),
        ({"corpus.jsonl": f'{{"_id": {DEEP}}}\n'}, "too many lists or objects within each other"),
        ({"corpus.jsonl": '{"_id": "d\\ud800", "text": "x"}\n'}, "lone surrogate"),
        ({"corpus.jsonl": None}, "corpus.jsonl is a pipe"),
    ],
    ids=["empty", "html", "columns", "deep", "surrogate", "pipe"],
)
@pytest.mark.parametrize("command", [mine, index])
def test_a_wrong_corpus_is_refused_before_work_begins(tmp_path, command, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        command(run_on(tmp_path, **changes))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries.jsonl": ""}, "no question has a gold sentence in the corpus"),
        ({"qrels/train.tsv": "hello"}, "train.tsv is about none of the questions of"),
        ({"qrels/train.tsv": "query-id\tcorpus-id\tscore\nq1\td9\t1\n"}, "no question has a gold sentence in the corpus"),
    ],
)
def test_wrong_questions_are_refused_before_work_begins(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        mine(run_on(tmp_path, **changes))


def test_of_large_files_a_block_is_looked_at_and_what_is_made_is_not_looked_at_again(tmp_path, monkeypatch):
    looked, blocks = [], OpenSet.blocks
    monkeypatch.setattr(OpenSet, "blocks", lambda self: (looked.append(block) or block for block in blocks(self)))
    monkeypatch.setattr(OpenSet, "questions_and_gold", lambda self: pytest.fail("all was read"))
    monkeypatch.setattr(corpus_stages, "CHECKED_BYTES", 1)
    with pytest.raises(AssertionError, match="work began"):
        open_corpora(run_on(tmp_path), ["train"])
    assert len(looked) == 1
    monkeypatch.undo()
    assert open_corpora(run_on(tmp_path, Here), ["train"])["train"].num_sentences == 3
    monkeypatch.setattr(OpenSet, "blocks", lambda self: pytest.fail("read again"))
    assert open_corpora(run_on(tmp_path, Here), ["train"])["train"].num_sentences == 3

"""Files of questions: how tests write and read them."""

import gzip
import json

import pytest

from raydist.corpus.columns import column_names
from raydist.corpus.examples import plan_splits, read_rows, read_split
from raydist.corpus.hub import hub_format, hub_language, load_hub
from raydist.corpus.recognise import recognise
from raydist.errors import InputError
from raydist.records import examples_table, rejected_table

PASSAGE = "Ada was born in Lund. Ada died in Oslo."


QA = {"question": "Where was Ada born?", "context": PASSAGE, "answer": "Lund"}


def squad(*qas, context=PASSAGE, **article):
    return {"version": "1.1", "data": [{"title": "Ada", "paragraphs": [{"context": context, "qas": list(qas)}], **article}]}


def qa(id="q1", question="Where was Ada born?", answers=(("Lund", 16),), **more):
    return {"id": id, "question": question, "answers": [{"text": t, "answer_start": s} for t, s in answers], **more}


def write(path, content, packed=False):
    """A document (dict), JSON Lines (list of rows), text or bytes."""
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    elif isinstance(content, dict):
        content = json.dumps(content)
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return str(path)


def read(path, **options):
    [split] = plan_splits([path], **options)
    examples, rejected, counts = read_split(split)
    assert counts.questions == len(examples) + counts.questions_rejected + counts.not_extractive + counts.left_out
    assert sum(counts.reasons.values()) == len(rejected) == counts.questions_rejected + counts.answers_rejected
    for example in examples:
        for answer in example.answers:
            assert example.context[answer.start :].startswith(answer.text)
    examples_table(examples)  # everything that comes out can be written
    rejected_table(rejected)
    return examples, rejected, counts


def reasons(path, **options):
    return read(path, **options)[2].reasons


def fault(path, **options) -> str:
    with pytest.raises(InputError) as raised:
        [read_split(split) for split in plan_splits([str(path)], **options)]
    assert str(path) in str(raised.value)
    return str(raised.value)


MRQA = [
    {"header": {"dataset": "x"}},
    {"context": PASSAGE, "qas": [{"qid": "m1", "question": "Where?", "answers": ["Lund"],
     "detected_answers": [{"text": "Lund", "char_spans": [[16, 19]]}]}]},
]  # fmt: skip


HOTPOT = {
    "_id": "h1",
    "question": "Where?",
    "answer": "Lund",
    "context": [["Ada", ["She was born.", " In Lund."]], ["Oslo", ["A town."]]],
}


QED = {
    "example_id": -7,
    "title_text": "Ada",
    "question_text": "where was ada born",
    "paragraph_text": PASSAGE,
    "original_nq_answers": [[{"start": 16, "end": 20, "string": "Lund"}], [{"start": 34, "end": 38, "string": "Oslo"}]],
}


CONTENTS = {
    "squad": squad(qa()),
    "mrqa": MRQA,
    "hotpotqa": [HOTPOT],
    "qed": [QED],
    "qa": [QA],
    "csv": f'question,context,answer\nWhere?,"{PASSAGE}",Lund\n',
}


def recognise_format(path) -> str:
    """The format of a file, by its content."""
    return recognise(str(path), column_names(None))[0]


def read_hub(name: str, split: str, config: str | None = None, *, format: str = "auto", language: str | None = None, **options):
    """Examples of a data set that `datasets` has, with rejected rows and counts."""
    where = "/".join(part for part in (name, config, split) if part)
    options |= {"format": hub_format(name, format), "language": language or hub_language(name, config)}
    return read_rows(load_hub(name, split, config), file=f"hub:{where}", **options)

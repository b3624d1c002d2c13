"""Real files, with the defects of their sources, counted by hand and by a plain loop."""

import gzip
import json

import pytest

from raydist.corpus.examples import plan_splits, read_split
from raydist.corpus.rejected import (
    DUPLICATE_ID,
    EMPTY_ANSWER,
    EMPTY_PASSAGE,
    NOT_AT_OFFSET,
    NOT_IN_PASSAGE,
)
from raydist.errors import InputError

pytestmark = pytest.mark.realdata

XQUAD = {f"xquad/xquad.{language}.A.json.gz": 561 for language in ("en", "es", "ar", "hi", "ru", "tr", "th", "zh", "el", "ro")}
CLEAN = {  # examples as in the README of the data folder; nothing to reject
    "squad/train-subset-v1.1.json.gz": 11877,
    "squad/train-mrqa-sample.json.gz": 4330,
    "squad/dev-A-v1.1.json.gz": 5257,
    "adversarial_squad/addsent-A.json.gz": 1692,
    "adversarial_squad/addonesent-A.json.gz": 852,
    "nq_qed/qed-dev.A.jsonl.gz": 677,
    "mrqa_format/NewsQA_sample.jsonl.gz": 17,
    **XQUAD,
}


def read(path, **options):
    [split] = plan_splits([str(path)], **options)
    examples, rejected, counts = read_split(split)
    assert counts.questions == len(examples) + counts.questions_rejected + counts.not_extractive
    assert all(e.context[a.start : a.start + len(a.text)] == a.text for e in examples for a in e.answers)
    return examples, rejected, counts


@pytest.mark.parametrize("name", CLEAN)
def test_clean_files_lose_nothing(data_dir, name):
    examples, rejected, counts = read(data_dir / name)
    assert (len(examples), rejected, counts.not_extractive) == (CLEAN[name], [], 0)
    assert all(e.answers for e in examples)
    assert examples[0].language == (name[12:14] if name in XQUAD else "en")


# (file, questions, answers, off their offset, in questions, questions lost, repaired, answers with empty text)
DEFECTS = [
    ("covid_qa/200423_covidQA.json.gz", 1380, 1380, 234, 234, 234, 227, 0),
    ("squad_it/test-it.A.json.gz", 3987, 11120, 51, 25, 16, 31, 7),
    ("arcd/arcd-train.json.gz", 693, 693, 3, 3, 3, 0, 0),
    ("squad_es/dev-es-small.A.json.gz", 3331, 11139, 0, 0, 0, 0, 2074),  # {"text": "", "answer_start": -1}: untranslated
]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect[0])
def test_defects_of_the_sources_are_found_exactly(data_dir, defect):
    name, questions, answers, off, off_questions, lost, repaired, empty = defect
    _, rejected, counts = read(data_dir / name)
    assert (counts.questions, counts.answers, counts.questions_rejected) == (questions, answers, lost)
    assert counts.reasons.get(NOT_AT_OFFSET, 0) == off
    assert counts.reasons.get(EMPTY_ANSWER, 0) == empty
    assert counts.answers_rejected == off + empty
    assert len({r.id for r in rejected if r.reason == NOT_AT_OFFSET}) == off_questions
    counts = read(data_dir / name, repair_offsets=True)[2]
    assert (counts.answers_repaired, counts.answers_rejected) == (repaired, off - repaired + empty)


def test_covid_qa_equals_a_plain_loop(data_dir):
    path = data_dir / "covid_qa/200423_covidQA.json.gz"
    right = {}
    for article in json.loads(gzip.decompress(path.read_bytes()))["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                for answer in qa["answers"]:
                    start = answer["answer_start"]
                    if paragraph["context"][start : start + len(answer["text"])] == answer["text"]:
                        right.setdefault(str(qa["id"]), []).append((start, answer["text"]))
    assert {e.id: [(a.start, a.text) for a in e.answers] for e in read(path)[0]} == right


# (file, yes/no, answers that do not occur, rows without a passage, examples)
HOTPOTQA = [("dev-100.json.gz", 6, 0, 0, 94), ("train-100.json.gz", 9, 0, 0, 91), ("test-A.jsonl.gz", 23, 79, 1, 147)]


@pytest.mark.parametrize(("name", "yes_no", "missing", "empty", "num_examples"), HOTPOTQA)
def test_hotpotqa_counts_yes_and_no_apart(data_dir, name, yes_no, missing, empty, num_examples):
    examples, _, counts = read(data_dir / "hotpotqa" / name)
    assert (counts.not_extractive, len(examples)) == (yes_no, num_examples)
    assert counts.reasons.get(NOT_IN_PASSAGE, 0) == missing
    assert counts.reasons.get(EMPTY_PASSAGE, 0) == empty


def test_hotpotqa_answers_are_missing_only_where_a_gold_paragraph_is(data_dir):
    path = data_dir / "hotpotqa/test-A.jsonl.gz"
    rows = {row["_id"]: row for row in map(json.loads, gzip.decompress(path.read_bytes()).splitlines())}
    rejected = {r.id for r in read(path)[1]}
    assert len(rejected) == 80
    for row in map(rows.get, rejected):
        assert {title for title, _ in row["supporting_facts"]} - {title for title, _ in row["context"]}


def test_nq_swap_repeats_nine_rows(data_dir):
    examples, _, counts = read(data_dir / "nq_swap/nq_swap.A.jsonl.gz")
    assert (counts.questions, len(examples), counts.several_occurrences) == (3391, 3382, 1073)
    assert counts.reasons == {DUPLICATE_ID: 9}
    assert len({e.question for e in examples}) == 1211


@pytest.mark.parametrize(
    "name",
    [
        "reqa_squad/test-A.json.gz",
        "reqa_squad/train-10k.json.gz",
        "multireqa/squad-dev-A.sentences.jsonl.gz",
        "squad/halves.json",
        "scifact/scifact.zip",
    ],
)
def test_what_is_no_reading_comprehension_set_is_refused_with_what_was_seen(data_dir, name):
    with pytest.raises(InputError, match=r"rows with the keys (questions|title|A)|ZIP archive"):
        plan_splits([str(data_dir / name)])


def test_the_same_passage_has_the_same_id_in_another_file(data_dir):
    dev = {e.passage_id for e in read(data_dir / "squad/dev-A-v1.1.json.gz")[0]}
    xquad = {e.passage_id for e in read(data_dir / "xquad/xquad.en.A.json.gz")[0]}
    assert len(xquad & dev) >= 0.9 * len(xquad)

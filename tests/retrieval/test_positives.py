"""What answers a question text under any of its ids is a negative of none of them."""

import pyarrow as pa
import pytest
from helpers.corpora import TEXTS, corpus_in, made_in

from raydist.files.stage import Worker, encode_table
from raydist.models.located import Model, NamedModel
from raydist.records import HIT_SCHEMA, SILVER_SCHEMA
from raydist.retrieval.mining_stages import Candidates, LabelledPairs
from raydist.retrieval.positives import repeated_positives
from raydist.retrieval.row_stages import DualTrainingRows
from raydist.retrieval.rows import PairRows

OTHERS = {
    "trains": "Trains cross above.",
    "gulls": "Gulls nest under it.",
    "toll": "Nobody pays a toll.",
    "night": "It is lit.",
}
SENTENCES = TEXTS | OTHERS
QUESTIONS = {"q1": "What is old?", "q2": "What passes?", "q3": "what IS  old"}
GOLD = [("q1", "built"), ("q2", "ships"), ("q3", "fell")]
OLD = {"built", "in_1907", "fell", "again"}  # both answers, and what has the words of one


@pytest.fixture(params=[1, 2, 3])
def corpus(request, tmp_path, make_sentences):
    make_sentences(tmp_path, SENTENCES, document="d").folder.rename(tmp_path / "table")
    asked = pa.table({"question_id": list(QUESTIONS), "text": list(QUESTIONS.values())})
    gold = pa.table({"question_id": [q for q, _ in GOLD], "sentence_id": [s for _, s in GOLD]})
    return corpus_in(tmp_path, asked, gold, block=request.param)


@pytest.fixture
def hits(corpus, tmp_path):
    """Every sentence is found for every question, answers first."""
    order = [*sorted(OLD), *sorted(SENTENCES.keys() - OLD)]
    tables = []
    for number in range(corpus.num_blocks):
        rows = [
            {"question_id": question, "sentence_id": sentence, "rank": rank, "score": -float(rank)}
            for question in corpus.questions(number)["question_id"].to_pylist()
            for rank, sentence in enumerate(order, 1)
        ]
        tables.append(pa.Table.from_pylist(rows, HIT_SCHEMA))
    return made_in(tmp_path, "hits", tables)


def made_by(stage) -> list[dict]:
    make = stage.open(Worker())
    return [row for number in range(stage.parts) for row in make(stage.read(number)).table.to_pylist()]


@pytest.mark.parametrize("seed", range(5))
def test_a_cross_encoder_learns_no_answer_of_the_text_as_wrong(corpus, hits, seed):
    rows = made_by(LabelledPairs(corpus, hits, hits, seed, negatives_per_source=1, dev_share=0.1))
    negatives = {question: {row["sentence_id"] for row in rows if row["question_id"] == question} for question in QUESTIONS}
    assert negatives["q1"] & OLD == {"built"}
    assert negatives["q3"] & OLD == {"fell"}
    assert len(rows) == 12


def test_what_is_known_is_no_candidate_from_a_search_or_a_document(corpus, hits):
    rows = made_by(Candidates(corpus, hits, hits, top=9, same_doc=9, seed=0))
    found = {question: {row["sentence_id"] for row in rows if row["question_id"] == question} for question in QUESTIONS}
    assert found["q1"] == found["q3"] == SENTENCES.keys() - OLD
    assert found["q2"] == SENTENCES.keys() - {"ships"}


@pytest.mark.parametrize("weighting", ["gold", "silver"])
def test_no_mined_negative_is_an_answer_of_the_text(corpus, tmp_path, weighting):
    def low(question: str, sentence: str) -> dict:
        pair = {"question_id": question, "sentence_id": sentence, "p": 0.01, "kept": False, "bm25_rank": 1, "logit": -4.0}
        return dict.fromkeys(SILVER_SCHEMA.names) | pair

    blocks = []
    for number in range(corpus.num_blocks):
        ids = corpus.questions(number)["question_id"].to_pylist()
        blocks.append(pa.Table.from_pylist([low(q, s) for q in ids for s in SENTENCES if (q, s) not in GOLD], SILVER_SCHEMA))
    stage = DualTrainingRows(
        corpus,
        Model(NamedModel("builtin:tiny"), "d"),
        context=False,
        max_question_length=32,
        max_answer_length=32,
        question_prefix="",
        answer_prefix="",
        weighting=weighting,
        hard_negatives=9,
        negative_p=0.1,
        silver=made_in(tmp_path, "silver", blocks),
        gold_scores=None,
    )
    make, files = stage.open(Worker()), []
    for number in range(stage.parts):
        files.append(tmp_path / f"rows-{number}.arrow")
        files[-1].write_bytes(encode_table(make(stage.read(number)).table, "arrow", {}))
    rows, table = PairRows(files), corpus.sentence_table()
    bags = dict(zip(SENTENCES, table.bag_keys[table.find(list(SENTENCES))].tolist()))
    mined = [set(rows.values("negative_bag_key", row).tolist()) for row in range(len(rows))]
    assert [len(of_row) for of_row in mined] == [5, 6, 5]  # copies count once: of `built` and of `fell`
    assert not (mined[0] | mined[2]) & {bags[id] for id in OLD}


def test_known_answers_are_named_by_id_only_where_a_text_has_several(corpus):
    known = repeated_positives(corpus, None).of(corpus.read("questions"))
    assert known.keys() == {"q1", "q3"}
    assert known["q1"] == known["q3"]
    assert len(known["q1"]) == 2

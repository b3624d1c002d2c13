import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from raydist.corpus.duplicates import normalise_text
from raydist.errors import InputError
from raydist.records import CANDIDATE_SCHEMA, HIT_SCHEMA
from raydist.retrieval.candidates import find_candidates, hit_table


def slow(found, top, near=False):
    """Both lists in a dictionary, pair by pair."""
    text = dict(zip(found.table["sentence_id"].to_pylist(), found.table["text"].to_pylist()))

    def normal(id):
        words = normalise_text(text[id]).split()
        return sorted(words) if near else words

    golds = {}
    for row in found.gold.to_pylist():
        golds.setdefault(row["question_id"], []).append(normal(row["sentence_id"]))
    rows = {}
    for source, hits in (("bm25", found.bm25), ("dense", found.dense)):
        for hit in hits.to_pylist():
            question, sentence = hit["question_id"], hit["sentence_id"]
            if hit["rank"] <= top and normal(sentence) not in golds[question]:
                row = rows.setdefault((question, sentence), dict.fromkeys(CANDIDATE_SCHEMA.names))
                row |= {"question_id": question, "sentence_id": sentence, "same_doc": False}
                row |= {f"{source}_rank": hit["rank"], f"{source}_score": hit["score"]}
    return [rows[pair] for pair in sorted(rows)]


@pytest.mark.parametrize(("top", "near"), [(10, False), (4, True)])
def test_candidates_agree_with_a_plain_loop(world, top, near):
    candidates = find_candidates(**world.given(), top=top, near_duplicates=near)
    assert candidates.schema == CANDIDATE_SCHEMA
    assert candidates.to_pylist() == slow(world, top, near)
    both = pc.and_(pc.is_valid(candidates["bm25_rank"]), pc.is_valid(candidates["dense_rank"]))
    assert 0 < pc.sum(both).as_py() < len(candidates)


@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_candidates_do_not_depend_on_blocks_nor_on_the_order_of_any_table(world, shuffled, blocks):
    whole = find_candidates(**world.given(), same_doc=2)
    mixed = {name: shuffled(table, blocks) for name, table in world.all_but_sentences().items()}
    parts = [
        find_candidates(
            **mixed | {"questions": mixed["questions"].take(np.arange(at, len(mixed["questions"]), blocks))},
            sentences=world.sentences, same_doc=2,
        )
        for at in range(blocks)
    ]  # fmt: skip
    assert pa.concat_tables(parts).sort_by([("question_id", "ascending"), ("sentence_id", "ascending")]).equals(whole)


def test_a_pair_that_a_source_gives_twice_is_one_candidate(world):
    once = find_candidates(**world.given())
    assert find_candidates(**world.given() | {"bm25": pa.concat_tables([world.bm25, world.bm25])}).equals(once)


def test_sentences_of_the_same_document_can_be_added(world):
    without = find_candidates(**world.given()).to_pylist()
    candidates = find_candidates(**world.given(), same_doc=3).to_pylist()
    golds = {(row["question_id"], row["sentence_id"]) for row in world.gold.to_pylist()}
    assert not golds & {(row["question_id"], row["sentence_id"]) for row in candidates}
    old = [row | {"same_doc": False} for row in candidates if row["bm25_rank"] or row["dense_rank"]]
    assert old == without
    added = [row for row in candidates if row["same_doc"]]
    documents = {(question, sentence.rpartition("#")[0]) for question, sentence in golds}
    found = Counter((row["question_id"], row["sentence_id"].rpartition("#")[0]) for row in added)
    assert found.keys() == documents
    assert set(found.values()) == {3}


def test_every_other_sentence_of_the_document_is_as_likely(make_sentences, tmp_path):
    """A document of nine sentences, the fifth the answer, the last one with its words: 2 of the other 7, by 350 seeds."""
    texts = {f"d#{number}": f"Sentence {number} says nothing." for number in range(8)}
    texts |= {"d#4": "The river is long.", "d#8": "Long is the river."}
    sentences = make_sentences(tmp_path, texts, document="d")
    questions = pa.table({"question_id": ["q"], "text": ["How long is the river?"]})
    gold = pa.table({"question_id": ["q"], "sentence_id": ["d#4"], "relevance": [1]})

    def drawn(seed):
        nothing = HIT_SCHEMA.empty_table()
        found = find_candidates(questions, gold, nothing, nothing, sentences, same_doc=2, seed=seed, near_duplicates=True)
        return found["sentence_id"].to_pylist()

    assert drawn(3) == drawn(3)
    counts = Counter(id for seed in range(350) for id in drawn(seed))
    assert counts.keys() == {f"d#{number}" for number in (0, 1, 2, 3, 5, 6, 7)}
    assert all(abs(count - 100) < 5 * math.sqrt(100 * 5 / 7) for count in counts.values())  # 2 in 7, five deviations


def test_questions_without_gold_have_candidates(world):
    nothing = world.gold.slice(0, 0)
    candidates = find_candidates(**world.given() | {"gold": nothing})
    assert len(candidates) > len(find_candidates(**world.given()))
    assert find_candidates(**world.given() | {"questions": world.questions.slice(0, 0)}).equals(CANDIDATE_SCHEMA.empty_table())


def test_relevance_0_is_no_gold(world):
    judged = world.gold.set_column(2, "relevance", pa.array(np.zeros(len(world.gold), np.int32)))
    given = world.given()
    assert find_candidates(**given | {"gold": judged}).equals(find_candidates(**given | {"gold": judged.slice(0, 0)}))


def test_bad_hits_are_named(world):
    hit = {"question_id": world.questions["question_id"][0].as_py(), "rank": 1}
    for bad, wrong in [
        ({"sentence_id": "nowhere", "score": 1.0}, "the candidate 'nowhere' is not in the corpus"),
        ({"sentence_id": "c00000000#000", "score": math.nan}, r"1 dense scores are not finite, .*'c00000000#000'"),
    ]:
        with pytest.raises(InputError, match=wrong):
            find_candidates(**world.given() | {"dense": pa.Table.from_pylist([hit | bad], HIT_SCHEMA)})


def test_what_a_search_gave_becomes_hits():
    rows, scores = np.array([[5, 2, -1], [-1, -1, -1], [0, -1, -1]]), np.array([[3.0, 1.5, 0], [0, 0, 0], [2.0, 0, 0]])
    hits = hit_table(["a", "b", "c"], rows, scores, lambda rows: [f"s{row}" for row in rows])
    assert hits.schema == HIT_SCHEMA
    assert [tuple(row.values()) for row in hits.to_pylist()] == [("a", "s5", 1, 3.0), ("a", "s2", 2, 1.5), ("c", "s0", 1, 2.0)]


@pytest.mark.realdata
def test_real_questions(reqa):
    candidates = find_candidates(**reqa.given())
    assert candidates.to_pylist() == slow(reqa, 10)

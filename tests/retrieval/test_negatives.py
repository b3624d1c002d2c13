from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from raydist.corpus.cutting import cut_passages
from raydist.corpus.duplicates import normalise_text
from raydist.corpus.schemas import GOLD_SCHEMA, PASSAGE_SCHEMA
from raydist.corpus.sentence_table import build_sentence_table
from raydist.draws import keyed_uniform, text_hash
from raydist.errors import InputError
from raydist.records import HIT_SCHEMA, LABELLED_PAIR_SCHEMA
from raydist.retrieval.negatives import SOURCES, count_sources, draw_negatives, fallbacks, is_dev_question


def bag(text):
    return tuple(sorted(normalise_text(text).split()))


def gold_ids(found) -> dict[str, set[str]]:
    ids: dict[str, set[str]] = {}
    for row in found.gold.to_pylist():
        ids.setdefault(row["question_id"], set()).add(row["sentence_id"])
    return ids


def slow(found, seed, n=1) -> list[tuple]:
    """The same with plain lists of texts: every source listed, what is refused struck out, one drawn."""
    sentences = sorted(found.table.to_pylist(), key=lambda row: row["sentence_id"])
    bags = {row["sentence_id"]: bag(row["text"]) for row in sentences}
    document = {row["sentence_id"]: row["document_id"] for row in sentences}
    golds, rows = gold_ids(found), []
    hits = {}
    for name, table in (("bm25", found.bm25), ("dense", found.dense)):
        for hit in sorted(table.to_pylist(), key=lambda hit: hit["rank"]):
            hits.setdefault((name, hit["question_id"]), []).append(hit["sentence_id"])
    for question in sorted(found.questions["question_id"].to_pylist()):
        refused = {bags[id] for id in golds[question]}
        key = np.array([text_hash(question)])
        for pair, answer in enumerate(sorted(golds[question])):
            rows.append((question, answer, 1, "gold", "gold", pair))
            for wanted in SOURCES:
                for number in range(pair * n, pair * n + n):
                    for source in (wanted, "bm25", "pool"):
                        listed = {
                            "bm25": hits.get(("bm25", question), []),
                            "dense": hits.get(("dense", question), []),
                            "same_doc": [id for id in document if document[answer] and document[id] == document[answer]],
                            "pool": list(bags),
                        }[source]
                        left = [id for id in listed if bags[id] not in refused]
                        if left:
                            drawn = keyed_uniform(seed, number, f"negative {wanted} {source}", key)[0]
                            picked = left[int(drawn * len(left))]
                            break
                    refused.add(bags[picked])
                    rows.append((question, picked, 0, wanted, source, number))
    return rows


def listed(pairs: pa.Table) -> list[tuple]:
    return list(zip(*(pairs[name].to_pylist() for name in LABELLED_PAIR_SCHEMA.names[:6])))


@pytest.mark.parametrize("n", [1, 3])
def test_draws_agree_with_a_plain_loop(world, n):
    pairs = draw_negatives(**world.given(), seed=3, negatives_per_source=n)
    assert pairs.schema == LABELLED_PAIR_SCHEMA
    assert listed(pairs) == slow(world, 3, n)
    # for each gold pair one positive, and n from each of three sources
    assert pairs.num_rows == world.gold.num_rows * (1 + 3 * n)


def test_no_negative_is_a_gold_answer_nor_has_its_text_nor_comes_twice(world):
    pairs = draw_negatives(**world.given(), seed=0, negatives_per_source=2).to_pylist()
    text = dict(zip(world.table["sentence_id"].to_pylist(), world.table["text"].to_pylist()))
    golds, seen = gold_ids(world), set()
    for row in pairs:
        if not row["label"]:
            assert row["sentence_id"] not in golds[row["question_id"]]
            assert bag(text[row["sentence_id"]]) not in {bag(text[id]) for id in golds[row["question_id"]]}
            assert (row["question_id"], row["sentence_id"]) not in seen
            seen.add((row["question_id"], row["sentence_id"]))
    assert {row["sentence_id"] for row in pairs if row["label"]} == set(world.gold["sentence_id"].to_pylist())


@pytest.mark.parametrize("blocks", [2, 7])
def test_rows_do_not_depend_on_blocks_nor_on_the_order_of_any_table(world, shuffled, blocks):
    whole = draw_negatives(**world.given(), seed=5)
    mixed = {name: shuffled(table, blocks) for name, table in world.all_but_sentences().items()}
    parts = []
    for at in range(blocks):
        block = mixed | {"questions": mixed["questions"].take(np.arange(at, len(mixed["questions"]), blocks))}
        parts.append(draw_negatives(**block, sentences=world.sentences, seed=5))
        assert parts[-1].num_rows < whole.num_rows
    order = [("question_id", "ascending"), ("asked", "ascending"), ("number", "ascending")]
    assert pa.concat_tables(parts).sort_by(order).equals(whole.sort_by(order))


def test_another_seed_draws_other_rows_and_leaves_gold_and_dev_alone(world):
    first, second = (draw_negatives(**world.given(), seed=seed) for seed in (0, 1))
    same = [a == b for a, b in zip(listed(first), listed(second)) if not a[2]]
    assert 0.05 < np.mean(same) < 0.4  # seven to ten are left of ten, so about one in eight is drawn again
    assert first.filter(pc.equal(first["label"], 1)).equals(second.filter(pc.equal(second["label"], 1)))
    assert first["is_dev"].equals(second["is_dev"])


def test_the_source_and_its_rank_are_in_the_row(world):
    ranks = {
        (name, hit["question_id"], hit["sentence_id"]): hit["rank"]
        for name, hits in (("bm25", world.bm25), ("dense", world.dense))
        for hit in hits.to_pylist()
    }
    pairs = draw_negatives(**world.given(), seed=0).to_pylist()
    for row in pairs:
        assert row["rank"] == ranks.get((row["source"], row["question_id"], row["sentence_id"]))
        assert (row["source"] in ("bm25", "dense")) == (row["rank"] is not None)
    assert {row["source"] for row in pairs} >= {"gold", "bm25", "dense", "same_doc"}


# A corpus small enough to say what must be drawn. a answers; b has a's text, c its words in another order.
TEXTS = {"a": "The Oder is long.", "b": "the oder is long", "c": "Long is the Oder!", "d": "Ships sail.", "e": "Fish swim."}


def drawn(tmp_path, hits, documents="", n=1, gold=("a",), **options):
    """What is drawn for question q as (asked, source, sentence); ``hits`` are lists of sentences by source."""
    passages = [
        {"passage_id": id, "document_id": "D" if id in documents else "", "title": "", "text": text, "language": "en"}
        for id, text in TEXTS.items()
    ]
    sentences = cut_passages(pa.Table.from_pylist(passages, PASSAGE_SCHEMA))
    sentences = sentences.set_column(0, "sentence_id", pa.array(list(TEXTS)))
    table = build_sentence_table(tmp_path / "t", [sentences])

    def ranked(ids):
        rows = [{"question_id": "q", "sentence_id": id, "rank": n, "score": 1 / n} for n, id in enumerate(ids, 1)]
        return pa.Table.from_pylist(rows, HIT_SCHEMA)

    judged = [{"question_id": "q", "sentence_id": id, "relevance": 1} for id in gold]
    pairs = draw_negatives(
        pa.table({"question_id": ["q"]}), pa.Table.from_pylist(judged, GOLD_SCHEMA), ranked(hits.get("bm25", "")),
        ranked(hits.get("dense", "")), table, seed=0, negatives_per_source=n, **options,
    )  # fmt: skip
    return [(row["asked"], row["source"], row["sentence_id"]) for row in pairs.to_pylist()[1:]]


def test_a_source_with_nothing_left_gives_way_to_bm25_and_that_to_the_pool(tmp_path):
    # dense finds gold and its duplicates alone; no document is known; bm25 has d for itself and e for dense
    with pytest.raises(InputError, match="question 'q' finds no negative: all 5 sentences"):
        drawn(tmp_path, {"bm25": "abde", "dense": "abc"})  # same_doc is the third, and only d and e are free
    two = drawn(tmp_path, {"bm25": "abd", "dense": "abc"}, near_duplicates=False)
    assert two[:2] == [("bm25", "bm25", "d"), ("dense", "dense", "c")]  # c is no exact duplicate
    assert two[2] == ("same_doc", "pool", "e")  # bm25 has given its d, the pool has e left
    other = drawn(tmp_path, {"bm25": "de", "dense": "b"}, near_duplicates=False)
    assert [row[:2] for row in other] == [("bm25", "bm25"), ("dense", "bm25"), ("same_doc", "pool")]
    assert [row[2] for row in other] in (["d", "e", "c"], ["e", "d", "c"])


def test_the_document_is_that_of_the_gold_answer_and_only_the_best_hits_count(tmp_path):
    hits = {"bm25": "cde", "dense": "de"}
    rows = drawn(tmp_path, hits, documents="ae", near_duplicates=False, top=1)
    assert rows == [("bm25", "bm25", "c"), ("dense", "dense", "d"), ("same_doc", "same_doc", "e")]


def test_negatives_are_counted_by_the_source_asked_and_the_source_drawn_from():
    def pairs(*rows):
        return pa.table({"asked": [row[0] for row in rows], "source": [row[1] for row in rows]})

    whole = pairs(("gold", "gold"), ("bm25", "bm25"), ("dense", "dense"), ("same_doc", "same_doc"))
    short = pairs(("gold", "gold"), ("bm25", "bm25"), ("dense", "dense"), ("same_doc", "bm25"))
    counts = count_sources([whole, short, whole])
    assert counts == {("bm25", "bm25"): 3, ("dense", "dense"): 3, ("same_doc", "bm25"): 1, ("same_doc", "same_doc"): 2}
    assert fallbacks(counts) == "no sentence of the same document for 1 of 3 negatives, drawn from BM25 instead"
    assert fallbacks(count_sources([whole])) == ""
    assert fallbacks({("bm25", "pool"): 1200, ("dense", "pool"): 7, ("dense", "dense"): 1}) == (
        "no sentence from BM25 for 1,200 of 1,200 negatives, drawn from the corpus instead; "
        "no sentence from the dense retriever for 7 of 8 negatives, drawn from the corpus instead"
    )


def test_bad_input_is_named(tmp_path, world):
    with pytest.raises(InputError, match="question 'q' has no gold sentence"):
        drawn(tmp_path, {"bm25": "de"}, gold=())
    with pytest.raises(InputError, match="the gold sentence 'x' is not in the corpus"):
        drawn(tmp_path, {"bm25": "de"}, gold=("a", "x"))
    with pytest.raises(InputError, match="the dense hit 'y' is not in the corpus"):
        drawn(tmp_path, {"dense": "y"})


def test_draws_are_uniform_over_the_ranks_and_over_the_pool(world):
    """Every question has the same ten hits; 800 questions, so 80 draws of each are expected, deviation 8.5."""
    ids = world.table["sentence_id"].to_pylist()
    questions = [f"q{n}" for n in range(800)]
    gold = pa.Table.from_pylist([{"question_id": q, "sentence_id": ids[-1], "relevance": 1} for q in questions], GOLD_SCHEMA)
    hits = [
        {"question_id": q, "sentence_id": ids[rank * 9], "rank": rank, "score": 1.0} for q in questions for rank in range(1, 11)
    ]
    bm25, dense = pa.Table.from_pylist(hits, HIT_SCHEMA), HIT_SCHEMA.empty_table()
    asked = pa.table({"question_id": questions})
    pairs = draw_negatives(asked, gold, bm25, dense, world.sentences, seed=0).to_pylist()
    ranks = Counter(row["rank"] for row in pairs if row["asked"] == "bm25")
    assert sorted(ranks) == list(range(1, 11))
    assert 50 < min(ranks.values()) <= max(ranks.values()) < 110
    assert {row["source"] for row in pairs if row["asked"] == "dense"} == {"bm25"}  # draws again
    pairs = draw_negatives(asked, gold, dense, dense, world.sentences, seed=0).to_pylist()
    rows = world.sentences.find([row["sentence_id"] for row in pairs if row["source"] == "pool"])
    assert {row["asked"] for row in pairs if row["source"] == "pool"} == {"bm25", "dense"}
    quarters = np.bincount(rows * 4 // len(world.sentences), minlength=4)  # of 1,600: 400 each, deviation 17
    assert (abs(quarters - 400) < 60).all()


def test_a_tenth_of_the_questions_is_held_out_whole(world):
    pairs = draw_negatives(**world.given(), seed=0).to_pylist()
    dev = {row["question_id"] for row in pairs if row["is_dev"]}
    assert dev
    assert dev.isdisjoint(row["question_id"] for row in pairs if not row["is_dev"])
    many = is_dev_question([f"q{n}" for n in range(20_000)])
    assert 0.09 < many.mean() < 0.11
    assert is_dev_question(["q7", "q3"]).tolist() == many[[7, 3]].tolist()


def test_no_questions_no_pairs(world):
    empty = world.given() | {"questions": world.questions.slice(0, 0)}
    assert draw_negatives(**empty, seed=0).equals(LABELLED_PAIR_SCHEMA.empty_table())


@pytest.mark.realdata
def test_real_pairs_without_documents_fall_back_to_bm25(reqa):
    pairs = draw_negatives(**reqa.given(), seed=0)
    assert listed(pairs) == slow(reqa, 0)
    used = Counter((row[3], row[4]) for row in listed(pairs))
    assert used["same_doc", "same_doc"] == 0
    assert used["same_doc", "bm25"] > 0.95 * len(reqa.questions)
    assert used["gold", "gold"] * 4 == pairs.num_rows

import json
import math
import weakref
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from raydist.errors import InputError
from raydist.files.stage import encode_table
from raydist.records import CANDIDATE_SCHEMA, MINED_EXAMPLE_SCHEMA, SCORED_SCHEMA, SILVER_SCHEMA, TRAINING_PAIR_SCHEMA
from raydist.retrieval.candidates import find_candidates
from raydist.retrieval.cross_encoder import sigmoid
from raydist.retrieval.silver import (
    BELOW,
    COPY,
    choose_examples,
    example_table,
    mined_table,
    select_silver,
    training_pairs,
    with_texts,
    write_selection,
    yield_curve,
)


class Scorer:
    """Stands for a trained cross-encoder: a number by a hash of the pair. Counts what it was asked."""

    def __init__(self):
        self.pairs = 0

    def __call__(self, candidates: pa.Table) -> pa.Table:
        self.pairs += len(candidates)
        keys = [blake2b(f"{row['question_id']} {row['sentence_id']}".encode()).digest() for row in candidates.to_pylist()]
        logits = np.array([int.from_bytes(key[:4], "little") / 2**32 * 12 - 8 for key in keys]).astype(np.float32)
        p = sigmoid(logits).astype(np.float32)
        return pa.table([*candidates.columns, logits, p, ["model-1"] * len(p)], schema=SCORED_SCHEMA)


def scored(*rows) -> pa.Table:
    """(question, sentence, p, bm25 rank, dense rank) as a scored table."""
    return pa.Table.from_pylist(
        [
            {"question_id": q, "sentence_id": s, "p": p, "logit": math.log(p / (1 - p)), "bm25_rank": bm25, "dense_rank": dense,
             "bm25_score": bm25 and 1.0, "dense_score": dense and 0.5, "same_doc": not (bm25 or dense), "cross_encoder": "m"}
            for q, s, p, bm25, dense in rows
        ],
        SCORED_SCHEMA,
    )  # fmt: skip


ROWS = scored(("q2", "s1", 0.9, 1, None), ("q1", "s3", 0.3, None, 2), ("q1", "s2", 0.5, 1, 1), ("q1", "s4", 0.04, None, None))


def column(table, name):
    return table[name].to_pylist()


def test_weights_by_hand():
    silver = select_silver(ROWS)
    assert silver.schema == SILVER_SCHEMA
    assert column(silver, "sentence_id") == ["s2", "s3", "s4", "s1"]  # by question, then sentence
    assert column(silver, "kept") == [True, False, False, True]  # 0.5 is not below 0.5
    assert column(silver, "weight") == pytest.approx([0.25, 0, 0, 0.81], rel=1e-6)
    assert column(silver, "why_not") == [None, BELOW, BELOW, None]
    assert column(silver, "sources") == [["bm25", "dense"], ["dense"], ["same_doc"], ["bm25"]]
    assert column(select_silver(ROWS, power=1), "weight") == pytest.approx([0.5, 0, 0, 0.9], rel=1e-6)
    assert column(select_silver(ROWS, power=0), "weight") == [1, 0, 0, 1]
    assert column(select_silver(ROWS, weighting="none"), "weight") == [1, 0, 0, 1]
    low = {"threshold": 0.2}
    assert column(select_silver(ROWS, weighting="none", **low), "weight") == [1, 1, 0, 1]
    assert column(select_silver(ROWS, weighting="binary", **low), "weight") == [1, 0, 0, 1]


def test_a_temperature_moves_p_and_keeps_the_order():
    # logit ln 9 for p = 0.9; halved it is ln 3: p = 3/4. ln(3/7) / 2: p = 1 / (1 + sqrt(7/3)) = 0.3956
    silver = select_silver(ROWS, temperature=2.0)
    assert column(silver, "p") == pytest.approx([0.5, 0.395644, 1 / (1 + math.sqrt(24)), 0.75], rel=1e-5)
    assert column(silver, "weight")[3] == pytest.approx(0.5625, rel=1e-5)
    assert column(silver, "logit") == column(select_silver(ROWS), "logit")


def test_a_shift_moves_what_is_kept_at_one_half_and_a_temperature_does_not():
    for temperature in (None, 0.2, 5.0):
        assert column(select_silver(ROWS, temperature=temperature), "kept") == [True, False, False, True]
    # less ln 3, the odds 9 of p = 0.9 are 3, and the odds 1 of p = 0.5 are 1/3
    silver = select_silver(ROWS, temperature=1.0, shift=math.log(3))
    assert column(silver, "p")[::3] == pytest.approx([0.25, 0.75], rel=1e-5)
    assert column(silver, "kept") == [False, False, False, True]


@pytest.mark.parametrize("threshold", [0.0, 0.31, 0.5, 0.9, 1.0])
def test_a_threshold_changed_after_scoring_keeps_what_a_fresh_run_keeps_and_asks_no_model(world, threshold):
    candidates, first, fresh = find_candidates(**world.given()), Scorer(), Scorer()
    before = select_silver(first(candidates), threshold=0.7)
    again = select_silver(before, threshold=threshold)  # from the selection itself: everything is still in it
    assert first.pairs == len(candidates)
    anew = select_silver(fresh(find_candidates(**world.given())), threshold=threshold)
    assert again.equals(anew)
    p = np.array(column(fresh(candidates), "p"))
    assert sum(column(again, "kept")) == (p >= threshold).sum()
    assert len(again) == len(candidates)


def test_blocks_and_row_order_change_nothing(world, shuffled):
    scores = Scorer()(find_candidates(**world.given()))
    whole = select_silver(scores)
    parts = [select_silver(shuffled(scores, 1).take(np.arange(at, len(scores), 5))) for at in range(5)]
    mixed = pa.concat_tables(parts)
    assert select_silver(mixed).equals(whole)
    curve = yield_curve([scores], 100)
    assert yield_curve(parts, 100) == curve
    chosen = choose_examples(whole, seed=4)
    of_each = pa.concat_tables([choose_examples(part, seed=4) for part in parts])
    assert choose_examples(of_each, seed=4).equals(chosen)


def test_scores_that_are_no_numbers_are_named():
    for name, value in [("p", math.nan), ("p", None), ("p", 1.5), ("logit", math.nan), ("logit", math.inf)]:
        rows = ROWS.to_pylist()
        rows[2] |= {name: value}
        bad = pa.Table.from_pylist(rows, SCORED_SCHEMA)
        for use in (select_silver, lambda table: yield_curve([table], 1)):
            with pytest.raises(InputError, match=r"1 of 4 scores are no probabilities, .* 'q1' and sentence 's2'"):
                use(bad)
    mixed = ROWS.set_column(SCORED_SCHEMA.get_field_index("cross_encoder"), "cross_encoder", pa.array(["m", "n", "m", "m"]))
    with pytest.raises(InputError, match="2 cross-encoders are mixed"):
        select_silver(mixed)


def test_impossible_settings_are_named():
    for options in ({"threshold": 1.1}, {"power": -1}, {"weighting": "square"}, {"temperature": 0}, {"shift": math.inf}):
        with pytest.raises(InputError, match=r"wanted|unknown weighting 'square'; take one of power, none, binary"):
            select_silver(ROWS, **options)


def test_nothing_scored_nothing_selected():
    assert select_silver(SCORED_SCHEMA.empty_table()).equals(SILVER_SCHEMA.empty_table())
    assert yield_curve([], 0)["points"][0] == {"threshold": 0.0, "pairs": 0, "share_of_gold": 0.0}


def test_a_yield_curve_counts_what_each_threshold_would_keep():
    curve = yield_curve([ROWS], num_gold=8, threshold=0.45)
    assert (curve["gold"], curve["candidates"], curve["threshold"]) == (8, 4, 0.45)
    points = {point["threshold"]: point for point in curve["points"]}
    assert [points[at]["pairs"] for at in (0.0, 0.04, 0.2, 0.45, 0.5, 0.52, 1.0)] == [4, 3, 3, 2, 2, 1, 0]  # 0.04 in float32
    assert points[0.5]["share_of_gold"] == 0.25
    for at, point in points.items():
        assert point["pairs"] == sum(column(select_silver(ROWS, threshold=at), "kept"))
    warm = {point["threshold"]: point["pairs"] for point in yield_curve([ROWS], 8, temperature=2.0)["points"]}
    for at, pairs in warm.items():
        assert pairs == sum(column(select_silver(ROWS, threshold=at, temperature=2.0), "kept"))
    assert json.loads(json.dumps(curve)) == curve


@pytest.fixture(scope="module")
def sentences(make_sentences, tmp_path_factory):
    """Every sentence that these tests name; `x` and `y` have the words of `g` and of `a`, `z` those of `c`."""
    texts = {id: f"The sentence called {id}." for id in ("a", "b", "c", "d", "e", "f", "g", *(f"s{n}" for n in range(10)))}
    texts |= {"x": "Called g: the SENTENCE", "y": "the sentence called a", "z": "Sentence c, the called"}
    return make_sentences(tmp_path_factory.mktemp("named"), texts)


def gold(*pairs) -> pa.Table:
    return pa.table({"question_id": [q for q, _ in pairs], "sentence_id": [s for _, s in pairs], "relevance": [1] * len(pairs)})


def test_of_sentences_with_the_same_words_a_question_keeps_the_one_of_the_highest_p_then_of_the_smallest_id(sentences):
    table = scored(
        ("q1", "g", 0.7, 1, 1), ("q1", "x", 0.9, 2, 2), ("q1", "b", 0.6, 3, 3), ("q1", "y", 0.8, 4, 4), ("q1", "a", 0.8, 5, 5),
        ("q2", "g", 0.7, 1, 1), ("q2", "z", 0.6, 2, 2), ("q2", "c", 0.3, 3, 3),
    )  # fmt: skip
    silver = select_silver(table, sentences=sentences, power=1)
    # of q1: x is above g, whose words it has; a and y are equal in p; of q2 g stands alone, and c is below as well as a copy
    assert column(silver, "sentence_id") == ["a", "b", "g", "x", "y", "c", "g", "z"]
    assert column(silver, "why_not") == [None, None, COPY, None, COPY, BELOW, None, None]
    assert column(silver, "kept") == [reason is None for reason in column(silver, "why_not")]
    assert column(silver, "weight") == pytest.approx([0.8, 0.6, 0, 0.9, 0, 0, 0.7, 0.6], rel=1e-6)
    words = [sentences.bag_keys[row] for row in sentences.rows_of(silver.filter(silver["kept"])["sentence_id"], "it")]
    assert len(set(zip(column(silver.filter(silver["kept"]), "question_id"), words))) == 5
    pairs = training_pairs(gold(("q1", "d")), silver, sentences)
    assert column(pairs, "sentence_id") == ["a", "b", "d", "x", "g", "z"]


def test_copies_are_told_at_any_threshold_from_the_same_scores_in_any_order_and_in_blocks_of_whole_questions(
    sentences, shuffled
):
    named = sentences.ids(np.arange(len(sentences))).to_pylist()
    scores = scored(
        *((f"q{q}", id, (7 * q + 3 * at + 1) % 20 / 20 + 0.01, 1, None) for q in range(9) for at, id in enumerate(named))
    )
    options = {"sentences": sentences}
    low = select_silver(scores, threshold=0.0, **options)
    copies = [reason == COPY for reason in column(low, "why_not")]
    assert sum(copies) == 9 * 3  # of a and y, c and z, g and x
    asked = sorted(set(column(scores, "question_id")))
    parts = [scores.filter(pc.is_in(scores["question_id"], pa.array(asked[at::3]))) for at in range(3)]
    curve = {point["threshold"]: point["pairs"] for point in yield_curve(parts, 100, **options)["points"]}
    for threshold in (0.0, 0.3, 0.5, 0.9):
        whole = select_silver(scores, threshold=threshold, **options)
        assert select_silver(select_silver(low, threshold=0.9, **options), threshold=threshold, **options).equals(whole)
        mixed = pa.concat_tables([select_silver(shuffled(part, 2), threshold=threshold, **options) for part in parts])
        assert mixed.sort_by([("question_id", "ascending"), ("sentence_id", "ascending")]).equals(whole)
        assert sum(column(whole, "kept")) == curve[threshold]


def test_training_pairs_are_gold_of_weight_1_and_kept_silver(sentences):
    pairs = training_pairs(gold(("q3", "s9"), ("q1", "s7")), select_silver(ROWS), sentences)
    assert pairs.schema == TRAINING_PAIR_SCHEMA
    rows = [(row["question_id"], row["sentence_id"], row["weight"], row["is_gold"]) for row in pairs.to_pylist()]
    silver = pytest.approx(0.81, rel=1e-6)
    assert rows == [("q1", "s2", 0.25, False), ("q1", "s7", 1, True), ("q2", "s1", silver, False), ("q3", "s9", 1, True)]
    assert column(pairs, "negatives") == [[]] * 4
    assert column(pairs, "logit") == [0, None, pytest.approx(math.log(9), rel=1e-6), None]
    only = training_pairs(gold(("q1", "s7")), SILVER_SCHEMA.empty_table(), sentences)
    assert column(only, "is_gold") == [True]


def test_a_pair_that_is_gold_and_silver_is_gold_once(sentences):
    pairs = training_pairs(gold(("q1", "s2")), select_silver(ROWS), sentences).to_pylist()
    assert [(row["sentence_id"], row["weight"]) for row in pairs if row["question_id"] == "q1"] == [("s2", 1)]


def test_hard_negatives_are_rejected_candidates_of_low_p_with_their_logits(sentences):
    table = scored(
        ("q1", "a", 0.8, 1, 1), ("q1", "b", 0.05, 9, 2), ("q1", "c", 0.02, 3, None), ("q1", "d", 0.3, 2, 2),
        ("q1", "e", 0.09, None, None), ("q1", "f", 0.08, None, 2), ("q2", "b", 0.2, 1, 1),
    )  # fmt: skip
    scores = pa.table({"question_id": ["q1"], "sentence_id": ["g"], "logit": [2.5]})
    silver = select_silver(table)
    pairs = training_pairs(gold(("q1", "g"), ("q2", "g")), silver, sentences, hard_negatives=3, gold_scored=scores).to_pylist()
    # a is kept, d is too likely; best ranks: b 2, f 2, c 3, e none
    assert [row["negatives"] for row in pairs] == [["b", "f", "c"], ["b", "f", "c"], []]
    assert pairs[0]["negative_logits"] == pytest.approx([math.log(p / (1 - p)) for p in (0.05, 0.08, 0.02)], rel=1e-5)
    assert [row["logit"] for row in pairs] == [pytest.approx(math.log(4), rel=1e-5), 2.5, None]
    every = training_pairs(gold(("q1", "g")), silver, sentences, hard_negatives=9, negative_p=0.5).to_pylist()
    assert every[0]["negatives"] == ["b", "d", "f", "c", "e"]


def test_no_hard_negative_has_the_words_of_an_answer_or_of_another(sentences):
    table = scored(
        ("q1", "a", 0.8, 1, 1), ("q1", "x", 0.01, 2, 2), ("q1", "y", 0.02, 3, 3), ("q1", "c", 0.03, 4, 4),
        ("q1", "z", 0.04, 5, 5), ("q1", "b", 0.05, 6, 6), ("q2", "x", 0.01, 1, 1),
    )  # fmt: skip
    pairs = training_pairs(gold(("q1", "g"), ("q2", "b")), select_silver(table), sentences, hard_negatives=5).to_pylist()
    # of q1: x says what the gold g says, y what the silver a says, z what c says; of q2 x is as good as any
    assert [row["negatives"] for row in pairs] == [["c", "b"], ["c", "b"], ["x"]]


def test_low_thresholds_leave_no_hard_negatives_that_are_positives(sentences):
    pairs = training_pairs(gold(("q1", "s7")), select_silver(ROWS, threshold=0.01), sentences, hard_negatives=5, negative_p=0.9)
    assert column(pairs, "negatives") == [[]] * 5


def test_the_selection_opens_with_datasets(world, tmp_path):
    from datasets import load_dataset

    silver = select_silver(Scorer()(find_candidates(**world.given())))
    (tmp_path / "silver.parquet").write_bytes(encode_table(silver, "parquet", {}))
    rows = load_dataset("parquet", data_files=str(tmp_path / "silver.parquet"), split="train", cache_dir=str(tmp_path / "c"))
    assert rows.column_names == SILVER_SCHEMA.names
    assert list(rows) == silver.to_pylist()


def test_a_selection_is_written_block_by_block_and_told_as_a_whole(world, tmp_path):
    silver = select_silver(Scorer()(find_candidates(**world.given())))
    bounds = np.linspace(0, len(silver), 8).astype(int)
    alive: list[weakref.ref] = []
    most = 0

    def blocks():
        nonlocal most
        for first, last in pairwise(bounds.tolist()):
            block = silver.slice(first, last - first)
            alive.append(weakref.ref(block))
            most = max(most, sum(ref() is not None for ref in alive))
            yield block
            del block

    with (tmp_path / "silver.parquet").open("wb") as file:
        told = write_selection(file, blocks(), 100, threshold=0.5, seed=4)
    assert most <= 2  # the one that comes, and the one before it
    assert pq.read_table(tmp_path / "silver.parquet").equals(silver)
    assert told.curve == yield_curve([silver], 100, threshold=0.5)
    assert told.examples.equals(choose_examples(silver, seed=4))
    assert told.kept == sum(column(silver, "kept"))
    with (tmp_path / "empty.parquet").open("wb") as file:
        assert write_selection(file, [], 0, threshold=0.5, seed=0).kept == 0
    assert pq.read_schema(tmp_path / "empty.parquet").equals(SILVER_SCHEMA)


def test_examples_are_drawn_by_seed_and_have_their_texts(world, shuffled):
    silver = select_silver(Scorer()(find_candidates(**world.given())))
    chosen = choose_examples(silver, seed=0)
    assert column(chosen, "kept") == [True] * 20 + [False] * 20
    assert choose_examples(shuffled(silver, 3), seed=0).equals(chosen)
    assert not choose_examples(silver, seed=1).equals(chosen)
    answers = {("q", "s"), *zip(column(chosen, "question_id")[:2], column(chosen, "sentence_id")[:2])}
    mined = mined_table(chosen, world.questions, world.sentences, answers)
    assert column(mined, "right") == [True] * 2 + [False] * 38
    assert column(mined_table(chosen, world.questions, world.sentences), "right") == [None] * 40
    told = example_table(mined, world.gold, world.sentences)
    assert told.schema == MINED_EXAMPLE_SCHEMA
    question = dict(zip(column(world.questions, "question_id"), column(world.questions, "text")))
    sentence = dict(zip(column(world.table, "sentence_id"), column(world.table, "text")))
    for row in told.to_pylist():
        assert row["question"] == question[row["question_id"]]
        assert row["sentence"] == sentence[row["sentence_id"]]
        mine = {g["sentence_id"] for g in world.gold.to_pylist() if g["question_id"] == row["question_id"]}
        assert set(row["gold"]) == {sentence[id] for id in mine}
    with pytest.raises(InputError, match="is not among the questions"):
        with_texts(chosen, world.questions.slice(0, 1), world.sentences)


def test_few_pairs_are_all_shown():
    chosen = choose_examples(select_silver(ROWS), seed=0)
    assert column(chosen, "kept") == [True, True, False, False]
    assert choose_examples(SILVER_SCHEMA.empty_table(), seed=0).equals(SILVER_SCHEMA.empty_table())


def test_a_scored_row_is_a_candidate_and_a_silver_row_is_scored():
    assert SCORED_SCHEMA.names[: len(CANDIDATE_SCHEMA)] == CANDIDATE_SCHEMA.names
    assert SILVER_SCHEMA.names[: len(SCORED_SCHEMA)] == SCORED_SCHEMA.names


@pytest.mark.realdata
def test_real_candidates_make_the_same_selection_in_any_order(reqa, shuffled):
    scores = Scorer()(find_candidates(**reqa.given()))
    assert select_silver(shuffled(scores, 2)).equals(select_silver(scores))

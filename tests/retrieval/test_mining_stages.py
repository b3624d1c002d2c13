"""From hits to training pairs: what the rows of a dual encoder hold and mask, and scores."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from helpers.corpora import AROUND, TEXTS, corpus_in, made_in
from transformers import AutoTokenizer

from raydist.files.stage import Made, Worker, encode_table
from raydist.models.folders import model_folder
from raydist.models.located import Model, NamedModel
from raydist.objectives.ranking import allowed_columns
from raydist.records import SILVER_SCHEMA
from raydist.retrieval.corpus_stages import Corpus
from raydist.retrieval.cross_encoder import load_cross_encoder, sigmoid
from raydist.retrieval.mining_stages import CrossEncoderModel, GoldScores
from raydist.retrieval.positives import repeated_positives
from raydist.retrieval.row_stages import DualTrainingRows
from raydist.retrieval.rows import PairRows

# --- rows of the dual encoder ----------------------------------------------------------------------------------------


def training_rows(corpus: Corpus, silver: Made, **settings) -> DualTrainingRows:
    """The stage of a dual encoder's rows, by the tokenizer of the tiny model."""
    defaults = {"context": False, "max_question_length": 32, "question_prefix": "", "answer_prefix": "", "weighting": "silver"}
    defaults |= {"tokenizer": Model(NamedModel("builtin:tiny"), "d"), "negative_p": 0.1, "gold_scores": None}
    return DualTrainingRows(corpus, silver=silver, **defaults | settings)


@pytest.fixture
def hidden_pairs(tmp_path, make_sentences):
    """From texts, questions, gold pairs and silver ones {question_id, sentence_id, p, kept}: which columns rows do not have.

    A row and an answer are written "question sentence", a mined negative is "not sentence". `block` is questions in a part.
    """

    def hidden_pairs(texts, questions, gold, silver=(), hard_negatives=0, block=9, weighting="silver") -> set[tuple[str, str]]:
        if not (tmp_path / "table").exists():
            make_sentences(tmp_path, texts).folder.rename(tmp_path / "table")
        nothing, ids = dict.fromkeys(SILVER_SCHEMA.names), sorted(questions)
        asked = pa.table({"question_id": ids, "text": [questions[id] for id in ids]})
        right = pa.table({"question_id": [q for q, _ in gold], "sentence_id": [s for _, s in gold]})
        corpus = corpus_in(tmp_path, asked, right, block=block)
        blocks = [ids[first : first + block] for first in range(0, len(ids), block)]
        rows = [
            [nothing | {"logit": 0.0, "weight": 1.0} | row for row in silver if row["question_id"] in mine] for mine in blocks
        ]
        made = made_in(tmp_path, f"silver-{block}", [pa.Table.from_pylist(some, SILVER_SCHEMA) for some in rows])
        stage = training_rows(corpus, made, weighting=weighting, hard_negatives=hard_negatives, max_answer_length=32)
        make, files = stage.open(Worker()), []
        for number in range(stage.parts):
            files.append(tmp_path / f"rows-{number}.arrow")
            files[-1].write_bytes(encode_table(make(stage.read(number)).table, "arrow", {}))
        rows = PairRows(files)
        allowed_BN = allowed_columns(rows.group(np.arange(len(rows))), np.arange(len(rows)))
        also = () if weighting == "gold" else silver
        kept = sorted({*gold, *((row["question_id"], row["sentence_id"]) for row in also if row["kept"])})
        rejected = {
            question: [row["sentence_id"] for row in silver if row["question_id"] == question and not row["kept"]]
            for question in questions
        }
        names = [" ".join(pair) for pair in kept]
        columns = names + [f"not {id}" for question, _ in kept for id in rejected[question][:hard_negatives]]
        assert allowed_BN.shape == (len(names), len(columns))
        return {(names[row], columns[column]) for row, column in zip(*np.nonzero(~allowed_BN))}

    return hidden_pairs


@pytest.fixture
def pair_rows(tmp_path, three_paragraphs):
    """The dual encoder's rows of one question: `built` is gold, `ships` a silver pair of weight 0.49, `fell` a rejected one."""
    nothing = dict.fromkeys(SILVER_SCHEMA.names) | {"question_id": "q", "logit": 0.0, "bm25_rank": 1}
    silver = [
        nothing | {"sentence_id": "fell", "p": 0.01, "weight": 0.0, "kept": False},
        nothing | {"sentence_id": "ships", "p": 0.7, "weight": 0.49, "kept": True},
    ]
    questions = pa.table({"question_id": ["q"], "text": ["When was it built?"]})
    corpus = corpus_in(tmp_path, questions, pa.table({"question_id": ["q"], "sentence_id": ["built"]}), block=1)
    made = made_in(tmp_path, "silver", [pa.Table.from_pylist(silver, SILVER_SCHEMA)])

    def pair_rows(**settings) -> pa.Table:
        stage = training_rows(corpus, made, **{"max_answer_length": 64, "hard_negatives": 1} | settings)
        return stage.open(Worker())(stage.read(0)).table

    return pair_rows


def test_prefixes_stand_before_questions_answers_and_negatives(pair_rows):
    made = pair_rows(weighting="gold", question_prefix="ask: ", answer_prefix="text: ")
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    wanted = {"question": "ask: When was it built?", "answer": f"text: {TEXTS['built']}", "negative": f"text: {TEXTS['fell']}"}
    for of, text in wanted.items():
        assert made[f"{of}_ids"].to_pylist() == [tokenizer(text)["input_ids"]], of


@pytest.mark.parametrize(("weighting", "weights"), [("silver", [1.0, 0.49]), ("none", [1.0, 1.0]), ("gold", [1.0])])
def test_a_silver_pair_is_trained_on_with_its_weight_or_with_1_and_a_gold_one_with_1(pair_rows, weighting, weights):
    made = pair_rows(weighting=weighting)
    np.testing.assert_allclose(made["weight"].to_pylist(), weights)
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    assert made["answer_ids"].to_pylist() == tokenizer([TEXTS["built"], TEXTS["ships"]])["input_ids"][: len(weights)]


def test_an_answer_and_a_negative_have_their_own_paragraphs_behind_them(pair_rows):
    made = pair_rows(context=True)
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    for of, sentences in {"answer": ["built", "ships"], "negative": ["fell", "fell"]}.items():
        wanted = tokenizer([TEXTS[id] for id in sentences], [AROUND[id] for id in sentences])
        assert made[f"{of}_ids"].to_pylist() == wanted["input_ids"], of
        assert made[f"{of}_types"].to_pylist() == wanted["token_type_ids"], of
    assert made["question_ids"].to_pylist() == [tokenizer("When was it built?")["input_ids"]] * 2


def test_an_answer_with_the_words_of_another_is_no_negative_of_it(hidden_pairs):
    questions = {"q1": "When was it built?", "q2": "What happened in 1907?", "q3": "What fell?"}
    pairs = [("q1", "built"), ("q2", "in_1907"), ("q3", "fell")]
    assert hidden_pairs(TEXTS, questions, pairs) == {("q1 built", "q2 in_1907"), ("q2 in_1907", "q1 built")}


def test_a_mined_negative_with_the_words_of_another_rows_answer_is_no_negative_of_it(hidden_pairs):
    questions = {"q1": "When was it built?", "q2": "What fell?"}
    low = [{"question_id": "q2", "sentence_id": "in_1907", "p": 0.01, "kept": False, "bm25_rank": 1}]
    pairs = [("q1", "built"), ("q2", "fell")]
    assert hidden_pairs(TEXTS, questions, pairs, low, hard_negatives=1) == {("q1 built", "not in_1907")}


def test_what_says_the_same_as_another_answer_of_the_question_is_no_negative_of_it(hidden_pairs):
    """Of q1 `built` and `fell` are answers, gold and silver: so the exact and the near duplicate of either are, too."""
    questions = {"q1": "What is old?", "q2": "What happened in 1907?", "q3": "What fell?", "q4": "What passes?"}
    silver = [{"question_id": "q1", "sentence_id": "fell", "p": 0.9, "kept": True, "dense_rank": 3}]
    found = hidden_pairs(TEXTS, questions, [("q1", "built"), ("q2", "in_1907"), ("q3", "again"), ("q4", "ships")], silver)
    same = {("q1 built", "q2 in_1907"), ("q2 in_1907", "q1 built"), ("q1 fell", "q3 again"), ("q3 again", "q1 fell")}
    same |= {("q1 built", "q1 fell"), ("q1 fell", "q1 built")}
    assert found == same | {("q1 built", "q3 again"), ("q1 fell", "q2 in_1907")}


def test_a_question_under_two_ids_is_one_question(hidden_pairs):
    questions = {"q1": "What is old?", "q2": "What  IS old", "q3": "What fell?"}
    found = hidden_pairs(TEXTS, questions, [("q1", "built"), ("q2", "fell"), ("q3", "again")])
    same = {("q2 fell", "q3 again"), ("q3 again", "q2 fell")}
    assert found == same | {("q1 built", "q2 fell"), ("q2 fell", "q1 built"), ("q1 built", "q3 again")}


@pytest.mark.parametrize("weighting", ["silver", "none", "gold"])
def test_what_a_row_masks_does_not_depend_on_the_size_of_a_part(hidden_pairs, weighting):
    """q1, q3 and q5 are one question: what is known of it stands in three parts, and as gold and as silver."""
    questions = {"q1": "What is old?", "q2": "What passes?", "q3": "What  IS old", "q4": "What fell?", "q5": "what is old"}
    gold = [("q1", "built"), ("q2", "ships"), ("q3", "fell"), ("q4", "again"), ("q5", "built")]
    silver = [{"question_id": "q5", "sentence_id": "ships", "p": 0.9, "kept": True, "dense_rank": 1}]
    silver += [{"question_id": "q4", "sentence_id": "in_1907", "p": 0.01, "kept": False, "dense_rank": 1}]
    masks = [
        hidden_pairs(TEXTS, questions, gold, silver, hard_negatives=1, block=block, weighting=weighting) for block in (1, 2, 5)
    ]
    assert masks[0] == masks[1] == masks[2]
    assert {("q1 built", "q4 again"), ("q1 built", "q3 fell"), ("q1 built", "not in_1907")} <= masks[0]
    assert (("q1 built", "q2 ships") in masks[0]) == (weighting != "gold")  # an answer of q5, silver, in the last part


def test_no_table_but_that_of_the_questions_is_read_where_none_is_repeated(tmp_path, make_sentences):
    make_sentences(tmp_path, TEXTS).folder.rename(tmp_path / "table")
    table = pa.table({"question_id": ["q1", "q2"], "text": ["What is old?", "What fell?"]})
    corpus = corpus_in(tmp_path, table, table.select(["question_id"]), block=2)
    (tmp_path / "gold-00000.parquet").unlink()
    keys, bags = repeated_positives(corpus, None)
    assert len(keys) == len(bags) == 0


def test_scores_do_not_depend_on_the_size_of_a_part(world, tmp_path):
    """Nor does p, but for the last bits: what is scored together is padded and summed in another order."""
    load_cross_encoder(model_folder("builtin:tiny")).save(tmp_path / "model", model_folder("builtin:tiny"), max_length=96)
    by_question = [("question_id", "ascending")]
    corpus = corpus_in(tmp_path, world.questions.sort_by(by_question), world.gold.sort_by(by_question), block=50, row_group=40)
    (tmp_path / "table").symlink_to(world.sentences.folder)
    model = CrossEncoderModel(Model(NamedModel(str(tmp_path / "model")), "d"), 32, 96, 1000, "fp32")
    ids = corpus.questions(3)["question_id"]
    found = []
    for size in (50, 7):
        stage = GoldScores(replace(corpus, block_questions=size), model)
        make, numbers = stage.open(Worker()), range(150 // size, -(-200 // size))
        made = pa.concat_tables([make(stage.read(number)).table for number in numbers])
        made = made.filter(pc.is_in(made["question_id"], value_set=ids.combine_chunks()))
        found.append(made.to_pandas().sort_values(["question_id", "sentence_id"]))
    assert (found[0]["sentence_id"].to_numpy() == found[1]["sentence_id"].to_numpy()).all()
    p = [sigmoid(table["logit"].to_numpy()) for table in found]
    np.testing.assert_allclose(p[0], p[1], atol=1e-6, rtol=0)
    assert np.ptp(p[0]) > 1e-4  # a new head says nearly the same of all pairs, but a wrong pair would show

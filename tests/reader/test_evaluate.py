import pyarrow as pa
import pytest

from raydist.reader.evaluate import evaluate_set, examples_of, with_unique_ids
from raydist.records import EVALUATION_SCHEMA, Example, GoldAnswer, examples_table

TEXT = "It was built in 1894 and fell in 1911."


def example(id: str, answer: str | None, language: str = "en") -> Example:
    answers = [GoldAnswer(answer, TEXT.index(answer))] if answer else []
    return Example(id, "When?", TEXT, answers, language=language, is_impossible=answer is None)


def spans(*texts: str) -> list[dict]:
    return [{"text": text, "start": TEXT.index(text), "probability": 1 / len(texts)} for text in texts]


def test_every_question_is_a_row_and_the_scores_are_their_means():
    examples = [example("a", "1894"), example("b", "1911"), example("c", "1894")]
    nbest = {"a": spans("1894"), "b": spans("in 1911", "1911")}
    scores, table = evaluate_set(examples, nbest, rule="squad", at_k=[1, 2, 5], bootstrap=100)
    # a: 100; b: one of two words, F1 2/3; c has no prediction: 0
    assert scores["f1"] == pytest.approx((100 + 200 / 3 + 0) / 3)
    assert scores["em"] == pytest.approx(100 / 3)
    assert (scores["questions"], scores["missing"]) == (3, 1)
    assert scores["em@2"] == pytest.approx(200 / 3)  # the second span of b is right
    assert "em@5" not in scores  # no list is that long
    assert scores["f1.low"] <= scores["f1"] <= scores["f1.high"]
    assert table.schema == EVALUATION_SCHEMA
    assert table["prediction"].to_pylist() == ["1894", "in 1911", None]
    assert table["start"].to_pylist() == [16, 30, -1]


def test_an_adversarial_set_counts_the_worst_copy_of_each_original():
    examples = [example("a", "1894"), example("a-adv", "1894"), example("b", "1911")]
    nbest = {"a": spans("1894"), "a-adv": spans("1911"), "b": spans("1911")}
    scores, _ = evaluate_set(examples, nbest, rule="squad", adversarial=True, bootstrap=0)
    assert scores["addsent_f1"] == 50.0  # a: 0 by its copy; b, without a copy: 100
    assert scores["original_f1"] == 100.0
    assert scores["originals"] == 2


def test_a_set_with_impossible_questions_uses_the_threshold_it_is_given_or_tunes_one_and_says_so():
    examples = [example("a", "1894"), example("b", None)]
    nbest = {"a": spans("1894"), "b": spans("1911")}
    differences = {"a": -3.0, "b": 2.0}  # null score less best span's score
    tuned, table = evaluate_set(examples, nbest, rule="squad", bootstrap=0, null_differences=differences)
    assert (tuned["f1"], tuned["null_threshold_from"]) == (100.0, "this set")
    assert table["prediction"].to_pylist() == ["1894", ""]
    given, _ = evaluate_set(examples, nbest, rule="squad", bootstrap=0, null_differences=differences, null_threshold=5.0)
    assert (given["f1"], given["null_threshold_from"]) == (50.0, "dev")  # b is answered, which is wrong
    assert (given["has_ans_f1"], given["no_ans_f1"]) == (100.0, 0.0)


def test_languages_are_scored_apart_and_averaged_evenly():
    examples = [example("a", "1894"), example("b", "1894"), example("c", "1911", "es")]
    nbest = {"a": spans("1894"), "b": spans("1894"), "c": spans("1894")}
    scores, _ = evaluate_set(examples, nbest, rule="squad", bootstrap=0)
    assert (scores["f1.en"], scores["f1.es"], scores["f1.languages"]) == (100.0, 0.0, 50.0)


def test_only_ids_that_occur_again_get_their_language():
    table = pa.table({"id": ["q", "q", "r"], "language": ["en", "es", "en"], "x": [1, 2, 3]})
    assert with_unique_ids(table)["id"].to_pylist() == ["en:q", "es:q", "r"]
    assert with_unique_ids(table.slice(1)).equals(table.slice(1))


def test_questions_without_a_label_cannot_be_scored():
    unlabelled = Example("u", "When?", TEXT, [])
    table = examples_table([example("a", "1894"), unlabelled, example("b", None)])
    assert [found.id for found in examples_of(table)] == ["a", "b"]

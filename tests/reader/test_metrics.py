import gzip
import json
import re
import string
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from raydist.errors import InputError
from raydist.reader.metrics import (
    aggregate,
    apply_threshold,
    best_threshold,
    by_language,
    normaliser,
    null_differences,
    read_predictions,
    score_nbest,
    score_predictions,
    squad_scores,
)
from raydist.records import PREDICTION_SCHEMA, Example, GoldAnswer, Score
from raydist.statistics import adversarial_scores


def example(id, *answers, language="en", impossible=False):
    return Example(id, "?", "", [GoldAnswer(text, 0) for text in answers], language=language, is_impossible=impossible)


def one(prediction, *answers, language="en", rule="squad"):
    (score,) = score_predictions({"q": prediction}, [example("q", *answers, language=language)], rule)
    return score.em, pytest.approx(score.f1)


# The official definitions, written the slow and plain way.


def official_normal(text):
    text = "".join(ch for ch in text.lower() if ch not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def official_f1(prediction, gold, v2):
    prediction, gold = official_normal(prediction).split(), official_normal(gold).split()
    if v2 and (not prediction or not gold):
        return float(prediction == gold)
    same = sum((Counter(prediction) & Counter(gold)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(prediction), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def official_scores(golds, predictions, v2=False):
    """{id: (EM, F1)} in 0..1; v1.1: missing is 0."""
    scores = {}
    for id, texts in golds.items():
        if v2:
            texts = [text for text in texts if official_normal(text)] or [""]
        if id not in predictions:
            scores[id] = 0.0, 0.0
            continue
        em = max(float(official_normal(predictions[id]) == official_normal(text)) for text in texts)
        scores[id] = em, max(official_f1(predictions[id], text, v2) for text in texts)
    return scores


def official_threshold(scores, predictions, na_probs, has_answer):
    """Start with nothing answered, answer by rising no-answer score, remember the best."""
    current = best = sum(not answerable for answerable in has_answer.values())
    threshold = 0.0
    for id in sorted(na_probs, key=lambda id: na_probs[id]):
        current += scores[id] if has_answer[id] else -1 if predictions[id] else 0
        if current > best:
            best, threshold = current, na_probs[id]
    return 100 * best / len(scores), threshold


def test_f1_by_hand():
    # gold: "big red dog"; predicted: "red red cat". One "red" in common: precision 1/3, recall 1/3, F1 1/3.
    assert one("red red cat", "the big red dog") == (0, pytest.approx(100 / 3))
    # predicted "Red dog!": precision 1, recall 2/3, F1 0.8.
    assert one("Red dog!", "a big, red dog") == (0, 80)
    assert one("The  Big red-dog", "bigger", "big reddog") == (100, 100)


def test_the_best_gold_answer_counts():
    assert one("two words", "one", "two", "two words here") == (0, 80)


def test_empty_gold_in_v1_matches_without_f1():
    # v1.1: "the" and "a" are both empty after normalisation: equal, but no common word.
    assert one("a", "the") == (100, 0)
    assert one("dog", "the") == (0, 0)


def test_a_missing_prediction_scores_0():
    scores = score_predictions({"q1": "yes"}, [example("q1", "yes"), example("q2", "yes")], "squad")
    assert [s.prediction for s in scores] == ["yes", None]
    assert aggregate(scores) == {"em": 50, "f1": 50, "questions": 2, "missing": 1}


@pytest.mark.parametrize(
    ("language", "text", "normal"),
    [
        ("en", "The «Big»  dog’s a-b", "big dogs ab"),
        ("es", "¿El perro, una casa?", "perro casa"),
        ("de", "„Der Hund“ einer Frau", "hund frau"),
        ("vi", "những con chó của tôi", "con chó tôi"),
        ("hi", "एक कुत्ता।", "एक कुत्ता"),  # the danda is punctuation; no articles
        ("ar", "الكلب، بالبيت", "كلب ب بيت"),  # also inside the second word
        ("zh", "约翰·史密斯2010年 in the zoo", "约 翰 史 密 斯 2010 年 in the zoo"),
    ],
)
def test_mlqa_normalises_by_language(language, text, normal):
    assert normaliser("mlqa", language)(text) == normal


def test_squad_rule_knows_only_english_and_ascii():
    assert normaliser("squad", "es")("¿El perro, a casa?") == "¿el perro casa"
    assert normaliser("mrqa")("The dog!") == "dog"


def test_chinese_f1_counts_characters():
    # gold 3 characters, predicted 2 of them: precision 1, recall 2/3
    assert one("北京", "北京市", language="zh", rule="mlqa") == (0, 80)
    assert one("北京", "北京市", language="zh", rule="squad") == (0, 0)


def test_a_language_that_mlqa_lacks_is_named():
    with pytest.raises(InputError, match=r"no language 'fr', only en, es, hi, vi, de, ar, zh"):
        score_predictions({}, [example("q", "a", language="fr")], "mlqa")
    with pytest.raises(InputError, match=r"'sqad' is unknown; known are squad, mrqa, hotpotqa, mlqa"):
        score_predictions({}, [example("q", "a")], "sqad")


def squad_golds(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return {
        qa["id"]: [answer["text"] for answer in qa["answers"]]
        for article in articles
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    }


def some_predictions(golds):
    """Right, cut short, decorated, wrong, empty and missing answers, in turn."""
    ids, predictions = list(golds), {}
    for i, id in enumerate(ids):
        gold = golds[id][i % len(golds[id])] if golds[id] else "something"
        words = gold.split()
        made = (
            gold,
            " ".join(words[: (len(words) + 1) // 2]),
            f"The {gold.upper()}, an '{words[0]}'!",
            golds[ids[i - 1]][0] if golds[ids[i - 1]] else "nothing",
            " ".join(reversed(words)) + " of the " + words[0],
            "a, the.",
            "",
            None,
        )[i % 8]
        if made is not None:
            predictions[id] = made
    return predictions


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["squad/dev-A-v1.1", "adversarial_squad/addsent-A", "xquad/xquad.zh.A"])
def test_scores_equal_the_official_squad_definition(data_dir, name):
    golds = squad_golds(data_dir / f"{name}.json.gz")
    predictions = some_predictions(golds)
    wanted = official_scores(golds, predictions)
    got = score_predictions(predictions, [example(id, *texts) for id, texts in golds.items()], "squad")
    np.testing.assert_allclose([(s.em, s.f1) for s in got], [100 * np.array(wanted[s.id]) for s in got], rtol=0, atol=1e-6)
    mean = np.array(list(wanted.values())).mean(0) * 100
    total = aggregate(got)
    assert (total["em"], total["f1"]) == pytest.approx(tuple(mean), abs=1e-6)
    assert 10 < mean[0] < mean[1] < 80  # a mix worth checking


@pytest.mark.realdata
def test_v2_scores_and_threshold_equal_the_official_definition(data_dir):
    golds = squad_golds(data_dir / "squad/dev-A-v1.1.json.gz")
    golds = {id: texts if i % 3 else [] for i, (id, texts) in enumerate(golds.items())}  # a third cannot be answered
    golds |= {"empty": ["the"]}
    predictions = dict.fromkeys(golds, "") | some_predictions(golds) | {"empty": "an"}
    # The official search takes an answer to an unanswerable question for wrong even if it is empty after normalisation.
    predictions |= {id: "wrong" for id, text in predictions.items() if not golds[id] and text == "a, the."}
    rng = np.random.default_rng(0)
    differences = {id: rng.normal(0 if golds[id] else 1.5) for id in golds}
    has_answer = {id: bool(texts) for id, texts in golds.items()}
    official = official_scores(golds, predictions, v2=True)

    scores = score_predictions(predictions, [example(id, *t, impossible=not t) for id, t in golds.items()], "squad")
    np.testing.assert_allclose([(s.em, s.f1) for s in scores], [100 * np.array(official[s.id]) for s in scores], atol=1e-6)
    total = aggregate(scores)
    for prefix, wanted in (("has_ans", True), ("no_ans", False)):
        half = [official[id] for id in golds if has_answer[id] == wanted]
        got = total[f"{prefix}_em"], total[f"{prefix}_f1"]
        assert got == pytest.approx(tuple(100 * np.array(half).mean(0)), abs=1e-6)
        assert total[f"{prefix}_questions"] == len(half)

    for metric, place in (("em", 0), ("f1", 1)):
        raw = {id: pair[place] for id, pair in official.items()}
        score, threshold = official_threshold(raw, predictions, differences, has_answer)
        assert best_threshold(scores, differences, metric) == pytest.approx((threshold, score), abs=1e-6)
        assert aggregate(apply_threshold(scores, differences, threshold))[metric] == pytest.approx(score, abs=1e-6)


def some_scores(rng, num=30):
    return [
        Score(f"q{i}", "en", None if rng.random() < 0.1 else "x", 0.0, f1 if has else 0.0, bool(has))
        for i, (f1, has) in enumerate(zip(rng.uniform(0, 100, num).round(-1), rng.integers(0, 2, num)))
    ]


@pytest.mark.parametrize("seed", range(10))
def test_the_best_threshold_equals_trying_them_all(seed):
    rng = np.random.default_rng(seed)
    scores = [s if s.prediction else Score(s.id, "en", None, 0, 0, s.has_answer) for s in some_scores(rng)]
    differences = {s.id: float(rng.integers(-3, 3)) for s in scores}  # many are equal
    threshold, best = best_threshold(scores, differences)
    tried = [aggregate(apply_threshold(scores, differences, t))["f1"] for t in (-9, -3, -2, -1, 0, 1, 2)]
    assert best == pytest.approx(max(tried))
    assert aggregate(apply_threshold(scores, differences, threshold))["f1"] == pytest.approx(best)


def test_leaving_everything_unanswered_can_be_best():
    scores = [Score("q1", "en", "x", 0, 0, False), Score("q2", "en", "x", 0, 10, True)]
    threshold, best = best_threshold(scores, {"q1": -5.0, "q2": -4.0})
    # all null: (100 + 0) / 2; the official search would say 0 here, which answers both
    assert best == 50
    assert threshold < -5


def test_differences_come_from_the_table_of_predictions():
    span = {"text": "x", "start": 0, "end": 1, "probability": 1.0}
    rows = [
        {"id": "q1", "nbest": [span | {"score": 3.0}, span | {"score": 2.0}], "null_score": 1.0},
        {"id": "q2", "nbest": [], "null_score": 1.0},
        {"id": "q3", "nbest": [span | {"score": -1.0}], "null_score": 1.0},
    ]
    table = pa.Table.from_pylist(rows, schema=PREDICTION_SCHEMA)
    assert null_differences(table) == {"q1": -2.0, "q2": float("inf"), "q3": 2.0}
    assert null_differences(table.slice(1)) == {"q2": float("inf"), "q3": 2.0}


def test_scores_at_k_are_the_best_of_the_first_k():
    examples = [example("q1", "red dog"), example("q2", "cat"), example("q3", "owl")]
    nbest = {"q1": ["bird", "red", "red dog"], "q2": ["cat"]}
    scores = score_nbest(nbest, examples, "squad", [1, 2, 3])
    assert {name: values.tolist() for name, values in scores.items()} == {
        "em@1": [0, 100, 0],
        "em@2": [0, 100, 0],
        "em@3": [100, 100, 0],
        "f1@1": [0, 100, 0],
        "f1@2": [pytest.approx(200 / 3), 100, 0],  # "red": precision 1, recall 1/2
        "f1@3": [100, 100, 0],
    }


def test_ten_thousand_questions_with_twenty_spans_take_seconds():
    words = [f"word{i}" for i in range(100)]
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 5)) for _ in range(500)]
    examples = [example(str(i), *(texts[(i + j) % 500] for j in range(3))) for i in range(10_000)]
    nbest = {str(i): [texts[(i * 7 + j) % 500] for j in range(20)] for i in range(10_000)}
    began = time.process_time()
    score_nbest(nbest, examples, "squad", [1, 5, 20])
    assert time.process_time() - began < 10


def addsent(rows):
    """rows: (id, F1, EM) in file order; None for F1: no prediction."""
    scores = [Score(id, "en", None if f1 is None else "x", em, f1 or 0.0, True) for id, f1, em in rows]
    return [(s.id, s.f1, s.em) for s in adversarial_scores(scores)]


def test_addsent_takes_the_worst_copy_and_its_em():
    assert addsent([("o", 10, 0), ("o-1", 80, 0), ("o-2", 40, 100), ("o-3-b", 40, 0)]) == [("o", 40, 100)]


def test_addsent_takes_the_original_only_where_it_has_no_copy():
    assert addsent([("o", 10, 0), ("o-1", 80, 0), ("p", 30, 0)]) == [("o", 80, 0), ("p", 30, 0)]


def test_addsent_passes_over_rows_without_prediction():
    assert addsent([("o", 90, 0), ("o-1", None, 0), ("o-2", 50, 0)]) == [("o", 50, 0)]
    assert addsent([("o", 90, 0), ("o-1", None, 0)]) == [("o", 90, 0)]
    assert addsent([("o", None, 0), ("o-1", None, 0)]) == [("o", 0, 0)]


@pytest.mark.realdata
def test_addsent_of_the_real_file_equals_its_definition(data_dir):
    golds = squad_golds(data_dir / "adversarial_squad/addsent-A.json.gz")
    predictions = some_predictions(golds)
    official = official_scores(golds, predictions)
    total = 0.0
    originals = {id.split("-")[0] for id in golds}
    for original in originals:
        copies = [official[id][1] for id in golds if id.startswith(original + "-") and id in predictions]
        total += min(copies) if copies else official[original][1]
    got = adversarial_scores(score_predictions(predictions, [example(i, *t) for i, t in golds.items()], "squad"))
    assert len(got) == len(originals) == 478
    assert aggregate(got)["f1"] == pytest.approx(100 * total / 478, abs=1e-6)


def test_a_table_by_language():
    examples = [example("q1", "a dog"), example("q2", "un perro malo", language="es"), example("q3", "w")]
    scores = score_predictions({"q1": "dog", "q2": "perro malo"}, examples, "mlqa")
    assert {name: row["f1"] for name, row in by_language(scores).items()} == {"en": 50, "es": 100}


def test_both_layouts_of_predictions_are_read(tmp_path):
    plain, nbest = tmp_path / "plain.json", tmp_path / "nbest.json.gz"
    plain.write_text('{"q1": "Zoë", "q2": ""}', encoding="utf-8")
    spans = {"q1": [{"text": "Zoë", "probability": 0.7}, {"text": "Bo", "probability": 0.3}], "q2": []}
    nbest.write_bytes(gzip.compress(json.dumps(spans).encode()))
    of_plain, of_nbest = (
        {id: [span["text"] for span in found] for id, found in read_predictions(path).items()} for path in (plain, nbest)
    )
    assert of_plain == {"q1": ["Zoë"], "q2": [""]}
    assert of_nbest == {"q1": ["Zoë", "Bo"], "q2": []}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b'{"q": "a"', "is not JSON .line 1, column 10"),
        (b'["a"]', "holds a JSON array"),
        (b'{"version": "1.1", "data": []}', "is a data file with questions and answers"),
        (b'{"q": 3}', "the prediction of 'q' is a JSON number"),
        (b'{"q": [{"answer": "a"}]}', "span 1 of 'q' is no object with a \"text\""),
        (b'{"q": "a", "q": "b"}', "holds the key 'q' twice"),
        (b'{"q": "\xff"}', "is not UTF-8 text .byte 7"),
        (gzip.compress(b'{"q": "a"}', mtime=0)[:-6], "is a truncated or damaged gzip file"),
    ],
)
def test_a_bad_predictions_file_is_named(tmp_path, content, message):
    path = tmp_path / "predictions.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"predictions.json:? {message}"):
        read_predictions(path)


def test_a_predictions_file_that_is_none_is_named(tmp_path):
    with pytest.raises(InputError, match="is a directory; give the predictions file itself"):
        read_predictions(tmp_path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_predictions(tmp_path / "absent.json")


def test_scores_of_plain_texts_are_those_of_examples():
    golds = {"q1": ["the Orla bridge", "bridge"], "q2": ["1894"], "q3": [], "q4": ["x"]}
    predictions = {"q1": "Orla", "q2": "1894", "q3": "it"}
    examples = [
        Example(id, "", "", [GoldAnswer(text, 0) for text in texts], is_impossible=not texts) for id, texts in golds.items()
    ]
    assert squad_scores(predictions, golds) == aggregate(score_predictions(predictions, examples, "squad"))
    assert squad_scores(predictions, golds | {"q2": "1894"}) == squad_scores(predictions, golds)
    german = {"q": "der Turm"}
    assert squad_scores({"q": "Turm"}, german, rule="mlqa", language="de")["em"] == 100
    with pytest.raises(InputError, match="mlqa rule depends on the language of the passages: say which, one of en, es"):
        squad_scores({"q": "Turm"}, german, rule="mlqa")
    with pytest.raises(InputError, match="no references"):
        squad_scores(predictions, {})


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f'{{"q1": {DEEP}}}', "it holds too many lists or objects within each other"),
        (f'{{"q1": {"9" * 5000}}}', "it holds an integer with thousands of digits"),
        ('{"q1": [{"text": "Lund", "start": "x"}]}', "span 1 of 'q1' has the start 'x'; wanted an integer, or leave it out"),
        ('{"q1": [{"text": "Lund", "start": 1e30}]}', "has the start 1e.30; wanted an integer"),
        ('{"q1": [{"text": "Lund", "start": 99999999999999999999}]}', "has the start 9+; wanted an integer"),
        ('{"q1": [{"text": "Lund", "probability": "high"}]}', "has the probability 'high'; wanted a number"),
        ('{"q1": "Lu\\ud800nd"}', "the prediction of 'q1' has half of a character in it"),
        ('{"q\\ud800": "Lund"}', "has half of a character in it"),
    ],
)
def test_predictions_that_cannot_be_scored_are_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        read_predictions(tmp_path / "p.json")
    assert len(str(caught.value)) < 400


def test_spans_may_leave_out_places_and_probabilities(tmp_path):
    spans = [
        {"text": "Lund", "start": 3, "probability": 1},
        {"text": "", "start": None, "probability": float("nan")},
        {"text": "x"},
    ]
    (tmp_path / "p.json").write_text(json.dumps({"q1": spans}))
    assert [span["text"] for span in read_predictions(tmp_path / "p.json")["q1"]] == ["Lund", "", "x"]

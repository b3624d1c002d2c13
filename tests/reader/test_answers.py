"""Questions to a reader in memory: the answers of the pipeline, whatever the passage's length, and what is refused."""

import json
import math
from dataclasses import asdict

import pytest
import torch
from helpers.tiny_reader import write_cross_encoder, write_reader
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, BertConfig, BertModel

from raydist.config import load_config, to_yaml
from raydist.errors import InputError
from raydist.here import Here
from raydist.models.folders import model_folder
from raydist.reader import flow
from raydist.reader.answers import KEPT, Reader
from raydist.runs.run import Run

PASSAGES = [
    "Mina Orlov built the bridge in 1894. It fell in 1911.",
    "The river Zürich flows north – 310 metres wide 🙂 – and people of Tarn crossed it by ferry. " * 30,
    "Short.",
]
QUESTIONS = ["When was the bridge built?", "How did people cross the river?", "What is it?"]
PAIRS = list(zip(QUESTIONS, PASSAGES))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A run with a model and predictions for the pairs, made in this process."""
    folder = tmp_path_factory.mktemp("answers")
    rows = [{"id": f"q{i}", "question": question, "context": passage} for i, (question, passage) in enumerate(PAIRS)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_reader(folder / "runs" / "bridges" / "model")
    overrides = [
        *("name=bridges", f"storage={folder / 'runs'}", f"model.name={folder / 'runs' / 'bridges' / 'model'}"),
        *("data.train=null", "data.dev=null", f"data.test={{own: {folder / 'questions.jsonl'}}}"),
        "predict.max_answer_length=7",
    ]
    with Run(load_config("debug_reader", overrides).config, Here()) as run:
        flow.predict(run)
    return run


@pytest.fixture(scope="module")
def reader(run) -> Reader:
    return Reader.load(run.folder.path())


def predicted(run) -> list[dict]:
    lists = json.loads(run.folder.read_bytes("predictions/own.nbest.json"))
    return [lists[f"q{i}"] for i in range(len(PAIRS))]


def test_answers_are_those_of_raydist_predict(run, reader):
    for answer, spans in zip(reader.ask_all(PAIRS, n_best=20), predicted(run)):
        assert len(answer.nbest) == len(spans) >= 1
        for mine, theirs in zip(answer.nbest, spans):
            assert (mine.text, mine.start, mine.end) == (theirs["text"], theirs["start"], theirs["end"])
            assert mine.score == pytest.approx(theirs["score"], abs=1e-4)


def test_a_single_question_is_answered_as_in_a_batch(reader):
    for (question, passage), answer in zip(PAIRS, reader.ask_all(PAIRS, n_best=3)):
        alone = reader.ask(question, passage, n_best=3)
        assert [span.text for span in alone.nbest] == [span.text for span in answer.nbest]
        assert alone.probability == pytest.approx(answer.probability, abs=1e-4)


def test_more_pairs_than_are_read_at_once_come_in_their_order(reader, monkeypatch):
    whole = reader.ask_all(PAIRS * 3)
    monkeypatch.setattr("raydist.reader.answers.TOGETHER", 2)
    assert [answer.text for answer in reader.ask_all(iter(PAIRS * 3))] == [answer.text for answer in whole]


def test_spans_are_pieces_of_their_passage_by_characters(reader):
    for (_, passage), answer in zip(PAIRS, reader.ask_all(PAIRS, n_best=20)):
        assert answer.text == answer.nbest[0].text
        for span in answer.nbest:
            assert passage[span.start : span.end] == span.text != ""


def test_an_answer_may_stand_beyond_the_first_windows_of_a_passage(reader):
    starts = {reader.ask(QUESTIONS[1], "Short. " * before + PASSAGES[1]).start for before in (0, 200)}
    assert max(starts) > 192 * 2


def test_probabilities_of_spans_and_the_null_span_add_up_and_do_not_depend_on_how_many_are_shown(reader):
    for question, passage in PAIRS:
        answers = [reader.ask(question, passage, n_best=n) for n in (1, 5, KEPT)]
        assert {answer.probability for answer in answers} == {answers[0].probability}
        assert sum(span.probability for span in answers[-1].nbest) + answers[-1].null_probability == pytest.approx(1)
        for span in answers[-1].nbest:
            odds = math.exp(span.score - answers[-1].null_score)
            assert span.probability / answers[-1].null_probability == pytest.approx(odds, rel=1e-4)


@torch.inference_mode()
def test_the_best_span_is_that_of_plain_transformers(run, reader):
    folder = run.folder.path("model")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    question, passage = PAIRS[0]
    inputs = tokenizer(question, passage, return_offsets_mapping=True, return_tensors="pt")
    offsets = inputs.pop("offset_mapping")[0].tolist()
    output = model(**inputs)
    spans = {
        (offsets[first][0], offsets[last][1]): float(output.start_logits[0, first] + output.end_logits[0, last])
        for first, part in enumerate(inputs.sequence_ids())
        for last in range(first, min(first + 7, len(offsets)))
        if part == inputs.sequence_ids()[last] == 1
    }
    (start, end), score = max(spans.items(), key=lambda item: item[1])
    answer = reader.ask(question, passage)
    assert (answer.start, answer.end) == (start, end)
    assert answer.score == pytest.approx(score, abs=1e-4)
    null = float(output.start_logits[0, 0] + output.end_logits[0, 0])
    assert answer.null_score == pytest.approx(null, abs=1e-4)
    assert answer.answered == (null <= score)


def test_a_runs_threshold_decides_what_is_left_unanswered(run):
    try:
        for threshold, answered in ((-1e6, False), (1e6, True)):
            run.add_metrics({"dev.null_threshold": threshold})
            answer = Reader.load(run.folder.path()).ask(*PAIRS[0])
            assert answer.answered == answered
            assert answer.text
    finally:
        run.folder.delete("metrics.json")


# --- what is opened, and how -----------------------------------------------------------------------------------------


def test_a_run_its_model_and_a_copy_of_the_model_are_opened(run, tmp_path):
    by_run, by_model = (Reader.load(run.folder.path(*inner)) for inner in ((), ("model",)))
    assert by_run.settings == by_model.settings
    assert (by_run.settings.max_length, by_run.settings.max_answer_length) == (192, 7)
    alone = Reader.load(write_reader(tmp_path / "copy"))
    assert (alone.settings.max_length, alone.settings.doc_stride, alone.settings.max_answer_length) == (384, 128, 30)
    changed = Reader.load(run.folder.path(), max_answer_length=2)
    assert (changed.settings.max_length, changed.settings.max_answer_length) == (192, 2)


def test_usual_lengths_give_way_to_a_model_with_fewer_positions(tmp_path):
    write_short_reader(tmp_path)
    reader = Reader.load(tmp_path)
    assert reader.settings.max_length == 100
    assert reader.ask(*PAIRS[1]).text in PASSAGES[1]
    with pytest.raises(InputError, match="max_length is 101, and the model has 100 positions: lower it"):
        Reader.load(tmp_path, max_length=101)


def write_short_reader(folder):
    words = len(AutoTokenizer.from_pretrained(model_folder("builtin:tiny")))
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=words, max_position_embeddings=100, **shape)
    AutoModelForQuestionAnswering.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder("builtin:tiny")).save_pretrained(folder)


def test_a_model_without_a_trained_span_head_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no weights for qa_outputs"):
        Reader.load("builtin:tiny")
    with pytest.raises(InputError, match="has no weights for qa_outputs"):
        Reader.load(write_cross_encoder(tmp_path / "cross"))
    BertModel(BertConfig(hidden_size=8, num_attention_heads=2)).save_pretrained(tmp_path / "bare")
    with pytest.raises(InputError, match="has no tokenizer"):
        Reader.load(tmp_path / "bare")


def test_runs_that_answer_no_questions_are_refused(tmp_path):
    folder = tmp_path / "early"
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(load_config("debug_reader").config))
    with pytest.raises(InputError, match="has no model yet: train it first"):
        Reader.load(folder)
    write_reader(folder / "model")
    (folder / "config.yaml").write_text(to_yaml(load_config("debug_retrieval").config))
    with pytest.raises(InputError, match="task: retriever, and a reader answers questions: take another"):
        Reader.load(folder)
    (folder / "config.yaml").write_text("name: [")
    with pytest.raises(InputError, match=r"its config.yaml cannot be read .*; take its folder `model` alone"):
        Reader.load(folder)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (("Who?", "  \n"), "the passage of pair 2 is empty"),
        (("", "A text."), "the question of pair 2 is empty"),
        (("Who?", None), "the passage of pair 2 is a NoneType; wanted a text"),
        (("Who?", "\u200b\u200b"), "the passage of pair 2 has no word"),
        (("Who \ud800?", "A text."), "the question of pair 2 contains a lone surrogate"),
    ],
)
def test_what_cannot_be_asked_is_named(reader, pair, message):
    with pytest.raises(InputError, match=message):
        reader.ask_all([PAIRS[0], pair])


def test_what_is_asked_for_wrongly_is_named(reader, run):
    with pytest.raises(InputError, match="n_best is 0; wanted 1 or more"):
        reader.ask(*PAIRS[0], n_best=0)
    with pytest.raises(InputError, match="unknown setting 'max_len'; there are max_length, "):
        Reader.load(run.folder.path(), max_len=3)


def test_an_answer_is_plain(reader):
    assert json.loads(json.dumps(asdict(reader.ask(*PAIRS[0])), allow_nan=False))["nbest"][0]["start"] >= 0


def test_packed_a_reader_answers_as_the_plain_model_does(tmp_path, monkeypatch):
    """Windows of unlike lengths in one batch: nothing of one may reach another, and padding is nowhere."""
    from raydist.reader import answers

    folder = write_reader(tmp_path / "reader")
    pairs = [("Who built it?", "Mina Orlov built it. " * times) for times in (1, 7, 2, 40, 7)]
    packed = Reader.load(folder).ask_all(pairs, n_best=5)
    monkeypatch.setattr(answers, "packed_reader", lambda reader, precision: reader)
    for found, plain in zip(packed, Reader.load(folder).ask_all(pairs, n_best=5), strict=True):
        assert [(span.start, span.end) for span in found.nbest] == [(span.start, span.end) for span in plain.nbest]
        assert [span.score for span in found.nbest] == pytest.approx([span.score for span in plain.nbest], abs=1e-4)
        assert found.null_score == pytest.approx(plain.null_score, abs=1e-4)

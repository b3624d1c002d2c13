"""From a question to a reply: what is found, ranked anew, read and weighed."""

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.passages import BRIDGES, Found, InMemory

from raydist.asking.asker import UNCALIBRATED, Asker, rerank_passages
from raydist.asking.calibration import Calibration, Logistic, Point
from raydist.asking.merge import FEATURES
from raydist.asking.places import weights_digest
from raydist.errors import InputError
from raydist.retrieval.scoring import CrossScorer

QUESTION = "Who built the bridge?"


def calibration(reply_bias: float = 0.0, **setup: str) -> Calibration:
    """Only the span's score counts, and every reply is as likely."""
    width = len(FEATURES)
    merge = Logistic((0.0,) * width, (1.0,) * width, tuple(float(name == "span") for name in FEATURES), 0.0)
    reply = Logistic((0.0, 0.0), (1.0, 1.0), (0.0, 0.0), reply_bias)
    return Calibration(merge, reply, 100, (Point(0.9, 0.8, 0.1), Point(0.3, 0.6, 1.0)), setup)


def test_every_answer_is_a_piece_of_the_passage_that_it_names(reader):
    reply = Asker(InMemory(), reader, k=3).ask(QUESTION)
    assert reply.source.text[reply.start : reply.end] == reply.text != ""
    assert len(reply.passages) == 3
    for found in reply.candidates:
        assert reply.passages[found.passage].text[found.start : found.end] == found.text
    assert reply.candidates[0].text == reply.text


def test_questions_asked_together_have_the_replies_that_each_has_alone(reader):
    asker = Asker(InMemory(), reader, k=2)
    questions = [QUESTION, "When did it fall?", "What passes below the tower?"]
    for alone, together in zip([asker.ask(question) for question in questions], asker.ask(questions)):
        assert (alone.text, alone.source) == (together.text, together.source)
        assert alone.probability == pytest.approx(together.probability, abs=1e-4)


def test_a_filter_and_a_number_of_passages_bound_what_is_read(reader):
    asker = Asker(InMemory(), reader)
    assert {found.document_id for found in asker.ask(QUESTION, where="bridges.md").passages} == {"bridges.md"}
    assert len(asker.ask(QUESTION, k=1).passages) == 1


def test_where_nothing_is_found_the_reply_is_empty_and_not_answered(reader):
    reply = Asker(InMemory(), reader).ask(QUESTION, where="nowhere.md")
    assert (reply.answered, reply.text, reply.source, reply.probability, reply.candidates) == (False, "", None, 0.0, ())


def test_passages_without_a_word_are_not_read(reader):
    library = InMemory([Found("a#0", "a", "--- *** ---"), *BRIDGES])
    library.search = lambda questions, k, **_: [library.passages[:k] for _ in questions]
    assert [found.document_id for found in Asker(library, reader, k=3).ask(QUESTION).passages] == ["bridges.md", "bridges.md"]


@pytest.mark.parametrize("question", ["", " \n", None, 3])
def test_an_empty_question_is_refused(reader, question):
    with pytest.raises(InputError, match="a question is empty, or no text"):
        Asker(InMemory(), reader).ask([question])


# --- ranked anew -----------------------------------------------------------------------------------------------------


def test_the_first_passages_are_in_the_order_of_the_cross_encoder_and_the_rest_in_theirs(cross_encoder):
    scorer = CrossScorer(cross_encoder, max_length=64, max_question_length=16)
    (ranked,) = rerank_passages(scorer, [QUESTION], [BRIDGES], 3)
    logits = scorer.score([QUESTION], [found.text for found in BRIDGES], [0, 0, 0], [0, 1, 2])
    assert [found.passage_id for found in ranked[:3]] == [BRIDGES[place].passage_id for place in np.argsort(-logits)]
    assert ranked[3] is BRIDGES[3]
    assert [found.scores["cross_encoder"] for found in ranked[:3]] == sorted(logits.tolist(), reverse=True)


def test_of_what_is_ranked_anew_the_best_are_read(reader, cross_encoder):
    scorer = CrossScorer(cross_encoder, max_length=64, max_question_length=16)
    (gathered,) = Asker(InMemory(), reader, cross_encoder=scorer, k=1, depth=3).gather([QUESTION])
    assert len(gathered.found) == 3
    assert gathered.read == gathered.ranked[:1]
    assert gathered.ranked[0].score == max(found.score for found in gathered.ranked)
    assert rerank_passages(scorer, [QUESTION], [[]], 3) == [[]]


# --- calibration and threshold ---------------------------------------------------------------------------------------


def test_without_a_calibration_every_answer_is_given_and_that_is_said(reader):
    asker = Asker.open(InMemory(), reader=reader)
    assert asker.notes == [UNCALIBRATED]
    reply = asker.ask(QUESTION)
    assert (reply.answered, reply.calibrated) == (True, False)


def test_a_reply_below_the_threshold_is_withheld_but_shown(reader):
    asker = Asker(InMemory(), reader, calibration=calibration(reply_bias=-1.0))
    reply = asker.ask(QUESTION)
    assert (reply.answered, reply.calibrated, reply.threshold) == (False, True, 0.5)
    assert reply.probability == pytest.approx(1 / (1 + np.e))
    assert reply.text == Asker(InMemory(), reader, calibration=calibration(), threshold=0.1).ask(QUESTION).text


def test_a_wanted_precision_is_a_threshold_of_the_calibration(reader):
    assert Asker(InMemory(), reader, calibration=calibration(), precision=0.7).threshold == 0.9
    assert Asker(InMemory(), reader, calibration=calibration(), precision=0.6).threshold == 0.3
    with pytest.raises(InputError, match="a wanted precision needs a calibration"):
        Asker(InMemory(), reader, precision=0.7)
    with pytest.raises(InputError, match="leave one of them out"):
        Asker(InMemory(), reader, calibration=calibration(), precision=0.7, threshold=0.2)


def test_a_calibration_of_other_models_or_settings_is_refused(reader, tmp_path):
    asker = Asker(InMemory(), reader, kind="bm25", k=5)
    replace(calibration(), setup=asker.setup).save(tmp_path / "calibration.json")
    opened = Asker.open(InMemory(), reader=reader, calibration=tmp_path / "calibration.json", kind="bm25", k=5)
    assert opened.calibration is not None
    assert opened.notes == []
    with pytest.raises(InputError, match=r"was made with another kind, k: use the same"):
        Asker.open(InMemory(), reader=reader, calibration=tmp_path / "calibration.json")


def test_a_run_says_where_its_calibration_is(reader, tmp_path, monkeypatch):
    monkeypatch.setattr("raydist.asking.asker.open_library", lambda folder: InMemory())  # there is none on this disk
    setup = Asker(InMemory(), reader, kind="bm25").setup
    config = {"task": "documents", "asking": {"reader": str(reader.folder), "kind": "bm25", "threshold": 0.25}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    (tmp_path / "asking").mkdir()
    replace(calibration(), setup=setup).save(tmp_path / "asking" / "calibration.json")
    opened = Asker.open(tmp_path)
    assert (opened.calibration is not None, opened.threshold, opened.notes) == (True, 0.25, [])
    opened = Asker.open(tmp_path, k=3)
    assert (opened.calibration, opened.threshold) == (None, 0.0)
    assert "calibration.json was made with another k: it is not used" in opened.notes[0]
    config["asking"]["calibration"] = str(tmp_path / "absent.json")
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"calibration .*absent\.json cannot be read"):
        Asker.open(tmp_path)


def test_weights_have_a_name_that_training_changes(tmp_path, reader):
    from helpers.tiny_reader import write_reader

    same, other = write_reader(tmp_path / "same"), write_reader(tmp_path / "other", seed=1)
    assert weights_digest(same) == weights_digest(reader.folder)
    assert weights_digest(other) != weights_digest(reader.folder)


# --- what is asked of a library --------------------------------------------------------------------------------------


def test_a_reader_is_wanted_and_unknown_settings_are_refused(reader):
    with pytest.raises(InputError, match=r"there is no reader: give one \(--reader, or reader=\)"):
        Asker.open(InMemory())
    with pytest.raises(InputError, match="unknown setting 'depths'; there are kind, k, depth"):
        Asker.open(InMemory(), reader=reader, depths=3)
    with pytest.raises(InputError, match="k is 0; wanted 1 passage or more"):
        Asker.open(InMemory(), reader=reader, k=0)


def test_the_folder_of_a_reader_is_no_index(reader, tmp_path):
    (tmp_path / "config.yaml").write_text("task: reader\n")
    for folder in (tmp_path, reader.folder):
        with pytest.raises(InputError, match=r"is a reader: give it a text \(--passage FILE\), or take it for an index"):
            Asker.open(folder, reader=reader)


def test_models_compute_in_bf16_where_the_processor_has_it_unless_told(reader, monkeypatch):
    monkeypatch.setattr("raydist.asking.asker.bf16_instructions", lambda: "avx512_bf16")
    name = str(reader.folder)
    assert Asker.open(InMemory(), reader=name).reader.settings.precision == "bf16"
    assert Asker.open(InMemory(), reader=name, products="fp32").reader.settings.precision == "fp32"
    monkeypatch.setattr("raydist.asking.asker.bf16_instructions", lambda: None)
    assert Asker.open(InMemory(), reader=name).reader.settings.precision == "fp32"
    with pytest.raises(InputError, match="products is 'int8'; wanted auto, fp32 or bf16"):
        Asker.open(InMemory(), reader=name, products="int8")

"""Scoring pairs by index: the scores of the plain model on what the tokenizer makes of each pair."""

import numpy as np
import pytest
import torch
from helpers.tiny_reader import write_cross_encoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from raydist.errors import InputError
from raydist.models.folders import model_folder
from raydist.retrieval.rows import tokenize_cross_pairs
from raydist.retrieval.scoring import CrossScorer

QUESTIONS = ["Who wrote the report?", "where does the river rise", "why " * 30, ""]
SENTENCES = ["The report was written by Ada.", "The river rises in the hills, far from Zürich.", "long sentence " * 40, "Yes."]


def save_cross_encoder(folder, name="builtin:tiny", num_labels=1):
    """An encoder with a new head whose scores differ from pair to pair."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(model_folder(name), num_labels=num_labels)
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder(name)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


@torch.inference_mode()
def plain_logits(folder, pairs, max_length):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [([question], [sentence]) for question, sentence in pairs]  # as lists: an empty text stays one of a pair
    rows = [tokenizer(*pair, truncation="only_second", max_length=max_length, return_tensors="pt") for pair in texts]
    return torch.cat([model(**row).logits for row in rows]).numpy()


def all_pairs():
    return np.divmod(np.random.default_rng(0).permutation(16), 4)


def test_scores_are_those_of_the_plain_model_in_the_order_of_the_pairs(folder):
    question_of, sentence_of = all_pairs()
    logits = CrossScorer(folder, max_question_length=30, max_length=64).score(QUESTIONS, SENTENCES, question_of, sentence_of)
    assert logits.dtype == np.float32
    assert logits.shape == (16,)
    wanted = plain_logits(folder, [(QUESTIONS[q], SENTENCES[s]) for q, s in zip(question_of, sentence_of)], 64)[:, 0]
    assert wanted.std() > 0.005  # far above the tolerance
    np.testing.assert_allclose(logits, wanted, atol=1e-5)


def test_minilm_scores_agree_too(tmp_path):
    folder = save_cross_encoder(tmp_path, "builtin:minilm")
    question_of, sentence_of = [0, 1, 2], [0, 1, 2]
    logits = CrossScorer(folder).score(QUESTIONS, SENTENCES, question_of, sentence_of)
    wanted = plain_logits(folder, [(QUESTIONS[i], SENTENCES[i]) for i in range(3)], 480)[:, 0]
    np.testing.assert_allclose(logits, wanted, atol=1e-5)


def test_a_long_question_is_cut_first_and_the_sentence_gets_the_rest(folder):
    scorer = CrossScorer(folder, max_question_length=5, max_length=12)
    kept = "why " * 5
    np.testing.assert_allclose(
        scorer.score(["why " * 30], ["yes " * 30], [0], [0]), scorer.score([kept], ["yes " * 4], [0], [0]), atol=1e-6
    )


PARAGRAPHS = ["Ada was asked. The report was written by Ada.", "", "a paragraph " * 40, "Yes. And no."]


def test_with_paragraphs_scores_are_those_of_the_plain_model_on_the_rows_that_it_is_trained_on(folder):
    lengths = {"max_question_length": 30, "max_length": 64}
    question_of, sentence_of = all_pairs()
    logits = CrossScorer(folder, **lengths).score(QUESTIONS, SENTENCES, question_of, sentence_of, PARAGRAPHS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ([of[i] for i in where] for of, where in ((QUESTIONS, question_of), (SENTENCES, sentence_of)))
    rows = tokenize_cross_pairs(tokenizer, *texts, contexts=[PARAGRAPHS[i] for i in sentence_of], **lengths)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        wanted = [
            model(input_ids=torch.tensor([row["input_ids"]]), token_type_ids=torch.tensor([row["token_types"]])).logits.item()
            for row in rows.to_pylist()
        ]
    assert max(len(row["input_ids"]) for row in rows.to_pylist()) == 64
    np.testing.assert_allclose(logits, wanted, atol=1e-5)
    alone = CrossScorer(folder, **lengths).score(QUESTIONS, SENTENCES, question_of, sentence_of)
    has_paragraph = np.array([bool(PARAGRAPHS[i]) for i in sentence_of])
    np.testing.assert_allclose(logits[~has_paragraph], alone[~has_paragraph], atol=1e-6)
    assert np.abs(logits - alone)[has_paragraph].max() > 1e-3


def test_a_cross_encoder_of_another_library_gives_the_same_for_sentence_separator_and_paragraph(folder):
    from sentence_transformers import CrossEncoder

    peer = CrossEncoder(str(folder), max_length=480, device="cpu")
    pairs = [(QUESTIONS[0], f"{SENTENCES[i]}[SEP]{PARAGRAPHS[i]}") for i in (0, 3)]
    wanted = peer.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
    found = CrossScorer(folder).score(QUESTIONS, SENTENCES, [0, 0], [0, 3], PARAGRAPHS)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    with pytest.raises(InputError, match="3 contexts for 4 sentences: give one for each"):
        CrossScorer(folder).score(QUESTIONS, SENTENCES, [0], [0], PARAGRAPHS[:3])


def test_a_text_is_tokenized_once_however_many_pairs_it_is_in(folder, monkeypatch):
    scorer, seen = CrossScorer(folder), []
    plain = scorer.tokenizer

    def counted(texts, *more, **options):
        seen.extend(texts)
        return plain(texts, *more, **options)

    monkeypatch.setattr(scorer, "tokenizer", counted)
    question_of, sentence_of = all_pairs()  # 16 of them
    around = ["One paragraph.", "One paragraph.", "Another.", ""]
    logits = scorer.score(QUESTIONS, SENTENCES, question_of, sentence_of, around)
    assert len(logits) == 16
    assert sorted(seen) == sorted([*QUESTIONS, *SENTENCES, *set(around)])


def test_two_logits_become_their_difference(tmp_path):
    folder = save_cross_encoder(tmp_path, num_labels=2)
    logit = CrossScorer(folder).score(QUESTIONS[:1], SENTENCES[:1], [0], [0])
    no, yes = plain_logits(folder, [(QUESTIONS[0], SENTENCES[0])], 480)[0]
    np.testing.assert_allclose(logit, [yes - no], atol=1e-5)


def test_scores_that_are_not_finite_name_their_pairs(folder):
    scorer = CrossScorer(folder)
    word = scorer.tokenizer("hills", add_special_tokens=False)["input_ids"][0]
    with torch.no_grad():
        scorer.encoder.base.embeddings.word_embeddings.weight[word] = torch.nan
    with pytest.raises(InputError, match=r"1 of 2 pairs a score that is not finite: \('where does .*', 'The river rises"):
        scorer.score(QUESTIONS, SENTENCES, [0, 1], [0, 1])


def test_no_pairs_give_no_scores(folder):
    assert CrossScorer(folder).score(QUESTIONS, SENTENCES, [], []).shape == (0,)
    assert CrossScorer(folder).score([], [], [], []).shape == (0,)


def test_settings_that_cannot_work_are_refused(folder, tmp_path):
    with pytest.raises(InputError, match="no room for a sentence in max_length 99"):
        CrossScorer(folder, max_question_length=96, max_length=99)
    with pytest.raises(InputError, match="max_length 513 is more than the 512 positions"):
        CrossScorer(folder, max_length=513)
    with pytest.raises(InputError, match="gives 3 logits"):
        CrossScorer(save_cross_encoder(tmp_path, num_labels=3))
    with pytest.raises(InputError, match="no weights for classifier"):
        CrossScorer("builtin:tiny")
    with pytest.raises(InputError, match="2 questions for 1 sentences"):
        CrossScorer(folder).score(QUESTIONS, SENTENCES, [0, 1], [0])


def test_bf16_scores_are_close_and_still_tell_pairs_apart(tmp_path):
    folder = save_cross_encoder(tmp_path, "builtin:minilm")
    question_of, sentence_of = all_pairs()
    full, half = (CrossScorer(folder, precision=given).score(QUESTIONS, SENTENCES, question_of, sentence_of)
                  for given in ("fp32", "bf16"))  # fmt: skip
    assert half.dtype == np.float32
    assert not np.array_equal(full, half)
    np.testing.assert_allclose(half, full, atol=full.std() / 5)
    assert len(set(half.tolist())) == len(set(full.tolist()))


def test_probabilities_of_pairs_are_the_sigmoids_of_their_logits(tmp_path):
    scorer = CrossScorer(write_cross_encoder(tmp_path))
    pairs = [("Who built it?", "Mina built it."), ("When?", "In 1894."), ("Who built it?", "It fell.")]
    logits = scorer.score(["Who built it?", "When?"], ["Mina built it.", "In 1894.", "It fell."], [0, 1, 0], [0, 1, 2])
    np.testing.assert_allclose(scorer.probabilities(pairs), 1 / (1 + np.exp(-logits.astype(float))), rtol=1e-5)
    assert np.ptp(logits) > 1e-3, "else nothing was compared"
    assert scorer.probabilities([]).shape == (0,)
    around = scorer.probabilities(pairs, ["A paragraph.", "", ""])
    assert around[0] != pytest.approx(scorer.probabilities(pairs)[0], abs=1e-6)

import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from raydist.errors import InputError
from raydist.files.mapped import pad_tokens
from raydist.models.folders import model_folder, tower_folder
from raydist.objectives.pairs import Tokens, join_tokens
from raydist.retrieval.dual_encoder import DualEncoder, load_dual_encoder
from raydist.retrieval.encode import TextEncoder
from raydist.retrieval.pooling import resolve_prefixes
from raydist.retrieval.rows import tokenize_texts

TEXTS = ["Who built the bridge?", "When?", "The old bridge of the town was built in 1850 and is made of stone."]
PARAGRAPHS = ["It is old. " * 3, "The town has a bridge, and the bridge is old.", "It was built. " * 40]


def tokens_of(folder, texts, contexts=None, max_length=384) -> Tokens:
    ids, types = tokenize_texts(AutoTokenizer.from_pretrained(folder), texts, contexts, max_length=max_length)
    padded, real, kinds = pad_tokens([np.array(row) for row in ids], [np.array(row) for row in types], 0)
    return Tokens(torch.from_numpy(padded), torch.from_numpy(real), torch.from_numpy(kinds))


def changed(encoder: DualEncoder) -> DualEncoder:
    """Weights of its own for every tower, so that a mix-up would show."""
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return encoder.eval()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_sentence_transformers_gives_the_same_vectors(tmp_path, pooling):
    from sentence_transformers import SentenceTransformer

    folder = model_folder("builtin:tiny")
    encoder = changed(load_dual_encoder(folder, pooling=pooling))
    encoder.save(tmp_path, folder, max_answer_length=40)
    theirs = SentenceTransformer(str(tmp_path), device="cpu")
    assert theirs.max_seq_length == 40
    with torch.inference_mode():
        ours = encoder.embed_questions(tokens_of(folder, TEXTS))
        with_paragraph = encoder.embed_answers(tokens_of(folder, TEXTS, PARAGRAPHS, max_length=40))  # the last one is cut
    torch.testing.assert_close(ours.norm(dim=1), torch.ones(3))
    np.testing.assert_allclose(theirs.encode(TEXTS), ours.numpy(), atol=1e-5)
    np.testing.assert_allclose(theirs.encode(list(zip(TEXTS, PARAGRAPHS))), with_paragraph.numpy(), atol=1e-5)
    assert (ours - with_paragraph).abs().max() > 1e-2


def test_separate_towers_are_two_sentence_transformers(tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = model_folder("builtin:tiny")
    encoder = changed(load_dual_encoder(folder, towers="separate", pooling="mean"))
    encoder.save(tmp_path, folder, max_question_length=12, max_answer_length=30)
    tokens = tokens_of(folder, TEXTS[:2])
    with torch.inference_mode():
        ours = {"query": encoder.embed_questions(tokens), "answer": encoder.embed_answers(tokens)}
    assert (ours["query"] - ours["answer"]).abs().max() > 1e-2
    for (name, vectors), length in zip(ours.items(), (12, 30)):
        theirs = SentenceTransformer(str(tmp_path / name), device="cpu")
        assert theirs.max_seq_length == length
        np.testing.assert_allclose(theirs.encode(TEXTS[:2]), vectors.numpy(), atol=1e-5)
    again = load_dual_encoder(tmp_path).eval()
    assert (again.is_shared, again.pooling) == (False, "mean")
    torch.testing.assert_close(again.embed_answers(tokens), encoder.embed_answers(tokens), atol=1e-6, rtol=0)
    with pytest.raises(InputError, match="holds two towers"):
        load_dual_encoder(tmp_path, towers="shared")


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_what_stands_before_texts_is_kept_as_prompts_that_others_read(tmp_path, towers):
    from sentence_transformers import SentenceTransformer

    folder = model_folder("builtin:tiny")
    prefixes = {"question": "query: ", "answer": "passage: "}
    changed(load_dual_encoder(folder, towers=towers, pooling="mean")).save(tmp_path, folder, prefixes=prefixes)
    assert resolve_prefixes(None, None, tmp_path) == prefixes
    assert resolve_prefixes("ask: ", "", tmp_path) == {"question": "ask: ", "answer": ""}
    assert resolve_prefixes(None, None, folder) == {"question": "", "answer": ""}
    tower = {"question": tower_folder(tmp_path, "query"), "answer": tower_folder(tmp_path, "answer")}
    ours = {of: TextEncoder(tower[of], prefix=prefixes[of]).encode(TEXTS) for of in prefixes}
    assert np.abs(ours["question"] - TextEncoder(tower["question"]).encode(TEXTS)).max() > 1e-3
    theirs = {of: SentenceTransformer(str(tower[of]), device="cpu") for of in prefixes}
    np.testing.assert_allclose(theirs["question"].encode_query(TEXTS), ours["question"], atol=1e-5)
    np.testing.assert_allclose(theirs["answer"].encode_document(TEXTS), ours["answer"], atol=1e-5)
    if towers == "separate":  # each has but one way to be used
        np.testing.assert_allclose(theirs["answer"].encode(TEXTS), ours["answer"], atol=1e-5)


def test_a_saved_encoder_comes_back_and_opens_in_plain_transformers(tmp_path):
    folder = model_folder("builtin:tiny")
    encoder = changed(load_dual_encoder(folder, pooling="mean"))
    encoder.save(tmp_path, folder)
    again = load_dual_encoder(tmp_path).eval()
    assert (again.is_shared, again.pooling) == (True, "mean")
    tokens = tokens_of(folder, TEXTS)
    torch.testing.assert_close(again.embed_answers(tokens), encoder.embed_questions(tokens), atol=1e-6, rtol=0)
    _, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_padding_and_neighbours_change_no_vector():
    folder = model_folder("builtin:tiny")
    encoder = changed(load_dual_encoder(folder, pooling="mean"))
    tokens = tokens_of(folder, TEXTS)
    together = encoder.embed_questions(tokens)
    alone = [encoder.embed_questions(tokens.take(torch.tensor([row])))[0] for row in range(3)]
    torch.testing.assert_close(torch.stack(alone), together, atol=1e-5, rtol=0)
    joined = encoder.embed_questions(join_tokens([tokens.take(torch.tensor([1])), tokens.take(torch.tensor([2, 0]))]))
    torch.testing.assert_close(joined, together[[1, 2, 0]], atol=1e-5, rtol=0)


def test_separate_towers_start_alike_and_every_trained_parameter_gets_a_gradient():
    folder = model_folder("builtin:tiny")
    encoder = load_dual_encoder(folder, towers="separate", dropout=0.0)
    tokens = tokens_of(folder, TEXTS)
    question_BH, answer_BH = encoder.embed_questions(tokens), encoder.embed_answers(tokens)
    torch.testing.assert_close(question_BH, answer_BH, atol=1e-6, rtol=0)
    (question_BH[:, 0].sum() + answer_BH[:, 1].sum()).backward()
    still = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad and parameter.grad is None]
    assert not still  # DDP would wait for them


# --- what a folder says ----------------------------------------------------------------------------------------------


def test_a_folder_without_a_word_on_pooling_takes_cls():
    assert load_dual_encoder(model_folder("builtin:tiny")).pooling == "cls"


def test_an_encoder_folder_without_weights_is_named(tmp_path):
    shutil.copy(model_folder("builtin:tiny") / "config.json", tmp_path)
    with pytest.raises(InputError, match=rf"{tmp_path}: cannot be opened with AutoModel"):
        load_dual_encoder(tmp_path)


@pytest.mark.parametrize("wrong", [{"pooling": "max"}, {"towers": "three"}])
def test_an_unknown_choice_is_refused(wrong):
    with pytest.raises(InputError, match="one of"):
        load_dual_encoder(model_folder("builtin:tiny"), **wrong)

"""Texts to vectors: the plain model's, with the pooling and the length that the folder states."""

import json
import shutil
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from raydist.corpus.sentence_table import build_sentence_table
from raydist.errors import InputError
from raydist.models.folders import model_folder
from raydist.retrieval.encode import TextEncoder
from raydist.retrieval.pooling import read_pooling, resolve_pooling

TEXTS = [
    "Who wrote the report?",
    "The river rises in the hills.",
    "",
    "a long text " * 200,
    "Zürich",
    "The river rises in the hills.",
]


def write_layout(folder, pooling, modules=("Transformer", "Pooling", "Normalize"), path="1_Pooling"):
    types = [
        {"idx": i, "path": path if kind == "Pooling" else "", "type": f"st.models.{kind}"} for i, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(types))
    (folder / path).mkdir()
    (folder / path / "config.json").write_text(json.dumps(pooling))


@torch.inference_mode()
def plain_vectors(folder, texts, pooling, max_length, contexts=None):
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = []
    for at, text in enumerate(texts):
        pair = (text,) if contexts is None else (text, contexts[at])
        row = tokenizer(*pair, truncation=True, max_length=max_length, return_tensors="pt")
        states = model(**row).last_hidden_state[0]
        vector = states[0] if pooling == "cls" else states.mean(0)
        found.append(torch.nn.functional.normalize(vector, dim=0).numpy())
    return np.array(found)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_vectors_are_those_of_the_plain_model(pooling):
    encoder = TextEncoder("builtin:tiny", pooling=pooling, max_length=50)
    vectors = encoder.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), encoder.dimension)
    np.testing.assert_allclose(vectors, plain_vectors(encoder.folder, TEXTS, pooling, 50), atol=1e-5)


def test_vectors_of_sentences_are_in_memory_once(tmp_path, monkeypatch):
    numbers = np.arange(20_000)
    names = [f"s{number:05d}" for number in numbers]
    nowhere = [""] * len(names)
    columns = {"sentence_id": names, "text": names, "text_key": numbers, "bag_key": numbers}
    table = build_sentence_table(tmp_path, [pa.table(columns | {"document_id": nowhere, "passage_id": nowhere})])
    encoder = TextEncoder("builtin:tiny", max_length=16)
    few = encoder.encode_sentences(table, numbers[:300], context=False)
    np.testing.assert_allclose(few, encoder.encode(names[:300]), atol=1e-6)

    def ones(texts, around, **settings):
        return np.ones((len(texts), 64), np.float32)

    monkeypatch.setattr(encoder, "encode", ones)  # what it takes itself
    tracemalloc.start()
    vectors = encoder.encode_sentences(table, numbers, context=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert vectors.shape == (20_000, 64)
    assert peak < 1.3 * vectors.nbytes


def test_minilm_states_mean_pooling_and_its_length():
    encoder = TextEncoder("builtin:minilm")
    assert (encoder.pooling, encoder.max_length) == ("mean", 256)
    np.testing.assert_allclose(encoder.encode(TEXTS), plain_vectors(encoder.folder, TEXTS, "mean", 256), atol=1e-5)


@pytest.mark.slow  # importing the peer takes longest
def test_minilm_vectors_are_those_of_sentence_transformers():
    peer = pytest.importorskip("sentence_transformers").SentenceTransformer(str(model_folder("builtin:minilm")), device="cpu")
    np.testing.assert_allclose(
        TextEncoder("builtin:minilm").encode(TEXTS), peer.encode(TEXTS, normalize_embeddings=True), atol=1e-5
    )


def test_bf16_vectors_have_length_one_and_are_close():
    full, half = (TextEncoder("builtin:minilm", precision=given).encode(TEXTS) for given in ("fp32", "bf16"))
    assert half.dtype == np.float32
    assert not np.array_equal(full, half)
    np.testing.assert_allclose(np.linalg.norm(half, axis=1), 1, atol=1e-6)
    assert (full * half).sum(1).min() > 0.999


def test_a_context_is_the_second_segment_cut_to_the_room_left():
    encoder = TextEncoder("builtin:tiny", max_length=30)
    texts, contexts = TEXTS[:2], ["The report was written by Ada.", "hills " * 50]
    wanted = plain_vectors(encoder.folder, texts, "cls", 30, contexts)
    np.testing.assert_allclose(encoder.encode(texts, contexts), wanted, atol=1e-5)
    assert np.abs(wanted - encoder.encode(texts)).max() > 0.001
    np.testing.assert_allclose(  # the longer one is cut first
        encoder.encode(["yes " * 90], ["no"]), encoder.encode(["yes " * 26], ["no"]), atol=1e-6
    )
    np.testing.assert_allclose(encoder.encode(["yes"], [""]), encoder.encode(["yes"]), atol=1e-6)


def test_nothing_gives_nothing_and_wrong_input_is_named():
    encoder = TextEncoder("builtin:tiny")
    assert encoder.encode([]).shape == (0, encoder.dimension)
    assert encoder.encode([], []).shape == (0, encoder.dimension)
    with pytest.raises(InputError, match="1 contexts for 2 texts"):
        encoder.encode(["a", "b"], ["c"])
    with pytest.raises(InputError, match="max_length 3 leaves no room"):
        TextEncoder("builtin:tiny", max_length=3)
    word = encoder.tokenizer("hills", add_special_tokens=False)["input_ids"][0]
    with torch.no_grad():
        encoder.encoder.base.embeddings.word_embeddings.weight[word] = torch.inf
    with pytest.raises(InputError, match="1 texts vectors that are not finite; one is 'The river"):
        encoder.encode(TEXTS[:2])


def test_a_folder_without_weights_is_named(tmp_path):
    shutil.copy(model_folder("builtin:tiny") / "config.json", tmp_path)
    with pytest.raises(InputError, match="no weights"):
        TextEncoder(tmp_path)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "cls", "embedding_dimension": 64}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"word_embedding_dimension": 64}, "mean"),  # what sentence-transformers takes where nothing is said
    ],
)
@pytest.mark.parametrize("path", ["1_Pooling", "2_Other"])
def test_the_folder_says_how_to_pool(tmp_path, settings, wanted, path):
    write_layout(tmp_path, settings, path=path)
    assert read_pooling(tmp_path) == wanted
    assert resolve_pooling("auto", tmp_path) == wanted
    assert resolve_pooling("cls", tmp_path) == "cls"


def test_a_plain_folder_is_pooled_by_its_first_token(tmp_path):
    assert read_pooling(tmp_path) == "cls"


def test_what_we_cannot_pool_is_named(tmp_path):
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
    write_layout(tmp_path / "a", {"pooling_mode": "max"})
    write_layout(tmp_path / "b", {"pooling_mode_cls_token": True, "pooling_mode_mean_sqrt_len_tokens": True})
    write_layout(tmp_path / "c", {"pooling_mode": "cls"}, ("Transformer", "Pooling", "Dense"))
    with pytest.raises(InputError, match="asks for max pooling"):
        read_pooling(tmp_path / "a")
    with pytest.raises(InputError, match="asks for cls and mean_sqrt_len pooling"):
        read_pooling(tmp_path / "b")
    with pytest.raises(InputError, match="has Dense"):
        read_pooling(tmp_path / "c")
    with pytest.raises(InputError, match="unknown pooling 'max'"):
        resolve_pooling("max", tmp_path)
    (tmp_path / "d" / "modules.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        read_pooling(tmp_path / "d")


@pytest.mark.slow
def test_untrained_minilm_on_real_questions_ranks_as_was_measured_elsewhere(data_dir, tmp_path):
    """The first 1,500 questions of ReQA-SQuAD's test set, half A, over all of its sentences: P@1 0.573, MRR@100 0.668."""
    from raydist.corpus.formats.reqa import read_reqa
    from raydist.retrieval.dense import DenseIndex, build_index
    from raydist.retrieval.metrics import gold_of, score_run

    found = read_reqa(data_dir / "reqa_squad/test-A.json.gz")
    asked = found.questions.sort_by("question_id").slice(0, 1500)
    encoder = TextEncoder("builtin:minilm")
    build_index(tmp_path, found.sentences["sentence_id"].to_pylist(), encoder.encode(found.sentences["text"].to_pylist()))
    index = DenseIndex.open(tmp_path)
    hits = index.search(encoder.encode(asked["text"].to_pylist()), 100)
    ids = asked["question_id"].to_pylist()
    run = {id: list(zip(index.sentence_ids(rows), scores.tolist())) for id, rows, scores in zip(ids, *hits)}
    judged = found.gold.filter(pc.is_in(found.gold["question_id"], value_set=pa.array(ids)))
    gold = gold_of(*(judged[name].to_pylist() for name in ("question_id", "sentence_id", "relevance")))
    means = score_run(run, gold).means()
    assert len(found.sentences) == 5605
    assert means["P@1"] == pytest.approx(0.573, abs=0.003)
    assert means["MRR@100"] == pytest.approx(0.668, abs=0.003)

"""Packed inference equals the plain model, whatever the batches; other encoders take the padded way to the same results."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    LlamaConfig,
    LlamaModel,
    Qwen3Config,
    Qwen3Model,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from raydist.errors import InputError
from raydist.models import packed
from raydist.models.folders import model_folder
from raydist.models.loading import load_pretrained
from raydist.models.packed import PackedEncoder, PairFormat, cut_by_tokens, cut_longer_first, load_for_inference, tokenize

SHAPE = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}


def bert(**changes):
    return BertForSequenceClassification(BertConfig(**SHAPE, max_position_embeddings=40, num_labels=2, **changes))


def xlm_roberta():
    return XLMRobertaForSequenceClassification(
        XLMRobertaConfig(**SHAPE, max_position_embeddings=42, type_vocab_size=1, pad_token_id=1, num_labels=2)
    )


def distilbert():
    shape = {"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40}
    return DistilBertForSequenceClassification(DistilBertConfig(**shape, num_labels=2))


MODELS = {
    "bert": bert,
    "bert with relu": lambda: bert(hidden_act="relu"),
    "bert with tanh gelu": lambda: bert(hidden_act="gelu_new"),
    "xlm-roberta": xlm_roberta,
    "distilbert": distilbert,
}


def make(name):
    """A model with weights large enough that scores differ from row to row."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.3)
    return model


def rows_of(model, num_rows=30, seed=0):
    """Rows of 1 to 40 tokens, many of equal length, with types where the model has them; ids include the padding id."""
    rng = np.random.default_rng(seed)
    types = getattr(model.config, "type_vocab_size", 1)
    rows = []
    for length in rng.choice([1, 2, 7, 8, 8, 8, 21, 40], num_rows).tolist():
        rows.append((rng.integers(50, size=length).tolist(), sorted(rng.integers(types, size=length).tolist())))
    return rows


@torch.inference_mode()
def plain(model, row):
    """One row through transformers, with no padding at all: logits and hidden states."""
    ids, types = row
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if model.config.model_type != "distilbert":
        inputs["token_type_ids"] = torch.tensor([types])
    return model(**inputs).logits[0].numpy(), model.base_model(**inputs).last_hidden_state[0].numpy()


@pytest.mark.parametrize("name", MODELS)
def test_scores_equal_the_plain_model(name):
    model = make(name)
    rows = rows_of(model)
    encoder = PackedEncoder(model)
    assert encoder.is_packed == (name != "distilbert")
    wanted = np.array([plain(model, row)[0] for row in rows])
    assert wanted.std(0).min() > 0.05  # else all would pass
    np.testing.assert_allclose(encoder.score(rows), wanted, atol=1e-5)
    assert encoder.score(rows).dtype == np.float32


def test_attention_of_short_and_long_sequences_is_the_same(monkeypatch):
    model = make("bert")
    rows = rows_of(model)
    wanted = np.array([plain(model, row)[0] for row in rows])
    torchs_own, lengths = F.scaled_dot_product_attention, set()

    def watched(query, *others, **settings):
        lengths.add(query.shape[2])
        return torchs_own(query, *others, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(packed, "PLAIN_ATTENTION", 8)
    np.testing.assert_allclose(PackedEncoder(model).score(rows), wanted, atol=1e-5)
    assert lengths == {21, 40}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", MODELS)
def test_vectors_equal_the_plain_model(name, pooling):
    model = make(name)
    rows = rows_of(model)
    ids, types = zip(*rows)
    hidden = [plain(model, row)[1] for row in rows]
    wanted = np.array([states[0] if pooling == "cls" else states.mean(0) for states in hidden])
    encoder = PackedEncoder(model)
    np.testing.assert_allclose(encoder.encode(ids, types, pooling=pooling, normalise=False), wanted, atol=1e-5)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.encode(ids, types, pooling=pooling), wanted, atol=1e-5)


@pytest.mark.parametrize(("name", "relative"), [("bert", 1e-7), ("distilbert", 2e-6)])
def test_budget_and_company_change_results_by_rounding_alone(name, relative):
    """Of what is packed by 2e-6. A padded model's products are of other shapes, which processors sum in orders of their own."""
    model = make(name)
    rows = rows_of(model)
    wanted = PackedEncoder(model).score(rows)
    rounding = {"atol": 2e-6, "rtol": relative}
    for budget in (1, 17, 100, 10**6):
        np.testing.assert_allclose(PackedEncoder(model, budget).score(rows), wanted, **rounding)
    np.testing.assert_allclose(PackedEncoder(model).score(rows[::-1])[::-1], wanted, **rounding)
    np.testing.assert_allclose(PackedEncoder(model).score(rows[3:4]), wanted[3:4], **rounding)


@pytest.mark.parametrize("name", ["bert", "bert with relu"])
def test_a_torch_without_onednn_gives_the_same(monkeypatch, name):
    model = make(name)
    rows = rows_of(model)
    wanted = PackedEncoder(model).score(rows)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None)  # nor is it called
    np.testing.assert_allclose(PackedEncoder(model).score(rows), wanted, atol=1e-5)


def test_bf16_works_on_a_processor_that_onednn_has_no_bf16_for(monkeypatch):
    model = make("bert")
    rows = rows_of(model)
    wanted = PackedEncoder(model).score(rows)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    emulated = PackedEncoder(model, precision="bf16").score(rows)
    np.testing.assert_allclose(emulated, wanted, atol=0.2)


def test_the_same_list_gives_the_same_bits():
    model = make("bert")
    rows = rows_of(model)
    assert PackedEncoder(model).score(rows).tobytes() == PackedEncoder(model).score(rows).tobytes()


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def threads_of_a_new_thread() -> int:
    """What the process has set; a thread that is there keeps what it had."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


@pytest.mark.parametrize("number", [1, 2])
def test_autocast_around_it_changes_nothing(threads, number):
    threads(number)
    encoder = PackedEncoder(make("bert"))
    rows = rows_of(encoder.model)
    wanted = encoder.score(rows)
    with torch.autocast("cpu", torch.bfloat16):
        np.testing.assert_array_equal(encoder.score(rows), wanted)


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_what_is_together_has_the_bits_of_calls_of_its_own(name, monkeypatch):
    encoder, sizes = PackedEncoder(make(name), token_budget=50), []
    ids = [row[0] for row in rows_of(encoder.model)]
    alone = [encoder.encode(ids[first : first + 7]) for first in range(0, len(ids), 7)]
    monkeypatch.setattr(
        packed, "cut_by_tokens", lambda lengths, budget: sizes.append(len(lengths)) or cut_by_tokens(lengths, budget)
    )
    np.testing.assert_array_equal(encoder.encode(ids, together=7), np.concatenate(alone))
    assert sizes == [7, 7, 7, 7, 2]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_any_number_of_threads_gives_the_same_bits(threads, precision):
    """Of real shapes, whose products torch would divide among threads."""
    model, _ = load_for_inference("AutoModel", model_folder("builtin:minilm"), "cpu")
    rng = np.random.default_rng(0)
    rows = [rng.integers(1000, 20_000, length).tolist() for length in rng.integers(3, 120, 40)]
    found = []
    for number in (1, 2, 3):
        threads(number)
        found.append([PackedEncoder(model, precision=precision).encode(some).tobytes() for some in (rows, rows[:1])])
        assert threads_of_a_new_thread() == number
    assert found[0] == found[1] == found[2]


def test_each_thread_works_on_a_batch_of_its_own_by_operations_of_one(threads, monkeypatch):
    threads(2)
    model = make("bert")
    encoder, seen, both = PackedEncoder(model, token_budget=40), set(), threading.Barrier(2, timeout=60)
    embed = encoder._embed

    def watched(batch):
        both.wait()  # else one thread could do all of the work
        seen.add((threading.get_ident(), torch.get_num_threads()))
        return embed(batch)

    monkeypatch.setattr(encoder, "_embed", watched)
    encoder.score([([1] * 40, [0] * 40)] * 2)
    assert len(seen) == 2
    assert {number for _, number in seen} == {1}


def test_what_a_thread_cannot_do_is_told_and_its_settings_end_with_it(threads, monkeypatch):
    threads(2)
    encoder = PackedEncoder(make("bert"), token_budget=40)

    def broken(batch):
        raise RuntimeError("no memory")

    monkeypatch.setattr(encoder, "_embed", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        encoder.score(rows_of(encoder.model))
    assert threads_of_a_new_thread() == 2


def test_types_left_out_are_zeros():
    model = make("bert")
    ids = [row[0] for row in rows_of(model)]
    encoder = PackedEncoder(model)
    np.testing.assert_array_equal(encoder.encode(ids), encoder.encode(ids, [[0] * len(row) for row in ids]))
    assert np.abs(encoder.encode(ids) - encoder.encode(ids, [[1] * len(row) for row in ids])).max() > 0.01


def test_packed_and_padded_ways_agree_on_minilm():
    """Real weights and real words; the padded way is the one that other devices take."""
    model, tokenizer = load_for_inference("AutoModel", model_folder("builtin:minilm"), "cpu")
    texts = [
        "a",
        "Rivers run to the sea.",
        "Who wrote the report that the council read in 1911?",
        "Rivers run to the sea. " * 9,
    ]
    ids = tokenizer(texts)["input_ids"]
    packed, padded = PackedEncoder(model), PackedEncoder(model)
    padded.layers = []
    for pooling in ("cls", "mean"):
        np.testing.assert_allclose(packed.encode(ids, pooling=pooling), padded.encode(ids, pooling=pooling), atol=1e-6)


@pytest.mark.parametrize(("model_class", "config_class"), [(LlamaModel, LlamaConfig), (Qwen3Model, Qwen3Config)])
def test_an_encoder_without_a_padding_id_takes_the_padded_way(model_class, config_class):
    torch.manual_seed(0)
    heads = {"num_key_value_heads": 2, "head_dim": 8}
    model = model_class(config_class(**SHAPE, **heads, max_position_embeddings=40, initializer_range=0.3)).eval()
    assert model.config.pad_token_id is None
    encoder, ids = PackedEncoder(model), [row[0] for row in rows_of(model)]
    assert (encoder.is_packed, encoder.max_tokens) == (False, 40)
    with torch.inference_mode():
        wanted = np.array([model(torch.tensor([row])).last_hidden_state[0].mean(0).numpy() for row in ids])
    np.testing.assert_allclose(encoder.encode(ids, pooling="mean", normalise=False), wanted, atol=1e-5)


def test_half_precision_takes_the_padded_way():
    assert not PackedEncoder(make("bert").to(torch.bfloat16)).is_packed


def test_no_rows_give_no_results():
    encoder = PackedEncoder(make("bert"))
    assert encoder.score([]).shape == (0, 2)
    assert encoder.encode([]).shape == (0, 32)


def test_a_row_that_the_encoder_cannot_take_is_named():
    encoder = PackedEncoder(make("bert"))
    with pytest.raises(InputError, match="sequence 1 has 0 tokens; the encoder takes 1 to 40"):
        encoder.encode([[3], []])
    with pytest.raises(InputError, match="sequence 0 has 41 tokens; the encoder takes 1 to 40"):
        encoder.encode([[3] * 41])
    assert PackedEncoder(make("xlm-roberta")).max_tokens == 40  # two positions are for padding


def test_batches_hold_every_row_once_within_the_budget():
    lengths = np.random.default_rng(0).integers(1, 30, 200).tolist()
    batches = list(cut_by_tokens(lengths, 64))
    assert sorted(place for batch in batches for place in batch) == list(range(200))
    assert all(len(batch) * lengths[batch[0]] <= 64 for batch in batches)
    assert all(lengths[a] >= lengths[b] for batch in batches for a, b in pairwise(batch))
    assert list(cut_by_tokens([5, 100], 10)) == [[1], [0]]  # too long for the budget: alone


@pytest.mark.parametrize("name", ["builtin:tiny", "builtin:minilm"])
def test_pairs_are_what_the_tokenizer_makes_of_two_texts(name):
    tokenizer = AutoTokenizer.from_pretrained(model_folder(name))
    pairs = [("who ?", "the river Zürich, 1911 ."), ("", "x"), ("x", ""), ("a b c", "word " * 40)]
    form = PairFormat(tokenizer)
    for first, second in pairs:
        (first_ids,), (second_ids,) = tokenize(tokenizer, [first], 99), tokenize(tokenizer, [second], 99)
        wanted = tokenizer([first], [second], truncation="only_second", max_length=20)
        assert form.pair(first_ids, second_ids, 20) == (wanted["input_ids"][0], wanted["token_type_ids"][0])


def test_a_head_without_weights_is_refused():
    with pytest.raises(InputError, match="no weights for classifier"):
        load_for_inference("AutoModelForSequenceClassification", model_folder("builtin:tiny"))


def test_a_saved_model_is_opened_with_its_head(tmp_path):
    AutoModelForSequenceClassification.from_pretrained(model_folder("builtin:tiny"), num_labels=1).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model_folder("builtin:tiny")).save_pretrained(tmp_path)
    model, _ = load_for_inference("AutoModelForSequenceClassification", tmp_path, "cpu")
    assert PackedEncoder(model).score([([1, 2], [0, 0])]).shape == (1, 1)
    assert AutoModel.from_pretrained(tmp_path) is not None


def with_words_more(folder):
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {"vocab_size": said["vocab_size"] + 1}))


def without_bytes(kept):
    def cut(folder):
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:kept])

    return cut


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_bytes(0), "header too small; its weights are cut off or damaged, copy or download them again"),
        (without_bytes(-5), "not fully covered; its weights are cut off or damaged, copy or download them again"),
        (
            with_words_more,
            r"embeddings.word_embeddings.weight has the shape \[(\d+), 64\] in its weights, and \[\d+, 64\] by its "
            r"config.json; copy or download both again",
        ),
    ],
)
def test_a_damaged_folder_is_one_message_for_inference_and_for_training(tmp_path, damage, message):
    folder = tmp_path / "model"
    shutil.copytree(model_folder("builtin:tiny"), folder)
    damage(folder)
    for load in (lambda: load_for_inference("AutoModel", folder), lambda: load_pretrained(AutoModel, folder)):
        with pytest.raises(InputError, match=f"^{folder}: cannot be opened with AutoModel: [^/]*{message}$"):
            load()


def test_nothing_is_read_by_pickle(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(model_folder("builtin:tiny"), folder)
    torch.save(AutoModel.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "extra.safetensors")
    monkeypatch.setattr(torch, "load", None)  # nor is it called
    with pytest.raises(InputError, match=f"{folder}: cannot be opened with AutoModel: .*no file named model.safetensors"):
        load_for_inference("AutoModel", folder)


@pytest.mark.parametrize("room", [1, 2, 7, 8, 15, 30])
def test_of_two_texts_the_longer_is_cut_first_as_tokenizers_do_it(room):
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    for first in (1, 3, 4, 5, 9, 20):
        for second in (1, 3, 4, 5, 9, 20):
            pair = tokenizer(["a " * first], ["b " * second], truncation=True, max_length=room + 3).sequence_ids(0)
            assert cut_longer_first(first, second, room) == (pair.count(0), pair.count(1)), (first, second)


def test_a_third_text_that_finds_no_room_is_as_if_it_were_not_there():
    format = PairFormat(AutoTokenizer.from_pretrained(model_folder("builtin:tiny")))
    for third in ([], [7, 8]):
        assert format.triple([5], [6], third, 5) == format.pair([5], [6], 5)
    ids, types = format.triple([5], [6], [7, 8], 7)
    assert ids == [*format.before, 5, *format.between, 6, *format.between, 7, *format.after]
    assert types == [0, 0, 0, 1, 1, 1, 1]

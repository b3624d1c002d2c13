import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from raydist.errors import InputError
from raydist.files.stage import encode_table
from raydist.models.folders import model_folder
from raydist.retrieval.rows import CrossRows, Negative, PairRows, tokenize_cross_pairs, tokenize_pairs, tokenize_texts
from raydist.training.loop import training_steps


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))


def written(folder, *tables):
    files = [folder / f"{number}.arrow" for number in range(len(tables))]
    for file, table in zip(files, tables):
        file.write_bytes(encode_table(table, "arrow", {}))
    return files


def some_pairs(tokenizer, rows: range, **settings):
    """Row i has i % 3 negatives; its question has one known positive beside its own."""
    settings = {
        "weights": [1.0 if i % 2 else 0.5 for i in rows],
        "question_keys": [100 + i for i in rows],
        "bag_keys": [300 + i for i in rows],
        "positives": [[300 + i, 900 + i] for i in rows],
        "negatives": [[Negative(f"No {k} {'very ' * k}", 400 + 10 * i + k, logit=-k) for k in range(i % 3)] for i in rows],
        "logits": [float(i) for i in rows],
        **settings,
    }
    questions = [f"Who built bridge {i}?" for i in rows]
    return tokenize_pairs(tokenizer, questions, [f"Bridge {i} is {'old ' * (i % 4)}." for i in rows], **settings)


# --- texts -> tokens -------------------------------------------------------------------------------------------------


def test_a_pair_for_the_cross_encoder_is_what_the_tokenizer_makes_of_it(tokenizer):
    table = tokenize_cross_pairs(
        tokenizer, ["Who?", "When was it?"], ["He did.", "In 1900."], labels=[1, 0], sentence_keys=[5, 6]
    )
    plain = tokenizer(["Who?", "When was it?"], ["He did.", "In 1900."])
    assert table["input_ids"].to_pylist() == plain["input_ids"]
    assert table["token_types"].to_pylist() == plain["token_type_ids"]
    assert table["label"].to_pylist() == [1.0, 0.0]
    assert table["sentence"].to_pylist() == [5, 6]


def test_long_pairs_keep_the_questions_beginning_and_the_sentences(tokenizer):
    table = tokenize_cross_pairs(tokenizer, ["bridge " * 50], ["road " * 50], max_question_length=6, max_length=16)
    words = tokenizer.convert_ids_to_tokens(table["input_ids"][0].as_py())
    assert words == ["[CLS]", *["bridge"] * 6, "[SEP]", *["road"] * 7, "[SEP]"]


def test_a_sentence_of_a_cross_pair_may_go_with_its_paragraph(tokenizer):
    table = tokenize_cross_pairs(tokenizer, ["who", "who"], ["the bridge", "the town"], contexts=["the bridge is old", ""])
    words = [tokenizer.convert_ids_to_tokens(ids) for ids in table["input_ids"].to_pylist()]
    assert words[0] == ["[CLS]", "who", "[SEP]", "the", "bridge", "[SEP]", "the", "bridge", "is", "old", "[SEP]"]
    assert table["token_types"].to_pylist()[0] == [0, 0, 0, *[1] * 8]
    assert words[1] == ["[CLS]", "who", "[SEP]", "the", "town", "[SEP]"]  # it has no paragraph: as without contexts
    plain = tokenizer(["who"], ["the bridge[SEP]the bridge is old"])  # what another library has to be given
    assert table["input_ids"].to_pylist()[0] == plain["input_ids"][0]
    assert table["token_types"].to_pylist()[0] == plain["token_type_ids"][0]


def test_the_paragraph_of_a_cross_pair_is_cut_before_its_sentence_and_both_after_the_question(tokenizer):
    lengths = {"max_question_length": 3, "max_length": 16}
    table = tokenize_cross_pairs(
        tokenizer, ["who " * 9] * 2, ["road " * 4, "road " * 30], contexts=["bridge " * 30] * 2, **lengths
    )
    words = [tokenizer.convert_ids_to_tokens(ids) for ids in table["input_ids"].to_pylist()]
    question = ["[CLS]", "who", "who", "who", "[SEP]"]
    assert words[0] == [*question, *["road"] * 4, "[SEP]", *["bridge"] * 5, "[SEP]"]
    assert words[1] == [*question, *["road"] * 4, "[SEP]", *["bridge"] * 5, "[SEP]"]  # nine tokens, of two that are longer


def test_an_answer_is_its_sentence_and_its_paragraph_as_second_segment(tokenizer):
    ids, types = tokenize_texts(tokenizer, ["the bridge", "the town"], ["the bridge is old", ""], max_length=20)
    assert tokenizer.convert_ids_to_tokens(ids[0]) == ["[CLS]", "the", "bridge", "[SEP]", "the", "bridge", "is", "old", "[SEP]"]
    assert types[0] == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert tokenizer.convert_ids_to_tokens(ids[1]) == ["[CLS]", "the", "town", "[SEP]"]  # it has no paragraph: a text alone
    assert tokenize_texts(tokenizer, ["the town"], max_length=20)[0] == [ids[1]]


def test_a_paragraph_is_cut_before_its_sentence(tokenizer):
    ids, _ = tokenize_texts(tokenizer, ["road " * 4], ["bridge " * 30], max_length=16)
    assert tokenizer.convert_ids_to_tokens(ids[0]) == ["[CLS]", *["road"] * 4, "[SEP]", *["bridge"] * 9, "[SEP]"]


def test_lengths_of_questions_and_answers_are_limited(tokenizer):
    keys = {"question_keys": [1], "bag_keys": [3], "positives": [[3]]}
    negatives = [[Negative("road " * 40, 5)]]
    limits = {"max_question_length": 7, "max_answer_length": 11}
    table = tokenize_pairs(tokenizer, ["who " * 20], ["town " * 40], negatives=negatives, **keys, **limits)
    assert len(table["question_ids"][0]) == 7
    assert len(table["answer_ids"][0]) == 11
    assert table["negative_lengths"].to_pylist() == [[11]]


def test_no_pairs_make_an_empty_table(tokenizer):
    nothing = {"question_keys": [], "bag_keys": [], "positives": []}
    assert tokenize_pairs(tokenizer, [], [], **nothing).num_rows == 0
    assert tokenize_cross_pairs(tokenizer, [], []).num_rows == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [1.0]}, "2 questions.*1 weights"),
        ({"weights": [1.0, float("nan")]}, "pair 1 has weight nan"),
        ({"weights": [-1.0, 1.0]}, "pair 0 has weight -1.0"),
        ({"max_answer_length": 513}, "513 tokens are more than this model takes; lower the lengths to 512"),
    ],
)
def test_what_does_not_fit_is_named(tokenizer, change, message):
    with pytest.raises(InputError, match=message):
        some_pairs(tokenizer, range(2), **change)


def test_a_question_must_leave_room_for_a_sentence(tokenizer):
    with pytest.raises(InputError, match="max_length 20 leaves no room"):
        tokenize_cross_pairs(tokenizer, ["Who?"], ["He."], max_question_length=17, max_length=20)


# --- tokens -> batches -----------------------------------------------------------------------------------------------


def test_rows_come_back_from_several_files_as_they_went_in(tokenizer, tmp_path):
    tables = [some_pairs(tokenizer, rows) for rows in (range(4), range(0), range(4, 9))]
    rows = PairRows(written(tmp_path, *tables))
    assert len(rows) == 9
    texts = [text for table in tables for text in zip(table["question_ids"].to_pylist(), table["answer_ids"].to_pylist())]
    assert rows.lengths.tolist() == [len(question) + len(answer) for question, answer in texts]
    picked = np.array([7, 0, 5])
    batch = rows.batch(picked, pad_id=0)
    for place, row in enumerate(picked):
        for tokens, expected in zip((batch.questions, batch.answers), texts[row]):
            assert tokens.ids_BT[place][tokens.attention_BT[place]].tolist() == expected
            assert not tokens.ids_BT[place][~tokens.attention_BT[place]].any()
    assert batch.world.weight.tolist() == [1.0, 0.5, 1.0]
    assert batch.world.question.tolist() == [107, 100, 105]
    assert batch.world.bag_key.tolist() == [307, 300, 305]
    assert batch.world.positives.tolist() == [307, 907, 300, 900, 305, 905]
    assert batch.world.positives_of.tolist() == [0, 0, 1, 1, 2, 2]


def test_negatives_and_their_teacher_belong_to_their_rows(tokenizer, tmp_path):
    rows = PairRows(written(tmp_path, some_pairs(tokenizer, range(6))))
    batch = rows.batch(np.array([2, 3, 4, 5]), pad_id=0)  # 2, 0, 1, 2 negatives
    assert batch.world.negative_bag_key.tolist() == [420, 421, 440, 450, 451]
    assert batch.world.negative_of.tolist() == [0, 0, 2, 3, 3]
    assert batch.negative_row_K.tolist() == [0, 0, 2, 3, 3]
    assert batch.world.has_teacher.tolist() == [True, False, True, True]
    assert batch.teacher_B.tolist() == [2.0, 0.0, 4.0, 5.0]  # row 3 has no negative to compare with
    assert batch.teacher_K.tolist() == [0.0, -1.0, 0.0, 0.0, -1.0]
    words = [
        tokenizer.decode(ids[real], skip_special_tokens=True)
        for ids, real in zip(batch.negatives.ids_BT, batch.negatives.attention_BT)
    ]
    assert words == ["no 0", "no 1 very", "no 0", "no 0", "no 1 very"]


def test_fewer_negatives_can_be_asked_for(tokenizer, tmp_path):
    files = written(tmp_path, some_pairs(tokenizer, range(6)))
    one = PairRows(files, num_negatives=1).batch(np.array([2, 5]), pad_id=0)
    assert one.world.negative_bag_key.tolist() == [420, 450]
    assert one.teacher_K.tolist() == [0.0, 0.0]
    assert len(one.negatives) == 2
    none = PairRows(files, num_negatives=0).batch(np.array([2, 5]), pad_id=0)
    assert none.negatives is None
    assert not none.world.has_teacher.any()


def test_a_row_with_a_missing_logit_has_no_teacher(tokenizer, tmp_path):
    negatives = [[Negative("No", 1, logit=1.0)], [Negative("No", 1)], [Negative("No", 1, logit=float("nan"))]]
    rows = PairRows(written(tmp_path, some_pairs(tokenizer, range(3), negatives=negatives)))
    assert rows.group(np.arange(3)).has_teacher.tolist() == [True, False, False]


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_share_every_batch_of_pairs(tokenizer, tmp_path, ranks):
    rows = PairRows(written(tmp_path, some_pairs(tokenizer, range(20))))
    plan = {"seed": 0, "batch_size": 8, "accumulate": 2, "first": 0, "last": 5, "pad_id": 0, "ranks": ranks}
    shares = [list(training_steps(rows, rank=rank, **plan)) for rank in range(ranks)]
    seen = []
    for steps in zip(*shares):
        assert len({step for step, _ in steps}) == 1
        for parts in zip(*(batches for _, batches in steps)):
            world = parts[0].world
            assert all(np.array_equal(part.world.row, world.row) for part in parts)
            assert all(part.count(len) == sum(len(group) for group in part.groups) for part in parts)
            mine = torch.cat([part.mine for part in parts])
            assert mine.sort().values.tolist() == list(range(len(world)))
            negatives = torch.cat([part.negatives_mine for part in parts])
            assert negatives.sort().values.tolist() == list(range(len(world.negative_bag_key)))
            for part in parts:
                owners = part.mine[part.negative_row_K].numpy()
                assert owners.tolist() == world.negative_of[part.negatives_mine.numpy()].tolist()
            seen += world.row.tolist() if steps[0][0] < 3 else []
    assert sorted(seen) == list(range(20))  # 3 steps are an epoch


def test_a_rank_may_have_no_row(tokenizer, tmp_path):
    rows = PairRows(written(tmp_path, some_pairs(tokenizer, range(6))))
    (batch,) = rows.step_batches([np.array([1, 2])], rank=2, ranks=3, pad_id=0, seed=0, step=0)
    assert len(batch.questions) == 0
    assert batch.negatives is None
    assert batch.negatives_mine.tolist() == []
    assert len(batch.world) == 2


def test_batches_can_ignore_lengths(tokenizer, tmp_path):
    files = written(tmp_path, some_pairs(tokenizer, range(6)))
    assert set(PairRows(files, bucket_by_length=False).lengths) == {0}


def test_cross_rows_come_back_padded_with_their_labels(tokenizer, tmp_path):
    questions, sentences = [f"Who {'really ' * i}?" for i in range(5)], [f"Town {i}." for i in range(5)]
    table = tokenize_cross_pairs(tokenizer, questions, sentences, labels=[1, 0, 0, 1, 0])
    rows = CrossRows(written(tmp_path, table.slice(0, 2), table.slice(2)))
    (batch,) = rows.step_batches([np.array([4, 0, 3])], rank=0, ranks=1, pad_id=0, seed=1, step=2)
    assert batch.label_B.tolist() == [0.0, 1.0, 1.0]
    plain = tokenizer([questions[i] for i in (4, 0, 3)], [sentences[i] for i in (4, 0, 3)], padding=True, return_tensors="pt")
    assert batch.tokens.ids_BT.equal(plain["input_ids"])
    assert batch.tokens.attention_BT.equal(plain["attention_mask"].bool())
    assert batch.tokens.types_BT.equal(plain["token_type_ids"])
    assert rows.lengths.tolist() == [len(ids) for ids in table["input_ids"].to_pylist()]
    assert batch.to("cpu").tokens.ids_BT.equal(batch.tokens.ids_BT)
    assert (batch.seed, batch.step, batch.count(len)) == (1, 2, 3)

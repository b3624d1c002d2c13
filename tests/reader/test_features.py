import numpy as np
import pytest
from transformers import AutoTokenizer

from raydist.errors import InputError
from raydist.files.stage import encode_table
from raydist.models.folders import model_folder
from raydist.reader.features import make_windows, token_span
from raydist.reader.metrics import normaliser
from raydist.reader.rows import WindowRows
from raydist.records import Example, GoldAnswer, examples_table

TEXT = "Mina Orlov built the old bridge in 1894, and it fell in 1911 during a flood. " * 4
LENGTHS = {"max_length": 48, "max_question_length": 16, "doc_stride": 12}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))


def example(id="q", question="When was it built?", context=TEXT, text="1894", **more) -> Example:
    answers = [GoldAnswer(text, context.index(text))] if text else []
    return Example(id, question, context, answers, passage_id=id, **more)


def rows_of(windows, tmp_path, examples: int) -> WindowRows:
    (tmp_path / "part.arrow").write_bytes(encode_table(windows, "arrow", {"examples": examples}))
    return WindowRows([tmp_path / "part.arrow"])


def test_the_gold_tokens_of_every_window_give_back_the_answer(tokenizer):
    windows = make_windows(examples_table([example()]), tokenizer, **LENGTHS).to_pylist()
    assert len(windows) > 2
    holding = [window for window in windows if window["has_answer"]]
    assert holding
    for window in holding:
        first, last = window["start"] - window["passage_start"], window["end"] - window["passage_start"]
        assert TEXT[window["char_start"][first] : window["char_end"][last]] == "1894"
    for window in windows:
        assert len(window["input_ids"]) <= 48
        assert window["has_answer"] or window["start"] == window["end"] == window["cls"] == 0
        assert len(window["char_start"]) == window["passage_end"] - window["passage_start"]


def test_windows_cover_the_whole_passage_and_overlap(tokenizer):
    windows = make_windows(examples_table([example()]), tokenizer, **LENGTHS).to_pylist()
    covered = set()
    for window in windows:
        covered |= {at for a, b in zip(window["char_start"], window["char_end"]) for at in range(a, b)}
    assert covered == {at for at, letter in enumerate(TEXT) if not letter.isspace()}
    assert windows[1]["char_start"][0] < windows[0]["char_end"][-1]


def test_the_passage_may_come_first_and_its_gold_tokens_stay_the_same_text(tokenizer):
    usual = make_windows(examples_table([example()]), tokenizer, **LENGTHS).to_pylist()
    turned = make_windows(examples_table([example()]), tokenizer, **LENGTHS, passage_first=True).to_pylist()
    assert [window["char_start"] for window in turned] == [window["char_start"] for window in usual]
    for window, other in zip(turned, usual):
        assert window["passage_start"] < window["passage_end"] < window["question_start"] < window["question_end"]
        asked, was_asked = (w["input_ids"][w["question_start"] : w["question_end"]] for w in (window, other))
        assert asked == was_asked
        assert window["has_answer"] == other["has_answer"]
        if window["has_answer"]:
            first, last = window["start"] - window["passage_start"], window["end"] - window["passage_start"]
            assert TEXT[window["char_start"][first] : window["char_end"][last]] == "1894"
        else:
            assert window["start"] == window["end"] == window["cls"] == 0


def test_a_window_without_the_answer_can_be_dropped(tokenizer):
    every = make_windows(examples_table([example()]), tokenizer, **LENGTHS)
    kept = make_windows(examples_table([example()]), tokenizer, **LENGTHS, no_answer_windows="drop")
    assert kept.num_rows == sum(every["has_answer"].to_pylist()) < every.num_rows


def test_a_question_too_long_is_cut_at_a_token(tokenizer):
    question = "why " * 40
    window = make_windows(examples_table([example(question=question)]), tokenizer, **LENGTHS).to_pylist()[0]
    assert window["question_end"] - window["question_start"] == 16


def test_a_question_that_leaves_no_room_is_refused_with_the_way_out(tokenizer):
    lengths = {"max_length": 32, "max_question_length": 24, "doc_stride": 12}
    with pytest.raises(InputError, match=r"question 'q' takes 24 tokens and leaves 5 .*raise data.max_length \(now 32\)"):
        make_windows(examples_table([example(question="why " * 40)]), tokenizer, **lengths)


def test_windows_know_their_passage_and_the_text_of_their_answer(tokenizer):
    context = "The Bridge. Mina built the bridge, and a bridge-keeper lived on it. " + TEXT
    asked = [
        ("a", "p", "The Bridge."),
        ("b", "p", "bridge"),  # another question of the same passage, and the same answer but for what is normalised away
        ("c", "other", "a bridge"),
        ("d", "other", "bridge-keeper"),
        ("e", "third", None),
    ]
    examples = [
        Example(id, f"{id}?", context, [GoldAnswer(text, context.index(text))] if text else [], passage_id=passage)
        for id, passage, text in asked
    ]
    windows = make_windows(examples_table(examples), tokenizer, **LENGTHS).to_pylist()
    keys: dict[str, set] = {name: set() for name in ("passage", "answer")}
    for window in windows:
        _, passage, text = asked[window["example"]]
        keys["passage"].add((passage, window["passage"]))
        keys["answer"].add((normaliser("squad")(text or ""), window["answer"]))
    assert len(windows) > 3 * len(asked)  # several windows each
    assert {name for name, _ in keys["answer"]} == {"bridge", "bridgekeeper", ""}
    for found in keys.values():  # as many numbers as names: alike where these are, different elsewhere
        assert len(found) == len({name for name, _ in found}) == len({number for _, number in found}) == 3


@pytest.mark.parametrize(
    ("span", "tokens"),
    [((0, 3), (0, 0)), ((4, 9), (1, 2)), ((5, 6), (1, 1)), ((0, 9), (0, 2)), ((9, 10), None), ((3, 4), None)],
)
def test_characters_to_tokens_by_hand(span, tokens):
    # tokens cover [0, 3) [4, 6) [6, 9)
    assert token_span(np.array([[0, 3], [4, 6], [6, 9]]), *span) == tokens


def test_batches_are_the_rows_padded(tokenizer, tmp_path):
    examples = [example("a"), example("b", context="Short. It fell in 1911.", text="1911")]
    windows = make_windows(examples_table(examples), tokenizer, **LENGTHS)
    rows = rows_of(windows, tmp_path, 2)
    batch = rows.batch(np.arange(len(rows)), pad_id=0)
    for i, window in enumerate(windows.to_pylist()):
        length = len(window["input_ids"])
        assert batch.input_ids_BT[i, :length].tolist() == window["input_ids"]
        assert batch.attention_BT[i].sum() == length
        assert not batch.input_ids_BT[i, length:].any()
        assert batch.passage_BT[i].nonzero().flatten().tolist() == list(range(window["passage_start"], window["passage_end"]))
        assert batch.question_BT[i].sum() == window["question_end"] - window["question_start"]
        assert batch.token_types_BT[i, window["passage_start"]] == 1
    assert rows.examples.tolist() == windows["example"].to_pylist()
    known = rows.group(np.array([0]))
    assert known.passage_tokens[0] == batch.passage_BT[0].sum()


def test_rows_of_several_files_are_one_sequence(tokenizer, tmp_path):
    tables = [make_windows(examples_table([example(id)]), tokenizer, **LENGTHS) for id in "ab"]
    for number, table in enumerate(tables):
        (tmp_path / f"{number}.arrow").write_bytes(encode_table(table, "arrow", {"examples": 1}))
    empty = tables[0].slice(0, 0)
    (tmp_path / "empty.arrow").write_bytes(encode_table(empty, "arrow", {"examples": 3}))
    rows = WindowRows([tmp_path / "0.arrow", tmp_path / "empty.arrow", tmp_path / "1.arrow"])
    n = tables[0].num_rows
    assert len(rows) == 2 * n
    assert rows.values("input_ids", n + 1).tolist() == tables[1]["input_ids"][1].as_py()
    assert rows.examples.tolist() == [0] * n + [4] * n
    assert rows.lengths.tolist() == [len(ids) for table in tables for ids in table["input_ids"].to_pylist()]

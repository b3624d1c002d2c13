"""The sets Z: n-best spans of a base reader, as the windows see them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.made_stage import made_stage
from transformers import AutoTokenizer

from raydist.errors import InputError
from raydist.files.stage import Worker, encode_table
from raydist.files.storage import Place
from raydist.models.folders import model_folder
from raydist.reader.features import make_windows
from raydist.reader.nbest_sets import check_sets_file, make_sets
from raydist.reader.rows import WindowRows
from raydist.reader.stages import NbestSets, WindowCounts, WindowSet
from raydist.records import PREDICTION_SCHEMA, Example, GoldAnswer, examples_table

TEXT = "Mina Orlov built the old bridge in 1894, and it fell in 1911 during a flood. " * 3
LENGTHS = {"max_length": 48, "max_question_length": 16, "doc_stride": 12}


@pytest.fixture(scope="module")
def examples() -> pa.Table:
    first = Example("a", "When was it built?", TEXT, [GoldAnswer("1894", TEXT.index("1894"))], passage_id="p")
    other = Example("b", "When did it fall?", TEXT, [GoldAnswer("1911", TEXT.index("1911"))], passage_id="p", language="es")
    return examples_table([first, other])


@pytest.fixture
def rows(examples, tmp_path) -> WindowRows:
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    windows = make_windows(examples, tokenizer, **LENGTHS)
    (tmp_path / "part.arrow").write_bytes(encode_table(windows, "arrow", {"examples": 2}))
    return WindowRows([tmp_path / "part.arrow"])


def lists(**spans: list[tuple[str, str, int]]) -> pa.Table:
    """n-best lists of some texts by their nth occurrence: id=[(language, text, occurrence), ...]."""

    def span(text: str, nth: int) -> dict:
        at = -1
        for _ in range(nth + 1):
            at = TEXT.index(text, at + 1)
        return {"text": text, "start": at, "end": at + len(text), "score": 0.0, "probability": 0.1}

    table = [
        {"id": id, "passage_id": "p", "language": found[0][0], "nbest": [span(text, nth) for _, text, nth in found]}
        for id, found in spans.items()
    ]
    return pa.Table.from_pylist(table, schema=PREDICTION_SCHEMA)


def texts(rows: WindowRows, sets: pa.Table, row: int) -> list[str | None]:
    """What the spans of a window's set say; None for one that it does not hold."""
    start, end, first = rows.values("char_start", row), rows.values("char_end", row), rows.column("passage_start")[row]
    places = zip(sets["nbest_start"][row].as_py(), sets["nbest_end"][row].as_py())
    return [None if a < 0 else TEXT[start[a - first] : end[b - first]] for a, b in places]


PREDICTED = lists(
    a=[("en", "1911", 0), ("en", "1894", 0), ("en", "in 1894", 0), ("en", "1911", 2)],
    b=[("es", "Mina Orlov", 0), ("es", "1894", 0)],
)


def test_spans_are_the_tokens_of_the_window_and_gold_is_where_the_lists_have_it(rows, examples):
    sets = make_sets(rows, examples, PREDICTED, size=20)
    assert sets.num_rows == len(rows)
    row = int(np.flatnonzero(rows.column("has_answer") & (rows.examples == 0))[0])
    assert texts(rows, sets, row) == ["1911", "1894", "in 1894", None]  # the last is beyond this window
    assert sets["nbest_gold"][row].as_py() == 1
    assert sets["nbest_type"][row].as_py() == [2, 0, 1, 2]
    assert sets["nbest_start"][row].as_py()[1] == rows.column("start")[row]
    assert sets["nbest_end"][row].as_py()[1] == rows.column("end")[row]


def test_gold_takes_the_next_place_or_that_of_the_last_one(rows, examples):
    row = int(np.flatnonzero(rows.column("has_answer") & (rows.examples == 1))[0])
    assert texts(rows, make_sets(rows, examples, PREDICTED, size=20), row) == ["Mina Orlov", "1894", "1911"]
    short = make_sets(rows, examples, PREDICTED, size=2)
    assert texts(rows, short, row) == ["Mina Orlov", "1911"]
    assert short["nbest_gold"][row].as_py() == 1


def test_a_window_without_the_answer_has_no_set(rows, examples):
    sets = make_sets(rows, examples, PREDICTED, size=20)
    without = np.flatnonzero(~rows.column("has_answer"))
    assert len(without)
    for row in without:
        assert sets["nbest_start"][row].as_py() == []
        assert sets["nbest_gold"][row].as_py() == -1


def test_the_order_of_the_lists_does_not_matter(rows, examples):
    assert make_sets(rows, examples, PREDICTED.take([1, 0]), size=5).equals(make_sets(rows, examples, PREDICTED, size=5))


def test_a_question_without_a_list_is_named(rows, examples):
    with pytest.raises(InputError, match=r"no list for training question 'b'.*another data file"):
        make_sets(rows, examples, PREDICTED.slice(0, 1), size=5)


def test_translations_that_share_an_id_have_each_their_own_list(examples, tmp_path):
    both = examples.set_column(examples.schema.get_field_index("id"), "id", pa.array(["a", "a"]))
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    windows = WindowSet(
        made_stage(tmp_path / "windows", make_windows(both, tokenizer, **LENGTHS), counts=WindowCounts(2, 2)),
        made_stage(tmp_path / "examples", both, kind="parquet", part_rows=2),
    )
    rows = WindowRows(windows.windows.files())
    english, spanish = [("en", "Mina Orlov", 0), ("en", "1894", 0)], [("es", "1894", 0), ("es", "in 1911", 0)]
    of_a_stage = made_stage(tmp_path / "lists", pa.concat_tables([lists(a=spanish), lists(a=english)]), kind="parquet")
    of_a_file = lists(**{"en:a": english, "es:a": spanish, "es:b": spanish})  # as with_unique_ids names them
    pq.write_table(of_a_file, tmp_path / "train.parquet")
    for stage in (
        NbestSets(windows, 20, predictions=(of_a_stage,)),
        NbestSets(windows, 20, file="its digest", place=Place("train.parquet", str(tmp_path))),
    ):
        sets = stage.open(Worker())(stage.read(0)).table
        found = [texts(rows, sets, int(np.flatnonzero(rows.column("has_answer") & (rows.examples == at))[0])) for at in (0, 1)]
        assert found == [["Mina Orlov", "1894"], ["1894", "in 1911", "1911"]]


def test_batches_carry_the_sets_padded(rows, examples, tmp_path):
    sets = make_sets(rows, examples, PREDICTED, size=20)
    (tmp_path / "sets.arrow").write_bytes(encode_table(sets, "arrow", {}))
    both = WindowRows([tmp_path / "part.arrow"], [tmp_path / "sets.arrow"])
    batch = both.batch(np.arange(len(both)), pad_id=0)
    start_BK, mask_BK = batch.extras["nbest_start_BK"], batch.extras["nbest_mask_BK"]
    assert start_BK.shape == mask_BK.shape == (len(both), 4)
    gold_B = batch.extras["nbest_gold_B"]
    for row in np.flatnonzero(both.column("has_answer")):
        assert mask_BK[row, gold_B[row]]
        assert start_BK[row, gold_B[row]] == batch.start_B[row]
        assert batch.extras["nbest_end_BK"][row, gold_B[row]] == batch.end_B[row]
    assert not mask_BK[~batch.has_answer_B].any()


def test_a_file_of_lists_must_say_what_it_was_made_with(tmp_path):
    path = str(tmp_path / "train.parquet")
    wanted = {"tokenizer": "t1", "examples": "e1", "max_answer_length": 30}
    made = wanted | {"n_best": 20}
    with pytest.raises(InputError, match=r"there is no .*train.parquet; write it with `raydist predict"):
        check_sets_file(path, wanted, 20)
    (tmp_path / "train.parquet").write_text("no table")
    with pytest.raises(InputError, match="is no Parquet file"):
        check_sets_file(path, wanted, 20)
    pq.write_table(PREDICTED, path)
    with pytest.raises(InputError, match="does not record how it was made"):
        check_sets_file(path, wanted, 20)
    for key, what in (("tokenizer", "another tokenizer"), ("examples", "another data file")):
        (tmp_path / "train.parquet").write_bytes(encode_table(PREDICTED, "parquet", made | {key: "other"}))
        with pytest.raises(InputError, match=what):
            check_sets_file(path, wanted, 20)
    (tmp_path / "train.parquet").write_bytes(encode_table(PREDICTED, "parquet", made | {"n_best": 5}))
    with pytest.raises(InputError, match=r"lists of 5, and size is 20"):
        check_sets_file(path, wanted, 20)
    (tmp_path / "train.parquet").write_bytes(encode_table(PREDICTED, "parquet", made))
    check_sets_file(path, wanted, 20)

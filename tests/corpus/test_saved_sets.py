"""Folders that `datasets` wrote: save_to_disk, to_csv and the hub's own files."""

import json

import datasets
import pyarrow as pa
import pytest

from raydist.config import load_config
from raydist.corpus.columns import printed_value
from raydist.errors import InputError
from raydist.here import Here
from raydist.reader.prepare import make_examples
from raydist.runs.run import Run

CONTEXT = 'He said: "it\'s 1894".\nSo it was.'


def rows(*ids, **answers):
    found = answers or {"text": ["1894", "it's 1894"], "answer_start": [15, 10]}
    return datasets.Dataset.from_list([{"id": id, "question": "When?", "context": CONTEXT, "answers": found} for id in ids])


@pytest.fixture
def read_set(tmp_path):
    """The examples of a key of the config."""

    def read_set(key: str, source: object) -> list[dict]:
        settings = [f"storage={tmp_path}/runs", "data.dev=null", "data.test={}", f"data.{key}={json.dumps(source)}"]
        run = Run(load_config("debug_reader", settings).config, Here())
        run.begin()
        name = key.removeprefix("test.")
        return pa.concat_tables(make_examples(run, [name])[name].tables()).to_pylist()

    return read_set


def ids_of(examples: list[dict]) -> list[str]:
    return [example["id"] for example in examples]


def test_a_set_of_save_to_disk_is_read_by_the_split_of_its_key(read_set, tmp_path):
    folder = str(tmp_path / "saved")
    datasets.DatasetDict(train=rows("a", "b"), validation=rows("c"), odd=rows("d")).save_to_disk(folder)
    assert ids_of(read_set("train", folder)) == ["a", "b"]
    assert ids_of(read_set("dev", {"hub": folder})) == ["c"]
    assert ids_of(read_set("test.x", {"files": folder, "split": "odd"})) == ["d"]
    with pytest.raises(InputError, match=r"saved has no split 'test', only train, validation, odd: set `split`"):
        read_set("test.x", folder)
    rows("e").save_to_disk(str(tmp_path / "one"))
    assert ids_of(read_set("test.x", str(tmp_path / "one"))) == ["e"]
    (tmp_path / "one" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(InputError, match=r"one was saved by `datasets` and cannot be loaded.*save it again"):
        read_set("test.x", str(tmp_path / "one"))


def test_a_folder_of_to_csv_is_read_as_the_rows_that_were_written(read_set, tmp_path):
    folder = tmp_path / "csv"
    folder.mkdir()
    rows("a", "b").to_csv(folder / "train.csv")
    rows("c", text=[], answer_start=[]).to_csv(folder / "validation.csv")
    first, second = read_set("train", str(folder))
    assert (first["id"], second["id"], first["context"]) == ("a", "b", CONTEXT)
    assert first["answers"] == [{"text": "1894", "start": 15}, {"text": "it's 1894", "start": 10}]
    (dev,) = read_set("dev", str(folder))
    assert (dev["id"], dev["answers"]) == ("c", [])
    with pytest.raises(InputError, match=r"csv is a directory \(train\.csv, validation\.csv\)"):
        read_set("test.x", str(folder))


def test_a_folder_of_the_hubs_files_is_read_by_split(read_set, tmp_path):
    folder = tmp_path / "clone"
    folder.mkdir()
    for number, id in enumerate("ab"):
        rows(id).to_parquet(folder / f"train-0000{number}-of-00002.parquet")
    rows("c").to_json(folder / "train-extra.jsonl")
    assert ids_of(read_set("train", str(folder))) == ["a", "b"]


@pytest.mark.parametrize("cell", ["{'a': f(1)}", "{'a'", "{1: __import__('os')}", "{'a': array()}", "{**{}}[0]"])
def test_a_cell_that_is_no_printed_value_stays_a_text_and_runs_nothing(cell):
    assert printed_value(cell) == cell

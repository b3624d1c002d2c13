"""Data sets loaded by name through `datasets`; a local folder is a name too."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.question_files import read_hub

from raydist.corpus.hub import hub_language
from raydist.errors import InputError
from raydist.records import GoldAnswer

CONTEXT = "Ada was born in Lund. Ada died in Oslo."
ROWS = [
    {"id": "a", "question": "Where was Ada born?", "context": CONTEXT, "answers": {"text": ["Lund"], "answer_start": [16]}},
    {"id": "b", "question": "Where did Ada live?", "context": CONTEXT, "answers": {"text": [], "answer_start": []}},
    {"id": "c", "question": "Where did Ada die?", "context": CONTEXT, "answers": {"text": ["Oslo"], "answer_start": [3]}},
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(params=["parquet", "json"])
def folder(request, tmp_path):
    folder = tmp_path / "sets" / "squad_v2"
    folder.mkdir(parents=True)
    if request.param == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), folder / "train.parquet")
    else:
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def test_a_local_folder_reads_with_the_same_checks(folder):
    examples, rejected, counts = read_hub(str(folder), "train", language="en")
    assert [(e.id, e.line, e.is_impossible, e.answers) for e in examples] == [
        ("a", 1, False, [GoldAnswer("Lund", 16)]),
        ("b", 2, True, []),  # the folder is called squad_v2
    ]
    assert examples[0].file == f"hub:{folder}/train"
    assert (rejected[0].id, rejected[0].line, counts.answers_rejected) == ("c", 3, 1)
    assert read_hub(str(folder), "train", repair_offsets=True)[2].answers_repaired == 1
    assert not read_hub(str(folder), "train", format="qa")[0][1].is_impossible  # told otherwise


@pytest.mark.parametrize(
    ("name", "config", "language"),
    [
        ("xquad", "xquad.es", "es"),
        ("google/xtreme", "XQuAD.el", "el"),
        ("mlqa", "mlqa.ar.de", "ar"),
        ("google/xtreme", "MLQA.hi.en", "hi"),
        ("mlqa", "mlqa-translate-train.de", "de"),
        ("mlqa", "mlqa-translate-test.de", "en"),  # put into English
        ("someone/many", "vi", "vi"),
        ("squad_es", "v1.1.0", "es"),
        ("someone/SQuAD-es", None, "es"),
        ("squad_v2", None, None),
        ("squad", "plain_text", None),
    ],
)
def test_the_language_is_told_by_the_config_or_the_name(name, config, language):
    assert hub_language(name, config) == language


def test_a_told_language_comes_before_the_one_in_the_name(tmp_path):
    folder = tmp_path / "xquad.es"
    folder.mkdir()
    (folder / "train.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    assert read_hub(str(folder), "train")[0][0].language == "es"
    assert read_hub(str(folder), "train", language="de")[0][0].language == "de"


def test_an_unknown_split_or_folder_is_named(folder):
    with pytest.raises(InputError, match="split 'test' cannot be loaded"):
        read_hub(str(folder), "test")
    with pytest.raises(InputError, match="cannot be loaded"):
        read_hub(str(folder / "missing"), "train")


def test_a_hub_that_cannot_be_reached_says_so_and_what_to_do(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"cannot be reached .*go online once .* or give local files"):
        read_hub("someone/no_such_set", "train")

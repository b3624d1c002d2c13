"""What a run leaves for others: lines with texts, an index to be searched, and `raydist export`."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.tiny_reader import write_reader
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from raydist.config import load_config, override, to_yaml
from raydist.errors import InputError
from raydist.exports import export
from raydist.here import Here
from raydist.reader import flow as reader_flow
from raydist.retrieval import flow
from raydist.retrieval.prepare import open_corpora
from raydist.retrieval.searcher import Searcher
from raydist.runs.run import Run

SMALL = (
    *("name=mined", "mining.candidates=3", "retriever.variants=[]", "retriever.rerank=0", "cluster.threads_per_worker=1"),
    *("train.max_steps=2", "cross_encoder.train.max_steps=2", "mining.negative_p=1"),
)


@pytest.fixture(scope="module")
def retriever(tmp_path_factory) -> Run:
    storage = tmp_path_factory.mktemp("runs")
    run = Run(load_config("debug_retrieval", [f"storage={storage}", *SMALL]).config, Here())
    run.begin()
    flow.run_all(run)
    scored = pq.read_table(run.folder.path("mining", "silver.parquet"), columns=["p"])["p"].to_numpy()
    flow.mine(Run(override(run.config, {"mining.threshold": float(np.median(scored))}), Here()))  # keeps half of the pairs
    return run


def test_after_a_run_its_index_is_there_to_be_searched(retriever):
    searcher = Searcher(retriever.folder.path())
    assert searcher.kind == "dense"
    hits = searcher.search("Who built the bridge?", k=3)
    ranked = [hit.sentence_id for hit in hits]
    assert len(ranked) == len(set(ranked)) == 3
    (name,) = retriever.config.corpus.test
    assert {hit.sentence_id: hit.text for hit in hits}.items() <= dict(all_sentences(retriever, name)).items()
    flow.index_own(retriever, open_corpora(retriever))  # again
    assert [hit.sentence_id for hit in Searcher(retriever.folder.path()).search("Who built the bridge?", k=3)] == ranked


def all_sentences(run: Run, name: str) -> list[tuple[str, str]]:
    table = open_corpora(run, [name])[name].sentence_table()
    rows = np.arange(len(table))
    return list(zip(table.ids(rows).to_pylist(), table.texts(rows).to_pylist()))


def test_silver_pairs_are_lines_with_texts_and_places(retriever):
    kept = [row for row in pq.read_table(retriever.folder.path("mining", "silver.parquet")).to_pylist() if row["kept"]]
    lines = [json.loads(line) for line in retriever.folder.read_bytes("mining/silver.jsonl").decode().splitlines()]
    assert [(line["question_id"], line["sentence"]) for line in lines] == [
        (row["question_id"], row["sentence"]) for row in kept
    ]
    for line in lines[:5]:
        question = json.loads(Path(line["file"]).read_text().splitlines()[line["line"] - 1])
        assert (question["_id"], question["text"]) == (line["question_id"], line["question"])


def test_triplets_have_gold_and_silver_answers_and_a_candidate_that_is_none(retriever, tmp_path):
    path = export(retriever.folder.path(), "triplets", tmp_path / "triplets.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    mined = pq.read_table(retriever.folder.path("mining", "silver.parquet")).to_pylist()
    rejected = {(row["question_id"], row["sentence"]) for row in mined if row["why_not"] == "p below the threshold"}
    assert {row["gold"] for row in rows} == {True, False}
    for row in rows:
        assert (row["question_id"], row["negative"]) in rejected
        assert row["positive"] != row["negative"]
    with pytest.raises(InputError, match="is there already"):
        export(retriever.folder.path(), "triplets", path)


def test_a_retriever_opens_with_sentence_transformers_and_embeds_alike(retriever, tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = export(retriever.folder.path(), "sentence-transformers", tmp_path / "st")
    assert not (folder / "raydist.json").exists()
    ours = SentenceTransformer(retriever.folder.path("model")).encode(["Who built it?"])
    np.testing.assert_array_equal(SentenceTransformer(str(folder)).encode(["Who built it?"]), ours)
    assert "encode_query" in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", ["mined", "mined_cross_encoder"])
def test_the_code_of_a_card_runs(retriever, name, monkeypatch, capsys):
    folder = Path(retriever.storage.path(name, "model"))
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(folder)
    exec(code, {})
    assert re.search(r"\d\.\d+", capsys.readouterr().out)


@pytest.mark.slow
def test_a_retriever_as_onnx_embeds_as_it_does_itself(retriever, tmp_path):
    runtime, _ = pytest.importorskip("onnxruntime"), pytest.importorskip("onnxscript")
    from sentence_transformers import SentenceTransformer

    folder = export(retriever.folder.path(), "onnx", tmp_path / "onnx")
    assert {"model.onnx", "tokenizer.json", "README.md"} <= {file.name for file in folder.iterdir()}
    session, tokenizer = runtime.InferenceSession(folder / "model.onnx"), AutoTokenizer.from_pretrained(folder)
    texts = ["Who built it?", "Mina Orlov built the bridge in 1894, and it fell in 1911.", "Short"]
    ours = SentenceTransformer(retriever.folder.path("model")).encode(texts)
    for some in (texts, texts[:1]):  # of other sizes than those it was written with
        inputs = tokenizer(some, padding=True, return_tensors="np")
        (found,) = session.run(None, {one.name: inputs[one.name] for one in session.get_inputs()})
        np.testing.assert_allclose(found, ours[: len(some)], atol=1e-5)


def test_a_reader_as_onnx_has_the_same_logits(reader, tmp_path):
    runtime, _ = pytest.importorskip("onnxruntime"), pytest.importorskip("onnxscript")
    folder = export(reader, "onnx", tmp_path / "onnx")
    session, tokenizer = runtime.InferenceSession(folder / "model.onnx"), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer("Who built it?", "Mina Orlov built it. " * 9, return_tensors="np")
    start, end = session.run(None, {one.name: inputs[one.name] for one in session.get_inputs()})
    with torch.inference_mode():
        plain = AutoModelForQuestionAnswering.from_pretrained(reader / "model")(**tokenizer_inputs(inputs))
    np.testing.assert_allclose(start, plain.start_logits.numpy(), atol=1e-5)
    np.testing.assert_allclose(end, plain.end_logits.numpy(), atol=1e-5)


def tokenizer_inputs(inputs) -> dict:
    return {name: torch.from_numpy(value) for name, value in inputs.items()}


def test_onnx_without_its_packages_says_what_to_install(reader, tmp_path, monkeypatch):
    from raydist import onnx_export

    monkeypatch.setattr(onnx_export, "PACKAGES", ("absent_package",))
    with pytest.raises(InputError, match=r"ONNX needs absent_package: pip install 'raydist\[onnx\]'"):
        export(reader, "onnx", tmp_path / "onnx")


@pytest.fixture
def reader(tmp_path) -> Path:
    """A run with a model and predictions, whose questions have no ids."""
    rows = [{"question": f"Who {number}?", "context": "Mina Orlov built it.", "answer": "Mina Orlov"} for number in range(3)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0] | {"id": "mine"}]))
    write_reader(tmp_path / "base")
    settings = [f"storage={tmp_path}/runs", "name=read", f"model.name={tmp_path}/base", "data.train=null", "data.dev=null"]
    run = Run(load_config("debug_reader", [*settings, f"data.test={{own: {tmp_path}/own.jsonl}}"]).config, Here())
    run.begin()
    shutil.copytree(tmp_path / "base", run.folder.path("model"))
    reader_flow.predict(run)
    return Path(run.folder.path())


def test_predictions_are_lines_with_texts_and_the_users_ids_or_line_numbers(reader):
    lines = [json.loads(line) for line in (reader / "predictions/own.jsonl").read_text().splitlines()]
    assert [(line["line"], line["id"], line["question"]) for line in lines] == [
        (1, None, "Who 0?"),
        (2, None, "Who 1?"),
        (3, None, "Who 2?"),
        (4, "mine", "Who 0?"),
    ]
    best = json.loads((reader / "predictions/own.json").read_text())
    assert [line["answer"] for line in lines] == list(best.values())
    for line in lines:
        assert line["file"].endswith("own.jsonl")
        assert line["nbest"][0]["text"] == "Mina Orlov built it."[line["nbest"][0]["start"] : line["nbest"][0]["end"]]


def test_a_moved_run_is_exported_for_the_hub_and_other_kinds_are_refused_by_reason(reader, tmp_path):
    moved = shutil.move(reader, tmp_path / "elsewhere")
    folder = export(moved, "hub-folder")
    assert folder == tmp_path / "elsewhere" / "exported" / "hub-folder"
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in folder.iterdir()}
    assert export(moved, "hub-folder") == folder, "again, in its own place"
    for kind, said in (
        ("sentence-transformers", "a reader is no model of sentence-transformers"),
        ("triplets", "triplets are of runs that mined"),
        ("zip", "there is no export 'zip'; there are hub-folder"),
    ):
        with pytest.raises(InputError, match=said):
            export(moved, kind)
    with pytest.raises(InputError, match=r"is no run: it has no config\.yaml"):
        export(tmp_path, "hub-folder")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.yaml").write_text(to_yaml(load_config("debug_reader").config))
    with pytest.raises(InputError, match="has no model yet"):
        export(empty, "hub-folder")

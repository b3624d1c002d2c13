"""Mining and retrieval on Ray: one command, the same bytes whatever the layout and whatever dies."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.stages import folders_of

from raydist import flows
from raydist.config import load_config
from raydist.errors import InputError
from raydist.retrieval import flow, hits, mining_flow
from raydist.retrieval.prepare import open_corpora
from raydist.retrieval.silver import COPY
from raydist.runs.run import Run

pytestmark = pytest.mark.ray


LAYOUT = ("mining.part_questions=6", "index.shard_rows=50", "cluster.threads_per_worker=1")  # how sums round: by the threads


@pytest.fixture(scope="module")
def finished(machine, storage):
    """A whole run, made once."""
    run = Run(load_config("debug_retrieval", [f"storage={storage}", *LAYOUT]).config, machine)
    run.begin()
    flows.run_all(run)
    return run


def silver(run) -> list[dict]:
    return pq.read_table(run.folder.path("mining", "silver.parquet")).to_pylist()


def is_kept(row: dict, threshold: float) -> bool:
    return row["p"] >= threshold and row["why_not"] != COPY


def stage_rows(run, stage: str, of: str = "train") -> list[dict]:
    folder = folders_of(run)[f"{stage} of {of}"]
    files = sorted(Path(run.storage.path(folder)).glob("part-*"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def test_the_run_leaves_models_pairs_scores_and_lists_that_others_can_read(finished):
    from datasets import load_dataset
    from helpers.trec import read_qrels
    from sentence_transformers import CrossEncoder, SentenceTransformer

    from raydist.retrieval.metrics import read_trec_run, score_run

    metrics = finished.folder.read_json("metrics.json")
    for method in ("bm25", "untrained", "gold", "gold_silver", "gold_silver_weighted", "reranked", "hybrid", "hybrid_reranked"):
        for metric in ("P@1", "P@5", "P@10", "MRR@100", "recall@100", "nDCG@10"):
            assert 0 <= metrics[f"retrieval.sample.{method}.{metric}"] <= 1
    assert metrics["retrieval.sample.bm25.P@10"] > 0.3
    table = pq.read_table(finished.folder.path("ranked", "sample.parquet")).to_pandas()
    for metric in ("P@1", "MRR@100", "recall@10", "nDCG@10"):
        key, of_bm25 = f"retrieval.sample.bm25.{metric}", table[table["method"] == "bm25"]
        assert metrics[f"{key}.low"] <= metrics[key] <= metrics[f"{key}.high"]
        assert metrics[key] == pytest.approx(of_bm25[metric].mean(), abs=2e-6)
        assert f"{key}.minus_gold.p" in metrics
    values = table.pivot(index="question_id", columns="method", values="MRR@100")
    for method, other in (("gold_silver_weighted", "gold"), ("bm25", "gold"), ("gold_silver_weighted", "gold_silver")):
        key = f"retrieval.sample.{method}.MRR@100.minus_{other}"
        gaps = values[method] - values[other]
        assert metrics[key] == pytest.approx(gaps.mean(), abs=2e-6)
        assert metrics[f"{key}.low"] <= metrics[key] <= metrics[f"{key}.high"]
        assert 0 < metrics[f"{key}.p"] <= 1
    assert "retrieval.sample.gold.P@1.minus_gold" not in metrics
    assert metrics["mining.silver"] > 0
    pairs = load_dataset("parquet", data_files=finished.folder.path("mining", "silver.parquet"), split="train")
    assert pairs["kept"] == [is_kept(row, finished.config.mining.threshold) for row in pairs]
    assert sum(pairs["kept"]) == metrics["mining.silver"]
    assert SentenceTransformer(finished.folder.path("model")).encode(["Who?"]).shape == (1, 64)
    scorer = CrossEncoder(finished.storage.path("debug_retrieval_cross_encoder", "model"))
    row = pq.read_table(finished.folder.path("mining", "examples.parquet")).to_pylist()[0]
    assert scorer.predict([(row["question"], row["sentence"])])[0] == pytest.approx(row["p"], abs=1e-5)
    html = Path(finished.folder.path("report.html")).read_text()
    assert "Re-ranked by the cross-encoder" in html
    judged = read_qrels(Path(finished.folder.path("ranked", "sample.qrels")))
    for method in ("bm25", "gold", "reranked"):
        listed = read_trec_run(Path(finished.folder.path("ranked", f"sample.{method}.trec")))
        assert score_run(listed, judged).means()["MRR@100"] == pytest.approx(values[method].mean(), abs=1e-6)

    depth = finished.config.retriever.rerank
    before, after = (
        {question: [sentence for sentence, _ in hits] for question, hits in read_trec_run(Path(path)).items()}
        for path in (finished.folder.path("ranked", f"sample.{of}.trec") for of in ("gold_silver_weighted", "reranked"))
    )
    pairs = stage_rows(finished, "rerank scores", of="sample")
    logits = {(row["question_id"], row["sentence_id"]): row["logit"] for row in pairs}
    assert logits.keys() == {(question, sentence) for question, listed in before.items() for sentence in listed[:depth]}
    corpus = open_corpora(finished, ["sample"])["sample"]
    asked = {row["question_id"]: row["text"] for row in corpus.read("questions").to_pylist()}
    table = corpus.sentence_table()
    texts = table.texts(table.rows_of([row["sentence_id"] for row in pairs], "the sentence")).to_pylist()
    theirs = scorer.predict(
        [(asked[row["question_id"]], text) for row, text in zip(pairs, texts)], activation_fn=torch.nn.Identity()
    )
    assert list(logits.values()) == pytest.approx(theirs.tolist(), abs=1e-5)
    assert before.keys() == after.keys()
    for question, listed in before.items():
        first = sorted(listed[:depth], key=lambda sentence: (-logits[question, sentence], sentence))
        assert after[question] == first + listed[depth:]
    assert before != after
    for metric in ("P@5", "P@10"):  # the depth is 5: the same sentences in another order
        assert metrics[f"retrieval.sample.reranked.{metric}"] == metrics[f"retrieval.sample.gold_silver_weighted.{metric}"]
        assert metrics[f"retrieval.sample.hybrid_reranked.{metric}"] == metrics[f"retrieval.sample.hybrid.{metric}"]
    words, vectors, hybrid = (
        read_trec_run(Path(finished.folder.path("ranked", f"sample.{of}.trec")))
        for of in ("bm25", "gold_silver_weighted", "hybrid")
    )
    for question, listed in hybrid.items():
        assert {id for id, _ in listed} <= {id for lists in (words, vectors) for id, _ in lists.get(question, [])}
    assert "retrieval.sample.hybrid.MRR@100.minus_bm25.p" in metrics


def test_the_cross_encoder_is_judged_beside_the_encoder_on_the_same_pairs(finished):
    from transformers import AutoModel, AutoTokenizer

    from raydist.models.folders import model_folder
    from raydist.retrieval.cross_encoder import average_precision

    pairs = [row for row in stage_rows(finished, "labelled pairs") if row["is_dev"]]
    cosines = stage_rows(finished, "held out cosines")
    assert [row["label"] for row in cosines] == [pair["label"] for pair in pairs]
    corpus = open_corpora(finished, ["train"])["train"]
    questions = {row["question_id"]: row["text"] for row in corpus.read("questions").to_pylist()}
    table = corpus.sentence_table()
    sentences = table.texts(table.rows_of([pair["sentence_id"] for pair in pairs], "the sentence")).to_pylist()
    folder = model_folder("builtin:tiny")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    first, second = (
        torch.nn.functional.normalize(model(**tokenizer(of, padding=True, return_tensors="pt")).last_hidden_state[:, 0])
        for of in ([questions[pair["question_id"]] for pair in pairs], sentences)
    )
    values = [row["cosine"] for row in cosines]
    assert values == pytest.approx((first * second).sum(1).tolist(), abs=1e-5)
    metrics = finished.folder.read_json("metrics.json")
    drawn = Counter((row["asked"], row["source"]) for row in stage_rows(finished, "labelled pairs") if not row["label"])
    counted = {key: number for key, number in metrics.items() if key.startswith("cross_encoder.negatives.")}
    assert counted == {f"cross_encoder.negatives.{asked}.{source}": number for (asked, source), number in drawn.items()}
    wanted = average_precision([pair["label"] for pair in pairs], values)
    assert metrics["cross_encoder.dense_average_precision"] == pytest.approx(wanted)


def test_a_second_call_makes_nothing_and_needs_no_ray(finished, capsys, monkeypatch):
    from raydist.cluster.connect import Cluster

    monkeypatch.setattr(Cluster, "start", lambda self: pytest.fail("Ray was started"))
    again = Run(finished.config, finished.machine)
    again.begin()
    flows.run_all(again)
    assert "P@10" in capsys.readouterr().out


def test_shards_and_actors_change_nothing(finished, make_run):
    other = make_run("name=layout", *LAYOUT, "index.shard_rows=70", "cluster.actors=3", config="debug_retrieval")
    corpus = open_corpora(other, ["train"])["train"]
    encoder = flow.mining_encoder(other)
    cross_encoder = finished.beside("debug_retrieval_cross_encoder")
    flow.mine_round(other, corpus, encoder, cross_encoder)
    assert other.stages[folders_of(other)["BM25 index of train"]].rows > 1
    assert silver(other) == silver(finished)


@pytest.mark.parametrize(
    "changes", [("index.shard_rows=70", "cluster.actors=3"), ("mining.part_questions=11", "cluster.actors=2")]
)
def test_shards_actors_and_blocks_change_no_training_pair_of_the_cross_encoder(finished, make_run, changes):
    """methods 5.2: the same seed draws the same negatives."""
    other = make_run("name=layout", *LAYOUT, *changes, config="debug_retrieval")
    corpus, encoder = open_corpora(other, ["train"])["train"], flow.mining_encoder(other)
    mining_flow.label_pairs(other, corpus, hits.find_hits(other, corpus, encoder, hits.NEGATIVES_DEPTH))
    folders = [folders_of(run)["labelled pairs of train"] for run in (finished, other)]
    assert folders[0] != folders[1]
    assert stage_rows(other, "labelled pairs") == stage_rows(finished, "labelled pairs")


def test_another_threshold_asks_no_model_and_keeps_what_a_fresh_run_would(finished, make_run, capsys):
    threshold = sorted(row["p"] for row in silver(finished))[len(silver(finished)) // 2]
    other = make_run(*LAYOUT, f"mining.threshold={threshold}", config="debug_retrieval")
    flow.mine(other)
    assert "scores of train: already done" in capsys.readouterr().out
    for row in silver(other):
        assert row["kept"] == is_kept(row, threshold)
    flow.mine(make_run(*LAYOUT, config="debug_retrieval"))  # as it was


def test_a_cross_encoder_that_is_trained_already_is_used_as_it_is(finished, make_run, capsys):
    model = Path(finished.beside("debug_retrieval_cross_encoder").folder.path("model"))
    ready = ("name=ready", "cross_encoder.trained=true", f"cross_encoder.model.name={model}")
    other = make_run(*LAYOUT, *ready, config="debug_retrieval")
    flow.mine(other)
    said = capsys.readouterr().out
    assert "scores of train: already done" in said  # the same weights: no pair is asked for again
    assert "\ntrain: " not in said
    assert not other.beside("ready_cross_encoder").folder.exists("training.json")
    assert silver(other) == silver(finished)
    assert other.folder.read_json("cross_encoder/metrics.json") == finished.folder.read_json("cross_encoder/metrics.json")
    with pytest.raises(InputError, match="debug_retrieval_cross_encoder holds a cross-encoder that was trained there"):
        flow.mine(make_run(*LAYOUT, *ready[1:], config="debug_retrieval"))
    with pytest.raises(InputError, match="no weights for classifier"):
        flow.mine(make_run(*LAYOUT, "name=headless", "cross_encoder.trained=true", config="debug_retrieval"))


def test_a_second_round_asks_the_retriever_of_the_first_with_all_options_at_once(finished, make_run):
    """Rounds, calibration, hard negatives, distillation, two towers, cached gradients: each has tests of its own elsewhere."""
    from sentence_transformers import SentenceTransformer

    from raydist.retrieval.cross_encoder import sigmoid

    temperature = finished.folder.read_json("cross_encoder/reliability.json")["temperature"]
    middle = np.median(sigmoid([row["logit"] for row in silver(finished)], temperature))  # half are kept, half are negatives
    mining = (
        f"mining.threshold={middle}",
        "mining.rounds=2",
        "mining.calibrate=temperature",
        "mining.hard_negatives=2",
        "mining.negative_p=1",
    )
    trained = ("retriever.towers=separate", "retriever.loss=kl", "retriever.cached=true", "retriever.chunk_rows=5")
    trained += ("retriever.question_prefix='query: '",)  # a prompt of its tower: encode() below puts it before each question
    less = ("retriever.variants=[]", "retriever.answer_context=none", "retriever.rerank=0")
    run = make_run(*LAYOUT, *mining, *trained, *less, "name=options", config="debug_retrieval")
    run.base = "debug_retrieval_cross_encoder"
    flows.run_all(run)
    metrics = run.folder.read_json("metrics.json")
    assert {"retrieval.sample.round1.P@1", "retrieval.sample.gold_silver_weighted.P@1"} <= metrics.keys()
    assert {"mining.round1.silver", "mining.round2.silver"} <= metrics.keys()
    rows = silver(run)
    assert [row["p"] for row in rows] == pytest.approx([sigmoid(row["logit"], temperature) for row in rows], abs=1e-6)
    assert any(row["p"] != pytest.approx(sigmoid(row["logit"], 1.0), abs=1e-4) for row in rows)
    towers = [
        SentenceTransformer(run.storage.path(name, "model", tower), device="cpu")
        for name in ("options_round1", "options")
        for tower in ("query", "answer")
    ]
    first = [tower[0].auto_model.encoder.layer[0].output.dense.weight.detach() for tower in towers]
    assert len({float(weight.sum()) for weight in first}) == 4, "two rounds of two towers, each trained"
    corpus = open_corpora(run, ["train"])["train"]
    questions = {row["question_id"]: row["text"] for row in corpus.read("questions").to_pylist()}
    table = corpus.sentence_table()
    every = np.arange(corpus.num_sentences)
    sentences = table.texts(every).to_pylist()
    scores = towers[0].encode(list(questions.values())) @ towers[1].encode(sentences).T
    ranks = {id: (-row).argsort(kind="stable").argsort() + 1 for id, row in zip(questions, scores)}
    numbers = {id: number for number, id in enumerate(table.ids(every).to_pylist())}
    found = [(row["dense_rank"], ranks[row["question_id"]][numbers[row["sentence_id"]]]) for row in rows if row["dense_rank"]]
    same = [ours == theirs for ours, theirs in found]
    assert sum(same) / len(same) > 0.9, "the dense candidates are those of the first round's towers"


def test_an_index_is_searched_and_documents_are_added_to_it(make_run, tmp_path):
    from raydist.retrieval.searcher import Searcher

    run = make_run("name=indexed", config="debug_retrieval")
    folder = flow.index(run)
    text = Searcher(folder).tables[0].texts([5])[0].as_py()
    assert Searcher(folder).search([text], 3)[0][0].text == text
    more = tmp_path / "more.jsonl"
    text = "Zyxquor built a lighthouse. It fell in 1911."
    more.write_text(json.dumps({"_id": "new", "text": text, "sentences": [[0, 27], [28, 44]]}) + "\n")
    assert flow.add_to_index(run, [more]) == 2
    best = Searcher(run.folder.path()).search(["Who built the lighthouse Zyxquor?"], 2)[0]
    assert best[0].text == "Zyxquor built a lighthouse."
    with pytest.raises(InputError, match="in the index already"):
        flow.add_to_index(run, [more])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["corpus.train=nowhere"], r"there is no .*nowhere"),
        (["corpus.train.split=missing"], r"missing"),
        (["corpus.train=null"], r"set corpus.train"),
        (["mining.encoder=builtin:small"], r"builtin:small"),
        (["index.dense=pq", "index.pq.m=7"], r"64 units cannot be cut into 7 equal parts"),
        (["index.dense=ivf", "index.ivf.nlist=9999"], r"index\.ivf\.nlist 9999 is more than the 400 vectors"),
    ],
)
def test_bad_input_is_named(make_run, overrides, message):
    with pytest.raises(InputError, match=message):
        flows.run_all(make_run("name=bad", *overrides, config="debug_retrieval"))


def made_files(storage: Path, stages: list[str]) -> Iterator[Path]:
    """Files of some stages, but for those that say where or when they were made, and what a killed process has begun."""
    for stage in stages:
        for file in (storage / "stages" / stage).rglob("*"):
            name = file.relative_to(storage)
            is_whole = file.is_file() and not any(part.endswith(".tmp") for part in name.parts)
            if is_whole and file.name != "manifest.json" and not stage.startswith("retrieval_set"):
                yield name


def test_killed_in_every_stage_it_ends_with_the_same_bytes_and_makes_no_part_twice(finished, tmp_path):
    """kill -9 of the driver while it indexes (words and vectors), finds, scores and selects; then the same command again."""
    command = [sys.executable, "-m", "raydist.cli", "mine", "debug_retrieval", *LAYOUT, f"storage={tmp_path}"]
    calm = Path(finished.storage.path())

    def parts() -> dict[Path, int]:
        return {file.relative_to(tmp_path): file.stat().st_mtime_ns for file in tmp_path.glob("stages/*/part-*")}

    written: dict[Path, int] = {}
    for stage in ("bm25", "vectors", "candidates", "scores", "silver"):
        with open(tmp_path / "said.txt", "w") as said:
            driver = subprocess.Popen(command, stdout=said, stderr=said)
        while not any(tmp_path.glob(f"stages/{stage}-*/part-*")):
            assert driver.poll() is None, (tmp_path / "said.txt").read_text()
            time.sleep(0.002)
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        (begun,) = filter(Path.is_dir, tmp_path.glob(f"stages/{stage}-*"))  # beside it, the lock of the killed one
        assert not (begun / "manifest.json").exists(), f"{stage} was not killed half-way"
        for name, when in parts().items():
            written.setdefault(name, when)
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    made_again = [str(name) for name, when in parts().items() if written.get(name, when) != when]
    assert made_again == []
    stages = [folder.name for folder in tmp_path.glob("stages/*")]
    compared = list(made_files(calm, stages))
    assert set(made_files(tmp_path, stages)) == set(compared)
    assert {name.parts[1].partition("-")[0] for name in compared} >= {"bm25", "vectors", "candidates", "scores", "silver"}
    differing = [str(name) for name in compared if (tmp_path / name).read_bytes() != (calm / name).read_bytes()]
    assert differing == []
    pairs = "debug_retrieval/mining/silver.parquet"
    assert (tmp_path / pairs).read_bytes() == (calm / pairs).read_bytes()

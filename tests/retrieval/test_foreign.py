"""Another tool's TREC run is scored on a test set as trec_eval scores it."""

import gzip

import numpy as np
import pytest

from raydist.config import load_config
from raydist.errors import InputError
from raydist.here import Here
from raydist.retrieval import flow
from raydist.retrieval.metrics import rank_candidates
from raydist.retrieval.prepare import open_corpora
from raydist.runs.run import Run

NAMES = {"P@1": "success_1", "P@5": "success_5", "P@10": "success_10", "recall@10": "recall_10", "recall@100": "recall_100"}
NAMES |= {"nDCG@10": "ndcg_cut_10"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def begun(storage, *overrides: str) -> Run:
    run = Run(load_config("debug_retrieval", [f"storage={storage}", "corpus.train=null", *overrides]).config, Here())
    run.begin()
    return run


def lines_of(corpus) -> list[str]:
    """Lists of 120 sentences with many ties for most questions, in no order, and ids that are not there."""
    rng = np.random.default_rng(0)
    ids = corpus.sentence_table().ids(np.arange(corpus.num_sentences)).to_pylist()
    lines = []
    for question in corpus.read("questions")["question_id"].to_pylist()[2:]:
        gold = corpus_gold(corpus, question)
        listed = [gold, *(id for id in rng.choice(ids, 119, replace=False) if id != gold), "stranger"]
        scores = [rng.integers(15, 20), *rng.integers(0, 20, len(listed) - 1)]
        lines += [f"{question}\tQ0 {id} 1 {score / 3} their-tag" for id, score in zip(listed, scores)]
    return [*lines, f"nobody Q0 {ids[0]} 1 1.5 their-tag"]


def corpus_gold(corpus, question: str) -> str:
    gold = corpus.read("gold")
    return gold.filter(np.array(gold["question_id"].to_pylist()) == question)["sentence_id"][0].as_py()


@pytest.mark.parametrize("packed", [False, True])
def test_a_foreign_run_has_the_scores_of_trec_eval_also_with_ties(storage, tmp_path, capsys, packed):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    corpus = open_corpora(begun(storage), ["sample"])["sample"]
    text = "\n".join(lines_of(corpus))
    path = tmp_path / "run.trec"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    run = begun(storage, f"name=theirs_{packed}", f"evaluate.predictions.sample={path}")
    flow.evaluate(run)
    metrics = run.folder.read_json("metrics.json")
    with open(run.folder.path("ranked/sample.qrels")) as file:
        gold = pytrec_eval.parse_qrel(file)
    theirs = pytrec_eval.RelevanceEvaluator(gold, {"success.1,5,10", "recall.10,100", "ndcg_cut.10"}).evaluate(
        pytrec_eval.parse_run(text.splitlines())
    )
    assert len(gold) == len(theirs) + 2
    assert metrics["retrieval.sample.foreign.P@10"] > 0
    for ours, name in NAMES.items():
        wanted = sum(found[name] for found in theirs.values()) / len(gold)  # as with its option -c
        assert metrics[f"retrieval.sample.foreign.{ours}"] == pytest.approx(wanted, abs=1e-6), ours
    shown = capsys.readouterr()
    said = " ".join((shown.out + shown.err).split())
    assert f"1 of {len(gold) - 1} questions of" in said
    assert f"2 of {len(gold)} questions have no list and score 0" in said
    assert "1 of " in said
    assert "'stranger' for one: they count as wrong" in said


def test_of_equal_scores_trec_eval_takes_the_larger_id_first_and_reads_float32():
    assert [id for id, _ in rank_candidates([("a", 1.0), ("c", 1.0 + 1e-12), ("b", 2.0)], "trec")] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("q Q0 s 1 tag", "line 2: wanted question Q0 sentence rank score tag, saw 'q Q0 s 1 tag'"),
        ("q Q0 s 1 high tag", "line 2"),
        ("q Q0 a 2 0.5 tag", "line 2: 'a' comes again in the list of 'q'"),
        ("p Q0 a 2 0.5 tag", "has no list for any question of sample; its ids look like 'q', those of the set like '"),
    ],
)
def test_what_is_wrong_with_a_run_is_named(storage, tmp_path, line, said):
    (tmp_path / "run.trec").write_text(f"q Q0 a 1 2.5 tag\n{line}\n")
    run = begun(storage, "name=wrong", f"evaluate.predictions.sample={tmp_path}/run.trec")
    with pytest.raises(InputError) as raised:
        flow.evaluate(run)
    assert said in str(raised.value)


def test_another_tools_lists_never_take_the_place_of_a_runs_own_scores(storage):
    run = begun(storage, "name=own", "evaluate.predictions.sample=run.trec")
    run.add_metrics({"retrieval.sample.bm25.MRR@100": 0.5})
    with pytest.raises(InputError, match="another tool's ranked lists: score them under another name"):
        flow.evaluate(run)
    with pytest.raises(InputError, match="trains its own retriever"):
        flow.run_all(run)


def test_a_test_set_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"evaluate\.predictions: there is no test set 'dev'; there are sample"):
        load_config("debug_retrieval", ["evaluate.predictions.dev=run.trec"])

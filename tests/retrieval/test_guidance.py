"""What a run does not do because it could not help: mine with a weak supervisor, train what it has, rank anew for the worse."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist.config import ConfigError, load_config
from raydist.errors import InputError
from raydist.files.storage import has_model
from raydist.here import Here
from raydist.retrieval import flow, mining_flow
from raydist.retrieval.calibration import judge_pairs, reach_precision
from raydist.retrieval.prepare import open_corpora
from raydist.runs.run import Run

GIVEN = [
    *("corpus.dev_share=0.2", "mining.dev_share=0.4", "evaluate.bootstrap=0", "train.max_steps=1", "mining.candidates=3"),
    *("data.sample.size=200", "cross_encoder.train.max_steps=1", "retriever.dev_sentences=50"),
]


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def open_run(storage):
    def open_run(name: str, *overrides: str) -> Run:
        run = Run(load_config("debug_retrieval", [f"storage={storage}", f"name={name}", *GIVEN, *overrides]).config, Here())
        run.begin()
        return run

    return open_run


def judge(run: Run, own: float, dense: float, even: float = 0.8, even_dense: float = 0.7) -> None:
    """The run's cross-encoder is found to be so good."""
    found = {"average_precision": own, "dense_average_precision": dense, "pairs": 1234}
    found |= {"even_average_precision": even, "even_dense_average_precision": even_dense}
    run.folder.write_json("cross_encoder/metrics.json", found)


# --- a cross-encoder that knows no more than the encoder


@pytest.mark.parametrize(("own", "dense"), [(0.6, 0.6), (0.5, 0.6)])
def test_a_weak_cross_encoder_does_not_mine_unless_it_is_told_to(open_run, capsys, own, dense):
    run = open_run("weak", "cross_encoder.weak=refuse")
    run.folder.delete("mining")
    corpus, encoder = open_corpora(run, ["train"])["train"], flow.mining_encoder(run)
    cross_encoder = mining_flow.train_cross_encoder(run, corpus, encoder)
    judge(run, own, dense)
    with pytest.raises(InputError, match=r"the cross-encoder is no better than mining\.encoder, builtin:tiny") as error:
        mining_flow.mine_round(run, corpus, encoder, cross_encoder)
    assert f"on 1,234 held-out pairs its average precision is {100 * own:.1f}" in str(error.value)
    for way in ("cross_encoder.model.name", "cross_encoder.train.epochs", "cross_encoder.trained", "cross_encoder.weak=warn"):
        assert way in str(error.value)
    assert not run.folder.exists("mining/silver.parquet")
    told = open_run("weak")  # debug_retrieval says warn
    mining_flow.say_weak(told)
    assert "Silver pairs are not likely to help" in capsys.readouterr().out
    mining_flow.mine_round(told, corpus, encoder, cross_encoder)
    assert told.folder.exists("mining/silver.parquet")


def test_a_better_one_mines_and_training_it_alone_is_never_refused(open_run, capsys):
    run = open_run("better", "cross_encoder.weak=refuse")
    judge(run, 0.61, 0.6)
    mining_flow.refuse_weak(run)
    judge(run, 0.61, 0.6, even=0.7, even_dense=0.7)
    with pytest.raises(InputError, match=r"without the negatives that the encoder itself ranked high, its .* is 70\.0"):
        mining_flow.refuse_weak(run)
    alone = open_run("better", "task=cross_encoder", "cross_encoder.weak=refuse")
    judge(alone, 0.6, 0.61)
    capsys.readouterr()
    mining_flow.say_weak(alone)
    assert "start it from a model that knows more" in capsys.readouterr().out


def test_negatives_that_the_encoder_ranked_high_do_not_count_against_it_on_even_terms():
    sources = [None, "bm25", "dense", "document", None, "dense"]
    labels, logits, cosines = [1, 0, 0, 0, 1, 0], [3.0, 2.0, -1.0, 1.0, 1.5, -2.0], [0.8, 0.3, 0.95, 0.2, 0.7, 0.9]
    scored = pa.table({"label": labels, "logit": logits, "source": pa.array(sources, pa.string())})
    found = judge_pairs(scored, pa.table({"label": labels, "cosine": cosines})).scores
    assert found["average_precision"] > found["dense_average_precision"]
    assert found["even_dense_average_precision"] == 1, "of the others both answers come first"
    assert found["even_average_precision"] == pytest.approx((1 + 2 / 3) / 2)


# --- variants that would be the same again


@pytest.mark.parametrize(
    ("name", "changes", "equal", "why"),
    [
        ("nothing", ["mining.threshold=1"], ["gold", "gold_silver"], "no silver pair was kept"),
        ("plain", ["mining.weighting=none"], ["gold_silver"], "every silver pair has weight 1"),
        ("weighted", [], [], None),
    ],
)
def test_a_variant_that_would_equal_the_run_is_not_trained_and_has_its_scores(open_run, capsys, name, changes, equal, why):
    run = open_run(name, *changes)
    flow.run_all(run)
    said = capsys.readouterr().out
    trained = [variant for variant in ("gold", "gold_silver") if has_model(run.beside(f"{name}_{variant}").folder)]
    assert trained == [variant for variant in ("gold", "gold_silver") if variant not in equal]
    assert (why or "would equal") in said if why else "would equal" not in said
    metrics = run.folder.read_json("metrics.json")
    for variant in equal:
        assert metrics[f"retrieval.sample.{variant}.MRR@100"] == metrics["retrieval.sample.gold_silver_weighted.MRR@100"]
    flow.evaluate(open_run(name, *changes))
    assert open_run(name).folder.read_json("metrics.json") == metrics

    corpus = open_corpora(run, ["train"])["train"]  # they would indeed learn from the same rows
    cross_encoder, silver, _ = flow.mine_rounds(run, corpus)
    rows = {}
    for weighting in ("gold", "none", "silver"):
        made = flow.pair_rows(run, corpus, cross_encoder, silver, weighting)
        rows[weighting] = [(line.rows, line.checksum) for line in made.manifest.parts]
    assert (rows["gold"] == rows["silver"]) == ("gold" in equal)
    assert (rows["none"] == rows["silver"]) == ("gold_silver" in equal)


# --- ranking anew


def test_ranking_anew_is_left_out_where_it_lowers_the_score_of_development_questions(open_run, capsys, monkeypatch):
    def mrr_by(run: Run) -> dict[str, float]:
        flow.evaluate(run)
        return {key.split(".")[2]: value for key, value in run.folder.read_json("metrics.json").items() if "MRR@100" in key}

    flow.train(open_run("weighted"))
    told_to = mrr_by(open_run("weighted"))
    assert {"reranked", "hybrid_reranked"} <= told_to.keys()
    capsys.readouterr()
    found = mrr_by(open_run("weighted", "cross_encoder.weak=refuse"))
    said = capsys.readouterr().out
    assert "hybrid_reranked: left out, for the cross-encoder's order has an MRR of" in said
    assert "hybrid_reranked" not in found
    assert found["hybrid"] == told_to["hybrid"]
    monkeypatch.setattr(flow, "mean_mrr", lambda corpus, blocks: 0.5)  # no worse
    assert mrr_by(open_run("weighted", "cross_encoder.weak=refuse")) == told_to


# --- a threshold by precision


def test_the_lowest_threshold_of_a_precision_by_hand():
    labels = np.array([1, 1, 0, 1, 0, 0])
    p = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])  # precision from there on: 1, 1, 2/3, 3/4, 3/5, 1/2
    assert reach_precision(labels, p, 1.0) == (0.8, 1.0, 2)
    assert reach_precision(labels, p, 0.7) == (0.6, 0.75, 4)
    assert reach_precision(labels, p, 0.5) == (0.4, 0.5, 6)
    assert reach_precision(labels[2:3], p[2:3], 0.5) == (0.7, 0.0, 1)
    ties = reach_precision(np.array([1, 0, 1]), np.array([0.9, 0.9, 0.2]), 0.6)
    assert ties == (0.2, pytest.approx(2 / 3), 3), "of equal probabilities all are taken"


def test_it_agrees_with_trying_every_threshold():
    rng = np.random.default_rng(0)
    for _ in range(50):
        labels, p = rng.integers(0, 2, 40), rng.integers(1, 12, 40) / 12
        shares = {t: labels[p >= t].mean() for t in np.unique(p)}
        for wanted in (0.3, 0.5, 0.7, 0.9):
            good = [t for t, share in shares.items() if share >= wanted]
            found = reach_precision(labels, p, wanted)
            assert found.threshold == (min(good) if good else max(t for t in shares if shares[t] == max(shares.values())))
            assert found.precision == pytest.approx(shares[found.threshold])


def test_pairs_are_kept_from_the_probability_of_the_wanted_precision_on(open_run, capsys):
    run = open_run("precise", "mining.threshold=0.5", "mining.precision=0.2", "mining.calibrate=temperature")
    flow.mine(run)
    chosen = run.folder.read_json("cross_encoder/threshold.json")
    assert f"p >= {chosen['threshold']:.3f}" in capsys.readouterr().out
    rows = pq.read_table(run.folder.path("mining", "silver.parquet")).to_pylist()
    assert {row["kept"] for row in rows if row["p"] < chosen["threshold"]} <= {False}
    kept = [row["p"] for row in rows if row["kept"]]
    assert kept
    assert min(kept) >= chosen["threshold"]
    assert run.folder.read_json("metrics.json")["mining.threshold"] == chosen["threshold"]
    assert json.loads(run.folder.read_bytes("mining/yield.json"))["threshold"] == chosen["threshold"]
    with pytest.raises(InputError, match=r"mining.precision is 1, and on \d+ held-out pairs the cross-encoder reaches at most"):
        flow.mine(open_run("precise", "mining.threshold=0.5", "mining.precision=1"))


def test_one_threshold_is_chosen_and_not_two():
    with pytest.raises(ConfigError, match=r"precision 0\.8 chooses the threshold, and threshold 0\.2 is given"):
        load_config("debug_retrieval", ["mining.precision=0.8"])

import json
import math
import re
from html import unescape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from helpers.made_run import example, write_run

from raydist.config import load_config, override, to_yaml
from raydist.records import MINED_EXAMPLE_SCHEMA, RANKED_SCHEMA, SCORED_SCHEMA
from raydist.report.comparison import retrieval as compared_retrieval
from raydist.report.html import write_report
from raydist.report.mining import METHODS, cross_encoder, mined_pairs, retrieval
from raydist.report.published.retrieval import differences, known_set, published_retrieval
from raydist.report.published.tables import mining_paper
from raydist.report.runs import load_run
from raydist.report.sections import SECTIONS
from raydist.retrieval.cross_encoder import classification_scores, expected_calibration_error, reliability_bins, sigmoid
from raydist.retrieval.silver import select_silver, yield_curve

P = [0.95, 0.7, 0.5, 0.3, 0.02]


def scored() -> pa.Table:
    common = {"question_id": "q1", "bm25_score": 1.0, "cross_encoder": "m"}
    rows = [
        common | {"sentence_id": f"s{n}", "bm25_rank": n + 1, "dense_rank": 3 if n == 1 else None, "same_doc": n == 3}
        | {"logit": math.log(p / (1 - p)), "p": p}
        for n, p in enumerate(P)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, SCORED_SCHEMA)


def write_mining(folder, question="Who built it?", threshold=0.5, dense=0.875):
    """What a retrieval run leaves, by the functions that leave it."""
    for name in ("mining", "cross_encoder"):
        (folder / name).mkdir()
    silver = select_silver(scored(), threshold=threshold)
    (folder / "mining" / "yield.json").write_text(json.dumps(yield_curve([silver], 20, threshold=threshold)))
    rows = [row | {"question": question, "sentence": f"text {row['sentence_id']}", "gold": ["a gold text"]}
            for row in silver.to_pylist()]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, MINED_EXAMPLE_SCHEMA), folder / "mining" / "examples.parquet")
    labels, logits = [1, 1, 0, 0, 0], [3.0, 1.0, 0.5, -1.0, -2.0]
    scores = classification_scores(labels, logits) | {"dense_average_precision": dense, "pairs": 5}
    scores |= {"negatives.bm25.bm25": 107, "negatives.same_doc.bm25": 12, "negatives.same_doc.same_doc": 95}
    (folder / "cross_encoder" / "metrics.json").write_text(json.dumps(scores))
    parts = {}
    for name, fitted in (("before", (1.0,)), ("after", (0.5,)), ("platt", (0.5, 0.75))):
        bins = reliability_bins(labels, sigmoid(logits, *fitted))
        parts[name] = {
            "expected_calibration_error": expected_calibration_error(bins),
            "bins": [each._asdict() for each in bins],
        }
    (folder / "cross_encoder" / "reliability.json").write_text(json.dumps(parts | {"temperature": 0.5}))


def metrics() -> dict[str, float]:
    found = {}
    for place, method in enumerate(METHODS):
        for metric in ("P@1", "P@5", "P@10", "MRR@100", "recall@100", "nDCG@10"):
            found[f"retrieval.test-A.{method}.{metric}"] = 0.5 + place / 100
    return found | {"retrieval.test-A.gold.P@1.low": 0.4812, "retrieval.test-A.gold.P@1.high": 0.5601}


@pytest.fixture
def run(tmp_path):
    folder = write_run(tmp_path / "mined", {"dev": [example()]}, config="task: retrieval\n", metrics=metrics())
    write_mining(folder)
    return folder


def test_every_method_stands_in_a_table_in_per_cent_with_its_interval(run):
    text = retrieval(load_run(run))
    assert text.count("<tr>") == 1 + len(METHODS)
    assert text.index("BM25") < text.index("Encoder, untrained") < text.index("Re-ranked")
    gold = text[text.index(">Gold pairs<") : text.index(">Gold and silver pairs<")]
    assert "<b>52.00</b>" in gold  # 0.5 + 2 / 100
    assert "48.12 – 56.01" in gold
    assert text.count("<b>52.00</b>") == 6


def test_retrieval_numbers_are_not_taken_for_a_readers_scores(run):
    assert list(load_run(run).scores()) == ["dev"]


def test_methods_and_sets_of_other_names_are_shown_too(tmp_path):
    found = {"retrieval.v1.1.dev.gold.P@1": 0.25, "retrieval.v1.1.dev.mine<b>.P@1": 0.5, "retrieval.sci.bm25.MRR@100": 0.75}
    found |= {"retrieval.sci.bm25.seconds": 3.0, "retrieval.sci.P@1": 0.1}  # no metric of ours; no method
    text = retrieval(load_run(write_run(tmp_path / "run", {}, metrics=found)))
    assert "<h3>v1.1.dev</h3>" in text
    assert "mine&lt;b&gt;" in text
    assert text.count("<h3>") == 2
    assert "MRR@100" in text
    assert "P@5<" not in text  # nothing is known of it
    assert "3.00" not in text


def test_several_runs_stand_side_by_side_with_the_deviation_over_their_seeds(tmp_path):
    def write(name, seed, power, found):
        config = f"task: retriever\nseed: {seed}\nmining: {{power: {power}}}\n"
        return load_run(write_run(tmp_path / name, {}, config=config, metrics=found))

    gold, bm25 = "retrieval.reqa.gold.P@1", "retrieval.reqa.bm25.P@1"
    runs = [
        write("squared_0", 0, 2, {gold: 0.5, bm25: 0.25}),
        write("squared_1", 1, 2, {gold: 0.52, bm25: 0.25}),
        write("plain", 0, 1, {gold: 0.75}),
    ]
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in compared_retrieval(runs).split("<tr>")[2:]]
    assert rows[0][:4] == ["BM25", "squared", "25.00", "±"]
    assert rows[1][:6] == ["Gold", "pairs", "squared", "51.00", "±", "1.41"]
    assert rows[2][:4] == ["Gold", "pairs", "plain", "75.00"]
    assert len(rows) == 3  # nothing is known of the plain run's BM25
    assert compared_retrieval([write("reader", 0, 1, {"dev.f1": 80.0})]) is None


def test_methods_are_compared_with_gold_pairs_question_by_question(tmp_path):
    gap = {"minus_gold": 0.02, "minus_gold.low": -0.0151, "minus_gold.high": 0.05, "minus_gold.p": 0.26}
    weighted = "retrieval.v1.1.dev.gold_silver_weighted.P@1"
    found = {"retrieval.v1.1.dev.gold.P@1": 0.5, weighted: 0.52} | {f"{weighted}.{key}": value for key, value in gap.items()}
    found |= {f"{weighted}.minus_gold_silver": -0.01, "retrieval.v1.bm25.P@1": 0.1}
    text = retrieval(load_run(write_run(tmp_path / "run", {}, metrics=found)))
    rows = [" ".join(re.sub(r"<[^>]*>", " ", unescape(row)).split()) for row in text.split("<tr>")]
    assert "Gold and silver pairs, weighted – gold pairs +2.00 -1.51 to +5.00, p = 0.260" in rows
    assert any(row.startswith("Gold and silver pairs, weighted – gold and silver pairs -1.00") for row in rows)
    assert text.count("Difference") == 1  # nothing of it is of the set v1


def test_a_method_of_several_runs_is_compared_question_by_question_over_the_means_of_seeds(tmp_path):
    def write(name, seed, power, values):
        config = f"task: retriever\nseed: {seed}\nmining: {{power: {power}}}\n"
        metrics = {"retrieval.reqa.gold.P@1": sum(values) / 4, "retrieval.reqa.bm25.P@1": 0.5}
        folder = write_run(tmp_path / name, {}, config=config, metrics=metrics)
        rows = [{"question_id": f"q{n}", "method": "gold", "P@1": value, "MRR@100": value} for n, value in enumerate(values)]
        rows += [row | {"method": "bm25", "P@1": 0.5, "MRR@100": 0.5} for row in rows]
        (folder / "ranked").mkdir()
        table = pa.Table.from_pylist(rows, RANKED_SCHEMA)
        if name == "plain":  # as lists were written that had these two metrics alone
            table = table.select(["question_id", "method", "P@1", "MRR@100"])
        pq.write_table(table, folder / "ranked" / "reqa.parquet")
        return load_run(folder)

    runs = [write("squared_0", 0, 2, [1, 0, 0, 0]), write("squared_1", 1, 2, [0, 0, 0, 0]), write("plain", 0, 1, [1, 1, 0, 0])]
    assert not any(run.damaged for run in runs)
    text = compared_retrieval(runs)
    # questions' means over seeds are 1/2, 0, 0, 0; the differences 1/2, 1, 0, 0
    assert "<b>+37.50</b>" in text
    assert re.search(r"-[\d.]+ to \+[\d.]+, p = [01]\.\d+", text)  # of so few seeds nothing is sure
    bm25 = text[text.index(">BM25<") : text.index(">Gold pairs<")]
    assert "difference" not in bm25, "all of its values are the same"


def test_the_yield_is_said_and_drawn(run):
    text = mined_pairs(load_run(run))
    # three of five reach 0.5; 3 / 20 gold pairs
    assert "The threshold 0.5 keeps 3 of 5 candidates: 15.0 % of the 20 gold pairs." in text
    assert text.count("<svg") == 1
    assert ">threshold</text>" in text


def test_kept_and_rejected_pairs_are_shown_with_their_provenance(run):
    text = mined_pairs(load_run(run))
    assert text.count('<article class="unknown">') == 5  # kept is not right
    assert "p 0.700 · weight 0.490 · BM25 rank 2 · dense rank 3 · q1 · s1" in text
    assert "p 0.300 · p below the threshold · BM25 rank 4 · same document · q1 · s3" in text
    assert text.index("text s0") < text.index("text s1") < text.index("text s3")
    assert "a gold text" in text


def test_where_it_is_known_a_pair_is_marked_by_its_truth_and_not_by_what_was_thought_of_it(run):
    file = run / "mining" / "examples.parquet"
    rows = [row | {"right": row["sentence_id"] == "s3"} for row in pq.read_table(file).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, MINED_EXAMPLE_SCHEMA), file)
    text = mined_pairs(load_run(run))
    assert text.count('<article class="wrong">') == 4  # the three that are kept among them
    assert text.count('<article class="right">') == 1
    assert "wrong, as the sample knows · p 0.700" in text
    assert "right, as the sample knows · p 0.300 · p below the threshold" in text


def test_examples_that_were_written_before_their_truth_are_shown(run):
    file = run / "mining" / "examples.parquet"
    pq.write_table(pq.read_table(file).drop_columns("right"), file)
    assert mined_pairs(load_run(run)).count('<article class="unknown">') == 5


def test_the_cross_encoder_has_its_scores_and_a_reliability_diagram(run):
    text = cross_encoder(load_run(run))
    # p >= 0.5 keeps three, two of them right: precision 2/3, recall 1, accuracy 4/5
    for name, value in [
        ("Precision", "66.67"),
        ("Recall", "100.00"),
        ("Accuracy", "80.00"),
        ("Accuracy of the majority", "60.00"),
    ]:
        assert f'<th>{name}</th><td class="n">{value}</td>' in text
    assert '<th>Pairs</th><td class="n">5</td>' in text
    assert '<th>Average precision of the encoder&#x27;s products</th><td class="n">87.50</td>' in text
    assert "no better than" not in text  # its own is 1
    assert text.count("<svg") == 1
    errors = re.search(r"error: ([\d.]+) as trained, ([\d.]+) with temperature, ([\d.]+) with temperature and shift\.", text)
    assert errors
    assert len(set(errors.groups())) == 3
    assert "The temperature is 0.500." in text


def test_negatives_stand_by_the_source_asked_and_the_one_they_came_from(run):
    shown = plain(cross_encoder(load_run(run)))
    assert "BM25 BM25 107 Same document BM25 12 Same document Same document 95" in shown
    assert "negatives." not in shown.lower()  # nor among the measures
    (run / "cross_encoder" / "metrics.json").write_text('{"f1": 0.5}')  # of a run before they were counted
    assert "Drawn from" not in cross_encoder(load_run(run))


def test_a_run_without_mining_has_none_of_these_sections(tmp_path):
    loaded = load_run(write_run(tmp_path / "reader", {"dev": [example()]}))
    assert [section(loaded) for section in (retrieval, mined_pairs, cross_encoder)] == [None] * 3
    assert loaded.missing == []


def test_a_retrieval_run_is_not_told_that_span_predictions_are_missing(run):
    import shutil

    shutil.rmtree(run / "evaluation")
    assert load_run(run).missing == []


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub("<[^>]*>", " ", html)))


def scored_run(folder, test_set="squad", metrics=None, **changes):
    """A finished run of the published settings: one score for each method, and what was mined."""
    config = override(load_config("paper/retrieval").config, changes)
    found = {"bm25": (0.6, 0.7), "gold": (0.64, 0.7), "gold_silver": (0.65, 0.72), "gold_silver_weighted": (0.66, 0.735)}
    scores = {
        f"retrieval.{test_set}.{method}.{metric}": value
        for method, values in found.items()
        for metric, value in zip(("P@1", "MRR@100"), values)
    }
    run = write_run(folder, {}, config=to_yaml(config), metrics=scores | {"mining.yield": 0.15} if metrics is None else metrics)
    (run / "mining").mkdir()
    (run / "mining" / "yield.json").write_text(json.dumps({"gold": 87_133}))
    (run / "stages.json").write_text(json.dumps({f"corpus {test_set}": {"rows": 5605, "seconds": 1.0, "folder": "f"}}))
    return run


def test_our_retrieval_stands_beside_the_published_numbers(tmp_path):
    write_report([scored_run(tmp_path / "r", **{"train.epochs": 2})], tmp_path / "report.html")
    shown = plain((tmp_path / "report.html").read_text())
    assert "MultiReQA-SQuAD" in shown
    assert "BM25: P@1 60.00 62.8 -2.80" in shown
    assert "Gold and silver pairs: MRR@100 72.00 71.9 +0.10" in shown
    assert "Gold and silver pairs, weighted, above gold pairs: P@1 +2.00 +1.0 +1.00" in shown  # 66 - 64
    assert "Gold and silver pairs, weighted, above gold pairs: MRR@100 +3.50 +1.0 +2.50" in shown
    assert "Silver pairs, per cent of gold pairs 15.00 11.7 +3.30" in shown
    assert "train.epochs 200 2" in shown
    assert "Sentences of squad 10,642 5,605" in shown


def test_the_shipped_paper_config_has_the_published_settings(tmp_path):
    run = load_run(scored_run(tmp_path / "r"))
    found = [plain(str(what)).strip() for what, *_ in differences(run, "squad", mining_paper().sets["squad"])]
    assert found == ["Sentences of squad", "mining.encoder"]  # five thousand here; USE-QA is no model of transformers
    assert "No setting" not in plain(published_retrieval(run))


@pytest.mark.parametrize(
    ("name", "files", "known"),
    [
        ("squad", "a.json", "squad"),
        ("test", "reqa_squad/test-A.json.gz", "squad"),
        ("test", "MRQA/dev/NaturalQuestions.jsonl.gz", "nq"),
        ("nq_dev", "x.json", "nq"),
        ("squad_es", "x.json", ""),
        ("sample", "sample:", ""),
    ],
)
def test_published_corpora_are_known_by_their_names(tmp_path, name, files, known):
    config = yaml.safe_dump({"corpus": {"test": {name: {"files": [files]}}}})
    assert known_set(load_run(write_run(tmp_path / "r", {}, config=config)), name) == known


def test_without_a_published_corpus_nothing_stands_beside_it(tmp_path):
    assert published_retrieval(load_run(scored_run(tmp_path / "r", test_set="sample"))) is None
    assert published_retrieval(load_run(scored_run(tmp_path / "n", metrics={}))) is None


def test_the_whole_report_has_them_in_order_and_escapes_texts(tmp_path):
    folder = write_run(tmp_path / "mined", {}, config="task: retrieval\n", metrics=metrics())
    write_mining(folder, question="<script>alert(1)</script>")
    text = write_report([folder]).read_text()
    places = [text.index(f">{title}</h2>") for title, _ in SECTIONS if title in ("Retrieval", "Mined pairs", "Cross-encoder")]
    assert len(places) == 3
    assert places == sorted(places)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("mining/yield.json", b"[1, 2]"),
        ("mining/examples.parquet", b"PAR1"),
        ("cross_encoder/metrics.json", b"{"),
        ("cross_encoder/reliability.json", b"3"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_shown(run, file, content):
    (run / file).write_bytes(content)
    loaded = load_run(run)
    assert [problem.split(":")[0] for problem in loaded.damaged] == [file]
    assert sum(section(loaded) is not None for section in (retrieval, mined_pairs, cross_encoder)) == 3


def test_odd_values_in_the_files_do_not_stop_the_report(run):
    (run / "mining" / "yield.json").write_text('{"points": [3, {"threshold": 0.5, "pairs": "x"}], "threshold": 0.5}')
    (run / "cross_encoder" / "metrics.json").write_text('{"accuracy": null, "f1": NaN}')
    (run / "cross_encoder" / "reliability.json").write_text('{"before": {"bins": [{"num_pairs": 0}, 7]}, "after": 3}')
    loaded = load_run(run)
    assert loaded.damaged == []
    assert "nan" not in mined_pairs(loaded)
    assert cross_encoder(loaded) is None


def test_a_cross_encoder_that_knows_no_more_than_the_encoder_is_told(tmp_path):
    folder = write_run(tmp_path / "mined", {}, config="task: retrieval\n")
    write_mining(folder, dense=1.0)
    assert "It is no better than the encoder that finds candidates" in cross_encoder(load_run(folder))

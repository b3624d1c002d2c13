import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_run import example, write_run

from raydist.mining.cross_encoder import classification_scores, expected_calibration_error, reliability_bins, sigmoid
from raydist.mining.silver import select_silver, yield_curve
from raydist.records import MINED_EXAMPLE_SCHEMA, SCORED_SCHEMA
from raydist.report.html import write_report
from raydist.report.mining import METHODS, cross_encoder, mined_pairs, retrieval
from raydist.report.runs import load_run
from raydist.report.sections import SECTIONS

P = [0.95, 0.7, 0.5, 0.3, 0.02]


def scored() -> pa.Table:
    common = {"question_id": "q1", "bm25_score": 1.0, "cross_encoder": "m"}
    rows = [
        common | {"sentence_id": f"s{n}", "bm25_rank": n + 1, "dense_rank": 3 if n == 1 else None, "same_doc": n == 3}
        | {"logit": math.log(p / (1 - p)), "p": p}
        for n, p in enumerate(P)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, SCORED_SCHEMA)


def write_mining(folder, question="Who built it?", threshold=0.5):
    """What a retrieval run leaves, by the functions that leave it."""
    for name in ("mining", "cross_encoder"):
        (folder / name).mkdir()
    silver = select_silver(scored(), threshold=threshold)
    (folder / "mining" / "yield.json").write_text(json.dumps(yield_curve([silver], 20, threshold=threshold)))
    rows = [row | {"question": question, "sentence": f"text {row['sentence_id']}", "gold": ["a gold text"]}
            for row in silver.to_pylist()]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, MINED_EXAMPLE_SCHEMA), folder / "mining" / "examples.parquet")
    labels, logits = [1, 1, 0, 0, 0], [3.0, 1.0, 0.5, -1.0, -2.0]
    scores = classification_scores(labels, logits) | {"pairs": 5}
    (folder / "cross_encoder" / "metrics.json").write_text(json.dumps(scores))
    parts = {}
    for name, temperature in (("before", 1.0), ("after", 0.5)):
        bins = reliability_bins(labels, sigmoid(logits, temperature))
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


def test_the_yield_is_said_and_drawn(run):
    text = mined_pairs(load_run(run))
    # three of five reach 0.5; 3 / 20 gold pairs
    assert "The threshold 0.5 keeps 3 of 5 candidates: 15.0 % of the 20 gold pairs." in text
    assert text.count("<svg") == 1
    assert ">threshold</text>" in text


def test_kept_and_rejected_pairs_are_shown_with_their_provenance(run):
    text = mined_pairs(load_run(run))
    assert text.count('<article class="right">') == 3
    assert text.count('<article class="wrong">') == 2
    assert "p 0.700 · weight 0.490 · BM25 rank 2 · dense rank 3 · q1 · s1" in text
    assert "p 0.300 · p below the threshold · BM25 rank 4 · same document · q1 · s3" in text
    assert text.index("text s0") < text.index("text s1") < text.index("text s3")
    assert "a gold text" in text


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
    assert text.count("<svg") == 1
    assert "with temperature" in text
    assert "The temperature is 0.500." in text


def test_a_run_without_mining_has_none_of_these_sections(tmp_path):
    loaded = load_run(write_run(tmp_path / "reader", {"dev": [example()]}))
    assert [section(loaded) for section in (retrieval, mined_pairs, cross_encoder)] == [None] * 3
    assert loaded.missing == []


def test_a_retrieval_run_is_not_told_that_span_predictions_are_missing(run):
    import shutil

    shutil.rmtree(run / "evaluation")
    assert load_run(run).missing == []


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

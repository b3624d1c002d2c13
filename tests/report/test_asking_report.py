"""The section about questions to documents."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.made_run import example, write_run

from raydist.records import ASKED_SCHEMA
from raydist.report.asking import asking, surest_first
from raydist.report.html import write_report
from raydist.report.runs import load_run

METRICS = {
    "asking.dev.questions": 40,
    "asking.dev.em": 61.5,
    "asking.dev.em.low": 50.0,
    "asking.dev.em.high": 70.0,
    "asking.dev.f1": 70.25,
    "asking.dev.answered": 80.0,
    "asking.dev.precision": 75.0,
    "asking.dev.threshold": 0.5,
    "asking.dev.recall@1": 55.5,
    "asking.dev.recall@20": 93.25,
    "asking.dev.recall_read": 91.75,
    "asking.dev.seconds.read": 0.125,
    "asking.dev.errors.right.answered": 24,
    "asking.dev.errors.misread.withheld": 11,
    "asking.dev.errors.lost_in_ranking.answered": 0,
}


def asked(*rows: tuple[str, float]) -> pa.Table:
    common = dict.fromkeys(ASKED_SCHEMA.names) | {"answered": True, "held_at": 0, "gold_at": 0, "ranked_at": 0}
    return pa.Table.from_pylist([common | {"id": "q", "cause": cause, "probability": p} for cause, p in rows], ASKED_SCHEMA)


@pytest.fixture
def folder(tmp_path):
    """A run that asked one set."""
    folder = write_run(tmp_path / "docs", {"dev": [example()]}, config="name: docs\ntask: documents\n", metrics=METRICS)
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.json").write_text(json.dumps(METRICS))
    (folder / "asking").mkdir()
    pq.write_table(asked(("right", 0.9), ("misread", 0.8), ("right", 0.4)), folder / "asking" / "dev.parquet")
    return folder


def test_numbers_of_the_chain_are_shown_and_steps_where_answers_are_lost(folder):
    run = load_run(folder)
    page = asking(run)
    for text in ("61.50", "50.00 – 70.00", "93.25", "91.75", "125", "misread: a passage with an answer was read", "<svg"):
        assert text in page
    assert "lost in ranking" not in page  # nothing was
    assert "Rightly not found" not in page  # all of its questions have answers
    assert run.scores() == {}, "they are no reader's"
    assert run.missing == []


def test_not_found_has_columns_where_some_questions_have_no_answer(folder):
    run = replace(load_run(folder))
    run.metrics |= {"asking.dev.not_found.precision": 81.0, "asking.dev.not_found.recall": 42.0}
    assert "Rightly not found" in asking(run)


def test_the_curve_by_hand():
    shares, precision = surest_first(asked(("misread", 0.5), ("right", 0.9), ("right", 0.4), ("not retrieved", 0.1)))
    np.testing.assert_allclose(shares, [25, 50, 75, 100])
    np.testing.assert_allclose(precision, [100, 50, 200 / 3, 50])


def test_a_page_of_such_a_run_is_whole_and_others_have_no_such_section(folder, tmp_path):
    text = write_report([folder]).read_text()
    assert "Answers from documents" in text
    assert "Not there yet" not in text
    assert asking(load_run(write_run(tmp_path / "reader", {}))) is None


def test_a_damaged_table_is_named(folder):
    (folder / "asking" / "dev.parquet").write_bytes(b"PAR1")
    assert load_run(folder).damaged[0].startswith("asking/dev.parquet: ")

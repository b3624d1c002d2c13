"""What benchmarks of mining compute from what they have measured; nothing is measured here."""

import json
import sys

import agreement
import million
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import silver_truth


@pytest.mark.parametrize(
    ("stage", "own", "mapped", "status"),
    [
        ("scores", 2.0, 3.0, 0),
        ("scores", 2.09, 9.0, 0),
        ("scores", 2.12, 3.0, 1),  # a stage that keeps nothing of a sentence
        ("sentences", 2.23, 3.0, 0),
        ("sentences", 2.25, 3.0, 1),
        ("retrieval_set", 2.12, 3.0, 0),
        ("retrieval_set", 2.16, 3.0, 1),
    ],
)
def test_memory_that_grows_beyond_the_index_is_a_failure(tmp_path, monkeypatch, capsys, stage, own, mapped, status):
    """5 % of 2 GiB is noise, a million sentences more take 0.05 GiB of a set and 0.14 of a table; mapped files do not count."""
    row = {"seconds": 1.0, "own": 2.0, "shared": 0.0, "mapped": 1.0}
    stages = [{"start": row, stage: row}, {"start": row, stage: row | {"own": own, "mapped": mapped}}]
    for name, sentences, found in zip(("one", "two"), (1_000_000, 2_000_000), stages):
        (tmp_path / name).write_text(json.dumps({"sentences": sentences, "stages": found}))
    monkeypatch.setattr(sys, "argv", ["million", "--compare", str(tmp_path / "one"), str(tmp_path / "two")])
    assert million.main() == status
    assert ("MISSED" in capsys.readouterr().out) == bool(status)
    monkeypatch.setattr(sys, "argv", ["million", "--compare", str(tmp_path / "two"), str(tmp_path / "one")])
    with pytest.raises(SystemExit, match="not of fewer"):
        million.main()


def test_a_stage_below_the_peak_of_all_may_not_grow_either():
    row = {"seconds": 1.0, "own": 2.0, "shared": 0.0, "mapped": 1.0}
    small = {"sentences": 1_000_000, "stages": {"bm25": row | {"own": 0.5}, "scores": row, "brief": row}}
    large = {"sentences": 2_000_000, "stages": {"bm25": row | {"own": 1.0, "shared": 0.25}, "scores": row}}
    assert million.growth(small, large) == {"bm25": (0.75, pytest.approx(0.1)), "scores": (0.0, pytest.approx(0.1))}


def test_rows_are_compared_where_no_score_is_a_near_tie():
    # 9 and 8 stand apart; 7 and 7 are a tie; the last of a list may tie with what is not in it; 0 is no hit
    scores = np.array([[9.0, 8.0, 7.0, 7.0, 5.0], [3.0, 2.9999, 1.0, 0.0, 0.0]])
    given = {"rtol": 1e-4, "atol": 1e-5}
    apart = [[True, True, False, False, False], [False, False, True, False, False]]
    assert agreement.stands_apart(scores, **given).tolist() == apart
    rows = np.arange(10).reshape(2, 5)
    swapped = rows[:, [0, 1, 3, 2, 4]]
    assert agreement.assert_agreement((swapped[:1], scores[:1]), (rows[:1], scores[:1]), **given) == pytest.approx(2 / 5)
    with pytest.raises(AssertionError):  # of the second list, the third place stands apart
        agreement.assert_agreement((swapped, scores), (rows, scores), **given)
    with pytest.raises(AssertionError):
        agreement.assert_agreement((rows, scores + 0.01), (rows, scores), **given)


def test_silver_pairs_against_the_truth_by_hand(tmp_path, monkeypatch, capsys):
    right, p = np.array([True, False, True, False]), np.array([0.96, 0.8, 0.6, 0.1])
    found = silver_truth.selection(right, p, p**2, 4, 0.5)
    assert found["pairs"] == 3
    assert (found["precision"], found["recall"]) == pytest.approx((2 / 3, 2 / 4))
    mass = 0.96**2 + 0.6**2
    assert found["weighted precision"] == pytest.approx(mass / (mass + 0.8**2))
    assert found["weighted recall"] == pytest.approx(mass / 4)
    assert silver_truth.selection(right, p, p**2, 4, 0.99)["precision"] == 0

    run = tmp_path / "mined"
    (run / "mining").mkdir(parents=True)
    (tmp_path / "stages" / "sample-1").mkdir(parents=True)
    (run / "stages.json").write_text(json.dumps({"sample world": {"folder": "stages/sample-1"}}))
    (run / "config.yaml").write_text("mining: {power: 2.0}\n")
    truth = [("q1", "s1"), ("q1", "s3"), ("q1", "s9"), ("q2", "s2"), ("other", "s1")]
    lines = [json.dumps({"query-id": question, "corpus-id": sentence}) + "\n" for question, sentence in truth]
    (tmp_path / "stages" / "sample-1" / "restated.jsonl").write_text("".join(lines))
    columns = {"question_id": ["q1", "q1", "q1", "q2"], "sentence_id": ["s1", "s2", "s3", "s4"], "p": p.astype("f4")}
    pq.write_table(pa.table(columns), run / "mining" / "silver.parquet")
    monkeypatch.setattr(sys, "argv", ["silver_truth", str(run)])
    silver_truth.main()
    said = capsys.readouterr().out
    assert "2 questions, 4 candidates, 2 of 4 restatements among them" in said
    assert "0.250 before" in said  # half of the candidates: (1 - 1/2) / (1 + 1)
    row = next(line.split() for line in said.splitlines() if line.split()[0] == "0.50")
    assert row[1:4] == ["3", "0.667", "0.500"]

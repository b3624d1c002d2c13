import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from raydist.config import OptimConfig
from raydist.errors import InputError
from raydist.files.stage import encode_table
from raydist.models.folders import model_folder
from raydist.objectives.ranking import CrossEntropy
from raydist.retrieval.cross_encoder import (
    average_precision,
    classification_scores,
    expected_calibration_error,
    fit_platt,
    fit_temperature,
    load_cross_encoder,
    reliability_bins,
    sigmoid,
)
from raydist.retrieval.rows import CrossRows, tokenize_cross_pairs
from raydist.training.loop import seed_step, train_step, training_steps
from raydist.training.optim import build_optimizer, build_schedule
from raydist.training.tasks import CrossEncoderTask


def negative_log_likelihood(labels: np.ndarray, logits: np.ndarray, temperature: float = 1.0, shift: float = 0.0) -> float:
    """What a calibration is to make as low as it can be."""
    scaled = (logits - shift) / temperature
    return float((np.logaddexp(0, scaled) - labels * scaled).mean())


@pytest.fixture
def rows(tmp_path) -> CrossRows:
    """One pair in four is right. They are easy to tell: a model of random weights hardly sees a single word."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    kinds = ["old", "new", "great", "small"]
    table = tokenize_cross_pairs(
        tokenizer,
        [f"Where is bridge {i}?" for i in range(32)],
        [f"{kinds[i % 4]} " * 12 for i in range(32)],
        labels=[float(i % 4 == 0) for i in range(32)],
    )
    file = tmp_path / "pairs.arrow"
    file.write_bytes(encode_table(table, "arrow", {}))
    return CrossRows([file])


# --- the model -------------------------------------------------------------------------------------------------------


def test_training_lowers_the_loss(rows):
    task = CrossEncoderTask(load_cross_encoder(model_folder("builtin:tiny"), dropout=0.0), CrossEntropy())
    optim = OptimConfig(lr=3e-3, warmup_steps=1)
    optimizer = build_optimizer(task, optim)
    schedule = build_schedule(optimizer, optim, 40, 16)
    plan = {"seed": 0, "batch_size": 16, "accumulate": 1, "first": 0, "last": 40, "rank": 0, "ranks": 1, "pad_id": 0}
    reports = []
    for step, batches in training_steps(rows, **plan):
        seed_step(0, step, 0)
        reports.append(train_step(task, batches, optimizer, schedule, task.weights(step), clip_norm=1.0))
    assert set(reports[0].terms) == {"cross_entropy", "cross_entropy.accuracy"}
    assert reports[0].loss == reports[0].terms["cross_entropy"]
    assert max(report.loss for report in reports[-2:]) < 0.4  # guessing one in four costs 0.56


def test_a_saved_cross_encoder_scores_alike_everywhere(tmp_path):
    from sentence_transformers import CrossEncoder

    folder = model_folder("builtin:tiny")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = [
        ("Who built the bridge?", "He did."),
        ("When?", "The bridge was built in 1850 and is old."),
        ("Why?", "It is old. " * 60),
    ]
    model = load_cross_encoder(folder, seed=3).eval()
    torch.manual_seed(11)
    with torch.no_grad():  # the logits of a model that has learnt nothing hardly differ
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    table = tokenize_cross_pairs(tokenizer, *zip(*pairs), max_question_length=20, max_length=64)
    file = tmp_path / "pairs.arrow"
    file.write_bytes(encode_table(table, "arrow", {}))
    batch = CrossRows([file]).batch(np.arange(3), pad_id=0)
    with torch.inference_mode():
        ours = model(batch.tokens)
    assert ours.std() > 0.02  # far above the tolerance below

    model.save(tmp_path / "model", folder, max_length=64)
    assert any((tmp_path / "model").glob("*.safetensors"))
    theirs = CrossEncoder(str(tmp_path / "model"), device="cpu")
    np.testing.assert_allclose(theirs.predict(pairs), sigmoid(ours.numpy()), atol=1e-5)
    plain, report = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    inputs = AutoTokenizer.from_pretrained(tmp_path / "model")(
        *map(list, zip(*pairs)), padding=True, truncation=True, return_tensors="pt"
    )
    with torch.inference_mode():
        torch.testing.assert_close(plain.eval()(**inputs).logits.squeeze(1), ours, atol=1e-5, rtol=0)
    again = load_cross_encoder(tmp_path / "model").eval()
    with torch.inference_mode():
        torch.testing.assert_close(again(batch.tokens), ours, atol=1e-6, rtol=0)


def test_a_new_head_depends_on_the_seed_alone():
    heads = [load_cross_encoder(model_folder("builtin:tiny"), seed=seed).classifier.classifier.weight for seed in (0, 0, 1)]
    assert heads[0].equal(heads[1])
    assert not heads[0].equal(heads[2])


def test_a_classifier_with_several_labels_is_refused(tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(model_folder("builtin:tiny"), num_labels=3)
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="a classifier with 3 labels"):
        load_cross_encoder(tmp_path)


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_scores_by_hand():
    labels, logits = np.array([1, 1, 1, 0, 0, 0]), np.array([3.0, 1.0, -2.0, 2.0, -1.0, -3.0])
    found = classification_scores(labels, logits)
    # p >= 1/2 keeps logits 3, 2, 1, of which 2 are right; 2 of 3 positives are kept; right: 3, 1, -1, -3
    # best first: 1 0 1 0 1 0, precision at the positives 1/1, 2/3, 3/5
    expected = {"accuracy": 4 / 6, "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "majority": 0.5}
    assert found == pytest.approx(expected | {"average_precision": (1 + 2 / 3 + 3 / 5) / 3})
    # p >= sigmoid(1.5) keeps 3 and 2
    assert classification_scores(labels, logits, threshold=float(sigmoid(1.5)))["recall"] == pytest.approx(1 / 3)
    # nothing is kept: no precision to speak of
    assert classification_scores(labels, logits, threshold=0.99)["precision"] == 0


def test_ties_are_taken_at_once():
    # the two scores of 1 are one step: recall 0 -> 1 at precision 1/2, whichever comes first
    assert average_precision([1, 0], [1.0, 1.0]) == average_precision([0, 1], [1.0, 1.0]) == 0.5


def test_average_precision_agrees_with_scikit_learn():
    from sklearn.metrics import average_precision_score

    random = np.random.default_rng(0)
    for _ in range(20):
        labels, scores = random.random(50) < 0.3, random.integers(-5, 6, 50) / 2  # many ties
        assert average_precision(labels, scores) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([1, 0], [1.0], "as many of each"),
        ([], [], "as many of each"),
        ([1, 0], [1.0, math.nan], "score 1 is not finite"),
        ([1, 2], [1.0, 0.0], "label 2 is neither 0 nor 1"),
    ],
)
def test_what_cannot_be_scored_is_named(labels, scores, message):
    with pytest.raises(InputError, match=message):
        classification_scores(np.array(labels), np.array(scores))


# --- calibration -----------------------------------------------------------------------------------------------------


def test_a_temperature_undoes_overconfidence():
    random = np.random.default_rng(0)
    honest = random.normal(size=20_000) * 2
    labels = random.random(20_000) < sigmoid(honest)
    assert fit_temperature(labels, 3 * honest) == pytest.approx(3 * fit_temperature(labels, honest), rel=1e-9)
    temperature = fit_temperature(labels, 3 * honest)
    assert temperature == pytest.approx(3, rel=0.05)
    best = negative_log_likelihood(labels, 3 * honest, temperature)
    assert best < negative_log_likelihood(labels, 3 * honest, 0.99 * temperature)
    assert best < negative_log_likelihood(labels, 3 * honest, 1.01 * temperature)
    before, after = (expected_calibration_error(reliability_bins(labels, sigmoid(3 * honest, t))) for t in (1.0, temperature))
    assert after < 0.02 < before


def test_a_temperature_stays_in_its_range():
    assert fit_temperature([0, 1], [-1.0, 1.0]) == pytest.approx(0.01)  # all right: sharper is always better
    assert fit_temperature([1, 0], [-1.0, 1.0]) == pytest.approx(100)  # all wrong: flatter is


def test_platt_undoes_a_shift_that_no_temperature_can_and_moves_the_kept_set():
    """One answer to three others, scored as if there were as many of each: the logits are too high by ln 3."""
    random = np.random.default_rng(0)
    labels = random.random(20_000) < 0.25
    logits = random.normal(size=20_000) * 2 + np.where(labels, 2.0, -2.0)  # of two normals: the logit of 1:1 is the value
    platt = fit_platt(labels, logits)
    assert platt == pytest.approx((1.0, np.log(3)), abs=0.05)
    best = negative_log_likelihood(labels, logits, *platt)
    for near in ((1.01, 0), (0.99, 0), (1, 0.02), (1, -0.02)):
        assert best < negative_log_likelihood(labels, logits, platt.temperature * near[0], platt.shift + near[1])
    kept = {name: sigmoid(logits, *fitted) >= 0.5 for name, fitted in (("none", ()), ("platt", platt))}
    assert ((sigmoid(logits, fit_temperature(labels, logits)) >= 0.5) == kept["none"]).all()
    assert kept["platt"].sum() < 0.9 * kept["none"].sum()
    assert (kept["platt"] == labels).mean() > (kept["none"] == labels).mean()


def test_platt_stays_finite_where_there_is_no_best_one():
    for labels, logits in (([0, 1], [-1.0, 1.0]), ([1, 0], [-1.0, 1.0]), ([0, 0], [-1.0, 2.0]), ([1, 1], [0.0, 0.0])):
        platt = fit_platt(labels, logits)
        assert 0.0099 < platt.temperature < 101
        assert np.isfinite(platt.shift)


def test_reliability_by_hand():
    bins = reliability_bins([0, 1, 1, 1], [0.1, 0.3, 0.8, 1.0], num_bins=2)
    assert [tuple(each) for each in bins] == [
        pytest.approx((0.0, 0.5, 2, 0.2, 0.5)),
        pytest.approx((0.5, 1.0, 2, 0.9, 1.0)),
    ]
    # 2/4 * |0.2 - 0.5| + 2/4 * |0.9 - 1|
    assert expected_calibration_error(bins) == pytest.approx(0.2)
    assert [each.num_pairs for each in reliability_bins([1], [0.25], num_bins=4)] == [0, 1, 0, 0]


def test_logits_are_no_probabilities():
    with pytest.raises(InputError, match=r"2\.5 is no probability"):
        reliability_bins([1, 0], [0.5, 2.5])


def test_sigmoid_does_not_overflow():
    assert sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]

import json
import math
import re
from html import unescape
from pathlib import Path

import pytest
import yaml
from helpers.made_run import example, write_run
from helpers.report_page import report_on

from raydist.config import load_config, to_yaml
from raydist.reader.evaluate import evaluate_set
from raydist.records import Example, GoldAnswer
from raydist.report.comparison import group_name, paired_test, question_scores, seed_groups
from raydist.report.objectives import pfa
from raydist.report.published.reader import (
    choose_setting,
    differences,
    fits,
    known_as,
    language_of,
    objectives_of,
    own_scores,
    published,
    warmup,
)
from raydist.report.published.tables import AVERAGE, LANGUAGES, Key, papers
from raydist.report.runs import load_run, load_runs


def log(run: Path, terms: dict[str, list[float]], rows: dict[str, list[float]] | None = None) -> Path:
    """Logged terms, one value each ten steps; ``rows`` are how many rows a term rests on."""
    lines: list[dict] = [{"step": 10 * (i + 1), "loss": 1.0} for i in range(max(map(len, terms.values())))]
    for name, values in terms.items():
        for i, value in enumerate(values):
            lines[i] |= {f"loss.{name}": value, f"rows.{name}": (rows or {}).get(name, [8] * len(values))[i]}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def settings(**given) -> str:
    return yaml.safe_dump({"name": "r", "task": "reader", "seed": 0} | given)


def section(page_text: str, heading: str) -> str:
    """The HTML of one section; empty where there is none."""
    found = re.search(rf"<section><h2[^>]*>{re.escape(heading)}</h2>(.*?)</section>", page_text, re.DOTALL)
    return found[1] if found else ""


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub("<[^>]*>", " ", html)))


# --- QAInfomax -------------------------------------------------------------------------------------------------------


def test_infomax_shows_both_bounds_and_both_accuracies(run):
    ramp = [2.0] * 2 + [1.5] * 16 + [1.0] * 2  # a tenth of twenty steps is two
    terms = {"span": ramp, "infomax.local": ramp, "infomax.global": ramp}
    terms |= {"infomax.local_accuracy": [0.5] * 18 + [0.75] * 2, "infomax.global_accuracy": [0.25] * 18 + [0.5] * 2}
    text, page = report_on(log(run, terms))
    shown = section(text, "QAInfomax")
    assert shown.count("<svg") == 2
    assert "LC 2.00 1.00 0.50 0.75" in plain(shown)
    assert "GC 2.00 1.00 0.25 0.50" in plain(shown)
    assert f"{2 * math.log(2):.3f}" in shown
    assert section(text, "Curves").count("<svg") == 2  # total, span; the parts of infomax are drawn in their own section
    assert "infomax.local_accuracy, unweighted" not in page.text


def test_infomax_with_one_bound_shows_that_one(run):
    text, _ = report_on(log(run, {"infomax.local": [1.0, 0.9], "infomax.local_accuracy": [0.5, 0.6]}))
    assert "LC" in plain(section(text, "QAInfomax"))
    assert "-GC" not in section(text, "QAInfomax")


def test_the_reference_variant_is_undecided_at_log_2(tmp_path):
    config = settings(objectives={"infomax": {"variant": "reference"}})
    run = write_run(tmp_path / "r", {"dev": [example()]}, config=config)
    text, _ = report_on(log(run, {"infomax.local": [1.0, 0.9], "infomax.local_accuracy": [0.5, 0.6]}))
    assert f"a loss of {math.log(2):.3f} " in section(text, "QAInfomax")


# --- PFA -------------------------------------------------------------------------------------------------------------

PFA = {"span": [3.0, 2.0, 1.0], "pfa.perturbed_span": [4.0, 3.0, 2.0], "pfa.alignment": [0.5, 0.3, 0.1]}


def trace(points: int = 4) -> dict:
    cloud = {"explained": [0.625, 0.25], "moved": 1.5, "clean": [[i, -i] for i in range(points)]}
    cloud["perturbed"] = [[i + 1, -i] for i in range(points)]
    answer = [i == 1 for i in range(points)]
    return {
        "step": 1200,
        "row": 3,
        "tokens": 9,
        "answer": answer,
        "embeddings": cloud,
        "representations": cloud | {"moved": 0.25},
    }


def test_pfa_shows_the_task_against_the_alignment(run):
    text, _ = report_on(log(run, PFA | {"pfa.critic": [-0.1, -0.2, -0.1], "pfa.penalty": [0.1, 0.1, 0.1]}))
    shown = section(text, "Perturbation for alignment")
    for title in ("loss of the task", "alignment", "task against alignment", "critic"):
        assert f"<b>PFA: {title}</b>" in shown
    assert shown.count("<svg") == 4
    assert "One passage" not in shown


@pytest.mark.parametrize(
    ("alignment", "said"),
    [
        ([0.8, 0.8, 1.0], "25 % of what the reader minimises."),
        ([0.5, 0.01, -0.003], "0.1 % of what the reader minimises: almost"),
    ],
)
def test_the_balance_of_the_losses_is_drawn_and_said_as_they_count(run, monkeypatch, alignment, said):
    log(run, PFA)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    parts = {
        "span": [3.0, 2.0, 1.0],
        "pfa.perturbed_span": [4.0, 3.0, 2.0],
        "pfa.alignment": alignment,
        "pfa.penalty": [0.0] * 3,
    }
    for number, line in enumerate(lines):
        line |= {f"weighted.{name}": values[number] for name, values in parts.items()}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = {}
    monkeypatch.setattr("raydist.report.objectives.line_plot", lambda title, curves, **_: drawn.update({title: curves}))
    assert said in plain(pfa(load_run(run)))
    labels, _, values = zip(*drawn["PFA: balance of the losses"])
    assert labels == ("task", "perturbed", "alignment")
    assert values[2].tolist() == alignment


@pytest.mark.parametrize(("reduction", "scale"), [("mean", 0.5), ("sum", 1.0)])
def test_hard_learning_and_the_perturbed_reading_are_drawn_on_one_scale(tmp_path, monkeypatch, reduction, scale):
    config = settings(objectives={"span": {"reduction": reduction}})
    run = write_run(tmp_path / "r", {"dev": [example()]}, config=config)
    log(run, {"hard_learning": [8.0, 6.0], "pfa.perturbed_span": [4.0, 3.0], "pfa.alignment": [0.5, 0.3]})
    drawn = {}
    monkeypatch.setattr("raydist.report.objectives.line_plot", lambda title, curves, **_: drawn.update({title: curves}))
    monkeypatch.setattr(
        "raydist.report.objectives.path_plot", lambda title, points, labels, **_: drawn.update({title: (points, labels)})
    )
    pfa(load_run(run))
    labels, _, values = zip(*drawn["PFA: loss of the task"])
    assert labels == ("clean (hard learning)", "perturbed")
    assert values[0].tolist() == [8 * scale, 6 * scale], "logged as start plus end loss"
    assert values[1].tolist() == [4, 3], "logged as the reduction says"
    points, labels = drawn["PFA: task against alignment"]
    assert labels == ("alignment", "loss of the task (hard learning)")
    assert points[:, 1].tolist() == [8 * scale, 6 * scale]


def test_a_step_without_a_second_pass_is_no_point_of_the_curve(run):
    log(run, PFA | {"pfa.alignment": [0.5, 0.0, 0.1]}, rows={"pfa.alignment": [8, 0, 8]})
    steps, values = load_run(run).series("loss.pfa.alignment")
    assert steps.tolist() == [10, 30]
    assert values.tolist() == [0.5, 0.1]


def test_second_passes_between_the_logged_steps_are_spoken_of(tmp_path):
    run = write_run(tmp_path / "r", {"dev": [example()]}, config=settings(objectives={"pfa": {"every": 4}}))
    never = [0.0] * 3
    log(run, {"span": [3.0, 2.0, 1.0], "pfa.perturbed_span": never}, rows={"pfa.perturbed_span": [0] * 3})
    text, _ = report_on(run)
    assert "one step of 4, and no logged step" in section(text, "Perturbation for alignment")


def test_a_passage_is_drawn_before_and_after_the_encoder(run):
    (run / "trace").mkdir()
    (run / "trace" / "pfa.json").write_text(json.dumps(trace()))
    text, _ = report_on(log(run, PFA))
    shown = section(text, "Perturbation for alignment")
    assert shown.count("<svg") == 5  # task, alignment, one against the other; embeddings, representations
    assert shown.count("first axis, 62 % of the variance") == 2
    assert "4 of its 9 tokens, after 1,200 steps" in shown
    assert "embeddings 1.50, representations 0.25" in shown
    ids = re.findall(r' id="([^"]*)"', shown)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("change", [{"answer": [True]}, {"embeddings": {}}, {"step": None}, {"representations": 3}])
def test_a_trace_of_another_shape_is_left_out_and_said_to_be(run, change):
    (run / "trace").mkdir()
    (run / "trace" / "pfa.json").write_text(json.dumps(trace() | change))
    assert "not as raydist writes it" in pfa(load_run(run))


def test_a_torn_trace_is_named_among_the_damaged(run):
    (run / "trace").mkdir()
    (run / "trace" / "pfa.json").write_text('{"step": 12')
    loaded = load_run(run)
    assert loaded.traces == {}
    assert loaded.damaged[0].startswith("trace: ")


# --- before and after hard learning ----------------------------------------------------------------------------------


def two_stages(folder: Path, before: dict, after: dict, base: object = "xmrc-base", **hard_learning) -> Path:
    write_run(folder / "xmrc-base", {"dev": [example()]}, metrics=before)
    config = settings(objectives={"hard_learning": hard_learning})
    run = write_run(folder / "xmrc", {"dev": [example()]}, config=config, metrics=after)
    (run / "base.json").write_text(json.dumps({"run": base}))
    return run


def test_em_at_k_stands_before_and_after_with_its_difference(tmp_path):
    before = {"xquad.em@1": 40.0, "xquad.em@3": 50.0, "xquad.em@20": 60.0, "xquad.em@1.es": 30.0, "xquad.em@3.es": 35.5}
    after = {"xquad.em@1": 42.5, "xquad.em@3": 49.0, "xquad.em@10": 58.0, "xquad.em@1.es": 31.0, "xquad.em@3.es": 35.5}
    text, _ = report_on(two_stages(tmp_path, before, after))
    shown = section(text, "Hard learning and contrast")
    assert "xquad 42.50 +2.50 from 40.00 49.00 -1.00 from 50.00" in plain(shown)
    assert "xquad es 31.00 +1.00 from 30.00 35.50 +0.00 from 35.50" in plain(shown)
    assert "k = 10" not in shown  # one of the two has no such number, neither of 20
    assert "k = 20" not in shown
    assert [title for title in ("EM@k on xquad</b>", "EM@k on xquad es</b>") if title in shown] == [
        "EM@k on xquad</b>",
        "EM@k on xquad es</b>",
    ]
    assert shown.count("<svg") == 2


def test_which_reader_stands_before_or_why_none_does_is_said(tmp_path):
    scores = {"xquad.em@1": 40.0}, {"xquad.em@1": 42.5}
    for folder, given, said in (
        ("one", {"nbest_folds": 1}, "The base reader made the n-best sets that this run was trained with. EM k = 1"),
        ("folds", {"nbest_folds": 3}, "the first of 3 such readers, each of which was trained without one question in 3"),
        ("sets", {"sets": "lists.parquet"}, "there is no base reader of this run"),
    ):
        run = two_stages(tmp_path / folder, *scores, **given)
        if folder == "sets":
            (run / "base.json").unlink()
        assert said in plain(section(report_on(run)[0], "Hard learning and contrast"))


def test_without_a_common_number_nothing_is_set_against_anything(tmp_path):
    text, _ = report_on(two_stages(tmp_path, {"xquad.em@1": 40.0}, {"mlqa.em@1": 42.5}))
    assert section(text, "Hard learning and contrast") == ""


def test_a_base_run_that_is_gone_is_missing(tmp_path):
    _, page = report_on(two_stages(tmp_path, {}, {"xquad.em@1": 42.5}, base="gone"))
    assert "gone/metrics.json (scores of the base reader)" in page.text


@pytest.mark.parametrize("base", ["../xmrc-base", "..", ".", "xmrc", "/etc", "", 7, None])
def test_a_base_run_is_another_one_of_the_same_storage_or_refused(tmp_path, base):
    run = load_run(two_stages(tmp_path / "storage", {"xquad.em@1": 40.0}, {"xquad.em@1": 42.5}, base=base))
    assert run.damaged[0].startswith(f"base.json: the way from {tmp_path / 'storage'} to another run in")
    assert run.base is None


@pytest.mark.parametrize(
    ("name", "base", "way"),
    [
        ("xmrc", "xmrc_base", "xmrc_base"),
        ("exp/xmrc", "exp/xmrc_base", "xmrc_base"),
        ("swept/trials/a1", "swept/bases/b2", "../bases/b2"),
    ],
)
def test_the_base_run_is_found_from_the_folder_of_the_run(tmp_path, name, base, way):
    before, after = {"xquad.em@1": 40.0}, {"xquad.em@1": 42.5}
    write_run(tmp_path / base, {"dev": [example()]}, metrics=before)
    run = write_run(tmp_path / name, {"dev": [example()]}, config=settings(name=name), metrics=after)
    (run / "base.json").write_text(json.dumps({"run": way}))
    loaded = load_run(run)
    assert not loaded.damaged
    assert loaded.base.metrics["xquad.em@1"] == 40.0
    assert "+2.50 from 40.00" in plain(section(report_on(run)[0], "Hard learning and contrast"))
    (run / "base.json").write_text(json.dumps({"run": "/".join([".."] * (name.count("/") + 1) + [base])}))
    assert load_run(run).base is None, "a way out of the storage"


def test_a_name_that_is_no_way_from_a_storage_leaves_the_folder_of_the_run(tmp_path):
    run = two_stages(tmp_path, {"xquad.em@1": 40.0}, {"xquad.em@1": 42.5})
    for name in (str(run), ".", "elsewhere/xmrc", "..", 7):
        (run / "config.yaml").write_text(settings(name=name))
        assert load_run(run).base.path == tmp_path / "xmrc-base"


def test_a_base_run_without_scores_leaves_the_picture_out(tmp_path):
    """As those that a sweep's trials share: trained, and not evaluated."""
    run = two_stages(tmp_path, {}, {"xquad.em@1": 42.5})
    (tmp_path / "xmrc-base" / "metrics.json").write_text(json.dumps({"train.steps": 3}))
    assert load_run(run).missing == []
    assert section(report_on(run)[0], "Hard learning and contrast") == ""


def test_how_the_sets_are_weighed_is_drawn(run):
    terms = {"hard_learning": [3.0, 2.0], "hard_learning.entropy": [0.5, 0.4], "hard_learning.gold_first": [0.6, 0.7]}
    text, _ = report_on(log(run, terms | {"answer_contrast": [3.5, 3.4], "answer_contrast.nearest": [0.9, 0.8]}))
    assert section(text, "Hard learning and contrast").count("<svg") == 4


# --- published numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("squad", "squad"),
        ("dev", ""),
        ("squad/dev-A-v1.1.json.gz", "squad"),
        ("SQuAD-dev.jsonl.gz", "squad"),
        ("squad_v2", ""),
        ("squad/dev-v2.0.json", ""),
        ("addsent", "addsent"),
        ("real_addonesent", "addonesent"),
        ("sample1k-HCVerifyAll.json", "addsent"),
        ("sample1k-HCVerifySample.json", "addonesent"),
        ("adversarial_squad/all.json", ""),
        ("adversarial", ""),
        ("xquad.es", "xquad"),
        ("mlqa_ar", "mlqa"),
        ("nq_qed", "naturalquestions"),
        ("nq", "naturalquestions"),
        ("nq_swap", ""),
        ("hotpot", "hotpotqa"),
        ("other_domain", ""),
        ("reqa_squad", ""),
    ],
)
def test_published_sets_are_known_by_their_names(name, known):
    assert known_as(name) == known


def test_a_language_is_a_word_of_a_name():
    assert [language_of(name) for name in ("xquad.es.json", "sample:ar/dev.json", "xquad_en", "squad", "test")] == [
        "es",
        "ar",
        "en",
        "",
        "",
    ]


# As printed (docs/methods.md 6.8), but for the five that do not follow from their rows and the one row that is not whole.
PRINTED_AVERAGES = {
    ("zero-shot", "mlqa", "mBERT"): "57.80/42.40",
    ("zero-shot", "mlqa", "XLM"): "61.70/44.20",
    ("zero-shot", "mlqa", "XLM-R base"): "64.14/-",
    ("zero-shot", "mlqa", "Info-XLM"): "-/47.60",
    ("zero-shot", "mlqa", "two-stage"): "66.00/48.88",
    ("translate-train", "mlqa", "XLM-R base"): "65.45/48.25",
    ("translate-train", "mlqa", "CalibreNet"): "65.40/48.84",
    ("translate-train", "mlqa", "two-stage"): "67.16/50.44",
    ("zero-shot", "xquad", "mBERT"): "69.63/53.72",
    ("zero-shot", "xquad", "XLM"): "70.93/53.18",
    ("zero-shot", "xquad", "XLM-R base"): "73.54/-",
    ("zero-shot", "xquad", "Info-XLM"): "-/58.51",
    ("zero-shot", "xquad", "two-stage"): "75.06/-",
    ("translate-train", "xquad", "XLM-R base"): "75.03/58.96",
    ("translate-train", "xquad", "mixMRC"): "73.17/55.20",
    ("translate-train", "xquad", "LBMRC"): "74.48/56.92",
    ("translate-train", "xquad", "two-stage"): "76.66/60.66",
}


@pytest.mark.parametrize("place", PRINTED_AVERAGES)
def test_the_languages_of_a_published_row_make_its_printed_average(place):
    title, test_set, method = place
    (setting,) = [setting for setting in papers()[2] if title in setting.title]
    (row,) = [row for row in setting.rows if row.method == method]
    for measure, printed in zip(("f1", "em"), PRINTED_AVERAGES[place].split("/")):
        if printed != "-":
            assert row.scores[Key(test_set, measure, AVERAGE)] == pytest.approx(float(printed), abs=0.06)


def test_a_published_number_is_found_in_one_place():
    """The same objectives with the same settings twice would leave the choice to chance."""
    for setting in (setting for paper in papers() for setting in paper):
        ours = [(key, json.dumps(row.objectives)) for row in setting.rows if row.objectives is not None for key in row.scores]
        assert len(set(ours)) == len(ours), setting.title
        for row in setting.rows:
            assert all(0 < value < 100 for value in row.scores.values())
            assert row.spread.keys() <= row.scores.keys()


def published_of(run):
    return published([run])


INFOMAX = {"variant": "paper", "alpha": 1.0, "beta": 0.5, "context": 5, "summary": "mean"}
SETS = {"squad": "squad/dev-A.json.gz", "addsent": {"files": ["adversarial_squad/addsent-A.json.gz"], "adversarial": True}}


def scored(folder: Path, objectives: dict, metrics: dict, **config) -> Path:
    """A run on real sets: 4,000 of SQuAD's questions, 256 tokens, otherwise as QAInfomax was published."""
    data = {
        "train": {"files": ["squad/train-v1.1.json"], "questions": 4000},
        "test": SETS,
        "max_length": 256,
        "doc_stride": 128,
    }
    given = {"data": data, "model": {"name": "bert-base-uncased"}, "objectives": {"span": {}} | objectives}
    given |= {"train": {"epochs": 2.0, "batch_size": 12}, "optim": {"lr": 3e-5}} | config
    rows = {"squad": [example(f"q{i}") for i in range(5)]}
    return write_run(folder, rows, config=settings(**given), metrics=metrics)


def test_our_numbers_stand_beside_the_published_with_what_differs(tmp_path):
    metrics = {"squad.f1": 70.0, "addsent.addsent_f1": 44.25, "addsent.f1": 50.0, "addsent.rule": "squad"}
    metrics |= {"addsent.original_f1": 80.6, "addsent.originals": 478}
    run = scored(tmp_path / "r", {"infomax": INFOMAX}, metrics)
    text, _ = report_on(run)
    shown = plain(section(text, "Beside published numbers"))
    # 80.6 - 88.6 and 44.25 - 54.5
    assert "addsent F1 of originals 80.60 88.5 BERT-base 88.6 BERT-base + QAInfomax -8.00" in shown
    assert "squad F1" not in shown, "the paper has no score of the whole dev set"
    assert "addsent AddSent F1 44.25 51.0 BERT-base 54.5 BERT-base + QAInfomax -10.25" in shown
    loaded = load_run(run)
    setting = choose_setting(loaded, papers()[0])
    (row,) = [row for row in setting.rows if row.objectives == {"infomax": {}}]
    keys = [Key("original", "original_f1"), Key("addsent", "addsent_f1")]
    assert differences([loaded], setting, keys, own_scores(loaded), row, objectives_of(loaded)) == [
        ["Training questions", "87,599", "4,000"],
        ["<code>data.max_length</code>", "384", "256"],
        ["Original questions of addsent", "1,000", "478"],  # how many copies addsent has is not known here
        ["A number is", "the best of at least three runs", "of one run"],
    ]


def test_an_ablation_is_set_beside_the_published_ablation(tmp_path):
    run = scored(
        tmp_path / "r", {"infomax": INFOMAX | {"beta": 0.0}}, {"addsent.addsent_f1": 50.0, "addsent.original_f1": 80.0}
    )
    shown = plain(published_of(load_run(run)))
    assert "addsent AddSent F1 50.00 51.0 BERT-base 53.6 + LC alone -3.60" in shown
    assert "F1 of originals 80.00 88.5 BERT-base 88.6 BERT-base + QAInfomax" in shown  # not printed for the ablation
    assert "infomax.beta" not in shown


@pytest.mark.parametrize(
    ("changed", "method"),
    [
        ({}, "92.4 ± 0.2 PFA"),
        ({"align": "cos"}, "92.2 PFA, cos"),
        ({"align": "sinkhorn"}, "92.4 ± 0.2 PFA"),
        ({"lambda2": 0.0}, "91.2 + perturbation alone"),
        ({"lambda2": 0.0, "alpha": 0.3}, "91.2 + perturbation alone"),
        ({"lambda1": 0.0}, "91.7 + alignment alone"),
        ({"alpha": 0.9}, "92.7 PFA, alpha 0.9"),
        ({"perturber": "noise", "delta": 0.3}, "91.4 noise 0.3"),
        ({"perturber": "gaussian"}, "91.0 ± 0.1 SWEP"),
        ({"bottleneck": 1}, "91.95 PFA, one unit"),
    ],
)
def test_the_row_that_speaks_most_exactly_of_the_run_is_taken(tmp_path, changed, method):
    full = {"perturber": "mlp", "align": "w1", "lambda1": 1.0, "lambda2": 1.0, "alpha": 0.5, "delta": 0.5, "bottleneck": 500}
    shown = plain(published_of(load_run(scored(tmp_path / "r", {"pfa": full | changed}, {}, model={"name": "roberta-base"}))))
    assert f"squad F1 100.00 90.3 ± 0.2 RoBERTa-base {method} " in shown


def test_the_paper_has_another_table_for_another_model(tmp_path):
    learned = {"pfa": {"perturber": "mlp"}}
    assert "89.7 PFA" in plain(published_of(load_run(scored(tmp_path / "b", learned, {}))))
    tiny = scored(tmp_path / "t", learned, {}, model={"name": "builtin:tiny"})
    assert "Model roberta-base builtin:tiny" in plain(published_of(load_run(tiny)))


def test_a_reader_of_squad_is_not_set_beside_readers_of_other_sets(tmp_path):
    metrics = {"hotpotqa.f1": 50.0, "nq_qed.f1": 60.0, "nq_qed.rule": "squad"}
    shown = plain(
        published_of(load_run(scored(tmp_path / "r", {"pfa": {"perturber": "mlp"}}, metrics, model={"name": "roberta-base"})))
    )
    assert "hotpotqa F1" not in shown
    assert "mean F1 of hotpotqa and nq_qed 55.00 60.1 RoBERTa-base 63.5 PFA -8.50" in shown
    assert "without newsqa" in shown
    assert "Rule of squad, nq_qed mrqa squad" in shown


def test_two_methods_at_once_stand_beside_both(tmp_path):
    run = load_run(scored(tmp_path / "r", {"infomax": INFOMAX, "pfa": {"perturber": "mlp"}}, {"addsent.addsent_f1": 50.0}))
    shown = plain(published_of(run))
    assert "Further objectives none pfa" in shown
    assert "Further objectives none infomax" in shown


def test_a_plain_reader_stands_beside_plain_readers(tmp_path):
    shown = published_of(load_run(scored(tmp_path / "r", {}, {"addsent.original_f1": 100.0})))
    assert "Published, this method" not in shown
    assert "F1 of originals 100.00 88.5 BERT-base +11.50" in plain(shown)


def test_without_a_published_set_or_method_there_is_no_section(run, tmp_path):
    assert published_of(load_run(run)) is None  # its set is called dev, and read from nowhere
    unlike = {"pfa": {"perturber": "identity"}}
    assert published_of(load_run(scored(tmp_path / "r", unlike, {}))) is None
    translated = write_run(tmp_path / "es", {"squad_es": [example()]}, config=settings(objectives={"span": {}}))
    assert published_of(load_run(translated)) is None


def test_languages_are_compared_one_by_one_and_averaged_when_all_are_there(tmp_path):
    objectives = {"hard_learning": {"mode": "posterior", "size": 20}, "answer_contrast": {"theta": 1}}
    metrics = {f"xquad.f1.{code}": 70.0 + i for i, code in enumerate(LANGUAGES)} | {"mlqa_es.f1": 50.0, "mlqa_es.em@3": 45.0}
    run = load_run(scored(tmp_path / "r", objectives, metrics))
    own = own_scores(run)
    assert own[Key("xquad", "f1", "de")] == ("xquad", 72.0)
    assert own[Key("xquad", "f1", AVERAGE)] == ("xquad", pytest.approx(72.5))  # 70 .. 75
    assert own[Key("mlqa", "f1", "es")] == ("mlqa_es", 50.0)
    assert Key("mlqa", "f1", AVERAGE) not in own
    shown = plain(published_of(run))
    assert "xquad de F1 72.00 74.4 XLM-R base 75.89 two-stage -3.89" in shown
    assert "mlqa_es F1 50.00 66.18 XLM-R base 67.52 two-stage -17.52" in shown
    assert "mlqa_es EM@3 45.00 60.32 XLM-R base – -15.32" in shown  # printed for the plain reader alone
    assert "zero-shot" in shown
    assert "hard_learning.mode equation 5 as printed posterior" in shown


def test_training_files_of_several_languages_are_translate_train(tmp_path):
    data = {"train": {"files": ["squad-en.json", "squad-es.json"]}, "test": {"xquad": ["xquad.en.json", "xquad.es.json"]}}
    objectives = {"hard_learning": {"mode": "posterior"}, "answer_contrast": {}}
    run = load_run(scored(tmp_path / "r", objectives, {"xquad.f1.es": 70.0, "xquad.f1": 75.0}, data=data))
    shown = plain(published_of(run))
    assert "translate-train" in shown
    assert "xquad es F1 70.00 78.55 XLM-R base 80.04 two-stage" in shown
    assert "xquad F1" not in shown  # a mean over languages is no language's


def test_hard_learning_in_mode_ce_is_the_ablation_without_it(tmp_path):
    metrics = {f"xquad.f1.{code}": 70.0 for code in LANGUAGES}
    for mode, method in (("ce", "73.61 without hard learning"), ("mml", "73.79 with MML"), ("posterior", "75.06 two-stage")):
        objectives = {"hard_learning": {"mode": mode}, "answer_contrast": {"theta": 1}}
        shown = plain(published_of(load_run(scored(tmp_path / mode, objectives, metrics))))
        assert f"xquad average F1 70.00 73.54 XLM-R base {method} " in shown


def test_a_contrast_of_weight_0_is_the_ablation_without_it(tmp_path):
    metrics = {f"xquad.f1.{code}": 70.0 for code in LANGUAGES}
    for mode, method in (("posterior", " 73.84 without contrast"), ("ce", " -3.54")):  # ce, too: the plain reader
        objectives = {"hard_learning": {"mode": mode}, "answer_contrast": {"alpha": 0.0}}
        shown = plain(published_of(load_run(scored(tmp_path / mode, objectives, metrics))))
        assert f"xquad average F1 70.00 73.54 XLM-R base{method} " in shown
        assert "Further objectives" not in shown


STATED = ("data.passage_first", "objectives.pfa.start", "objectives.pfa.penalty_at", "objectives.pfa.critic_sees")
OURS = {f"<code>{key}</code>" for key in STATED}  # where we say in docs/methods.md 4 that we differ
REFERENCE = {f"<code>{key}</code>" for key in ("train.batch_size", "objectives.infomax.variant")}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("infomax", set()),
        ("infomax_reference", REFERENCE),
        ("pfa", OURS),
        ("pfa_bert", OURS),
        ("pfa_out_of_domain", OURS),
        ("swep", set()),
        ("xmrc", {"<code>objectives.hard_learning.mode</code>"}),
    ],
)
def test_the_shipped_paper_configs_have_the_published_settings(tmp_path, name, known):
    config = load_config(f"paper/{name}").config
    place = {"infomax": 0, "pfa": 1, "swep": 1, "xmrc": 2}[name.split("_")[0]]
    sets, metrics = {"dev": config.data.dev} | config.data.test, {}
    for test_set, source in sets.items():
        measure = {"addsent": "addsent_f1", "addonesent": "addsent_f1", "xquad": "f1.en", "mlqa": "f1.en"}.get(test_set, "f1")
        metrics |= {f"{test_set}.{measure}": 50.0, f"{test_set}.rule": "squad" if source.rule == "auto" else source.rule}
    run = load_run(write_run(tmp_path / "r", {}, config=to_yaml(config), metrics=metrics))
    setting, objectives, own = choose_setting(run, papers()[place]), objectives_of(run), own_scores(run)
    row = max((row for row in setting.rows if fits(row, objectives)), key=lambda row: len(row.objectives))
    assert row.objectives
    keys = [key for key in row.scores if key in own]
    assert len(keys) >= max(1, len(config.data.test))
    assert (Key("out_of_domain") in keys) == (name == "pfa_out_of_domain")
    found = {line[0] for line in differences([run], setting, keys, own, row, objectives)}
    assert found - {"A number is"} == known


@pytest.mark.parametrize(
    ("optim", "told"),
    [
        ({"warmup_share": 0.05}, "0.05 of the steps"),
        ({}, "0.1 of the steps"),  # the default
        ({"warmup_share": 0.0}, "0 of the steps"),
        ({"warmup_steps": 10_000}, "80,000 examples"),
        ({"warmup_examples": 80_000, "warmup_share": None}, "80,000 examples"),
        ({"warmup_examples": 0}, "0 examples"),
    ],
)
def test_a_warm_up_is_compared_in_one_form_however_it_is_given(tmp_path, optim, told):
    given = {"optim": {"lr": 1e-4} | optim, "train": {"epochs": 10, "batch_size": 8}, "model": {"name": "roberta-base"}}
    run = load_run(scored(tmp_path / "r", {"pfa": {"perturber": "mlp"}}, {}, **given))
    assert warmup(run) == told
    shown = plain(published_of(run))
    assert ("Warm-up" in shown) == (told != "80,000 examples")
    assert (f"Warm-up 80,000 examples {told}" in shown) == (told != "80,000 examples")


def test_seeds_stand_beside_the_published_with_their_mean_deviation_and_maximum(tmp_path):
    runs = []
    for seed, (squad, addsent) in enumerate([(80.0, 40.0), (81.0, 44.0), (82.0, 48.0)]):
        metrics = {"squad.f1": squad, "addsent.addsent_f1": addsent}
        runs.append(scored(tmp_path / f"infomax_{seed}", {"infomax": INFOMAX}, metrics, seed=seed, name=f"infomax_{seed}"))
    runs.append(scored(tmp_path / "swep_0", {"pfa": {"perturber": "gaussian"}}, {"squad.f1": 80.0}, name="swep_0"))
    text, _ = report_on(*runs)
    shown = plain(section(text, "Beside published numbers"))
    assert "infomax: QAInfomax (EMNLP-IJCNLP 2019) Score" in shown
    assert "Score Mean Deviation Maximum" in shown
    # the paper has the best of its runs, so ours is compared: 48 - 54.5
    assert "addsent AddSent F1 44.00 4.00 48.00 51.0 BERT-base 54.5 BERT-base + QAInfomax -6.50" in shown
    assert "A number is the best of at least three runs the best of 3 runs" in shown
    assert "swep_0: Perturbation for alignment, BERT-base" in shown
    assert "squad F1 80.00 88.6 BERT-base 89.4 SWEP -9.40" in shown
    means = [load_run(scored(tmp_path / f"m{f1}", {"pfa": {"perturber": "mlp"}}, {"squad.f1": f1})) for f1 in (80.0, 83.0)]
    for run in means:
        run.config["model"]["name"] = "roberta-base"
    # and here the mean of them
    assert "squad F1 81.50 2.12 83.00 90.3 ± 0.2 RoBERTa-base 92.4 ± 0.2 PFA -10.90" in plain(published(means))


# --- several seeds ---------------------------------------------------------------------------------------------------


def seeded(folder: Path, name: str, seed: int, wrong: range | list[int], lr: float = 1e-4, count: int = 40, **metrics) -> Path:
    rows = [example(f"q{i}", prediction="1931" if i in wrong else None) for i in range(count)]
    config = settings(name=f"{name}_{seed}", seed=seed, optim={"lr": lr}, cluster={"workers": 1 + seed})
    return write_run(folder / f"{name}_{seed}", {"dev": rows}, seed=seed, config=config, metrics=metrics)


def test_runs_that_differ_in_their_seed_are_one_group(tmp_path):
    runs = [seeded(tmp_path, "plain", seed, range(20 + 2 * seed)) for seed in range(3)]
    runs += [seeded(tmp_path, "other", seed, range(4 * seed), lr=2e-4) for seed in range(2)]
    text, _ = report_on(*runs)
    shown = plain(section(text, "Over seeds"))
    # plain: 20, 18 and 16 of 40 right: 50, 45, 40: mean 45, deviation 5. other: 100, 90: mean 95, deviation sqrt(50) = 7.07
    assert "plain 45.00 5.00 50.00 0: 50.00 · 1: 45.00 · 2: 40.00 –" in shown
    # a question's mean over seeds: 0..3 gain 50, 4..19 100, 20, 21 100 - 1/3, 22, 23 100 - 2/3 ...: the mean gain is 50
    # seeds: pooled deviation sqrt((50 + 50) / 3) = 5.8, of two means sqrt(1/3 + 1/2) of it, t at three degrees 3.2: 17 each way
    assert re.search(
        r"other 95\.00 7\.07 100\.00 0: 100\.00 · 1: 90\.00 \+50\.00 \+[23]\d\.\d\d to \+[67]\d\.\d\d, p = 0\.0\d\d", shown
    )
    assert section(text, "Over seeds").count("<svg") == 2  # F1 and EM


def test_without_seeds_there_is_no_section_about_them(tmp_path):
    plain_run, other = seeded(tmp_path, "plain", 0, []), seeded(tmp_path, "other", 0, [1], lr=2e-4)
    assert section(report_on(plain_run, other)[0], "Over seeds") == ""
    assert section(report_on(plain_run, plain_run)[0], "Over seeds") == ""  # the same seed twice tells nothing of seeds
    empty = tmp_path / "empty"
    empty.mkdir()
    groups = seed_groups(load_runs([empty, empty, plain_run]))
    assert [len(group.runs) for group in groups] == [1, 1, 1]  # unknown settings are like no others


def test_a_group_alone_has_no_difference(tmp_path):
    text, _ = report_on(seeded(tmp_path, "plain", 0, []), seeded(tmp_path, "plain", 1, [0, 1]))
    shown = section(text, "Over seeds")
    assert "From the first" not in shown
    assert "97.50" in shown  # (100 + 95) / 2


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (["infomax_0", "infomax_1"], "infomax"),
        (["w1-seed10", "w1-seed11"], "w1"),
        (["real_squad_0", "real_squad_10"], "real_squad"),
        (["one", "two"], "one, two"),
        (["plain"], "plain"),
        (["run", "run (2)"], "run"),
    ],
)
def test_a_group_is_called_by_what_its_runs_share(names, name):
    assert group_name(names) == name


def test_the_test_over_seeds_takes_the_questions_that_all_have_and_the_mean_of_each(tmp_path):
    first = load_runs([seeded(tmp_path, "a", 0, [0, 1, 2, 3]), seeded(tmp_path, "a", 1, [0, 1], count=30)])
    other = load_runs([seeded(tmp_path, "b", 0, []), seeded(tmp_path, "b", 1, [0], count=20)])
    test = paired_test(first, other, "dev", "em")
    # first: questions 0, 1 at 0, 2, 3 at 50; other: question 0 at 50. Gains over 20 questions: 50 + 100 + 50 + 50
    assert test.rows == 20
    assert test.difference == pytest.approx(250 / 20)
    assert paired_test(first, other, "nowhere", "em") is None
    assert paired_test(first, other, "dev", "addsent_tokens") is None


def test_adversarial_sets_are_compared_by_original_question(tmp_path):
    rows = [example("a"), example("a-high-conf"), example("a-other", prediction="1931", f1=30.0), example("b", em=0.0, f1=40.0)]
    run = load_run(write_run(tmp_path / "r", {"addsent": rows}))
    assert question_scores(run, "addsent", "f1") == pytest.approx(
        {"a\0en": 100, "a-high-conf\0en": 100, "a-other\0en": 30, "b\0en": 40}
    )
    assert question_scores(run, "addsent", "addsent_f1") == pytest.approx({"a\0en": 30, "b\0en": 40})  # the worst copy
    assert question_scores(run, "addsent", "addsent_em") == {"a\0en": 0, "b\0en": 0}


def test_a_copy_without_a_prediction_is_passed_over_as_it_is_in_the_score(tmp_path):
    ids = ("a", "a-unpredicted", "a-other", "b", "b-unpredicted")
    examples = [Example(id, "Who?", "Tarn", [GoldAnswer("Tarn", 0)]) for id in ids]
    nbest = {id: [{"text": "Tarn"}] for id in ids if "unpredicted" not in id}
    scores, rows = evaluate_set(examples, nbest, rule="squad", adversarial=True, bootstrap=0)
    run = load_run(write_run(tmp_path / "r", {"addsent": rows.to_pylist()}))
    assert scores["addsent_f1"] == 100.0
    assert question_scores(run, "addsent", "addsent_f1") == {"a\0en": 100.0, "b\0en": 100.0}
    assert "no answer" in report_on(run.path)[1].text


def test_every_new_section_escapes_what_it_is_given(tmp_path):
    bad = "<script>alert(1)</script>"
    metrics = {f"xquad.em@1.{bad}": 1.0, "squad.f1": 50.0, "squad.rule": bad}
    run = two_stages(tmp_path, metrics, metrics)
    objectives = {"infomax": INFOMAX | {"context": bad}, bad: {}, "pfa": {"align": bad, "perturber": "mlp"}}
    train = {"files": [f"{bad}.json"]}
    config = settings(objectives=objectives, model={"name": bad}, data={"train": train}, seed=bad)
    (run / "config.yaml").write_text(config)
    (run / "trace").mkdir()
    (run / "trace" / "pfa.json").write_text(json.dumps(trace() | {"step": bad}))
    log(run, PFA | {"infomax.local": [1.0, 1.0, 1.0]})
    twin = write_run(tmp_path / f"twin{bad.replace('/', '')}", {}, metrics=metrics, config=config.replace("seed: ", "seed: 1"))
    for runs in ([run], [run, twin]):
        text, page = report_on(*runs)
        assert "<script" not in text
        assert page.count("script") == 0

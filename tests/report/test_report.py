import gzip
import json
import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.made_run import CONTEXT, ROWS, example, write_run
from helpers.report_page import Page, report_on

from raydist.errors import InputError
from raydist.records import EVALUATION_SCHEMA
from raydist.report.html import write_report
from raydist.report.runs import load_run
from raydist.report.sections import choose_examples


def test_a_finished_run_has_every_section_and_its_numbers(logged_run):
    text, page = report_on(logged_run)
    headings = re.findall(r"<h2[^>]*>([^<]*)", text)
    general = ["Overview", "Scores", "Curves", "By answer length", "Predictions", "Throughput", "Rejected rows", "Stages"]
    assert headings == [*general, "Settings and numbers"]  # one language, no objective that has a section of its own
    # three of four right: EM 75; F1 (100 + 100 + 100 + 50) / 4 = 87.5; the interval is 100 / sqrt(4) = 50 to each side
    assert "87.50 37.50 – 100.00" in page.text
    assert "75.00 25.00 – 100.00" in page.text
    assert "squad" in page.text
    assert page.count("article", **{"class": "right"}) == 3
    assert page.count("article", **{"class": "wrong"}) == 1
    assert page.count("svg") == 7  # total, two terms, dev, learning rate, gradient norm, throughput
    assert "Not there yet" not in page.text


def test_the_report_goes_into_the_first_run_unless_told(run, tmp_path):
    assert write_report([run]) == run / "report.html"
    assert write_report([run], tmp_path / "deep" / "here.html").is_file()
    assert [file.name for file in run.iterdir() if "tmp" in file.name] == []


def test_the_same_run_gives_the_same_bytes_in_another_process(logged_run):
    first = write_report([logged_run]).read_bytes()
    code = (
        "import sys; from pathlib import Path; from raydist.report.html import write_report; write_report([Path(sys.argv[1])])"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", code, str(logged_run)], check=True, env=environment)
    assert (logged_run / "report.html").read_bytes() == first


def test_nothing_outside_the_file_is_needed_and_nothing_runs(logged_run):
    text, page = report_on(logged_run, logged_run)
    for tag, attributes in page.elements + Page(report_on(logged_run)[0]).elements:
        assert tag not in {"script", "link", "img", "iframe", "object", "image", "base", "form"}
        assert not any(name.startswith("on") for name in attributes)
        for name in ("href", "xlink:href", "src"):
            assert attributes.get(name, "#").startswith("#")
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert re.findall(r"url\((?!#)", text) == []


def test_everything_from_data_is_escaped(tmp_path):
    bad = "</title></style><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;$\\frac{"
    context = f"Passage {bad} with {bad} inside."
    rows = [
        example("r" + bad, "right " + bad, (bad,), context, language=bad[:60]),
        example("w" + bad, "wrong " + bad, (bad,), context, "ar", prediction="inside"),
        example("n" + bad, "nowhere " + bad, ("not there " + bad,), context, "en", prediction=bad + "!", start=-1),
    ]
    config = json.dumps({"task": bad, "seed": 3, "model": {"name": bad}, "objectives": {bad: {"x": 1}}, bad: bad})
    folder = tmp_path / "run <script>alert(3)<&script>"
    write_run(folder, {"dev<script>": rows}, config=config, metrics={f"dev.{bad}": 3.0, f"{bad}.f1": 2.5, "dev.rule": bad})
    with (folder / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"step": 2000, f"loss.{bad}": 1.0, f"dev.{bad}": 2.0, f"{bad}.f1": 3.0}) + "\n")
    (folder / "stages.json").write_text(json.dumps({bad: {"folder": bad, "rows": bad, "seconds": bad, "reused": bad}}))
    other = write_run(tmp_path / "other", {"dev<script>": [row | {"prediction": bad, "em": 0.0} for row in rows]})
    (other / "evaluation" / "<script>.parquet").write_bytes(b"<script>")
    for runs in ([folder], [folder, other]):
        text, page = report_on(*runs)
        assert [page.count(tag) for tag in ("script", "img", "title", "style")] == [0, 0, 1, 1]
        assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
        assert "<script" not in text
        assert bad in page.text


def test_text_that_no_encoding_can_hold_does_not_stop_the_report(run):
    (run / "metrics.json").write_text('{"dev.f1": 50.0, "dev.note": "\\ud800"}')
    assert "dev" in report_on(run)[1].text


def test_a_run_in_progress_says_what_is_not_there_yet(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    _, page = report_on(empty)
    for part in ("config.yaml", "metrics.json", "metrics.jsonl", "stages.json", "evaluation"):
        assert part in page.text
    (empty / "metrics.jsonl").write_text('{"step": 10, "loss": 3.0}\n{"step": 20, "loss": 2.5}\n{"step": 30, "lo')
    _, page = report_on(empty)
    assert page.count("svg") == 1  # the loss; the line that is still being written is no damage
    assert "Not readable" not in page.text
    assert "logged steps" not in page.text


def test_each_part_alone_is_enough_for_a_report(run, tmp_path):
    for part in ("config.yaml", "metrics.json", "metrics.jsonl", "stages.json", "evaluation", "rejected"):
        alone = tmp_path / f"only-{part}"
        alone.mkdir()
        (alone / part).symlink_to(run / part)
        assert "Not there yet" in report_on(alone)[1].text
        assert report_on(alone, run)[1].text


def test_damaged_parts_are_named_and_the_others_shown(logged_run):
    (logged_run / "config.yaml").write_text("a: [1, 2")
    (logged_run / "stages.json").write_text("[]")
    (logged_run / "evaluation" / "other.parquet").write_bytes(b"PAR1 no")
    pq.write_table(pa.table({"id": ["q"]}), logged_run / "evaluation" / "short.parquet")
    with (logged_run / "metrics.jsonl").open("a") as log:
        log.write('nonsense\n["step"]\n{"loss": 3}\n{"step": 5000, "loss": NaN}\n')
    _, page = report_on(logged_run)
    for problem in ("config.yaml", "stages.json", "evaluation/other.parquet", "evaluation/short.parquet", "3 of 26 lines"):
        assert problem in page.text  # 20 steps, 2 evaluations and 4 more lines, the last of which is one
    assert page.count("article") == 4


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text("x")])
def test_what_is_no_run_directory_is_refused(tmp_path, make):
    make(tmp_path / "nothing")
    with pytest.raises(InputError, match="run directory"):
        write_report([tmp_path / "nothing"])
    with pytest.raises(InputError, match="no run was given"):
        write_report([])


def test_of_a_step_logged_twice_the_later_line_counts(run):
    (run / "metrics.jsonl").write_text(
        "\n".join(
            json.dumps(line)
            for line in [
                {"step": 10, "loss": 3.0},
                {"step": 20, "loss": 2.0},
                {"step": 20, "dev.f1": 60.0},
                {"step": 20, "loss": 2.5},  # after a resume
                {"step": 15, "loss": 2.7},
            ]
        )
    )
    loaded = load_run(run)
    steps, losses = loaded.series("loss")
    assert steps.tolist() == [10, 15, 20]
    assert losses.tolist() == [3.0, 2.7, 2.5]
    assert loaded.series("dev.f1")[1].tolist() == [60.0]
    assert loaded.score_keys() == ["dev.f1"]


def evaluation(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=EVALUATION_SCHEMA)


def test_the_surest_wrong_ones_come_first_and_row_order_changes_nothing():
    wrong = [example(f"w{i}", prediction="1931", probability=i / 100) for i in range(60)]
    right = [example(f"r{i}") for i in range(60)]
    chosen_right, sure, drawn = choose_examples(evaluation(wrong + right))
    assert [row["id"] for row in sure] == [f"w{i}" for i in range(59, 49, -1)]
    assert (len(chosen_right), len(drawn)) == (20, 10)
    assert not {row["id"] for row in sure} & {row["id"] for row in drawn}
    assert all(row["em"] == 100 for row in chosen_right)
    assert all(row["em"] == 0 for row in drawn)
    assert choose_examples(evaluation((wrong + right)[::-1])) == [chosen_right, sure, drawn]


def test_few_predictions_are_all_shown_once():
    rows = [example(f"w{i}", prediction="1931") for i in range(13)]
    right, sure, drawn = choose_examples(evaluation(rows))
    assert (right, len(sure), len(drawn)) == ([], 10, 3)


def test_predictions_without_probability_are_shown(run, tmp_path):
    rows = [example(f"w{i}", prediction="1931", probability=None) for i in range(3)] + [
        example("n", answers=(), prediction="", em=100.0)
    ]
    _, page = report_on(write_run(tmp_path / "foreign", {"dev": rows}))
    assert page.count("article") == 4
    assert "no answer" in page.text


def test_languages_have_bars_from_predictions_or_from_metrics(tmp_path):
    rows = [example("a", language="ar", prediction="1931", f1=20.0), example("b", language="ar"), example("c", language="es")]
    mean = {"xquad.f1.languages": 80.0}  # of ar and es: no language of its own
    run = write_run(tmp_path / "run", {"xquad": rows}, metrics={"mlqa.f1.hi": 41.5, "mlqa.f1": 41.5} | mean)
    _, page = report_on(run)
    # ar: (20 + 100) / 2
    assert "ar xquad60.0 n = 2" in page.text
    assert "es xquad100.0 n = 1" in page.text
    assert "hi mlqa41.5" in page.text
    assert "languages xquad" not in page.text


def test_rejected_rows_are_counted_by_reason(run):
    _, page = report_on(run)
    assert "empty questionquestion12" in page.text
    assert "answer not at its offsetanswer1" in page.text
    assert "The first 10" in page.text
    assert "train.json, line 7" in page.text


def test_several_runs_stand_side_by_side(run, tmp_path):
    rows = [example(id, question, answers) for id, question, answers in ROWS]
    rows[0] = example(*ROWS[0], prediction="310 metres")
    other = write_run(tmp_path / "better", {"dev": rows}, seed=1)
    _, page = report_on(run, other)
    # EM: 75 both; F1 87.5 against 75
    assert "-12.50" in page.text
    assert "+0.00" in page.text
    assert "only plain is right (1 of 1)" in page.text
    assert "only better is right (1 of 1)" in page.text
    assert "seed01" in page.text  # key, then the value of each run
    assert "optim.lr" not in page.text  # equal in both
    _, page = report_on(run, run)
    assert "plain (2)" in page.text
    assert "All settings are equal" in page.text


def test_a_difference_comes_with_its_chance_over_the_questions_both_answered(tmp_path):
    def rows(wrong, count=40):
        return [example(f"q{i}", prediction="1931" if i in wrong else None) for i in range(count)]

    plain = write_run(tmp_path / "plain", {"dev": rows(range(20)), "same": rows([3])})
    better = write_run(tmp_path / "better", {"dev": rows([]), "same": rows([3], count=30)})
    _, page = report_on(plain, better)
    # dev: 50 against 100. 20 of 40 differences are 100, so resampled means are binomial around 50 with deviation 7.9: 0 is
    # more than six deviations away
    assert re.search(r"\+50\.00 \+[34]\d\.\d\d to \+6\d\.\d\d, p = 0\.002", page.text)  # four tests in the table
    assert "+0.00 to +0.00, p = 1.000" in page.text  # same: over the 30 questions that both have, no difference


def test_runs_of_different_test_sets_and_unequal_progress_can_be_compared(run, tmp_path):
    other = write_run(tmp_path / "other", {"squad": [example()]})
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    _, page = report_on(fresh, run, other)
    assert "squad F1" in page.text
    assert "Not there yet" in page.text


def test_importing_the_report_loads_neither_plots_nor_models(run):
    heavy = ("matplotlib", "torch", "ray", "transformers")
    code = f"import sys, raydist.report.html; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.realdata
def test_three_real_test_sets_make_a_small_report(data_dir, tmp_path):
    files = {"dev": "squad/dev-A-v1.1.json.gz", "ar": "xquad/xquad.ar.A.json.gz", "covid": "covid_qa/200423_covidQA.json.gz"}
    evaluations = {}
    for name, file in files.items():
        rows = []
        for article in json.loads(gzip.decompress((data_dir / file).read_bytes()))["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"][:3]:
                    answers = [answer["text"] for answer in question["answers"]]
                    wrong = paragraph["context"][:30] if len(rows) % 2 else None
                    fields = (str(question["id"]), question["question"], answers, paragraph["context"])
                    rows.append(example(*fields, "ar" if name == "ar" else "en", prediction=wrong))
        evaluations[name] = rows
    text, page = report_on(write_run(tmp_path / "real", evaluations))
    assert page.count("article") == 3 * 40
    assert len(text.encode()) < 1_500_000
    assert CONTEXT not in text

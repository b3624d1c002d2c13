"""`raydist evaluate` for documents: calibrated on dev, scored on every set."""

import json

import pyarrow.parquet as pq
import pytest
from helpers.passages import Found, InMemory

from raydist.asking import flow
from raydist.asking.asker import Asker
from raydist.asking.calibration import Calibration
from raydist.config import ConfigError, load_config
from raydist.errors import InputError
from raydist.here import Here
from raydist.records import ASKED_SCHEMA, EVALUATION_SCHEMA
from raydist.runs.run import Run

NAMES = [f"{first}{second}" for first in ("Or", "Vel", "Mi", "Ha", "Tam") for second in ("la", "da", "na", "sko", "ro", "vik")]
LIBRARY = InMemory([Found(f"{name}.md#0", f"{name}.md", f"{name} {number}") for number, name in enumerate(NAMES)])


def asked(path, names) -> str:
    rows = [{"question": f"Where is {name}?", "answers": [name], "document": f"{name}.md"} for name in names]
    rows += [{"question": f"Where is {name} not?", "answers": []} for name in names[:3]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def run(tmp_path, reader):
    """A run whose questions are about names, for a reader that knows nothing: of passages of two words it gets some right."""

    def run(**settings) -> Run:
        config = load_config(
            "reader",
            [
                *("task=documents", "name=names", f"storage={tmp_path / 'runs'}", f"asking.reader={reader.folder}"),
                *("asking.k=2", "asking.kind=bm25", "evaluate.at_k=[1,2]", "evaluate.bootstrap=50", "asking.block=7"),
                *(f"asking.{key}={value}" for key, value in settings.items()),
            ],
        ).config
        return Run(config, Here())

    return run


def test_dev_calibrates_and_every_set_is_scored(run, tmp_path):
    files = {"dev": asked(tmp_path / "dev.jsonl", NAMES[:20]), "test": asked(tmp_path / "test.jsonl", NAMES[20:])}
    with run(questions=json.dumps(files)) as opened:
        scores = flow.evaluate(opened, LIBRARY)
    folder = tmp_path / "runs" / "names"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert scores["test"]["questions"] == 13
    assert metrics["asking.test.recall@1"] == scores["test"]["recall@1"] == 100.0
    assert metrics["asking.test.gold_recall@1"] == 100.0
    assert sum(value for key, value in scores["test"].items() if key.startswith("errors.")) == 13
    assert {"em", "em.low", "f1", "precision", "not_found.recall", "calibration_error", "seconds.read"} <= scores["test"].keys()
    for name, rows in (("dev", 23), ("test", 13)):
        assert pq.read_table(folder / "asking" / f"{name}.parquet").cast(ASKED_SCHEMA).num_rows == rows
        assert pq.read_table(folder / "evaluation" / f"{name}.parquet").cast(EVALUATION_SCHEMA).num_rows == rows
    calibration = Calibration.load(folder / "asking" / "calibration.json")
    assert calibration.questions == 23


def test_the_calibration_of_a_run_is_used_by_askers_of_the_same_setup(run, tmp_path, reader):
    with run(questions=json.dumps({"dev": asked(tmp_path / "dev.jsonl", NAMES)})) as opened:
        flow.evaluate(opened, LIBRARY)
    file = tmp_path / "runs" / "names" / "asking" / "calibration.json"
    asker = Asker.open(LIBRARY, reader=str(reader.folder), calibration=file, kind="bm25", k=2)
    assert asker.ask("Where is Orla?").calibrated


def test_without_dev_nothing_is_calibrated_and_nothing_withheld(run, tmp_path, capsys):
    with run(questions=json.dumps({"test": asked(tmp_path / "test.jsonl", NAMES[:5])})) as opened:
        scores = flow.evaluate(opened, LIBRARY)
    assert scores["test"]["answered"] == 100.0
    assert "calibration_error" not in scores["test"]
    assert "probabilities are not calibrated" in capsys.readouterr().out


def test_what_cannot_be_evaluated_is_said(run, tmp_path):
    with pytest.raises(InputError, match=r"there is nothing to evaluate with: set asking\.questions\.NAME"):
        flow.evaluate(run(), LIBRARY)
    (tmp_path / "empty.jsonl").write_text('{"question": "Who?", "answers": 3}\n')
    with pytest.raises(InputError, match="answers is not a list of texts"):
        flow.evaluate(run(questions=json.dumps({"test": str(tmp_path / "empty.jsonl")})), LIBRARY)
    with pytest.raises(InputError, match="there is nothing to train with documents"):
        flow.train(run())


def test_settings_that_contradict_each_other_are_refused(run):
    with pytest.raises(ConfigError, match="precision and threshold both set the threshold"):
        run(precision=0.5, threshold=0.5)
    with pytest.raises(ConfigError, match=r"a set cannot be called 'a\.b'"):
        run(questions='{"a.b": x.json}')

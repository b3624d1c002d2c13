"""The report of a sweep, from a folder made by hand."""

import json
import re

import pytest
from helpers.made_run import write_run

from raydist.errors import InputError
from raydist.report.sweep import scale, write_sweep_report


def make_sweep(folder, *, values=("1", "50", "<b>500</b>"), seeds=(0, 1)):
    """Two parameters; the score is a function of both, the last setting was stopped."""
    rows = []
    for i, size in enumerate(values):
        for j, alpha in enumerate((0.1, 0.5)):
            trials = [
                {"seed": seed, "id": f"t{i}{j}{seed}", "status": "done", "value": 70.0 + 3 * i - j + seed} for seed in seeds
            ]
            mean = sum(trial["value"] for trial in trials) / len(seeds)
            rows.append({"choice": {"size": size, "alpha": alpha}, "mean": mean, "deviation": 0.71, "trials": trials})
    rows.sort(key=lambda row: -row["mean"])
    for trial in rows[-1]["trials"]:
        trial["status"] = "stopped"
    found = {
        "name": "tried",
        "metric": "dev.f1",
        "mode": "max",
        "search": "grid",
        "scheduler": "asha",
        "keys": ["size", "alpha"],
    }
    found |= {"log": [], "seeds": list(seeds), "best": rows[0], "settings": rows}
    folder.mkdir()
    (folder / "sweep.json").write_text(json.dumps(found))
    write_run(folder / "trials" / rows[0]["trials"][0]["id"], {}, steps=30)
    write_run(folder / "trials" / rows[1]["trials"][0]["id"], {}, steps=30, seed=1)
    return folder


def test_a_sweep_has_its_ranking_and_every_figure(tmp_path):
    text = write_sweep_report(make_sweep(tmp_path / "sweep")).read_text(encoding="utf-8")
    assert re.findall(r"<h2[^>]*>([^<]*)", text) == ["Overview", "Settings", "Each parameter", "Together", "Learning curves"]
    assert text.count("<svg") == 4  # a figure for each parameter, parallel coordinates, curves
    for title in ("dev F1 against size", "dev F1 against alpha", "Parallel coordinates", "dev F1 during training"):
        assert f"<b>{title}</b>" in text
    assert "10 done, 2 stopped" in text
    assert "<b>500</b>" not in text  # a value that looks like markup is text
    assert "&lt;b&gt;500&lt;/b&gt;" in text
    assert "<script" not in text


def test_one_parameter_and_no_curves_leave_out_what_cannot_be_drawn(tmp_path):
    folder = make_sweep(tmp_path / "sweep")
    found = json.loads((folder / "sweep.json").read_text())
    found |= {"keys": ["alpha"], "settings": [], "best": None}
    (folder / "sweep.json").write_text(json.dumps(found))
    text = write_sweep_report(folder).read_text(encoding="utf-8")
    assert re.findall(r"<h2[^>]*>([^<]*)", text) == ["Overview"]


def test_an_axis_places_few_values_evenly_and_a_range_by_its_size():
    even, ticks = scale([1, 10, 1000], log=False, even=True)
    assert [even(value) for value in (1, 10, 1000)] == [0.0, 0.5, 1.0]
    assert ticks == [(0.0, "1"), (0.5, "10"), (1.0, "1000")]
    log, _ = scale([10.0**-i for i in range(9)], log=True, even=True)
    assert log(1e-4) == pytest.approx(0.5)
    mean, ticks = scale([70.0, 72.0, 80.0], log=False, even=False)
    assert mean(72.0) == pytest.approx(0.2)
    assert scale([5.0, 5.0], log=False, even=False)[0](5.0) == 0.5
    mixed, _ = scale([None, "a", None], log=False, even=True)
    assert (mixed(None), mixed("a")) == (0.0, 1.0)


def test_a_folder_that_is_no_sweep_is_named(tmp_path):
    with pytest.raises(InputError, match=r"has no sweep\.json"):
        write_sweep_report(tmp_path)

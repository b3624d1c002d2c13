"""benchmarks/experiments.py: in which order configs are compared, and what it takes for another run than it would make."""

import json
import os
import subprocess
import sys

import experiments
import pytest
from conftest import CHECKOUT
from experiments import CONFIGS, changed_settings, comparisons, is_done, run_name
from helpers.tiny import choices

from raydist.config import load_config, to_yaml
from raydist.config.objectives import PfaConfig
from raydist.report.published.reader import _exactness, differences, fits, objectives_of
from raydist.report.published.tables import papers
from raydist.report.runs import ReportedRun


def names(group: str, only: tuple[str, ...] = ()) -> list[list[str]]:
    return [[run_name(path, 0) for path in configs] for configs in comparisons(CONFIGS / group, only)]


def test_every_reader_is_compared_with_the_plain_one_of_its_own_data():
    assert names("real") == [["real_plain_0", "real_infomax_0", "real_infomax_pfa_0", "real_pfa_0"]]
    shares = names("low_resource")
    assert len(shares) == 5
    assert ["low_resource_plain_20_0", "low_resource_pfa_20_0"] in shares
    for configs in comparisons(CONFIGS / "low_resource"):
        assert len({load_config(str(path)).config.data.train.questions for path in configs}) == 1
    for group in ("real", "sample", "low_resource", "ablation", "pfa"):
        for configs in comparisons(CONFIGS / group):
            found = [load_config(str(path)).config for path in configs]
            assert found[0].objectives.model_dump(exclude={"span"}, exclude_none=True) == {}
            assert all(config.data == found[0].data and config.train == found[0].train for config in found)
            assert len({config.name for config in found}) == len(found)


def test_ablations_share_the_runs_of_the_plain_reader_and_of_the_full_method():
    infomax, pfa, xmrc = names("ablation")
    assert infomax[0] == pfa[0] == "real_plain_0"
    assert {"real_infomax_0", "ablation_infomax_lc_0", "ablation_infomax_gc_max_0"} <= set(infomax)
    assert {"real_pfa_0", "ablation_pfa_ep_0", "ablation_pfa_swep_0"} <= set(pfa)
    assert {"ablation_xmrc_plain_0", "xmrc_0", "ablation_xmrc_top1_0"} <= set(xmrc)
    assert names("ablation", ("plain", "lc")) == [["real_plain_0", "ablation_infomax_lc_0"], ["real_plain_0"], xmrc[:1]]


def test_pfa_is_chosen_by_a_development_set_and_tested_on_others():
    choice, test = ([load_config(str(path)).config for path in configs] for configs in comparisons(CONFIGS / "pfa"))
    assert all(config.data.dev and not config.data.test for config in choice)
    assert all(config.data.test and not config.data.dev for config in test)
    tested = {file for source in test[0].data.test.values() for file in source.files}
    assert not tested & set(choice[0].data.dev.files)
    assert choice[0].data.train == test[0].data.train
    studied = [config.objectives.pfa for config in choice if config.objectives.pfa]
    assert {pfa.align for pfa in studied} == set(choices(PfaConfig, "align")) - {"fro"}
    assert {pfa.points for pfa in studied} == {"tokens", "passages"}
    assert {pfa.critic_sees for pfa in studied} == {"scaled", "raw"}


ROWS = {  # each ablation, and what the row that stands for it is called
    "infomax": {
        "plain": "BERT-base",
        "infomax": "BERT-base + QAInfomax",
        "lc": "+ LC alone",
        "gc": "+ GC alone, mean",
        "gc_max": "+ GC alone, max",
        "gc_sample": "+ GC alone, sample",
    },
    "pfa": {
        "plain": "RoBERTa-base",
        "pfa": "PFA",
        "ep": "+ perturbation alone",
        "sa": "+ alignment alone",
        "cos": "PFA, cos",
        "kl": "PFA, KL",
        "js": "PFA, JS",
        "swep": "SWEP",
    },
    "xmrc": {
        "plain": "XLM-R base",
        "xmrc": "two-stage",
        "mml": "with MML",
        "without_hl": "without hard learning",
        "without_contrast": "without contrast",
        "top1": "top-1 as hard negative",
        "random": "random hard negative",
    },
}
OURS = {"pfa.start", "pfa.penalty_at", "pfa.critic_sees", "hard_learning.mode"}  # as docs/methods.md 4 and 6 say


def published_row(path, paper: int) -> tuple[str, set[str]]:
    """The row that speaks most exactly of a config, and in which settings of its objectives the config is not as published."""
    run = ReportedRun(path, path.stem, load_config(str(path)).config.model_dump(mode="json"))
    objectives, setting = objectives_of(run), papers()[paper][0]
    row = max((row for row in setting.rows if fits(row, objectives)), key=_exactness)
    what = [str(line[0]) for line in differences([run], setting, [], {}, row, objectives)]
    start, end = "<code>objectives.", "</code>"
    return row.method, {text.removeprefix(start).removesuffix(end) for text in what if text.startswith(start)}


@pytest.mark.parametrize(("paper", "name"), enumerate(ROWS))
def test_every_ablation_is_the_published_one(paper, name):
    (configs,) = comparisons(CONFIGS / "ablation" / name)
    found = {path.stem: published_row(path, paper) for path in configs}
    assert {stem: row for stem, (row, _) in found.items()} == ROWS[name]
    for stem, (_, different) in found.items():
        assert different <= OURS, stem


@pytest.mark.parametrize("group", ["real", "sample"])
def test_a_config_has_the_objectives_it_is_called_by_and_as_they_are_by_default(group):
    for path in (path for configs in comparisons(CONFIGS / group) for path in configs):
        config = load_config(str(path)).config
        on = config.objectives.model_dump(exclude={"span"}, exclude_none=True)
        assert "_".join(on) == ("" if path.stem == "plain" else path.stem)
        assert all(getattr(config.objectives, name) == type(getattr(config.objectives, name))() for name in on)


def test_low_resource_are_the_published_shares_of_all_its_questions():
    found = {}
    for configs in comparisons(CONFIGS / "low_resource"):
        assert [published_row(path, 1)[0] for path in configs] == ["RoBERTa-base", "PFA"]
        (found[configs[0].parent.name],) = {load_config(str(path)).config.data.train.questions for path in configs}
    assert found == {str(share): share * found["100"] // 100 for share in (20, 40, 60, 80, 100)}
    assert found["100"] == 8000


def made_run(folder, *overrides, done=True):
    """A folder as `raydist run` leaves it."""
    folder.mkdir()
    config = load_config("experiments/real/pfa", ["seed=0", *overrides]).config
    (folder / "config.yaml").write_text(to_yaml(config))
    (folder / "training.json").write_text(json.dumps({"done": done}))
    (folder / "report.html").write_text("")
    return config


def test_a_run_of_other_settings_is_not_taken_for_this_one(tmp_path):
    now = made_run(tmp_path / "run")
    assert is_done(tmp_path / "run")
    assert changed_settings(tmp_path / "run", now) == []
    other = ("cluster.workers=3", "track.mlflow=http://x", "storage=s", "name=n", "index.precision=bf16", "mining.power=1")
    made_run(tmp_path / "elsewhere", *other)
    assert changed_settings(tmp_path / "elsewhere", now) == []  # no score depends on these
    made_run(tmp_path / "other", "objectives.pfa.start=random", done=False)
    assert not is_done(tmp_path / "other")
    assert changed_settings(tmp_path / "other", now) == ["objectives.pfa.start: random then, projection now"]
    saved = tmp_path / "run" / "config.yaml"
    saved.write_text("\n".join(line for line in saved.read_text().splitlines() if "critic_sees" not in line))
    assert changed_settings(tmp_path / "run", now) == ["objectives.pfa.critic_sees: not there then, scaled now"]
    assert not is_done(tmp_path / "none")
    assert changed_settings(tmp_path / "none", now) == []


def watched_runs(monkeypatch, returncode: int = 0) -> list[list[str]]:
    """The commands that would be run."""
    called: list[list[str]] = []

    def run(command, **_):
        called.append(command)
        return subprocess.CompletedProcess(command, returncode)

    monkeypatch.setattr(experiments.subprocess, "run", run)
    return called


def test_runs_at_once_share_the_cores_and_have_logs_of_their_own(tmp_path, monkeypatch):
    called = watched_runs(monkeypatch)
    arguments = ["real", "--only", "plain", "pfa", "--seeds", "0", "--at-once", "2", "--storage", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["experiments.py", *arguments])
    experiments.main()
    runs = [command for command in called if "run" in command]
    assert len(runs) == 2
    assert all(f"cluster.threads_per_worker={max(1, os.cpu_count() // 2)}" in command for command in runs)
    assert {path.name for path in tmp_path.glob("*.log")} == {"real_plain_0.log", "real_pfa_0.log"}


def test_a_run_that_failed_is_named_and_none_begins_after_it(tmp_path, monkeypatch):
    called = watched_runs(monkeypatch, returncode=1)
    monkeypatch.setattr(sys, "argv", ["experiments.py", "real", "--seeds", "0", "--storage", str(tmp_path)])
    with pytest.raises(SystemExit, match="failed: real_plain_0"):
        experiments.main()
    assert len(called) == 1


def test_the_lines_of_the_makefile_are_understood(tmp_path, monkeypatch):
    """With the overrides after a list of seeds, too: nothing is run, but every command is made."""
    lines = [
        line.split("experiments.py ")[1]
        for line in (CHECKOUT / "Makefile").read_text().splitlines()
        if "experiments.py" in line
    ]
    assert len(lines) >= 4
    for line in lines:
        called = watched_runs(monkeypatch)
        words = line.replace("$(DATA)", "somewhere").split()
        monkeypatch.setattr(sys, "argv", ["experiments.py", *words, "--storage", str(tmp_path)])
        experiments.main()
        runs = [command for command in called if "run" in command]
        assert runs, line
        if "data.root=" in line:
            assert all(any(word.startswith("data.root=") for word in command) for command in runs)


def test_other_settings_stop_the_command_before_anything_begins(tmp_path, monkeypatch):
    made_run(tmp_path / "real_pfa_1", "optim.lr=1")
    arguments = ["real", "--only", "pfa", "--seeds", "0", "1", "--storage", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["experiments.py", *arguments])
    with pytest.raises(SystemExit, match=r"(?s)real_pfa_1 was made with.*optim.lr: 1.0 then, 0.0001 now.*--fresh"):
        experiments.main()
    assert [path.name for path in tmp_path.iterdir()] == ["real_pfa_1"]

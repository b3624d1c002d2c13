"""Preflight as a whole: all problems at once, and what a job runs."""

from helpers.submission import refused

from raydist.submission.preflight import prepare


def test_all_problems_come_in_one_message(dashboard, capsys):
    said = refused(capsys, "report", "bridges.yaml", "optm.lr=1", "--address", dashboard(version="2.9.0"))
    assert "3 problems\n" in said
    assert "report: cannot run as a job; these can: evaluate, " in said
    assert "optm: unknown key; did you mean optim?" in said
    assert "runs Ray 2.9.0" in said
    said = refused(capsys, "evaluate", "bridges.yaml", "data.dev=no.json", "--fresh", "--address", dashboard())
    assert "3 problems\n" in said
    assert "evaluate has no option --fresh" in said
    assert "no file at" in said
    assert "storage: runs" in said


def test_a_sweep_that_cannot_be_run_is_refused_here(dashboard, capsys):
    said = refused(capsys, "sweep", "debug_sweep", "sweep.metric=nothing.f1", "storage=s3://b/x", "--address", dashboard())
    assert "sweep.metric: nothing.f1 is of no data set that is scored" in said


def test_a_data_file_with_a_remote_address_is_refused_as_the_reader_would(dashboard, capsys):
    change = "data.dev=s3://b/dev.json"
    assert "is a remote address" in refused(capsys, "run", "bridges.yaml", change, "storage=s3://b/x", "--address", dashboard())


def test_the_raydist_of_the_working_directory_is_the_one_that_runs(dashboard, working_dir):
    (working_dir / "raydist").mkdir()
    (working_dir / "raydist/__init__.py").write_text("")
    parcel = prepare("train", "bridges.yaml", ["storage=s3://b/x"], address=dashboard()).parcel
    assert [name for name in parcel.files if name.startswith("raydist/")] == ["raydist/__init__.py"]

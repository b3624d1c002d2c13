"""What dev and train share with a test set is said, or refused."""

import pytest
from helpers.question_files import qa, squad, write

from raydist.config import load_config
from raydist.errors import InputError
from raydist.here import Here
from raydist.reader import flow, trials
from raydist.reader.prepare import make_examples, prepare, report_overlap
from raydist.reader.stages import WindowSet
from raydist.retrieval import prepare as retrieval_prepare
from raydist.runs.run import Run

OTHER = "Bo was born in Rome. Bo died in Bonn."


def questions(*texts: str, start: int = 0):
    return [qa(f"q{start + number}", text, [("Rome", 15)]) for number, text in enumerate(texts)]


@pytest.fixture
def files(tmp_path):
    """A dev set that has one of the test set's three questions, in other case, and one of its two passages; train has that
    passage, too.
    """
    test = squad(*questions("Where was Bo born?", "Which town?"), context=OTHER)
    test["data"] += squad(qa("q9", "Where was Ada from?"))["data"]
    return {
        "train": write(tmp_path / "train.json", squad(*questions("Where is it?", start=20), context=OTHER)),
        "dev": write(tmp_path / "dev.json", squad(*questions("where was BO born", "What place?", start=40), context=OTHER)),
        "test.foreign": write(tmp_path / "test.json", test),
        "test.apart": write(tmp_path / "apart.json", squad(qa("q70", "Who?", [("Eve", 0)]), context="Eve lives here.")),
    }


def run_of(tmp_path, files, *overrides: str) -> Run:
    given = [f"data.{name}={file}" for name, file in files.items()]
    config = load_config("debug_reader", [f"storage={tmp_path}/runs", "data.test={}", *given, *overrides]).config
    return Run(config, Here())


def overlaps(run: Run, **how) -> list[str]:
    sets = run.config.sets()
    prepare(run, sets)
    report_overlap(run, sets, **how)
    return [line["text"] for line in run.folder.read_json("overlap.json")]


DEV = "dev has 1 of 3 questions and 1 of 2 passages of test set foreign: the model is chosen by what it is tested on"
TRAIN = "train has 1 of 2 passages of test set foreign: it is tested on what it was trained on"


def test_each_overlap_is_said_with_its_counts_on_a_line_of_its_own(tmp_path, files, capsys):
    run = run_of(tmp_path, files)
    assert overlaps(run) == [DEV, TRAIN]
    said = capsys.readouterr().out
    assert said.count(DEV) == said.count(TRAIN) == 1


def test_of_dev_only_where_something_is_chosen_by_it(tmp_path, files):
    files = {name: file for name, file in files.items() if name != "train"}
    chooses_nothing = ["train.choose=last"]
    assert overlaps(run_of(tmp_path, files, *chooses_nothing)) == []
    assert overlaps(run_of(tmp_path, files, *chooses_nothing), is_ranked=True) == [DEV]
    assert overlaps(run_of(tmp_path, files, *chooses_nothing, "train.early_stop=3")) == [DEV]
    assert overlaps(run_of(tmp_path, files, "train.evaluate_every=0", "train.choose=last")) == []


def test_it_is_refused_where_the_config_says_so(tmp_path, files):
    run = run_of(tmp_path, files, "data.overlap=refuse")
    with pytest.raises(
        InputError, match=r"dev has 1 of 3 questions .* Take other data for dev and train, or set data.overlap: warn"
    ):
        trials.prepare_trials(run)
    with pytest.raises(InputError, match="dev has 1 of 3 questions"):
        flow.run_all(run_of(tmp_path, files, "data.overlap=refuse"))
    assert not run.folder.exists("training.json")
    del files["test.foreign"]
    assert overlaps(run_of(tmp_path, files, "data.overlap=refuse")) == []


def test_questions_that_are_not_taken_are_not_counted(tmp_path, files):
    run = run_of(tmp_path, files)
    half = run_of(tmp_path, files, "name=half", "data.dev.only=[0,2]")
    other = run_of(tmp_path, files, "name=other", "data.dev.only=[1,2]")
    counted = []
    for one in (run, half, other):
        overlaps(one)
        lines = [line for line in one.folder.read_json("overlap.json") if line["other"] == "dev"]
        counted.append(sum(line["questions"] for line in lines))
    assert counted[0] == counted[1] + counted[2] == 1


def test_an_evaluation_leaves_what_was_said_of_train(tmp_path, files):
    run = run_of(tmp_path, files)
    before = overlaps(run)
    names = [name for name in run.config.sets() if name != "train"]
    report_overlap(run, names)
    assert sorted(line["text"] for line in run.folder.read_json("overlap.json")) == sorted(before)


def test_questions_of_corpora_are_compared_too(tmp_path):
    same = "corpus.test.same={files: 'sample:', split: train, questions: 20}"
    given = [f"storage={tmp_path}/runs", same, "corpus.dev_share=0.3", "train.evaluate_every=null", "train.choose=best"]
    run = Run(load_config("debug_retrieval", given).config, Here())
    corpora = retrieval_prepare.open_corpora(run)
    retrieval_prepare.report_overlap(run, corpora)
    shared = {(line["other"], line["test"]): line["questions"] for line in run.folder.read_json("overlap.json")}
    assert shared["dev", "same"] + shared["train", "same"] == 20
    assert shared["dev", "same"] > 0


def test_a_dev_corpus_of_its_own_is_compared_with_train(tmp_path):
    given = [f"storage={tmp_path}/runs", "corpus.test={}", "corpus.dev={files: 'sample:', split: train, questions: 7}"]
    run = Run(load_config("debug_retrieval", given).config, Here())
    retrieval_prepare.report_overlap(run, retrieval_prepare.open_corpora(run))
    (line,) = run.folder.read_json("overlap.json")
    assert line["text"] == "train has 7 of 7 questions of dev: the model is chosen by what it was trained on"


@pytest.mark.realdata
def test_xquad_is_told_to_be_of_squads_dev_set(tmp_path, data_dir):
    files = {"dev": data_dir / "squad/dev-A-v1.1.json.gz", "test.xquad": data_dir / "xquad/xquad.en.A.json.gz"}
    run = run_of(tmp_path, files, "data.train=null")
    sets = run.config.sets()
    examples = make_examples(run, sets)
    run.prepared = {name: WindowSet(made, made) for name, made in examples.items()}
    report_overlap(run, sets)
    (line,) = run.folder.read_json("overlap.json")
    assert (line["other"], line["test"], line["passages"]) == ("dev", "xquad", line["of_passages"])
    assert line["questions"] == line["of_questions"] == 561

"""The format of a corpus by its files; what is refused before anything starts; zipped BEIR sets."""

import json
import stat
import zipfile

import pytest
from helpers.corpus_files import CORPUS, write_beir
from helpers.question_files import QA, write

from raydist.config import CorpusSource, load_config
from raydist.corpus.recognise_corpus import corpus_format
from raydist.errors import InputError
from raydist.here import Here
from raydist.retrieval.prepare import corpus_stage
from raydist.runs.run import Run


@pytest.mark.parametrize(
    ("name", "content", "format"),
    [
        ("a.json", {"ground_truths": [[0]], "candidates": ["Here."], "questions": ["Where?"]}, "reqa"),
        ("a.json", {"questions": ["Where?"], "answers": ["Here."], "question_ids": [1]}, "pairs"),
        ("a.jsonl", [{"_id": "d", "text": "It flows."}], "documents"),
        ("a.csv", "document_id,text\nd,It flows.\n", "documents"),
        ("a.jsonl", [QA], "squad"),
        ("a.json", {"data": [{"paragraphs": []}]}, "squad"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_single_file_is_recognised(tmp_path, name, content, format, packed):
    path = tmp_path / (name + ".gz" * packed)
    write(path, content, packed)
    assert corpus_format([path]) == format


def test_three_tables_are_not_three_files_without_headers(tmp_path):
    files = [tmp_path / name for name in ("c.tsv", "q.tsv", "g.tsv")]
    for file, text in zip(files, ("sentence_id\ttext\n", "question_id\ttext\n", "question_id\tsentence_id\tby\trelevance\n")):
        file.write_text(text)
    assert corpus_format(files) == "tables"
    files[2].write_text("q1\t0\td1\t1\n")
    assert corpus_format(files) == "msmarco"
    assert corpus_format(files, {"text": "body"}) == "tables"


def test_what_is_no_corpus_is_told_what_is_one(tmp_path):
    (tmp_path / "notes.txt").write_text("just words")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(InputError, match=r"is no corpus.*wanted a BEIR or MS MARCO folder.*say which with `format`"):
            corpus_format([path])


@pytest.fixture
def stage_of(tmp_path):
    def stage_of(*files, **settings):
        run = Run(load_config("debug_retrieval", [f"storage={tmp_path}/runs"]).config, Here())
        return corpus_stage(run, "x", CorpusSource(files=[str(file) for file in files], **settings))

    return stage_of


@pytest.fixture
def beir(tmp_path):
    folder = tmp_path / "set" / "oder"
    write_beir(folder, CORPUS, [{"_id": "q1", "text": "Where?"}], [("q1", "d1", 1)])
    return folder


def zipped(folder, **members):
    path = folder.parent / "oder.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder.parent))
        for name, content in members.items():
            archive.writestr(content, name)
    return path


def test_a_zipped_beir_set_is_the_set_in_it_and_unpacked_once(stage_of, beir, tmp_path):
    path = zipped(beir, readme="oder/README.md")
    stage = stage_of(path, split="test")
    assert stage.fingerprint == stage_of(beir, split="test", format="beir").fingerprint
    assert stage.open_set().whole().questions.num_rows == 1
    (unpacked,) = (tmp_path / "runs" / "stages").glob("unpacked-*")
    files = sorted(file.relative_to(unpacked).as_posix() for file in unpacked.rglob("*") if file.is_file())
    assert files == ["corpus.jsonl", "qrels/test.tsv", "queries.jsonl", "unpacked.json"]
    before = (unpacked / "corpus.jsonl").stat().st_ino
    stage_of(path, split="test")
    assert (unpacked / "corpus.jsonl").stat().st_ino == before
    assert sorted(file.name for file in beir.parent.iterdir()) == ["oder", "oder.zip"], "nothing beside the user's file"


@pytest.mark.parametrize("name", ["../evil.jsonl", "/etc/evil", "oder/../../evil", "..\\evil", "C:\\evil"])
def test_a_zip_that_would_write_elsewhere_is_refused_by_name(stage_of, beir, tmp_path, name):
    with pytest.raises(InputError) as raised:
        stage_of(zipped(beir, bad=name), split="test")
    assert repr(name) in str(raised.value)
    assert "nothing is unpacked" in str(raised.value)
    assert not list(tmp_path.rglob("*evil*")) + list((tmp_path / "runs").rglob("corpus.jsonl*"))


def test_links_other_zips_and_damaged_ones_are_refused(stage_of, beir):
    path = zipped(beir)
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("oder/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(InputError, match="'oder/link' is a link"):
        stage_of(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "x")
    with pytest.raises(InputError, match=r"has no corpus\.jsonl, only a\.txt"):
        stage_of(path)
    path.write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(InputError, match="damaged or encrypted ZIP"):
        stage_of(path)


def test_a_split_that_is_not_there_is_answered_with_those_that_are(stage_of, beir):
    (beir / "qrels" / "dev.tsv.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"corpus x: .* has no gold of the split 'train', only of dev, test: set `split`"):
        stage_of(beir)
    with pytest.raises(InputError, match="only of dev, test"):
        stage_of(zipped(beir))


def test_tables_with_other_columns_are_refused_before_they_are_read(stage_of, tmp_path):
    files = []
    for name, row in (("c", {"sentence_id": 1, "text": "x"}), ("q", {"id": 1, "text": "x"}), ("g", {})):
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=r"corpus x: .*q\.jsonl has no column 'question_id', only id, text"):
        stage_of(*files)
    (tmp_path / "p.json").write_text(json.dumps({"questions": [], "answers": [], "question_ids": []}))
    with pytest.raises(InputError, match=r"corpus x: columns: .* of format pairs, which has names of its own"):
        stage_of(tmp_path / "p.json", columns={"text": "body"})


@pytest.mark.parametrize("format", ["documents", "reqa", "tables"])
def test_the_language_asked_for_is_that_of_rows_that_state_none(stage_of, tmp_path, format):
    contents = {
        "documents": [("d.jsonl", '{"_id": "d", "text": "Es kam am 3. Mai. Es ging."}\n')],
        "reqa": [("r.json", json.dumps({"questions": ["Wo?"], "candidates": ["Da."], "ground_truths": [[0]]}))],
        "tables": [
            ("c.csv", "sentence_id,text\ns,Da.\n"),
            ("q.csv", "question_id,text\nq,Wo?\n"),
            ("g.csv", "question_id,sentence_id\nq,s\n"),
        ],
    }
    for name, content in contents[format]:
        (tmp_path / name).write_text(content)
    files = [tmp_path / name for name, _ in contents[format]]
    plain, german = stage_of(*files), stage_of(*files, language="de")
    assert plain.format == format
    assert plain.fingerprint != german.fingerprint
    found = german.open_set()
    (sentences, _), *_ = found.blocks()
    assert set(sentences["language"].to_pylist()) == {"de"}
    if format == "documents":
        assert sentences.num_rows == 2, "cut by German rules: the 3rd of May ends no sentence"
    else:
        assert found.questions_and_gold()[0]["language"].to_pylist() == ["de"]

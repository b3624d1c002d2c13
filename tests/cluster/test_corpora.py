"""Corpora of every kind, from files to an index, without Ray: what is read, what is refused, and that it is told."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModel

from raydist.config import load_config
from raydist.errors import InputError
from raydist.models.folders import model_folder
from raydist.retrieval import bm25, flow, hits, trials, words
from raydist.retrieval.encode import TextEncoder
from raydist.retrieval.prepare import open_corpora
from raydist.retrieval.searcher import Searcher
from raydist.runs.run import Run
from raydist.runs.stages import read_stages

PAGES = [{"_id": "light", "text": "Zyxquor built a lighthouse. It fell in 1911."}, {"_id": "oder", "text": "It flows."}]


@pytest.fixture
def make_run(here, tmp_path):
    def make_run(*overrides: str) -> Run:
        given = [f"storage={tmp_path / 'runs'}", f"data.root={tmp_path}", "corpus.test=null", *overrides]
        run = Run(load_config("debug_retrieval", given).config, here)
        run.begin()
        return run

    return make_run


def write_rows(path, rows):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def found(run, question):
    return [(hit.sentence_id, hit.text) for hit in Searcher(run.folder.path()).search([question], 2)[0]]


def test_plain_documents_are_indexed_and_more_are_added(make_run, tmp_path, capsys):
    write_rows(tmp_path / "pages.jsonl", PAGES)
    run = make_run("corpus.train={files: '*.jsonl', format: documents}")
    flow.index(run)
    assert found(run, "Who built the lighthouse?")[0] == ("light#0000#000", "Zyxquor built a lighthouse.")
    more = tmp_path / "more" / "pages.jsonl"
    bad = [{"_id": "blank", "text": " "}, {"text": "Nameless."}]
    write_rows(more, [*bad, {"_id": "tower", "text": "A tower stood here.\n\nQuxoria pulled it down."}])
    with pytest.raises(InputError, match=r"pages.jsonl: 50.0% of the rows are bad, more than data.max_rejected"):
        flow.add_to_index(run, [more])
    assert "rejected 2 rows (1 empty document, 1 missing key)" in capsys.readouterr().out
    lenient = make_run("data.max_rejected=0.5")  # how the corpus was read is known to the index
    assert flow.add_to_index(lenient, [more]) == 2
    assert found(run, "Who pulled it down, Quxoria?")[0] == ("tower#0001#000", "Quxoria pulled it down.")
    named = pq.read_table(run.folder.path("rejected", "added.parquet")).to_pylist()
    assert [(row["line"], row["id"]) for row in named] == [(2, ""), (1, "blank")]


def test_an_index_is_made_searched_and_added_to_by_the_command_line(command, tmp_path, capsys):
    write_rows(tmp_path / "pages.jsonl", PAGES)
    more = tmp_path / "more.jsonl"
    write_rows(more, [{"_id": "tower", "text": "Quxoria pulled the tower down."}])
    given = ["debug_retrieval", f"storage={tmp_path / 'runs'}", f"data.root={tmp_path}", "corpus.test=null"]
    given += ["corpus.train={files: pages.jsonl, format: documents}"]
    folder = tmp_path / "runs" / "debug_retrieval" / "index"

    def lines(name: str, *arguments: str, status: int = 0) -> list[str]:
        assert command(name, *arguments) == status
        said = capsys.readouterr()
        return (said.err if status else said.out).splitlines()

    assert lines("index", *given)[-1] == f'index in {folder}; ask it with: raydist search {folder} "..."'
    first, *others = lines("search", str(folder), "Who built the lighthouse?")
    rank, score, id, *words = first.split()
    assert (rank, id, " ".join(words)) == ("1", "light#0000#000", "Zyxquor built a lighthouse.")
    assert float(score) > 0
    assert not any("Quxoria" in line for line in others)
    assert lines("index", *given, "--add", str(more))[-1] == f"added 1 sentences to {folder}"
    (only,) = lines("search", str(folder.parent), "Who pulled Quxoria and the lighthouse down?", "-k", "1")
    assert only.endswith("  tower#0000#000  Quxoria pulled the tower down.")
    (error,) = lines("search", str(tmp_path), "Who?", status=2)
    assert str(tmp_path) in error
    assert "in the index already" in lines("index", *given, "--add", str(more), status=2)[-1]


def test_the_size_of_a_large_index_is_told_before_it_is_built(make_run, tmp_path, capsys, monkeypatch):
    write_rows(tmp_path / "pages.jsonl", PAGES)
    run = make_run("corpus.train={files: pages.jsonl, format: documents}")
    monkeypatch.setattr(hits, "ANNOUNCED_ROWS", 2)
    for told in (1, 0):  # what is built is told no more
        flow.index(run)
        assert capsys.readouterr().out.count("BM25 index of train: 3 sentences, about 0.0 GiB") == told


def test_an_index_must_be_there_to_be_added_to(make_run, tmp_path):
    with pytest.raises(InputError, match="holds no index to add to"):
        flow.add_to_index(make_run("name=none"), [tmp_path / "more.jsonl"])


def test_documents_alone_are_for_an_index_and_nothing_else(make_run, tmp_path):
    write_rows(tmp_path / "pages.jsonl", PAGES)
    run = make_run("corpus.train={files: pages.jsonl, format: documents}")
    for action in (flow.mine, flow.train, flow.run_all, trials.prepare_trials):
        with pytest.raises(InputError, match=r"corpus train: format documents has no questions .* raydist index"):
            action(run)
    run = make_run("corpus.train=null", "corpus.test={pages: {files: pages.jsonl, format: documents}}")
    with pytest.raises(InputError, match="corpus pages: format documents has no questions"):
        flow.evaluate(run)


def test_what_is_left_out_of_a_corpus_is_told(make_run, tmp_path, capsys):
    write_rows(tmp_path / "corpus.jsonl", [*PAGES, PAGES[0]])
    write_rows(tmp_path / "queries.jsonl", [{"_id": id, "text": "Who built it?"} for id in ("here", "zero", "other")])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nhere\tlight\t1\nzero\tlight\t0\n")
    run = make_run(f"corpus.train={tmp_path}", "data.max_rejected=0.5")
    corpus = open_corpora(run)["train"]
    assert (corpus.num_sentences, corpus.num_questions, corpus.num_gold) == (2, 1, 1)
    said = capsys.readouterr().out
    assert "corpus train: 1 questions without gold answers in this split: left out" in said
    assert "corpus train: rejected 2 rows (1 duplicate id, 1 question with no gold sentence)" in said
    (use,) = [use for use in read_stages(run.folder).values() if use.title == "corpus train"]
    assert use.rows == 2, "the report calls these its sentences"


def write_set(folder, gold: dict[str, str], sentences: int = 200):
    """A corpus of sentences s0, s1, ... and one question for each of the gold pairs {question: sentence}."""
    write_rows(folder / "corpus.jsonl", [{"_id": f"s{n}", "text": f"Lighthouse {n} fell."} for n in range(sentences)])
    write_rows(folder / "queries.jsonl", [{"_id": id, "text": f"Which lighthouse is {id}?"} for id in gold])
    (folder / "qrels").mkdir(exist_ok=True)
    lines = "".join(f"{question}\t{sentence}\t1\n" for question, sentence in gold.items())
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)


def test_bad_questions_are_weighed_against_questions_however_many_sentences_there_are(make_run, tmp_path):
    write_set(tmp_path, {f"q{n}": f"s{n}" if n < 9 else "nowhere" for n in range(10)}, sentences=2000)
    for given in (f"corpus.train={tmp_path}", f"corpus.train={{files: {tmp_path}, questions: 3}}"):
        with pytest.raises(InputError, match=r"corpus train: 10.0% of the questions are bad, more than data.max_rejected"):
            open_corpora(make_run(given))
        assert open_corpora(make_run(given, "data.max_rejected=0.1"))["train"].num_questions in (3, 9)


def test_negatives_of_a_corpus_without_documents_come_from_bm25_and_that_is_told(untrained, make_run, tmp_path, capsys):
    write_set(tmp_path, {f"q{n}": f"s{n}" for n in range(40)}, sentences=60)
    run = make_run(f"corpus.train={tmp_path}")
    run.machine = untrained
    flow.train_cross_encoder(run, open_corpora(run)["train"], flow.mining_encoder(run))
    said = "no sentence of the same document for 40 of 40 negatives, drawn from BM25 instead"
    assert capsys.readouterr().out.count(said) == 1
    counts = {"negatives.bm25.bm25": 40, "negatives.dense.dense": 40, "negatives.same_doc.bm25": 40}
    assert counts.items() <= run.folder.read_json("cross_encoder/metrics.json").items()
    assert run.folder.read_json("metrics.json")["cross_encoder.negatives.same_doc.bm25"] == 40


def test_gold_that_meets_no_sentence_is_named_by_reason_file_line_and_id(make_run, tmp_path):
    write_set(tmp_path, {"q1": "x1", "q2": "x2"})
    reason = r"2 gold sentence not in the corpus, the first in .*train\.tsv, line 2, id 'q1' \(x1\); 2 question with no gold"
    with pytest.raises(InputError, match=rf"no question has a gold sentence in the corpus; .* Rejected: {reason}"):
        open_corpora(make_run(f"corpus.train={tmp_path}"))


STORIES = [
    {"_id": "a", "text": "The ships are in the old harbour. No ship sails at night."},
    {"_id": "b", "text": "A sailor sailed the ship to a harbour of ships. It is an ox."},
    {"_id": "c", "text": "He sails. They sail and sail and sail, in ships of old, through the night and the day."},
]


@pytest.mark.parametrize(
    "setting",
    [
        "k1=1.7",
        "b=0.9",
        "idf=robertson",
        "idf=atire",
        "min_chars=3",
        "stop_words=english",
        "stop_words=[ship]",
        "stemmer=english",
    ],
)
def test_every_setting_of_bm25_reaches_the_index_and_its_search(make_run, tmp_path, setting):
    write_rows(tmp_path / "stories.jsonl", STORIES)
    run = make_run("corpus.train={files: stories.jsonl, format: documents}", f"index.{setting}", "index.shard_rows=2")
    flow.index(run)
    searcher, asked = Searcher(run.folder.path()), "Is the ship sailing to an old harbour at night, an ox?"
    table = searcher.tables[0]
    ids, texts = (of(range(len(table))).to_pylist() for of in (table.ids, table.texts))
    given = run.config.index
    rules = words.WordRules(given.min_chars, frozenset(words.stop_words(given.stop_words)), given.stemmer)
    scores = {}
    for name, (its_rules, formula) in {
        "these": (rules, bm25.Formula(given.k1, given.b, given.idf)),
        "defaults": (words.WordRules(), bm25.Formula()),
    }.items():
        bm25.build_index(tmp_path / name, ids, texts, rules=its_rules, formula=formula)
        found = bm25.Index.open(tmp_path / name).search([asked], 6)
        scores[name] = [(ids[row], score) for row, score in zip(found.rows[0].tolist(), found.scores[0].tolist()) if row >= 0]
    assert [(hit.sentence_id, hit.score) for hit in searcher.search([asked], 6)[0]] == scores["these"]
    assert scores["these"] != scores["defaults"]


def test_a_dense_index_is_made_by_the_model_and_once_there_is_one_by_the_retriever_that_was_trained(make_run, tmp_path):
    write_rows(tmp_path / "stories.jsonl", STORIES)
    given = ["corpus.train={files: stories.jsonl, format: documents}", "index.kind=dense", "retriever.answer_context=none"]
    run = make_run(*given)
    trained = tmp_path / "trained"
    shutil.copytree(model_folder("builtin:tiny"), trained)
    model = AutoModel.from_pretrained(trained)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.embeddings.word_embeddings.weight)
    model.save_pretrained(trained)
    asked = "Which ship sails at night?"
    for model in (run.config.model.name, str(trained)):
        if model == str(trained):
            run.folder.upload(trained, "model")
        flow.index(run)
        encoder = TextEncoder(model, max_length=run.config.retriever.max_answer_length)
        found = Searcher(run.folder.path()).search([asked], 6)[0]
        products = encoder.encode([hit.text for hit in found]) @ encoder.encode([asked])[0]
        np.testing.assert_allclose([hit.score for hit in found], products, atol=1e-6)
        assert len(found) == 6


PARAGRAPH = "Zyxquor built a lighthouse. It fell in 1911."
SQUAD_ROW = {"id": "q1", "question": "Who built it?", "answers": [{"text": "Zyxquor", "answer_start": 0}]}
SQUAD = {"data": [{"title": "Light", "paragraphs": [{"context": PARAGRAPH, "qas": [SQUAD_ROW]}]}]}
BOUNDARIES = {"title": "Light", "paragraph": 0, "sentences": [[0, 20], [20, 44]]}


@pytest.mark.parametrize(
    ("source", "content", "sentences", "answer"),
    [
        (
            "format: reqa",
            {"questions": ["Who built it?"], "candidates": ["It fell.", "Zyxquor did."], "ground_truths": [[1]]},
            ["It fell.", "Zyxquor did."],
            "Zyxquor did.",
        ),
        (
            "format: pairs",
            {"questions": ["Who built it?"], "answers": ["Zyxquor did."], "question_ids": [7]},
            ["Zyxquor did."],
            "Zyxquor did.",
        ),
        ("format: squad", SQUAD, ["It fell in 1911.", "Zyxquor built a lighthouse."], "Zyxquor built a lighthouse."),
        (
            "format: squad, boundaries: cut.jsonl",
            SQUAD,
            ["Zyxquor built a ligh", "thouse. It fell in 1911."],
            "Zyxquor built a ligh",
        ),
    ],
)
def test_files_of_every_format_become_sentences_questions_and_gold(make_run, tmp_path, source, content, sentences, answer):
    (tmp_path / "set.json").write_text(json.dumps(content))
    (tmp_path / "cut.jsonl").write_text(json.dumps(BOUNDARIES) + "\n")
    run = make_run(f"corpus.train={{files: set.json, {source}}}")
    corpus = open_corpora(run, ["train"])["train"]
    table = corpus.sentence_table()
    texts = dict(zip(table.ids(range(len(table))).to_pylist(), table.texts(range(len(table))).to_pylist()))
    assert sorted(texts.values()) == sentences
    assert corpus.num_blocks == 1
    questions = corpus.questions(0)
    assert questions["text"].to_pylist() == ["Who built it?"]
    assert [texts[id] for id in corpus.gold(questions)["sentence_id"].to_pylist()] == [answer]


@pytest.mark.parametrize("name", ["index", "mine", "run"])
def test_a_corpus_without_a_sentence_is_one_message_of_every_command(command, tmp_path, capsys, name):
    (tmp_path / "empty" / "qrels").mkdir(parents=True)
    for file in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / "empty" / file).touch()
    (tmp_path / "empty" / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n")
    given = ["debug_retrieval", f"storage={tmp_path / 'runs'}", f"data.root={tmp_path}", "corpus.train=empty"]
    assert command(name, *given) == 2
    file = tmp_path / "empty" / "corpus.jsonl"
    assert capsys.readouterr().err == f"error: {file}: the corpus is empty; wanted at least one sentence with text\n"

"""The recipe: a format is a file and a line of its table. Here the file is this one, and the line is added by each test."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.question_files import recognise_format

from raydist.config import Config, ConfigError, CorpusSource, SourceConfig, override
from raydist.corpus.cutting import sentence_row
from raydist.corpus.examples import plan_splits, read_rows, read_split
from raydist.corpus.formats import CORPUS_FORMATS, READER_FORMATS, open_additions, open_corpus
from raydist.corpus.formats.base import CorpusOfRows, ReaderFormat
from raydist.corpus.open_set import Block, Judged, OpenSet
from raydist.corpus.rejected import BROKEN_JSON, MISSING_KEY, NOT_IN_PASSAGE, UNKNOWN_SENTENCE, Fault
from raydist.corpus.rows import table_rows
from raydist.corpus.schemas import PASSAGE_SCHEMA, SENTENCE_SCHEMA
from raydist.errors import InputError
from raydist.records import GoldAnswer, Rejected


class Cards(ReaderFormat):
    """{"front": question, "back": answer, "book": passage}."""

    keys = ("front", "back", "book")

    def recognises(self, row, names):
        return "front" in row and "book" in row

    def add(self, row, line, checks):
        if "back" not in row:
            raise Fault(MISSING_KEY, "a card without a back")
        checks.add(line, row.get("id"), row["front"], row["book"], [(row["back"], None)])


class Boxes(ReaderFormat):
    """{"boxes": [[card, ...], ...]}: one JSON object."""

    def recognises_document(self, document, as_row):
        return "boxes" in document

    def add_document(self, document, checks):
        for number, card in enumerate((card for box in document["boxes"] for card in box), 1):
            checks.add(number, None, card["front"], card["book"], [(card["back"], None)])


class Poems:
    """A file of lines {"line": text, "about": question or nothing}."""

    def open(self, files):
        (path,) = files.exactly("file")
        rejected: list[Rejected] = []
        asked = []

        def blocks():
            for number, row, fault in table_rows(path):
                if fault:
                    rejected.append(Rejected(str(path), number, "", "row", fault.reason, fault.detail))
                    continue
                id, where = f"line{number}", {"file": str(path), "line": number}
                if row.get("about"):
                    asked.append(
                        {"question_id": f"q{number}", "text": row["about"], "language": "en", "sentence_id": id, **where}
                    )
                sentences = pa.Table.from_pylist([sentence_row(id, row["line"])], SENTENCE_SCHEMA)
                yield Block(str(path), [number], sentences, PASSAGE_SCHEMA.empty_table())

        gold = ({**row, "relevance": 1} for row in asked)
        return OpenSet(str(path), blocks(), lambda: Judged(asked, gold), rejected)


CARDS = [
    {"front": "Where was Ada born?", "back": "Lund", "book": "Ada was born in Lund."},
    {"front": "Where did Ada die?", "back": "Oslo", "book": "Ada was born in Lund."},
    {"front": "Who?", "book": "Ada was born in Lund."},
]


@pytest.fixture
def cards(monkeypatch):
    monkeypatch.setitem(READER_FORMATS, "cards", Cards())


@pytest.mark.parametrize("layout", ["lines", "packed", "list", "row", "parquet"])
def test_a_new_format_of_rows_is_recognised_and_read_in_every_layout(tmp_path, cards, layout):
    path = tmp_path / "deck"
    if layout == "parquet":
        pq.write_table(pa.Table.from_pylist(CARDS), path)
    else:
        rows = CARDS[:1] if layout == "row" else CARDS
        lines = "".join(json.dumps(card) + "\n" for card in rows)
        text = {"list": json.dumps(CARDS), "row": json.dumps(CARDS[0], indent=2)}.get(layout, lines).encode()
        path.write_bytes(gzip.compress(text) if layout == "packed" else text)
    assert recognise_format(str(path)) == ("parquet" if layout == "parquet" else "cards")
    [split] = plan_splits([str(path)])
    [example], rejected, counts = read_split(split)
    assert (example.question, example.answers, example.line) == ("Where was Ada born?", [GoldAnswer("Lund", 16)], 1)
    if layout == "row":
        assert not rejected
        return
    reasons = [(row.line, row.what, row.reason) for row in rejected if row.what == "answer" or row.line == 3]
    missing = MISSING_KEY if layout != "parquet" else "answer text empty"  # a table has the column, and nothing in it
    assert reasons[0] == (2, "answer", NOT_IN_PASSAGE)
    assert reasons[1][::2] == (3, missing)
    assert counts.questions == 3 == len([example]) + counts.questions_rejected


def test_a_new_format_may_be_asked_for_and_mixes_with_no_other(tmp_path, cards):
    path = tmp_path / "deck.jsonl"
    path.write_text("".join(json.dumps(card) + "\n" for card in CARDS))
    assert plan_splits([str(path)], format="cards")[0].format == "cards"
    with pytest.raises(InputError, match="looks like cards, the format asked for is qed"):
        plan_splits([str(path)], format="qed")
    assert len(read_rows(CARDS, file="hub:cards")[0]) == 1
    found = open_corpus("squad", [path])  # files of questions are a corpus, too
    assert found.sentences["text"].to_pylist() == ["Ada was born in Lund."]


def test_without_its_line_it_is_unknown(tmp_path):
    path = tmp_path / "deck.jsonl"
    path.write_text(json.dumps(CARDS[0]))
    with pytest.raises(InputError, match="rows with the keys front, back, book; wanted SQuAD"):
        plan_splits([str(path)])
    with pytest.raises(InputError, match=r"unknown format 'cards'; wanted auto or one of squad, .*csv"):
        plan_splits([str(path)], format="cards")


@pytest.mark.parametrize("indent", [None, 1])
def test_a_new_format_of_whole_documents(tmp_path, monkeypatch, indent):
    monkeypatch.setitem(READER_FORMATS, "boxes", Boxes())
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps({"boxes": [CARDS[:1], [{**CARDS[1], "back": "Ada"}]]}, indent=indent))
    [split] = plan_splits([str(path)])
    assert (split.format, split.layout) == ("boxes", "document")
    examples, rejected, _ = read_split(split)
    assert [(e.line, e.answers[0].text) for e in examples] == [(1, "Lund"), (2, "Ada")]
    assert not rejected


def test_a_new_format_of_corpora(tmp_path, monkeypatch):
    monkeypatch.setitem(CORPUS_FORMATS, "poems", Poems())
    path = tmp_path / "poems.jsonl"
    path.write_text(
        '{"line": "It fell."}\n{"line": "It rose.", "about": "What rose?"}\n{"line"\n{"line": "", "about": "Why?"}\n'
    )
    opened = open_corpus("poems", [path])
    sentences = [text for block, _ in opened.blocks() for text in block["text"].to_pylist()]
    questions, gold = opened.questions_and_gold()
    assert sentences == ["It fell.", "It rose."]
    assert questions["text"].to_pylist() == ["What rose?"]
    assert gold.to_pylist() == [{"question_id": "q2", "sentence_id": "line2", "relevance": 1}]
    reasons = [(row.line, row.reason) for row in opened.rejected]
    assert reasons[:3] == [(3, BROKEN_JSON), (4, "empty sentence"), (4, UNKNOWN_SENTENCE)]
    with pytest.raises(InputError, match=r"wanted 1 in files \(file\), got 2"):
        open_corpus("poems", [path, path])
    # it has no rows of the corpus alone: what is added to it are documents
    documents = tmp_path / "more.jsonl"
    documents.write_text('{"_id": "d", "text": "It ends."}\n')
    assert open_additions([documents], "poems").whole().sentences["sentence_id"].to_pylist() == ["d#0000#000"]


def test_a_corpus_format_that_is_not_there_names_the_nearest(tmp_path):
    with pytest.raises(InputError, match=r"unknown format 'bier'; wanted beir, reqa, .*did you mean beir"):
        open_corpus("bier", [tmp_path])


def test_the_config_has_the_formats_of_the_tables(monkeypatch):
    def formats(section) -> set[str]:
        return set(section.model_json_schema()["properties"]["format"]["enum"])

    assert formats(SourceConfig) == {"auto", *READER_FORMATS}
    assert formats(CorpusSource) == {"auto", *CORPUS_FORMATS}
    with pytest.raises(ConfigError, match=r"corpus\.train\.format: should be 'auto', 'beir', .* or 'documents', got 'poems'"):
        override(Config(), {"corpus.train": {"files": "poems.txt", "format": "poems"}})
    monkeypatch.setitem(CORPUS_FORMATS, "poems", Poems())
    changed = override(Config(), {"corpus.train": {"files": "poems.txt", "format": "poems"}})
    assert changed.corpus.train.format == "poems"


def test_rows_are_added_to_the_formats_whose_corpus_is_files_of_rows():
    of_rows = {name for name, format in CORPUS_FORMATS.items() if isinstance(format, CorpusOfRows)}
    assert of_rows == {"beir", "tables", "msmarco", "documents"}

"""MS MARCO's files as they are published, and TREC's judgements and topics."""

import gzip

import pytest
from helpers.corpus_files import reasons

from raydist.corpus.formats import open_additions, open_corpus
from raydist.corpus.recognise import language_of
from raydist.corpus.recognise_corpus import corpus_format
from raydist.errors import InputError

COLLECTION = '0\tAda was "born" in Lund.\n1\tThe Oder flows.\n2\tIt ends.\n'
QUERIES = "10\twhere was ada born\n11\twhat flows\n12\twhat of another split\n"
QRELS = "10\t0\t0\t1\n11\t0\t1\t1\n11\t0\t2\t0\n"
TOPICS = """<top>
<num> Number: 10
<title> where was Ada
 born &amp; raised
<desc> Description: her place
</top>

<top>
<num> 11 </num>
<title> what flows </title>
</top>
"""
XML = """<topics task="x"><topic number="10"><query>where was ada born &amp; raised</query><narrative>n</narrative></topic>
<topic number='11'><query>what flows</query></topic></topics>"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "collection.tsv.gz").write_bytes(gzip.compress(COLLECTION.encode()))
    (tmp_path / "queries.dev.small.tsv").write_text(QUERIES)
    (tmp_path / "qrels.dev.small.tsv").write_text(QRELS)
    return tmp_path


def test_the_folder_of_the_archive_is_read_by_its_split(folder):
    assert corpus_format([folder]) == "msmarco"
    found = open_corpus("msmarco", [folder], split="dev.small").whole()
    assert found.sentences["text"].to_pylist() == ['Ada was "born" in Lund.', "The Oder flows.", "It ends."]
    assert found.questions["question_id"].to_pylist() == ["10", "11"]
    assert [tuple(row.values()) for row in found.gold.to_pylist()] == [("10", "0", 1), ("11", "1", 1)]
    assert (found.rejected, list(found.notes.values())) == ([], [1])
    with pytest.raises(InputError, match=r"has no queries\.train\.tsv, qrels\.train\.tsv; .* splits dev\.small: set"):
        open_corpus("msmarco", [folder])


@pytest.mark.parametrize(("name", "topics"), [("topics.301-350.txt", TOPICS), ("topics-rnd5.xml", XML)])
def test_trec_topics_and_judgements_at_blanks(folder, name, topics):
    (folder / name).write_text(topics)
    (folder / "qrels.txt").write_text(QRELS.replace("\t", " ").replace("0 2 0", "Q0 2 -1"))
    files = [folder / "collection.tsv.gz", folder / name, folder / "qrels.txt"]
    assert corpus_format(files) == "msmarco"
    found = open_corpus("msmarco", files, language="en").whole()
    assert [text.lower() for text in found.questions["text"].to_pylist()] == ["where was ada born & raised", "what flows"]
    assert found.gold.num_rows == 2
    assert not found.rejected
    (folder / name).write_text("<topics></topics>" if name.endswith("xml") else "<top></top>")
    with pytest.raises(InputError, match="no TREC topic with a number"):
        open_corpus("msmarco", files).whole()


def test_documents_with_address_title_and_body(folder):
    (folder / "docs.tsv").write_text("D1\thttp://a\tAda\tBorn in Lund.\nD2\thttp://b\t\tOnly a body.\n")
    (folder / "q.tsv").write_text("1\twhere\n")
    (folder / "qrels.tsv").write_text("1 0 D1 1\n")
    found = open_corpus("msmarco", [folder / name for name in ("docs.tsv", "q.tsv", "qrels.tsv")]).whole()
    assert found.sentences["text"].to_pylist() == ["Ada Born in Lund.", "Only a body."]
    added = open_additions([folder / "docs.tsv"], "msmarco").whole()
    assert added.sentences["sentence_id"].to_pylist() == ["D1", "D2"]


def test_bad_lines_are_rejected_by_name(folder):
    (folder / "bad.tsv").write_bytes(COLLECTION.encode() + b"3\n4\t\n5\t\xff\n0\tagain\n")
    (folder / "qrels.dev.small.tsv").write_text(QRELS + "10\t0\t9\t1\n99\t0\t0\t1\n10\t0\t1\n10\t0\t1\tmuch\n")
    files = [folder / name for name in ("bad.tsv", "queries.dev.small.tsv", "qrels.dev.small.tsv")]
    found = open_corpus("msmarco", files).whole()
    assert sorted(reasons(found)) == sorted(
        [
            ("sentence", "wrong number of columns", "3", 4),
            ("row", "invalid UTF-8", "", 6),
            ("sentence", "empty sentence", "4", 5),
            ("sentence", "duplicate id", "0", 7),
            ("gold", "wrong number of columns", "10", 6),
            ("gold", "wrong type", "10", 7),
            ("gold", "gold sentence not in the corpus", "10", 4),
            ("gold", "gold for an unknown question", "99", 5),
        ]
    )


def test_mmarco_names_its_language():
    assert language_of("x/german_collection.tsv") == "de"
    assert language_of("vietnamese_queries.train.tsv") == "vi"
    assert language_of("my_collection.tsv") is None

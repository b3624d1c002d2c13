"""QED."""

from helpers.question_files import QED, read, write

from raydist.records import GoldAnswer


def test_qed_takes_every_span_of_every_annotator(tmp_path):
    [example], _, _ = read(write(tmp_path / "x", [QED]))
    assert (example.id, example.title, example.question) == ("-7", "Ada", "where was ada born")
    assert example.answers == [GoldAnswer("Lund", 16), GoldAnswer("Oslo", 34)]

"""HotpotQA."""

from helpers.question_files import HOTPOT, read, write

from raydist.corpus.examples import read_rows
from raydist.corpus.rejected import EMPTY_PASSAGE, NO_ANSWER_LEFT, NOT_IN_PASSAGE
from raydist.records import GoldAnswer


def test_a_hotpotqa_passage_is_titles_and_sentences_and_yes_or_no_is_counted_apart(tmp_path):
    other = {**HOTPOT, "_id": "h2", "answer": "Yes"}
    missing = {**HOTPOT, "_id": "h3", "answer": "Rome"}
    empty = {**HOTPOT, "_id": "h4", "context": []}
    examples, rejected, counts = read(write(tmp_path / "x", [HOTPOT, other, missing, empty]))
    [example] = examples
    assert example.context == "Ada\nShe was born. In Lund.\nOslo\nA town."
    assert example.answers == [GoldAnswer("Lund", 21)]  # "Ada\n" 4, "She was born." 13, " In " 4
    assert counts.not_extractive == 1
    assert [(r.id, r.reason) for r in rejected] == [
        ("h3", NOT_IN_PASSAGE), ("h3", NO_ANSWER_LEFT), ("h4", EMPTY_PASSAGE)
    ]  # fmt: skip
    hub = {**HOTPOT, "id": "h1", "context": {"title": ["Ada", "Oslo"], "sentences": [c[1] for c in HOTPOT["context"]]}}
    assert read_rows([hub], file="hub")[0][0].context == example.context

"""Files of questions as a corpus."""

from helpers.asked import asked
from helpers.corpus_files import reasons

from raydist.corpus.formats.reader_files import sentences_of_examples


def test_gold_is_the_sentence_where_an_answer_begins():
    found = sentences_of_examples([asked("a", 3), asked("b", 19, 26), asked("c", 0, context="Other text.")])
    texts = dict(zip(found.sentences["sentence_id"].to_pylist(), found.sentences["text"].to_pylist()))
    gold = [(row["question_id"], texts[row["sentence_id"]]) for row in found.gold.to_pylist()]
    # the answer of b at 19 runs over into the third sentence and belongs to the second
    assert gold == [("a", "It flows."), ("b", "It is long."), ("b", "It ends."), ("c", "Other text.")]
    assert found.sentences["document_id"].to_pylist() == ["Oder"] * 4
    assert len(found.passages) == 2


def test_a_question_whose_id_is_taken_leaves_with_its_gold():
    """Each file is checked alone, so ids may meet here: the answer of the second is none of the first."""
    found = sentences_of_examples([asked("a", 3), asked("b", 19), asked("a", 0, context="Other text.")])
    texts = dict(zip(found.sentences["sentence_id"].to_pylist(), found.sentences["text"].to_pylist()))
    gold = [(row["question_id"], texts[row["sentence_id"]]) for row in found.gold.to_pylist()]
    assert gold == [("a", "It flows."), ("b", "It is long.")]
    assert "Other text." in texts.values()  # the passage stays a candidate
    assert reasons(found) == [("question", "duplicate id", "a", 1)]

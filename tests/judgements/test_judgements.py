"""Files of judgements: written line by line, read back, repaired at their end, and made into questions."""

import json
import multiprocessing
import re
from pathlib import Path

import pytest

from raydist.asking.questions import read_questions
from raydist.corpus.examples import read_files
from raydist.corpus.formats import open_corpus
from raydist.errors import InputError
from raydist.judgements.journal import Journal
from raydist.judgements.judgement import Answer, Judgement
from raydist.judgements.reading import read_judgements

TEXT = "Mina Orlov built it in 1894."


def judged(question="When?", right=True, text=TEXT, **others) -> Judgement:
    return Judgement(question, right, text, **others)


def test_what_is_written_is_read_back(tmp_path):
    file = tmp_path / "deep/judgements.jsonl"
    answer = Answer("1894", 23, 27)
    given = [judged(answer=answer, text_id="p1", document="a.md"), judged("Who <b>?\u2028", False), judged("Where?", text=None)]
    for each in given:
        Journal(file).add(each)
    assert read_judgements([file]).verdicts == given
    assert file.read_bytes().isascii()
    assert len(file.read_bytes().splitlines()) == 3


def test_the_last_verdict_counts_unless_it_is_taken_back(tmp_path):
    journal = Journal(tmp_path / "j.jsonl")
    first, second, skipped = judged(), judged(right=False), judged("Who?", right=None)
    for each in (first, second, skipped):
        journal.add(each)
    assert [each.right for each in read_judgements([journal.path]).verdicts] == [False]
    assert journal.undo(second.id) == second
    assert [each.right for each in read_judgements([journal.path]).verdicts] == [True]
    assert Journal(journal.path).standing() == [first, skipped]
    with pytest.raises(InputError, match="no judgement"):
        journal.undo(second.id)


def test_two_journals_of_one_file_see_each_other(tmp_path):
    one, other = Journal(tmp_path / "j.jsonl"), Journal(tmp_path / "j.jsonl")
    one.add(mine := judged())
    other.add(theirs := judged("Who?"))
    assert one.standing() == other.standing() == [mine, theirs]
    assert one.undo(theirs.id) == other.standing()[0] or other.standing() == [mine]


def test_a_line_that_was_cut_off_is_dropped_by_name(tmp_path):
    file = tmp_path / "j.jsonl"
    Journal(file).add(first := judged())
    whole = file.read_bytes()
    file.write_bytes(whole + judged("Who?").line[:40])
    read = read_judgements([file])
    assert read.verdicts == [first]
    assert read.notes == [f"{file}, line 2: cut off, and left out"]
    journal = Journal(file)
    assert journal.notes == [f"{file}, line 2: cut off, and dropped"]
    journal.add(judged("Where?"))
    assert [json.loads(line)["question"] for line in file.read_bytes().splitlines()] == ["When?", "Where?"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("nonsense", "not JSON"),
        ("[1]", "no JSON object"),
        ('{"question": "  ", "right": true}', "there is no question"),
        ('{"question": "a"}', "right is None"),
        ('{"question": "a", "right": "yes"}', "right is 'yes'"),
        ('{"question": "a", "right": true, "text": 3}', "text is 3"),
        ('{"question": "a", "right": true, "text": "b", "answer": {"text": "c", "start": 0, "end": 1}}', "not at"),
        ('{"question": "a", "right": true, "text": "b", "answer": "c"}', "answer is 'c'"),
    ],
)
def test_other_damage_is_an_error_with_its_line(tmp_path, line, fault):
    file = tmp_path / "j.jsonl"
    file.write_bytes(judged().line + line.encode() + b"\n" + judged("Who?").line)
    with pytest.raises(InputError, match=f"line 2: .*{fault}"):
        read_judgements([file])
    with pytest.raises(InputError, match=f"line 2: .*{fault}"):
        Journal(file)


def _write(path: Path, name: str) -> None:
    journal = Journal(path)
    for number in range(50):
        journal.add(judged(f"{name} {number}?", text=TEXT * 200))


def test_writers_in_several_processes_never_mix_lines(tmp_path):
    file = tmp_path / "j.jsonl"
    writers = [multiprocessing.get_context("fork").Process(target=_write, args=(file, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(read_judgements([file]).verdicts) == 150


def test_right_answers_are_questions_for_an_evaluation(tmp_path):
    journal = Journal(tmp_path / "j.jsonl")
    answer = Answer("1894", 23, 27)
    for each in (
        judged(answer=answer, document="a.md"),
        judged(answer=Answer("Mina Orlov", 0, 10), right=False),  # wrong: no known answer
        judged("Who?", answer=Answer("Orlov", 5, 10), right=False),
        judged("Where?", text=None),  # rightly not found
        judged("Why?", text=None, right=False),  # it is in there, but where is not known
    ):
        journal.add(each)
    questions = {each.text: each for each in read_questions([str(journal.path)])}
    assert set(questions) == {"When?", "Where?"}
    assert questions["When?"].answers == ("1894",)
    assert questions["When?"].document == "a.md"
    assert questions["Where?"].answers == ()


def test_right_answers_are_training_data_as_the_docs_say(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/judging.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    journal = Journal("judgements.jsonl")
    passage = f"It is of iron. {TEXT} Nobody was there."
    start = passage.index("1894")
    journal.add(judged(text=passage, answer=Answer("1894", start, start + 4)))
    journal.add(judged("Who?", False, passage, answer=Answer("iron", 9, 13)))
    exec(snippet, {})
    (example,), rejected = read_files(["asked.jsonl"])
    assert not rejected
    assert (example.question, example.context, example.answers[0].text, example.answers[0].start) == (
        "When?", passage, "1894", start
    )  # fmt: skip
    corpus = open_corpus("squad", [tmp_path / "asked.jsonl"])
    texts = dict(zip(corpus.sentences["sentence_id"].to_pylist(), corpus.sentences["text"].to_pylist()))
    assert [texts[id] for id in corpus.gold["sentence_id"].to_pylist()] == [TEXT]
    written = [json.loads(line) for line in re.findall(r'^\{"undo.*$', page, re.MULTILINE)]
    assert written  # the example of the file is one

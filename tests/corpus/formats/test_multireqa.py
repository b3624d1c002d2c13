"""Boundaries of MultiReQA."""

import json
from dataclasses import replace

import pytest
from helpers.asked import asked
from helpers.corpus_files import reasons

from raydist.corpus.examples import plan_splits, read_split
from raydist.corpus.formats.multireqa import Boundaries, read_boundaries
from raydist.corpus.formats.reader_files import sentences_of_examples
from raydist.corpus.sentences import split_sentences
from raydist.errors import InputError


def test_multireqa_boundaries_of_both_layouts_are_joined_and_checked(tmp_path):
    examples = [asked("a1", 3), asked("b2", 26)]
    lines = [("SQuAD_a1/b2/_0", 0, 21), ("SQuAD_a1/b2/_1", 22, 30), ("SQuAD_zz/_0", 0, 5)]
    path = tmp_path / "candidates.json"
    path.write_text(
        "".join(json.dumps({"candidate_id": i, "response_start": s, "response_end": e}) + "\n" for i, s, e in lines)
    )
    joined = tmp_path / "sentences.jsonl"
    joined.write_text(json.dumps({"title": "Oder", "paragraph": 0, "sentences": [[0, 21], [22, 30]]}) + "\n")
    for file in (path, joined):
        boundaries = read_boundaries(file, examples)
        assert boundaries.spans == {"p-It fl": [(0, 21), (22, 30)]}
        found = sentences_of_examples(examples, boundaries)
        assert found.sentences["text"].to_pylist() == ["It flows. It is long.", "It ends."]
        unmatched = "lines of boundaries that are about none of these passages: left out"
        assert found.notes == ({unmatched: 1} if file is path else {})  # zz is no question of theirs
    lines = [{"title": "Elsewhere", "paragraph": 0, "sentences": [[0, 2]]}]
    lines += [{"title": "Oder", "paragraph": 0, "sentences": [[0, 21], [20, 30]]}]
    joined.write_text("".join(json.dumps(line) + "\n" for line in lines))
    overlapping = sentences_of_examples(examples, read_boundaries(joined, examples))
    assert reasons(overlapping) == [("boundaries", "sentence boundaries do not fit the passage", "p-It fl", 2)]
    assert overlapping.rejected[0].file == str(joined)
    assert len(overlapping.sentences) == 3  # cut by rule instead
    assert overlapping.notes == {"passages without boundaries: cut by rule": 1, unmatched: 1}
    gap = sentences_of_examples(examples, Boundaries({"p-It fl": [(0, 9), (10, 21)]}))
    assert reasons(gap) == [
        ("answer", "answer outside every sentence", "b2", 1),
        ("question", "question with no gold sentence", "b2", 1),
    ]
    joined.write_text('{"title": "Oder"}\n')
    with pytest.raises(InputError, match="line 1: no MultiReQA boundaries"):
        read_boundaries(joined, examples)
    with pytest.raises(InputError, match="none of these passages"):
        read_boundaries(path, [])


def test_boundaries_find_their_paragraph_when_others_are_lost_or_come_twice(tmp_path):
    texts = [
        "It fell. It rose again.",
        "Here. It was.",
        "Where is it now? Gone.",
        "Here. It was.",
        "Nobody saw it. It left no trace.",
    ]
    path = tmp_path / "sentences.jsonl"
    rows = [{"title": "Oder", "paragraph": n, "sentences": split_sentences(text)} for n, text in enumerate(texts)]
    rows[4]["sentences"] = [[0, 14], [15, 20]]  # covers no paragraph
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def of(*numbers):
        return read_boundaries(path, [replace(asked(f"q{n}", 0, context=texts[n]), passage_id=texts[n]) for n in numbers])

    spans = {text: split_sentences(text) for text in texts[:4]}
    every = of(0, 1, 2, 3, 4)
    assert every.spans == spans | {texts[4]: [(0, 14), (15, 20)]}
    assert (every.rejected, every.unmatched) == ([], 0)
    # the first is lost: all others have moved up by one; the line of the last covers nothing, and there is no fifth
    moved = of(1, 2, 3, 4)
    assert moved.spans == {text: spans[text] for text in texts[1:4]}
    assert (moved.rejected, moved.unmatched) == ([], 2)
    # what stands in the place of the lost one has a line of its own, or has none and is not cut by that of another
    assert of(0, 2).spans == {text: spans[text] for text in (texts[0], texts[2])}
    (row,) = of(0, 4).rejected
    assert (row.file, row.line, row.id) == (str(path), 2, texts[4])


@pytest.mark.realdata
def test_real_passages_are_cut_much_as_multireqa_cuts_them(data_dir):
    splits = plan_splits([str(data_dir / "squad" / "dev-A-v1.1.json.gz")])
    examples = [example for split in splits for example in read_split(split)[0]]
    boundaries = read_boundaries(data_dir / "multireqa" / "squad-dev-A.sentences.jsonl.gz", examples)
    spans_of = boundaries.spans
    assert (len(spans_of), sum(map(len, spans_of.values()))) == (1053, 5493)
    found = sentences_of_examples(examples, boundaries)
    assert found.rejected == []
    assert found.notes == {"passages without boundaries: cut by rule": 1112 - 1053}
    # without the questions of some paragraphs, those of the others still get their own
    lost = set(list(dict.fromkeys(example.passage_id for example in examples))[5::40])
    fewer = read_boundaries(
        data_dir / "multireqa" / "squad-dev-A.sentences.jsonl.gz", [e for e in examples if e.passage_id not in lost]
    )
    wrong = [id for id, spans in fewer.spans.items() if spans != spans_of.get(id)]
    assert len(wrong) <= 2
    assert len(fewer.spans) >= 1053 - len(lost) - 40
    assert len(found.questions) == len(examples) == 5257
    contexts = {example.passage_id: example.context for example in examples}
    ours = {(id, end) for id in spans_of for _, end in split_sentences(contexts[id])}
    theirs = {(id, end) for id, spans in spans_of.items() for _, end in spans}
    assert len(ours & theirs) / len(ours | theirs) > 0.95

"""What a file is, by its content, and its language, by its name."""

import json
from dataclasses import replace

import pytest
from helpers.question_files import CONTENTS, PASSAGE, QA, fault, qa, read, recognise_format, squad, write

from raydist.corpus.examples import plan_splits
from raydist.errors import InputError


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("format", CONTENTS)
def test_formats_are_told_by_content_packed_or_not(tmp_path, format, packed):
    path = write(tmp_path / "misleading.parquet", CONTENTS[format], packed)
    assert recognise_format(path) == format
    [example], rejected, _ = read(path)
    assert not rejected
    assert example.answers[0].text == "Lund"


@pytest.mark.parametrize("format", ["hotpotqa", "qa"])
@pytest.mark.parametrize("indent", [None, 2])
def test_rows_may_be_a_list_in_one_document(tmp_path, format, indent):
    path = write(tmp_path / "rows.jsonl", json.dumps(CONTENTS[format] * 1, indent=indent))
    assert recognise_format(path) == format
    assert len(read(path)[0]) == 1


def test_a_pretty_printed_squad_document_is_no_json_lines(tmp_path):
    path = write(tmp_path / "x", json.dumps({"note": "first", **squad(qa())}, indent=1))
    assert recognise_format(path) == "squad"
    one_paragraph_per_line = '{"by": "me", "data": [{"paragraphs": [\n' + json.dumps(squad(qa())["data"][0]["paragraphs"][0])
    assert recognise_format(write(tmp_path / "y", one_paragraph_per_line + "\n]}]}\n")) == "squad"


def test_first_rows_longer_than_what_is_looked_at_first(tmp_path):
    long = "x " * 200_000
    for name, content in {
        "lines": [{**QA, "context": PASSAGE + long}] * 2,
        "list": json.dumps([{**QA, "context": PASSAGE + long}]),
        "squad": json.dumps({"note": long, **squad(qa())}),
        "csv": f'question,context,answer\nWhere?,"{PASSAGE}\n{long}",Lund\n',
    }.items():
        assert len(read(write(tmp_path / name, content))[0]) == 1, name


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"PK\x03\x04....", "ZIP"),
        (b"<!DOCTYPE html><html>", "HTML"),
        ('{"data": []}'.encode("utf-16"), "UTF-16"),
        (b"Once upon a time there was a town.\nIt rained, often, there.\n", "plain text"),
        (b"\x00\x01\x02\x03" * 50, "unknown"),
        (b"[]", "empty list"),
        (b"[1, 2]", "a JSON list of a number"),
        (b'{"data": []}', "holds no question"),
        (b'{"questions": ["a"], "answers": ["b"]}', "did you mean questions"),
        (b'{"data": [{"paragraphs": [', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"question,context\n", "holds no question"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_no_data_set_is_named(tmp_path, content, seen, packed):
    path = write(tmp_path / "x.json", content, packed)
    assert seen in fault(path)


def test_another_format_than_asked_for_is_refused(tmp_path):
    path = write(tmp_path / "x", [QA])
    assert "looks like qa, the format asked for is mrqa" in fault(path, format="mrqa")
    with pytest.raises(InputError, match=r"unknown format 'squad2'.*did you mean squad"):
        plan_splits([path], format="squad2")


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("xquad.ar.json", "ar"),
        ("xquad.zh.A.json.gz", "zh"),
        ("test-context-de-question-es.json", "de"),
        ("translate-test-context-de-question-de.json", "en"),  # MLQA's test set, put into English
        ("SQuAD_it-train.json", "it"),
        ("squad_v2.json", "en"),
        ("dev-no.json", "en"),
    ],
)
def test_language_comes_from_the_name_only_where_none_is_given(tmp_path, name, language):
    path = write(tmp_path / name, squad(qa()))
    assert read(path)[0][0].language == language
    assert read(path, language="hi")[0][0].language == "hi"


@pytest.mark.parametrize("data", ["a cell", ["a list"]])
def test_lines_may_have_a_column_called_data(tmp_path, data):
    path = write(tmp_path / "x", [{"data": data, **QA, "id": str(i)} for i in range(3)])
    assert recognise_format(path) == "qa"
    assert len(read(path)[0]) == 3
    assert len(read(write(tmp_path / "y", [{**QA, "data": data}]))[0]) == 1
    assert "rows with the keys data, text" in fault(write(tmp_path / "z", [{"data": data, "text": "b"}] * 2))
    pretty = json.dumps(squad(qa()), indent=1)
    assert recognise_format(write(tmp_path / "p", pretty)) == recognise_format(write(tmp_path / "q", squad(qa()))) == "squad"


MRQA_ROW = {"context": PASSAGE, "qas": [{"qid": "m", "question": "Where?", "detected_answers": []}]}


HOTPOT_ROW = {"_id": "h", "question": "Where?", "context": [["Ada", ["Ada was born in Lund."]]], "answer": "Lund"}


QED_ROW = {"example_id": 1, "question_text": "Where?", "paragraph_text": PASSAGE, "original_nq_answers": []}


@pytest.mark.parametrize(
    "row", [QA, {**QA, "data": 1}, MRQA_ROW, HOTPOT_ROW, QED_ROW], ids=["qa", "data", "mrqa", "hotpotqa", "qed"]
)
def test_one_row_may_be_written_over_several_lines(tmp_path, row):
    whole, spread = write(tmp_path / "a", row), write(tmp_path / "b", json.dumps(row, indent=2))
    assert recognise_format(spread) == recognise_format(whole)
    [example] = read(whole)[0]
    [same] = read(spread)[0]
    assert replace(same, file=example.file) == example

"""Files in, checked rows out: formats, splits, and every way in which a row or a file can be wrong."""

import gzip
import json
import pickle
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist.corpus import readers
from raydist.corpus.readers import expand_paths, passage_id, plan_splits, read_rows, read_split, recognise_format
from raydist.errors import InputError
from raydist.records import Answer, examples_table, rejected_table

PASSAGE = "Ada was born in Lund. Ada died in Oslo."
QA = {"question": "Where was Ada born?", "context": PASSAGE, "answer": "Lund"}


def squad(*qas, context=PASSAGE, **article):
    return {"version": "1.1", "data": [{"title": "Ada", "paragraphs": [{"context": context, "qas": list(qas)}], **article}]}


def qa(id="q1", question="Where was Ada born?", answers=(("Lund", 16),), **more):
    return {"id": id, "question": question, "answers": [{"text": t, "answer_start": s} for t, s in answers], **more}


def write(path, content, packed=False):
    """A document (dict), JSON Lines (list of rows), text or bytes."""
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    elif isinstance(content, dict):
        content = json.dumps(content)
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return str(path)


def read(path, **options):
    [split] = plan_splits([path], **options)
    examples, rejected, counts = read_split(split)
    assert counts.questions == len(examples) + counts.questions_rejected + counts.not_extractive
    assert sum(counts.reasons.values()) == len(rejected) == counts.questions_rejected + counts.answers_rejected
    for example in examples:
        for answer in example.answers:
            assert example.context[answer.start :].startswith(answer.text)
    examples_table(examples)  # everything that comes out can be written
    rejected_table(rejected)
    return examples, rejected, counts


def reasons(path, **options):
    return read(path, **options)[2].reasons


def fault(path, **options) -> str:
    with pytest.raises(InputError) as raised:
        [read_split(split) for split in plan_splits([str(path)], **options)]
    assert str(path) in str(raised.value)
    return str(raised.value)


# Paths


def test_paths_and_globs_are_sorted_and_each_file_comes_once(tmp_path):
    for name in ("b.json", "a.json", "c.txt"):
        write(tmp_path / name, squad(qa()))
    (tmp_path / "d.json").mkdir()  # a glob takes files alone
    found = expand_paths([f"{tmp_path}/b.json", f"{tmp_path}/*.json", f"{tmp_path}/./a.json"])
    assert found == [f"{tmp_path}/a.json", f"{tmp_path}/b.json"]


def test_a_name_with_glob_characters_is_taken_as_it_is(tmp_path):
    path = write(tmp_path / "a[1].json", squad(qa()))
    assert expand_paths([path]) == [path]


def test_a_missing_file_names_the_nearest(tmp_path):
    write(tmp_path / "train.json", "x")
    with pytest.raises(InputError, match=r"no file at .*trian\.json; nearest there: train\.json"):
        expand_paths([f"{tmp_path}/trian.json"])
    with pytest.raises(InputError, match=r"no file matches .*; nearest there: train\.json"):
        expand_paths([f"{tmp_path}/trains*.jsonl"])
    with pytest.raises(InputError, match="there is no folder"):
        expand_paths([f"{tmp_path}/no/where.json"])
    with pytest.raises(InputError, match="remote address"):
        expand_paths(["s3://bucket/train.json"])


def test_a_directory_says_what_it_holds(tmp_path):
    write(tmp_path / "train.json", "x")
    with pytest.raises(InputError, match=r"is a directory \(train.json\); wanted files"):
        expand_paths([str(tmp_path)])


# Recognition

MRQA = [
    {"header": {"dataset": "x"}},
    {"context": PASSAGE, "qas": [{"qid": "m1", "question": "Where?", "answers": ["Lund"],
     "detected_answers": [{"text": "Lund", "char_spans": [[16, 19]]}]}]},
]  # fmt: skip
HOTPOT = {
    "_id": "h1",
    "question": "Where?",
    "answer": "Lund",
    "context": [["Ada", ["She was born.", " In Lund."]], ["Oslo", ["A town."]]],
}
QED = {
    "example_id": -7,
    "title_text": "Ada",
    "question_text": "where was ada born",
    "paragraph_text": PASSAGE,
    "original_nq_answers": [[{"start": 16, "end": 20, "string": "Lund"}], [{"start": 34, "end": 38, "string": "Oslo"}]],
}
CONTENTS = {
    "squad": squad(qa()),
    "mrqa": MRQA,
    "hotpotqa": [HOTPOT],
    "qed": [QED],
    "qa": [QA],
    "csv": f'question,context,answer\nWhere?,"{PASSAGE}",Lund\n',
}


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


def test_a_truncated_or_damaged_gzip_is_named(tmp_path):
    packed = gzip.compress(json.dumps(squad(*(qa(id=str(i), question=f"Where {i * 7919}?") for i in range(500)))).encode())
    for name, data in {
        "cut": packed[:-20],
        "cut early": packed[:15],
        "damaged": packed[:300] + b"\0" * 50 + packed[350:],
    }.items():
        (tmp_path / name).write_bytes(data)
        assert "gzip file cut short or damaged" in fault(tmp_path / name)


def test_another_format_than_asked_for_is_refused(tmp_path):
    path = write(tmp_path / "x", [QA])
    assert "looks like qa, the format asked for is mrqa" in fault(path, format="mrqa")
    with pytest.raises(InputError, match=r"unknown format 'squad2'.*did you mean squad"):
        plan_splits([path], format="squad2")


# Formats


def test_squad_rows_keep_order_titles_and_ordinals(tmp_path):
    document = squad(qa("a", answers=[("Lund", 16), ("Lund", 16), ("in Lund", 13)]), qa(7, answers=[("Oslo", 34)]))
    a, seven = read(write(tmp_path / "x", document))[0]
    assert (a.id, a.line, a.title, a.language, a.file) == ("a", 1, "Ada", "en", str(tmp_path / "x"))
    assert a.answers == [Answer("Lund", 16), Answer("Lund", 16), Answer("in Lund", 13)]
    assert (seven.id, seven.line) == ("7", 2)  # a number as id is a name like any other
    assert a.passage_id == seven.passage_id == passage_id(PASSAGE)


def test_offsets_count_code_points(tmp_path):
    context = "😀 é Lund"  # 😀 is one code point, two UTF-16 units, four bytes: Lund starts at 4
    [example], _, _ = read(write(tmp_path / "x", squad(qa(answers=[("Lund", 4)]), context=context)))
    assert example.answers == [Answer("Lund", 4)]


def test_squad_v2_impossible_and_unlabelled_questions(tmp_path):
    plausible = [{"text": "Oslo", "answer_start": 34}]
    document = squad(
        qa("no", answers=[], is_impossible=True, plausible_answers=plausible),
        qa("yes", is_impossible=False),
        qa("open", answers=[], is_impossible=False),
        {"id": "absent", "question": "Where?"},
        qa("both", is_impossible=True),
    )
    path = write(tmp_path / "x", document)
    examples, rejected, _ = read(path)
    assert [(e.id, e.is_impossible, len(e.answers)) for e in examples] == [
        ("no", True, 0), ("yes", False, 1), ("open", False, 0), ("absent", False, 0)
    ]  # fmt: skip
    assert [(r.id, r.reason) for r in rejected] == [("both", readers.IMPOSSIBLE_ANSWERED)]
    counts = read(path)[2]
    assert (counts.unlabelled, counts.impossible) == (2, 1)
    assert (read(path, format="squad_v2")[2].unlabelled, read(path, format="squad_v2")[2].impossible) == (1, 2)
    # where labels are needed, what has none is refused
    examples, rejected, counts = read(path, labelled=True)
    assert [example.id for example in examples] == ["no", "yes"]
    assert [(r.id, r.unit, r.line) for r in rejected if r.reason == readers.UNLABELLED] == [
        ("open", "question", 3),
        ("absent", "question", 4),
    ]
    assert counts.unlabelled == 0
    # told that the file is v2, a question without answers and without the flag is impossible
    assert [e.is_impossible for e in read(path, format="squad_v2")[0]] == [True, False, False, True]


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


def test_mrqa_spans_are_inclusive_and_every_span_is_an_answer(tmp_path):
    def question(qid, *detected, **more):
        return {"qid": qid, "question": "Who?", "detected_answers": [{"text": t, "char_spans": s} for t, s in detected], **more}

    rows = [
        {"header": {}},
        {
            "context": PASSAGE,
            "qas": [
                question("two", ("Ada", [[0, 2], [22, 24]])),
                question("case", ("ADA", [[22, 24]])),  # as the passage spells it
                question("off", ("Ada", [[1, 3]])),
                question("none", answers=["Ada"]),  # nothing detected: the first occurrence
                question("odd", ("Ada", [5])),
            ],
        },
    ]
    examples, rejected, counts = read(write(tmp_path / "x", rows))
    answers = {e.id: e.answers for e in examples}
    assert answers == {"two": [Answer("Ada", 0), Answer("Ada", 22)], "case": [Answer("Ada", 22)], "none": [Answer("Ada", 0)]}
    assert counts.several_occurrences == 1
    assert [(r.id, r.what, r.reason, r.line) for r in rejected] == [
        ("off", "answer", readers.NOT_AT_OFFSET, 2), ("off", "question", readers.NO_ANSWER_LEFT, 2),
        ("odd", "question", readers.WRONG_TYPE, 2),
    ]  # fmt: skip


HUB_MRQA = {
    "subset": "NewsQA",
    "context": PASSAGE,
    "context_tokens": {"tokens": ["Ada"], "offsets": [0]},
    "qid": "q1",
    "question": "Who?",
    "question_tokens": {"tokens": ["Who"], "offsets": [0]},
    "detected_answers": {
        "text": ["Ada", "LUND"],
        "char_spans": [{"start": [0, 22], "end": [2, 24]}, {"start": [16], "end": [19]}],
        "token_spans": [{"start": [0, 6], "end": [0, 6]}, {"start": [4], "end": [4]}],
    },
    "answers": ["Ada", "Lund"],
}


@pytest.mark.parametrize("layout", ["rows", "lines", "parquet"])
def test_rows_of_mrqa_on_the_hub_keep_their_ids_and_every_span(tmp_path, layout):
    uneven = {**HUB_MRQA["detected_answers"], "text": ["Ada"]}
    rows = [HUB_MRQA, {**HUB_MRQA, "qid": "odd", "detected_answers": uneven}]
    if layout == "rows":
        [example], rejected, _ = read_rows(rows, file="hub:mrqa")
    elif layout == "lines":
        [example], rejected, _ = read(write(tmp_path / "x.jsonl", rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
        [example], rejected, _ = read(str(tmp_path / "x.parquet"))
    assert example.id == "q1"
    assert example.answers == [Answer("Ada", 0), Answer("Ada", 22), Answer("Lund", 16)]
    assert [(r.id, r.what, r.reason) for r in rejected] == [("odd", "question", readers.WRONG_TYPE)]


def test_a_hotpotqa_passage_is_titles_and_sentences_and_yes_or_no_is_counted_apart(tmp_path):
    other = {**HOTPOT, "_id": "h2", "answer": "Yes"}
    missing = {**HOTPOT, "_id": "h3", "answer": "Rome"}
    empty = {**HOTPOT, "_id": "h4", "context": []}
    examples, rejected, counts = read(write(tmp_path / "x", [HOTPOT, other, missing, empty]))
    [example] = examples
    assert example.context == "Ada\nShe was born. In Lund.\nOslo\nA town."
    assert example.answers == [Answer("Lund", 21)]  # "Ada\n" 4, "She was born." 13, " In " 4
    assert counts.not_extractive == 1
    assert [(r.id, r.reason) for r in rejected] == [
        ("h3", readers.NOT_IN_PASSAGE), ("h3", readers.NO_ANSWER_LEFT), ("h4", readers.EMPTY_PASSAGE)
    ]  # fmt: skip
    hub = {**HOTPOT, "id": "h1", "context": {"title": ["Ada", "Oslo"], "sentences": [c[1] for c in HOTPOT["context"]]}}
    assert read_rows([hub], file="hub")[0][0].context == example.context


def test_qed_takes_every_span_of_every_annotator(tmp_path):
    [example], _, _ = read(write(tmp_path / "x", [QED]))
    assert (example.id, example.title, example.question) == ("-7", "Ada", "where was ada born")
    assert example.answers == [Answer("Lund", 16), Answer("Oslo", 34)]


def test_without_offsets_the_first_occurrence_is_the_label_and_every_gold_text_is_kept(tmp_path):
    rows = [
        {**QA, "id": 1, "answer": "Ada"},  # occurs at 0 and 22
        {**QA, "id": 2, "answer": " Lund "},
        {"id": 3, "question": "Who?", "context": PASSAGE, "answers": ["Lund", "Ada", "Lund"]},
        {"id": 4, "question": "Who?", "context": PASSAGE, "answer": "Oslo", "answers": ["Lund"]},
        {"id": 5, "question": "Who?", "context": PASSAGE},
        {"id": 6, "question": "Who?", "context": PASSAGE, "answers": ["Rome", "Lund"]},
    ]
    examples, rejected, counts = read(write(tmp_path / "x", rows))
    assert [e.answers for e in examples] == [
        [Answer("Ada", 0)], [Answer("Lund", 16)], [Answer("Lund", 16), Answer("Ada", 0)],
        [Answer("Oslo", 34), Answer("Lund", 16)], [], [Answer("Lund", 16)],
    ]  # fmt: skip
    assert counts.several_occurrences == 2
    assert [(r.id, r.what, r.reason) for r in rejected] == [("6", "answer", readers.NOT_IN_PASSAGE)]  # the question stays


def test_rows_of_the_hub_carry_offsets_in_parallel_lists():
    row = {"id": "a", "question": "Who?", "context": PASSAGE, "answers": {"text": ["Ada", "Lund"], "answer_start": [22, 3]}}
    uneven = {**row, "id": "b", "answers": {"text": ["Ada", "Lund"], "answer_start": [22]}}
    none = {**row, "id": "c", "answers": {"text": [], "answer_start": []}}
    [a, c], rejected, _ = read_rows([row, uneven, none], file="hub:x", first_line=11)
    assert a.answers == [Answer("Ada", 22)]
    assert (c.id, c.line, c.is_impossible) == ("c", 13, False)
    assert [(r.id, r.reason, r.line) for r in rejected] == [("a", readers.NOT_AT_OFFSET, 11), ("b", readers.WRONG_TYPE, 12)]
    assert read_rows([none], file="hub:squad_v2", format="squad_v2")[0][0].is_impossible
    with pytest.raises(InputError, match="rows with the keys text"):
        read_rows([{"text": "x"}], file="hub:x")


def test_missing_ids_are_made_from_question_and_passage_and_do_not_depend_on_the_file(tmp_path):
    [a], _, _ = read(write(tmp_path / "a", [QA]))
    [b, other], rejected, _ = read(write(tmp_path / "b", [{**QA, "question": "Who?"}, QA, {**QA, "id": ""}]))
    assert a.id == other.id != b.id
    assert [(r.reason, r.line, r.id) for r in rejected] == [(readers.DUPLICATE_ID, 3, a.id)]
    assert "first at line 2" in rejected[0].detail


def test_equal_passages_have_equal_ids_up_to_blanks_and_composition():
    assert passage_id("caf\u00e9  noir\n") == passage_id("cafe\u0301 noir") != passage_id("cafe noir")
    assert passage_id("a") == passage_id("a") != passage_id("A")
    assert len(passage_id("a")) == 20


# Tables


def test_csv_with_mapped_columns_quotes_and_line_numbers(tmp_path):
    text = (
        "key;q;passage;gold;at\n"
        f'1;Where?;"{PASSAGE}";Lund;16\n'
        '2;"Which\nword?";"One; two ""three"".";"[""two"", ""One""]";"[5, 0]"\n'
        f"3;Where?;{PASSAGE};Lund;\n"
        "4;too;few\n"
        f"5;Where?;{PASSAGE};Lund;x\n"
    )
    columns = {"id": "key", "question": "q", "context": "passage", "answer": "gold", "answer_start": "at"}
    examples, rejected, _ = read(write(tmp_path / "x.txt", text), columns=columns)
    assert [(e.id, e.line, e.answers) for e in examples] == [
        ("1", 2, [Answer("Lund", 16)]), ("2", 3, [Answer("two", 5), Answer("One", 0)]), ("3", 5, [Answer("Lund", 16)])
    ]  # fmt: skip
    assert examples[1].question == "Which\nword?"
    assert [(r.line, r.reason) for r in rejected] == [
        (6, readers.WRONG_WIDTH), (7, readers.WRONG_TYPE), (7, readers.NO_ANSWER_LEFT)
    ]  # fmt: skip


@pytest.mark.parametrize("rows", ["Where?,Lund,Lund,\n", "Where?\n", f"Where?\nWhere?,{PASSAGE},Lund\n"])
def test_a_first_csv_row_of_another_width_is_refused_alone(tmp_path, rows):
    examples, [rejected], _ = read(write(tmp_path / "x.csv", "question,context,answer\n" + rows))
    assert len(examples) == rows.count("\n") - 1
    assert (rejected.line, rejected.reason) == (2, readers.WRONG_WIDTH)
    assert rejected.detail == f"{rows.splitlines()[0].count(',') + 1} cells, the header has 3"


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


def test_one_spread_row_may_be_asked_for_as_squad(tmp_path):
    row = {**QA, "answer": None}
    [example], _, _ = read(write(tmp_path / "x", json.dumps(row, indent=2)), format="squad_v2")
    assert example.is_impossible


def test_csv_bytes_that_are_not_utf8_cost_their_row_alone(tmp_path):
    data = f"question,context,answer\nWhere?,{PASSAGE},Lund\n".encode() + b"Qu\xe9?,Lund,Lund\nWho?,Lund,Lund\n"
    examples, [rejected], _ = read(write(tmp_path / "x.csv", data))
    assert len(examples) == 2
    assert (rejected.line, rejected.reason) == (3, readers.INVALID_UTF8)


def test_csv_with_an_open_quote_is_refused_with_its_line(tmp_path):
    assert "starts in line 3" in fault(write(tmp_path / "x.csv", f'question,context\nWhere?,{PASSAGE}\nWho?,"open\n'))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_unmapped_columns_are_listed_with_the_nearest(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "csv":
        write(path, "questions,context\na,b\n")
    else:
        pq.write_table(pa.table({"questions": ["a"], "context": ["b"]}), path)
    message = fault(path)
    assert "no column 'question'" in message
    assert "it has questions, context" in message
    assert "did you mean questions" in message
    assert "no column 'gold'" in fault(path, columns={"question": "questions", "answer": "gold"})
    with pytest.raises(InputError, match="unknown name 'questoin'"):
        plan_splits([str(path)], columns={"questoin": "questions"})


def test_a_mapped_key_that_json_rows_lack_is_no_silent_loss_of_labels(tmp_path):
    assert reasons(write(tmp_path / "x", [QA]), columns={"answer": "gold"}) == {readers.MISSING_KEY: 1}


def parquet(path, rows, group=2, packed=False):
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    return str(path)


def test_parquet_splits_by_row_groups_and_numbers_rows(tmp_path):
    rows = [
        {"id": i, "question": f"Who {i}?", "context": PASSAGE, "answers": {"text": ["Ada"], "answer_start": [22]}}
        for i in range(5)
    ]
    path = parquet(tmp_path / "x.json", rows)
    splits = plan_splits([path], max_bytes=1)
    assert [(s.format, s.start, s.end, s.first_line) for s in splits] == [
        ("parquet", 0, 1, 1), ("parquet", 1, 2, 3), ("parquet", 2, 3, 5)
    ]  # fmt: skip
    pieces = [example for split in splits for example in read_split(split)[0]]
    whole = read(path)[0]
    assert pieces == whole
    assert [(e.id, e.line, e.answers) for e in whole] == [(str(i), i + 1, [Answer("Ada", 22)]) for i in range(5)]
    packed = read(parquet(tmp_path / "y", rows, packed=True))[0]
    assert [e.id for e in packed] == [e.id for e in whole]


def test_parquet_faults(tmp_path):
    path = tmp_path / "x"
    parquet(path, [{**QA, "answer": 1745}, {**QA, "answer": 1745, "question": None}])
    assert reasons(str(path)) == {readers.WRONG_TYPE: 1, readers.NO_ANSWER_LEFT: 1, readers.EMPTY_QUESTION: 1}
    path.write_bytes(path.read_bytes()[:-9])
    assert "damaged Parquet" in fault(path)
    pq.write_table(pa.table({"question": pa.array([], pa.string()), "context": pa.array([], pa.string())}), path)
    assert "without rows" in fault(path)


# Splits


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("ends", [True, False])
def test_json_lines_in_pieces_equal_the_whole(tmp_path, newline, ends):
    rows = [json.dumps({**QA, "id": i, "question": "Who? " * (i % 5 + 1)}) for i in range(40)]
    rows[7], rows[23] = "", '{"broken'
    path = write(tmp_path / "x", newline.join(rows) + newline * ends)
    examples, rejected, counts = read(path)
    assert [r.line for r in rejected] == [24]
    for max_bytes in (1, 100, 333, 1000, 4000):
        splits = plan_splits([path], max_bytes=max_bytes)
        assert (len(splits) > 1) == (max_bytes < (tmp_path / "x").stat().st_size)
        assert pickle.loads(pickle.dumps(splits)) == splits
        parts = [read_split(split) for split in splits]
        assert [e for part in parts for e in part[0]] == examples
        assert [r for part in parts for r in part[1]] == rejected
        assert sum(part[2].questions for part in parts) == counts.questions == 39


def test_line_ends_inside_texts_do_not_cut_lines(tmp_path):
    rows = [{**QA, "id": i, "context": PASSAGE + "\u2028\u0085\x0c more"} for i in range(3)]
    path = write(tmp_path / "x", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    assert [e.line for e in read(path)[0]] == [1, 2, 3]


def test_a_byte_order_mark_is_no_fault(tmp_path):
    for name, content in CONTENTS.items():
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        text = content if isinstance(content, str) else json.dumps(content)
        assert len(read(write(tmp_path / name, b"\xef\xbb\xbf" + text.encode()))[0]) == 1, name


# Rows that are wrong


def test_an_answer_off_its_offset_is_refused_alone(tmp_path):
    path = write(tmp_path / "x", squad(qa(answers=[("Oslo", 33), ("Oslo", 34), ("Oslo", -5), ("Ada", 21), ("Oslo", 1000)])))
    [example], rejected, counts = read(path)
    assert example.answers == [Answer("Oslo", 34)]
    assert (counts.answers, counts.answers_rejected, counts.questions_rejected) == (5, 4, 0)
    assert {r.reason for r in rejected} == {readers.NOT_AT_OFFSET}
    assert rejected[0].detail == "'Oslo' at 33, where there is ' Osl'"
    # repaired where the text occurs once: Oslo does, Ada (0 and 22) does not
    [example], _, counts = read(path, repair_offsets=True)
    assert example.answers == [Answer("Oslo", 34)] * 4
    assert (counts.answers_repaired, counts.answers_rejected) == (3, 1)


def test_overlapping_occurrences_are_several():
    row = {"question": "?", "context": "aaa", "answer": "aa", "answer_start": 7}
    assert read_rows([row], file="x", repair_offsets=True)[2].answers_repaired == 0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"question": " \n"}, {readers.EMPTY_QUESTION: 1}),
        ({"question": None}, {readers.EMPTY_QUESTION: 1}),
        ({"context": ""}, {readers.EMPTY_PASSAGE: 1}),
        ({"context": None}, {readers.EMPTY_PASSAGE: 1}),
        ({"context": None, "answer": None}, {readers.EMPTY_PASSAGE: 1}),
        ({"answer": " "}, {readers.EMPTY_ANSWER: 1, readers.NO_ANSWER_LEFT: 1}),
        ({"answer": "Rome"}, {readers.NOT_IN_PASSAGE: 1, readers.NO_ANSWER_LEFT: 1}),
        ({"answer": 1745}, {readers.WRONG_TYPE: 1, readers.NO_ANSWER_LEFT: 1}),
        ({"answer": {"start": 3}}, {readers.MISSING_KEY: 1}),
        ({"answer_start": "16"}, {readers.WRONG_TYPE: 1, readers.NO_ANSWER_LEFT: 1}),
        ({"answer_start": True}, {readers.WRONG_TYPE: 1, readers.NO_ANSWER_LEFT: 1}),
        ({"question": 5}, {readers.WRONG_TYPE: 1}),
        ({"context": {"a": 1}}, {readers.WRONG_TYPE: 1}),
        ({"id": 1.5}, {readers.WRONG_TYPE: 1}),
        ({"id": ["a"]}, {readers.WRONG_TYPE: 1}),
        ({"id": "good"}, {readers.DUPLICATE_ID: 1}),
        ({"id": "\ud800"}, {readers.LONE_SURROGATE: 1}),
        ({"is_impossible": "perhaps"}, {readers.WRONG_TYPE: 1}),
        ({"question": "\ud800?"}, {readers.LONE_SURROGATE: 1}),
        ({"context": PASSAGE + "\udfff"}, {readers.LONE_SURROGATE: 1}),
        ({"answer": "Lund\ud800"}, {readers.LONE_SURROGATE: 1, readers.NO_ANSWER_LEFT: 1}),
        ({"title": "\ud800", "language": "\ud800"}, {}),  # no reason to lose a question, but it must be writable
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_wrong_row_is_refused_with_its_reason_and_its_line_wherever_it_stands(tmp_path, changed, expected, place):
    rows = [{**QA, "id": "good"}, {**QA, "id": "also good"}]
    rows.insert(place, {**QA, "id": "bad", **changed})
    path = write(tmp_path / "x", rows)
    if place == 0 and isinstance(changed.get("context"), dict):  # a file that starts so is HotpotQA
        assert recognise_format(path) == "hotpotqa"
        return
    examples, rejected, counts = read(path)
    assert counts.reasons == expected
    assert len(examples) == (2 if expected else 3)
    later = place == 0 and changed == {"id": "good"}  # of two rows with one id the later is refused
    assert {r.line for r in rejected} <= {2 if later else place + 1}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"question": "Qu\xe9", "context": "a"}', readers.INVALID_UTF8),
        (b'{"question": "\xed\xa0\x80", "context": "a"}', readers.INVALID_UTF8),  # a surrogate as bytes
        (b'{"question": "a", "context": ', readers.BROKEN_JSON),
        (b"[" * 100_000, readers.BROKEN_JSON),
        (b'{"question": ' + b"9" * 5000 + b"}", readers.BROKEN_JSON),  # more digits than Python takes
        (b'["question", "context"]', readers.WRONG_TYPE),
        (b'{"question": "a"}', readers.MISSING_KEY),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_broken_line_is_refused_alone_wherever_it_stands(tmp_path, line, reason, place):
    lines = [json.dumps({**QA, "id": str(i)}).encode() for i in range(2)]
    lines.insert(place, line)
    path = write(tmp_path / "x", b"\n".join(lines))
    if place == 0 and line.startswith(b"["):  # a file that starts so is a list, and a broken one
        assert "JSON" in fault(path)
        return
    examples, [rejected], _ = read(path)
    assert [e.id for e in examples] == ["0", "1"]
    assert (rejected.reason, rejected.line) == (reason, place + 1)


def test_a_file_of_which_nothing_parses_is_refused(tmp_path):
    assert "not valid JSON" in fault(write(tmp_path / "x", '{"question": \n{"question": \n'))


@pytest.mark.parametrize("data", ["a cell", ["a list"]])
def test_lines_may_have_a_column_called_data(tmp_path, data):
    path = write(tmp_path / "x", [{"data": data, **QA, "id": str(i)} for i in range(3)])
    assert recognise_format(path) == "qa"
    assert len(read(path)[0]) == 3
    assert len(read(write(tmp_path / "y", [{**QA, "data": data}]))[0]) == 1
    assert "rows with the keys data, text" in fault(write(tmp_path / "z", [{"data": data, "text": "b"}] * 2))
    pretty = json.dumps(squad(qa()), indent=1)
    assert recognise_format(write(tmp_path / "p", pretty)) == recognise_format(write(tmp_path / "q", squad(qa()))) == "squad"


def test_what_is_refused_is_found_by_line_by_row_or_by_question(tmp_path):
    rows = [{**QA, "id": "a"}, {**QA, "id": "b", "answer": "Paris"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t")
    (tmp_path / "c").write_text("id,question,context,answer\na,Where?,In Lund.,Lund\nb,Where?,In Lund.,Oslo\n")
    wanted = {"x": ("line", 2), "d": ("question", 2), "t": ("row", 2), "c": ("line", 3)}
    write(tmp_path / "x", rows)
    write(tmp_path / "d", json.dumps(rows))
    for name, place in wanted.items():
        assert {(r.unit, r.line) for r in read(str(tmp_path / name))[1]} == {place}


def test_a_document_that_is_not_utf8_names_the_byte(tmp_path):
    data = json.dumps(squad(qa()), ensure_ascii=False).encode().replace(b"Lund", b"L\xfcnd", 1)
    assert f"byte {data.index(0xFC) + 1} is 0xfc" in fault(write(tmp_path / "x", data))


def test_a_missing_key_of_a_squad_file_is_named_with_its_place(tmp_path):
    def without(key, *place):
        document = squad(qa("a"), qa("b"))
        at = document
        for step in place:
            at = at[step]
        at["other"] = at.pop(key)
        return fault(write(tmp_path / "x", document))

    assert "data[0] has no 'paragraphs' (it has title, other)" in without("paragraphs", "data", 0)
    assert "data[0].paragraphs[0] has no 'qas'" in without("qas", "data", 0, "paragraphs", 0)
    assert "data[0].paragraphs[0] has no 'context'" in without("context", "data", 0, "paragraphs", 0)
    place = ("data", 0, "paragraphs", 0, "qas", 1)
    assert "data[0].paragraphs[0].qas[1] has no 'question'" in without("question", *place)
    assert "qas[1].answers[0] has no 'answer_start'" in without("answer_start", *place, "answers", 0)
    assert "qas[1].answers[0] has no 'text'" in without("text", *place, "answers", 0)


@pytest.mark.parametrize(
    ("document", "seen"),
    [
        ({"data": [3]}, "data[0] is a number, wanted an object with 'paragraphs'"),
        ({"data": [{"paragraphs": {}}]}, "'paragraphs' of data[0] is an object, wanted a list"),
        (squad("x"), "qas[0] is a text, wanted an object with 'question'"),
        (squad({"question": "a", "answers": 5}), "'answers' of data[0].paragraphs[0].qas[0] is a number, wanted a list"),
        (squad({"question": "a", "answers": ["Lund"]}), "answers[0] is a text, wanted an object with 'text'"),
    ],
)
def test_a_squad_file_of_another_shape_says_where(tmp_path, document, seen):
    assert seen in fault(write(tmp_path / "x", document))


def test_translations_in_one_file_may_share_an_id(tmp_path):
    rows = [{**QA, "id": "a", "language": language} for language in ("en", "es", "es")]
    examples, rejected, _ = read(write(tmp_path / "x", rows))
    assert [e.language for e in examples] == ["en", "es"]
    assert [r.reason for r in rejected] == [readers.DUPLICATE_ID]

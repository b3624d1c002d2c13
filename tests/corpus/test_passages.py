import gzip
import json
import random
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raydist.corpus import passages
from raydist.corpus.known_ids import KnownIds
from raydist.corpus.passages import (
    GOLD_SCHEMA,
    PASSAGE_SCHEMA,
    QUESTION_SCHEMA,
    SENTENCE_SCHEMA,
    Boundaries,
    count_duplicates,
    cut_documents,
    cut_passages,
    duplicate_keys,
    normalise_text,
    open_beir,
    open_documents,
    open_tables,
    read_answer_pairs,
    read_boundaries,
    read_reqa,
    read_table,
    sentences_of_examples,
    split_sentences,
)
from raydist.corpus.readers import plan_splits, read_split
from raydist.errors import InputError
from raydist.records import Answer, Example, rejected_table


def pieces(text, language="en"):
    return [text[start:end] for start, end in split_sentences(text, language)]


# sentences


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["Dr. Smith met Mr. J. R. Brown.", "They spoke for 3.5 hours."]),
        ("en", ["It cost $3.50.", "He paid."]),
        ("en", ["The U.S. Senate met.", "It was late."]),
        ("en", ["He left the U.S. for good.", "She stayed in the U.S.", "They never met again."]),
        ("en", ['"Go!" he said.', '"Why?" she asked.', "Nobody knew."]),
        ("en", ['He said "Stop."', "Then he left.", "(Nobody saw it.)", "“It rained.”", "Yes."]),
        ("en", ["Wait... and see.", "Well...", "Then it ended…", "Or not?!", "Yes!!"]),
        ("en", ["See No. 5, pp. 12 and Vol. 3.", "No.", "Next, e.g. this one, i.e. that."]),
        ("en", ["Visit example.org today.", "Version 2.0.1 is out."]),
        ("de", ["Am 3. Oktober kam z.B. Dr. Müller.", "Er blieb."]),
        ("es", ["El Sr. García llegó.", "¿Quién era?", "¡Nadie lo sabía!"]),
        ("ar", ["أين تقع المدينة؟", "تقع على النهر.", "نعم."]),
        ("hi", ["नदी कहाँ है।", "यह यहाँ है॥", "ठीक।"]),
        ("el", ["Πού είναι;", "Εδώ."]),
        ("vi", ["Ông ở TP. Huế.", "Sông ở đâu?"]),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(language, sentences):
    assert pieces(" ".join(sentences), language) == sentences


def test_chinese_and_hindi_need_no_blank_after_the_stop():
    assert pieces("他来了。她说：「走！」他们走了吗？是。", "zh") == ["他来了。", "她说：「走！」", "他们走了吗？", "是。"]
    assert pieces("नदी है।यह है।", "hi") == ["नदी है।", "यह है।"]


def test_a_number_with_a_stop_is_an_ordinal_in_german_and_an_end_in_english():
    assert len(pieces("Er war der 3. Am Ende", "de")) == 1
    assert len(pieces("He was number 3. Finally", "en")) == 2


def test_a_blank_line_ends_a_sentence_and_a_line_break_does_not():
    assert pieces("A title\n\nThe text\ngoes on\n \n  More") == ["A title", "The text\ngoes on", "More"]


odd = st.text(st.sampled_from(list("aB1 .!?…。؟।॥;\"'”)»(\n\t\u00a0\u3000\u200bé")), max_size=60)


@settings(max_examples=400, deadline=None)
@given(odd | st.text(max_size=60), st.sampled_from(["en", "de", "el", "zh", "ar", "hi", "xx"]))
@example("", "en")
@example(" \n\n ", "en")
@example("a.\n\n\n.b", "en")
def test_sentences_are_slices_in_order_that_leave_out_nothing_but_blanks(text, language):
    spans = split_sentences(text, language)
    at = 0
    for start, end in spans:
        assert at <= start < end <= len(text)
        assert text[at:start].strip() == ""  # what lies between is blank
        assert text[start:end] == text[start:end].strip() != ""
        at = end
    assert text[at:].strip() == ""


def test_documents_become_passages_become_sentences_with_stable_ids():
    documents = pa.table(
        {"document_id": ["Oder", "Leer"], "text": ["It flows. It is long.\n\nIt ends.", " \n\n "], "title": ["O", None]}
    )
    cut = cut_documents(documents)
    assert cut.schema == PASSAGE_SCHEMA
    assert cut["passage_id"].to_pylist() == ["Oder#0000", "Oder#0001"]
    sentences = cut_passages(cut)
    assert sentences.schema == SENTENCE_SCHEMA
    assert sentences["sentence_id"].to_pylist() == ["Oder#0000#000", "Oder#0000#001", "Oder#0001#000"]
    texts = dict(zip(cut["passage_id"].to_pylist(), cut["text"].to_pylist()))
    for row in sentences.to_pylist():
        assert texts[row["passage_id"]][row["start"] : row["end"]] == row["text"]
        assert row["document_id"] == "Oder"
    # block by block gives the rows of the whole
    blocks = pa.concat_tables([cut_passages(cut.slice(0, 1)), cut_passages(cut.slice(1))])
    assert blocks.to_pylist() == sentences.to_pylist()


# duplicates


def test_duplicates_are_told_by_normalised_text():
    assert normalise_text("  The “ﬁrst” TOWN,\n(it's) Straße!  ") == "the first town it s strasse"
    assert normalise_text("पानी") == "पानी"  # marks stay
    one, again, turned, other = (
        duplicate_keys(text) for text in ("The town, Oder.", "the TOWN Oder", "Oder: the town", "Oder")
    )
    assert one == again
    assert one[0] != turned[0]
    assert one[1] == turned[1]
    assert not set(one) & set(other)
    assert duplicate_keys("!!") != duplicate_keys("??")
    texts = ["The town, Oder.", "the TOWN Oder", "Oder: the town", "Oder", "oder"]
    sentences = pa.Table.from_pylist([passages._sentence(f"s{n}", text) for n, text in enumerate(texts)], SENTENCE_SCHEMA)
    assert count_duplicates(sentences) == {"exact": 2, "near": 1}


# sets with gold


def write_beir(folder, corpus, queries, qrels):
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{d}\t{s}\n" for q, d, s in qrels)
    )


def read_beir(folder, split="test"):
    return open_beir(folder, split).whole()


def reasons(found):
    return [(row.what, row.reason, row.id, row.line) for row in found.rejected]


CORPUS = [{"_id": "d1", "title": "Oder", "text": "It flows."}, {"_id": "d2", "title": "", "text": "It ends."}]


def test_beir_layout(tmp_path):
    queries = [{"_id": "q1", "text": "Where?"}, {"_id": "q2", "text": "When?"}, {"_id": "dev", "text": "Of another split?"}]
    write_beir(tmp_path, CORPUS, queries, [("q1", "d1", 2), ("q1", "d2", 0), ("q2", "d2", 1)])
    found = read_beir(tmp_path)
    assert found.sentences.schema == SENTENCE_SCHEMA
    assert found.questions.schema == QUESTION_SCHEMA
    assert found.gold.schema == GOLD_SCHEMA
    assert found.sentences["text"].to_pylist() == ["Oder It flows.", "It ends."]
    assert found.questions["question_id"].to_pylist() == ["q1", "q2"]
    assert [tuple(row.values()) for row in found.gold.to_pylist()] == [("q1", "d1", 2), ("q2", "d2", 1)]
    assert found.rejected == []


def test_everything_wrong_in_a_set_is_named_and_the_rest_stays(tmp_path):
    corpus = [
        *CORPUS,
        {"_id": "d1", "text": "Again."},
        {"_id": "d3", "title": "", "text": " "},
        {"_id": "d4", "text": ["no", "text"]},
    ]
    queries = [
        {"_id": "q1", "text": "Where?"},
        {"_id": "q2", "text": "No gold left?"},
        {"_id": "q1", "text": "Twice?"},
        {"_id": "q3", "text": ""},
    ]
    qrels = [("q1", "d1", 1), ("q2", "d9", 1), ("q3", "d1", 1), ("q9", "d1", 1), ("q1", "d2", "much")]
    write_beir(tmp_path, corpus, queries, qrels)
    with open(tmp_path / "corpus.jsonl", "a") as file:
        file.write('{"_id": "d5", "text"\n[1]\n{"_id": "d6", "text": "\\ud800"}\n')
    found = read_beir(tmp_path)
    assert found.sentences["sentence_id"].to_pylist() == ["d1", "d2"]
    assert found.questions["question_id"].to_pylist() == ["q1"]
    assert found.gold.to_pylist() == [{"question_id": "q1", "sentence_id": "d1", "relevance": 1}]
    assert sorted(reasons(found)) == sorted(
        [
            ("sentence", "wrong type", "d4", 5),
            ("row", "broken JSON", "", 6),
            ("row", "wrong type", "", 7),
            ("sentence", "lone surrogate", "d6", 8),
            ("gold", "wrong type", "q1", 6),
            ("sentence", "duplicate id", "d1", 3),
            ("sentence", "empty sentence", "d3", 4),
            ("question", "duplicate id", "q1", 3),
            ("question", "empty question", "q3", 4),
            ("gold", "gold sentence not in the corpus", "q2", 3),
            ("gold", "gold for an unknown question", "q9", 5),
            ("question", "question with no gold sentence", "q2", 2),
        ]
    )


def test_of_questions_without_gold_those_of_another_split_are_counted_and_all_others_named(tmp_path):
    names = ("gold", "zero", "broken", "elsewhere")
    queries = [{"_id": name, "text": "Where?"} for name in names]
    write_beir(tmp_path, CORPUS, queries, [("gold", "d1", 1), ("zero", "d1", 0), ("broken", "d1", "much")])
    found = read_beir(tmp_path)
    assert found.questions["question_id"].to_pylist() == ["gold"]
    assert found.gold["question_id"].to_pylist() == ["gold"]
    without = [
        ("question", "question with no gold sentence", "zero", 2),
        ("question", "question with no gold sentence", "broken", 3),
    ]
    assert reasons(found) == [("gold", "wrong type", "broken", 4), *without]
    assert found.notes == {"questions that this split's gold says nothing of: left out": 1}
    # three tables are one set: there is no other split that a question could be of
    columns = {"questions": {"question_id": "_id"}, "corpus": {"sentence_id": "_id"}}
    columns["gold"] = {"question_id": "query-id", "sentence_id": "corpus-id", "relevance": "score"}
    files = [tmp_path / name for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")]
    whole = open_tables(*files, columns).whole()
    assert reasons(whole)[1:] == [*without, ("question", "question with no gold sentence", "elsewhere", 4)]
    assert whole.notes == {}


def test_an_empty_corpus_a_missing_file_and_ids_that_never_meet_stop_with_one_message(tmp_path):
    write_beir(tmp_path / "a", [], [{"_id": "q", "text": "Where?"}], [("q", "d", 1)])
    with pytest.raises(InputError, match="corpus is empty"):
        read_beir(tmp_path / "a")
    with pytest.raises(InputError, match=r"no file .*train.tsv"):
        read_beir(tmp_path / "a", "train")
    write_beir(tmp_path / "b", CORPUS, [{"_id": "q", "text": "Where?"}], [("other", "d1", 1)])
    with pytest.raises(InputError, match="none of the questions"):
        read_beir(tmp_path / "b")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "jsonl.gz", "tsv"])
def test_mapped_columns_of_every_kind_of_table(tmp_path, suffix):
    rows = [
        {"pid": 7, "body": "It, flows."},
        {"pid": 8, "body": 'It "ends".' + (" Really." if suffix == "tsv" else "\nReally.")},
    ]
    path = tmp_path / f"corpus.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix.startswith("jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    elif suffix == "tsv":
        path.write_text("pid\tbody\n" + "".join(f"{row['pid']}\t{row['body']}\n" for row in rows))
    else:
        import csv

        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, ["pid", "body"])
            writer.writeheader()
            writer.writerows(rows)
    (tmp_path / "q.jsonl").write_text('{"qid": 1, "q": "Where?"}\n')
    (tmp_path / "g.csv").write_text("qid,pid\n1,8\n")
    columns = {
        "corpus": {"sentence_id": "pid", "text": "body"},
        "questions": {"question_id": "qid", "text": "q"},
        "gold": {"question_id": "qid", "sentence_id": "pid"},
    }
    found = open_tables(path, tmp_path / "q.jsonl", tmp_path / "g.csv", columns).whole()
    assert found.sentences["sentence_id"].to_pylist() == ["7", "8"]
    assert found.sentences["text"].to_pylist() == [row["body"] for row in rows]
    assert found.gold.to_pylist() == [{"question_id": "1", "sentence_id": "8", "relevance": 1}]
    blocks = list(read_table(path, ("passage_id", "text"), {"passage_id": "pid", "text": "body"}, block_rows=1))
    assert [block["passage_id"].to_pylist() for block in blocks] == [["7"], ["8"]]


def test_a_column_that_is_not_there_and_a_file_that_is_no_table_are_named(tmp_path):
    (tmp_path / "rows.csv").write_text("id,body\n1,text\n")
    with pytest.raises(InputError, match=r"no column 'text', only id, body"):
        list(read_table(tmp_path / "rows.csv", ("id", "text")))
    (tmp_path / "rows.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        list(read_table(tmp_path / "rows.parquet", ("id",)))
    whole = bytearray(gzip.compress(b'{"id": "a"}\n'))
    damaged = whole[:10] + b"\xff" + whole[11:]
    for content in (whole[:-4], damaged):
        (tmp_path / "rows.jsonl.gz").write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as jsonl"):
            list(read_table(tmp_path / "rows.jsonl.gz", ("id",)))
    with pytest.raises(InputError, match="cannot tell"):
        list(read_table(tmp_path / "rows.bin", ("id",)))


def read_lines(path, content, wanted=("id", "text")):
    """Line and wanted columns of the rows that are kept; line, what, reason and detail of the others."""
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    rejected = []
    rows = [row for block in read_table(path, wanted, rejected=rejected) for row in block.to_pylist()]
    assert {row.file for row in rejected} <= {str(path)}
    assert rejected_table(rejected).num_rows == len(rejected)  # it can be written
    return [(row["line"], *(row[name] for name in wanted)) for row in rows], [
        (row.line, row.what, row.reason, row.detail) for row in rejected
    ]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_line_of_json_that_is_not_utf8_is_refused_alone(tmp_path, name, mark):
    lines = [
        '{"id": "a", "text": "Łódź"}'.encode(),
        '{"id": "b", "text": "Qué"}'.encode("latin-1"),
        b"",
        b'{"id": "c", "text": "\xed\xa0\x80"}',  # a surrogate as bytes
        b'{"id": "d", "text": "It ends."}',
    ]
    for newline in (b"\n", b"\r\n"):
        kept, refused = read_lines(tmp_path / name, mark + newline.join(lines))
        assert kept == [(1, "a", "Łódź"), (5, "d", "It ends.")]
        assert refused == [
            (2, "row", "invalid UTF-8", "byte 24 is 0xe9"),
            (4, "row", "invalid UTF-8", "byte 22 is 0xed"),
        ]
    assert read_lines(tmp_path / name, b"\xff\n\xfe\n") == (
        [],
        [(1, "row", "invalid UTF-8", "byte 1 is 0xff"), (2, "row", "invalid UTF-8", "byte 1 is 0xfe")],
    )


@pytest.mark.parametrize(("suffix", "tab"), [("csv", b","), ("tsv", b"\t"), ("csv.gz", b",")])
def test_a_row_of_cells_that_is_not_utf8_or_too_long_is_refused_alone(tmp_path, suffix, tab):
    lines = [b"id|text", b"a|It flows.", b"b|Qu\xe9", b"c|It is long.|Really.", b"d|It ends.|"]
    kept, refused = read_lines(tmp_path / f"rows.{suffix}", b"\n".join(lines).replace(b"|", tab))
    assert kept == [(2, "a", "It flows."), (5, "d", "It ends.")]
    assert refused == [
        (3, "row", "invalid UTF-8", r"in {'id': 'b', 'text': 'Qu\udce9'}"),
        (4, "row", "wrong number of columns", "3 cells, the header has 2"),
    ]
    kept, refused = read_lines(tmp_path / f"rows.{suffix}", b"id|text|\xe9\na|It flows.|\n".replace(b"|", tab))
    assert (kept, [row[:3] for row in refused]) == ([], [(2, "row", "invalid UTF-8")])  # the header is not


def test_tsv_is_lines_cut_at_tabs_whatever_quotes_they_hold(tmp_path):
    rows = [("8", '"It began.'), ("1", "It went on."), ("2", 'It was said."'), ("3", '"Whole"'), ("4", '5" is ""long""')]
    text = "id\ttext\n" + "".join(f"{id}\t{text}\n" for id, text in rows)
    assert read_lines(tmp_path / "rows.tsv", text.encode()) == ([(at, *row) for at, row in enumerate(rows, 2)], [])
    # in CSV they hold a cell together
    assert read_lines(tmp_path / "rows.csv", b'id,text\n8,"It began.\nIt ends."\n')[0] == [(3, "8", "It began.\nIt ends.")]


def test_a_score_that_is_too_large_and_a_row_nested_too_deeply_are_refused_alone(tmp_path):
    write_beir(tmp_path, CORPUS, [{"_id": "q", "text": "Where?"}], [("q", "d1", 2**31 - 1), ("q", "d2", -(2**31))])
    scores = ["99999999999", 2**31, -(2**31) - 1, "9" * 5_000]
    with open(tmp_path / "qrels/test.tsv", "a") as file:
        file.writelines(f"q\td2\t{score}\n" for score in scores)
    depths = (100, 900, 950, 980, 990, 1_000, 100_000)  # at some of them the row is read, and its text is none
    with open(tmp_path / "corpus.jsonl", "a") as file:
        file.writelines('{"_id": "deep", "text": ' + "[" * depth + "]" * depth + "}\n" for depth in depths)
    found = read_beir(tmp_path)
    assert found.gold.to_pylist() == [{"question_id": "q", "sentence_id": "d1", "relevance": 2**31 - 1}]
    deep, wrong = found.rejected[: len(depths)], found.rejected[len(depths) :]
    assert [row.line for row in deep] == [*range(3, 3 + len(depths))]
    assert (deep[0].reason, deep[-1].reason) == ("wrong type", "broken JSON")
    assert [(row.what, row.reason, row.id, row.line) for row in wrong] == [
        ("gold", "wrong type", "q", 4 + at) for at in range(len(scores))
    ]
    assert wrong[0].detail == "score: '99999999999'"
    (tmp_path / "deep.json").write_text('{"questions": ' + "[" * 100_000)
    with pytest.raises(InputError, match="not JSON"):
        read_reqa(tmp_path / "deep.json")


def test_reqa_files(tmp_path):
    path = tmp_path / "reqa.json"
    document = {
        "questions": ["Where?", "When?", "Why?"],
        "candidates": ["Here.", "Now.", ""],
        "ground_truths": [[0, 1], [9], [2]],
    }
    path.write_text(json.dumps(document))
    found = read_reqa(path)
    assert found.sentences["sentence_id"].to_pylist() == ["s00000000", "s00000001"]
    assert found.gold["sentence_id"].to_pylist() == ["s00000000", "s00000001"]
    assert found.questions["question_id"].to_pylist() == ["q00000000"]
    assert [reason for _, reason, _, _ in reasons(found)] == [
        "empty sentence",
        "gold sentence not in the corpus",
        "gold sentence not in the corpus",
        "question with no gold sentence",
        "question with no gold sentence",
    ]
    path.write_text(json.dumps({**document, "ground_truths": [[0]]}))
    with pytest.raises(InputError, match="3 questions and 1 ground_truths"):
        read_reqa(path)
    path.write_text('{"questions": []}')
    with pytest.raises(InputError, match="wanted an object with the lists"):
        read_reqa(path)


def test_pairs_of_question_and_answer(tmp_path):
    path = tmp_path / "train.json"
    rows = [("Where?", "Here.", 4), ("There?", "Here.", 2), ("Where?", "Or there.", 4), ("Other?", "Here.", 2), ("Why?", "", 3)]
    questions, answers, ids = zip(*rows)
    path.write_text(json.dumps({"questions": questions, "answers": answers, "question_ids": ids}))
    found = read_answer_pairs(path)
    assert found.sentences["text"].to_pylist() == ["Here.", "Or there."]  # equal answers are one sentence
    assert found.questions["question_id"].to_pylist() == ["4", "2"]
    assert [row["question_id"] for row in found.gold.to_pylist()] == ["4", "2", "4"]
    assert reasons(found) == [("question", "duplicate id", "2", 4), ("question", "wrong type", "3", 5)]


CONTEXT = "It flows. It is long. It ends."


def asked(id, *starts, context=CONTEXT):
    answers = [Answer(context[start : start + 4], start) for start in starts]
    return Example(id, "Where?", context, answers, passage_id="p-" + context[:5], title="Oder", file="f", line=1)


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
def test_real_sets_are_read_whole(data_dir):
    found = read_reqa(data_dir / "reqa_squad" / "test-A.json.gz")
    assert (len(found.sentences), len(found.questions), found.rejected) == (5605, 5246, [])
    found = read_answer_pairs(data_dir / "reqa_squad" / "train-10k.json.gz")
    assert (len(found.questions), found.rejected) == (10_000, [])


@pytest.mark.realdata
def test_scifact_is_put_into_beir_layout_sentence_by_sentence(data_dir, tmp_path):
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "scifact.py"
    archive = data_dir / "scifact" / "scifact.zip"
    subprocess.run([sys.executable, script, archive, tmp_path], check=True)
    counts = {"train": (505, 1025), "test": (188, 366)}  # claims with evidence, and its sentences
    for split, (claims, gold) in counts.items():
        found = read_beir(tmp_path, split)
        assert (found.questions.num_rows, found.gold.num_rows, len(found.rejected)) == (claims, gold, 0)
    assert (found.passages.num_rows, found.sentences.num_rows) == (5183, 45952)
    texts = dict(zip(found.sentences["sentence_id"].to_pylist(), found.sentences["text"].to_pylist()))
    assert texts["13734012#4"].startswith("RESULTS Of the 32,441 appendix samples 16 were positive for abnormal PrP")


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


def test_documents_that_name_their_sentences(tmp_path):
    (tmp_path / "qrels").mkdir()
    documents = [
        {"_id": "d", "title": "t", "text": "It fell. It rose.", "sentences": [[0, 8], [9, 17]]},
        {"_id": "d", "text": "Again.", "sentences": [[0, 6]]},
        {"_id": "e", "text": "Short.", "sentences": [[0, 60]]},
        {"_id": "f", "text": "Short.", "sentences": [["0", 6]]},
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "What rose?"}\n')
    (tmp_path / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq\td#1\t1\n")
    found = read_beir(tmp_path, "train")
    assert found.sentences.select(["sentence_id", "text", "passage_id"]).to_pylist() == [
        {"sentence_id": "d#0", "text": "It fell.", "passage_id": "d"},
        {"sentence_id": "d#1", "text": "It rose.", "passage_id": "d"},
    ]
    assert found.passages["text"].to_pylist() == ["It fell. It rose."]
    assert [(row.line, row.reason) for row in found.rejected] == [
        (2, "duplicate id"),
        (3, "sentence boundaries do not fit the passage"),
        (4, "sentence boundaries do not fit the passage"),
    ]


def test_plain_documents_are_cut_and_nobody_asks_about_them(tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "BLOCK_ROWS", 2)
    rows = [
        {"_id": "Oder", "title": "O", "text": "It flows. It is long.\n\nIt ends."},
        {"_id": 7, "text": "Am 3. Mai kam er.", "language": "de"},
        {"_id": "blank", "text": " \n\n "},
        {"_id": "Oder", "text": "Again."},
        {"_id": "", "text": "Nameless."},
        {"text": "Nameless."},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.csv").write_text("document_id,text\nTarn,It is deep.\n7,Taken.\n")
    found = open_documents([tmp_path / "a.jsonl", tmp_path / "b.csv"]).whole()
    assert dict(zip(found.sentences["sentence_id"].to_pylist(), found.sentences["text"].to_pylist())) == {
        "Oder#0000#000": "It flows.",
        "Oder#0000#001": "It is long.",
        "Oder#0001#000": "It ends.",
        "7#0000#000": "Am 3. Mai kam er.",
        "Tarn#0000#000": "It is deep.",
    }
    assert found.passages["title"].to_pylist() == ["O", "O", "", ""]
    assert (len(found.questions), len(found.gold)) == (0, 0)
    assert sorted((Path(row.file).name, row.line, row.what, row.reason, row.id) for row in found.rejected) == [
        ("a.jsonl", 3, "document", "empty document", "blank"),
        ("a.jsonl", 4, "document", "duplicate id", "Oder"),
        ("a.jsonl", 5, "document", "missing key", ""),
        ("a.jsonl", 6, "document", "missing key", ""),
        ("b.csv", 3, "document", "duplicate id", "7"),
    ]
    (tmp_path / "c.csv").write_text("name,body\nTarn,It is deep.\n")
    found = open_documents([tmp_path / "c.csv"], {"document_id": "name", "text": "body"}).whole()
    assert found.sentences["sentence_id"].to_pylist() == ["Tarn#0000#000"]
    with pytest.raises(InputError, match="has no column 'document_id', only name, body"):
        open_documents([tmp_path / "c.csv"]).whole()
    (tmp_path / "long.csv").write_text("_id,text\nlong," + "It is long. " * 20_000 + "\n")
    assert len(open_documents([tmp_path / "long.csv"]).whole().sentences) == 20_000
    (tmp_path / "d.csv").write_text("_id,text\na, \n")
    with pytest.raises(InputError, match=r"corpus is empty; .* Rejected: 1 empty document, .*d.csv, line 2, id 'a' \(' '\)$"):
        open_documents([tmp_path / "d.csv"]).whole()


def test_every_row_says_for_itself_whether_it_names_its_sentences(tmp_path):
    corpus = [
        {"_id": 1, "title": "Oder", "text": "It flows. It is long."},
        {"_id": "d", "text": "It fell. It rose.", "sentences": [[0, 8], [9, 17]]},
        {"_id": "w", "text": "One candidate. Really.", "sentences": None},
        {"_id": "d#1", "text": "An id that is taken."},
        {"_id": "e", "text": "No sentences.", "sentences": []},
    ]
    write_beir(tmp_path, corpus, [{"_id": "q", "text": "What rose?"}], [("q", "d#1", 1), ("q", "w", 1)])
    found = read_beir(tmp_path)
    assert dict(zip(found.sentences["sentence_id"].to_pylist(), found.sentences["text"].to_pylist())) == {
        "1": "Oder It flows. It is long.",
        "d#0": "It fell.",
        "d#1": "It rose.",
        "w": "One candidate. Really.",
    }
    assert found.sentences["passage_id"].to_pylist() == ["", "d", "d", ""]
    assert found.gold["sentence_id"].to_pylist() == ["d#1", "w"]
    assert sorted(reasons(found)) == [
        ("document", "sentence boundaries do not fit the passage", "e", 5),
        ("sentence", "duplicate id", "d#1", 4),
    ]


# large sets


def test_blocks_change_nothing_and_a_repeat_is_told_across_them(tmp_path, monkeypatch):
    corpus = [{"_id": f"d{n % 23}", "text": f"It is {n}. Yes.", "sentences": [[0, 8 + (n > 9)]]} for n in range(40)]
    corpus += [{"_id": f"w{n % 17}", "text": f"Whole {n}." * (n != 3)} for n in range(30)]
    write_beir(tmp_path, corpus, [{"_id": "q", "text": "Which?"}], [("q", "d5#0", 1), ("q", "w16", 1), ("q", "w17", 1)])
    whole = read_beir(tmp_path)
    assert whole.sentences["sentence_id"].to_pylist() == [
        *(f"d{n}#0" for n in range(23)),
        *(f"w{n}" for n in range(17) if n != 3),
        "w3",  # the first one is empty
    ]
    assert {row.id for row in whole.rejected if row.reason == "duplicate id"} == {
        *(f"d{n}" for n in range(17)),
        *(f"w{n}" for n in range(13) if n != 3),
    }
    for rows in (1, 7, 30):
        monkeypatch.setattr(passages, "BLOCK_ROWS", rows)
        found = read_beir(tmp_path)
        for name in ("sentences", "passages", "questions", "gold"):
            assert getattr(found, name).to_pylist() == getattr(whole, name).to_pylist()
        assert sorted(reasons(found)) == sorted(reasons(whole))


def test_known_ids_agree_with_a_set():
    known, slow, rng = KnownIds(), set(), random.Random(0)
    for _ in range(60):
        ids = [f"id{rng.randrange(900)}" for _ in range(rng.choice((0, 1, 5, 60)))]
        expected = [id not in slow and id not in ids[:at] for at, id in enumerate(ids)]
        assert known.find(ids).tolist() == [id in slow for id in ids]
        assert known.add(ids).tolist() == expected
        slow.update(ids)
    assert len(known) == len(slow)


@pytest.mark.parametrize("layout", ["rows", "documents"])
def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch, layout):
    """As dicts a sentence takes some 1,500 bytes; as it is, the hash of its id."""
    monkeypatch.setattr(passages, "BLOCK_ROWS", 200)
    peaks = {}
    for rows in (500, 2_500):
        corpus = [{"_id": f"d{n:08d}", "text": f"The river {n} is long. The bridge {n} was built."} for n in range(rows)]
        if layout == "documents":
            corpus = [row | {"sentences": split_sentences(row["text"])} for row in corpus]
        write_beir(tmp_path / str(rows), corpus, [{"_id": "q", "text": "Which?"}], [("q", "d00000001", 1)])
        del corpus
        arrow = 0
        tracemalloc.start()
        for _ in open_beir(tmp_path / str(rows)).blocks():
            arrow = max(arrow, pa.total_allocated_bytes())
        peaks[rows] = tracemalloc.get_traced_memory()[1] + arrow
        tracemalloc.stop()
    assert (peaks[2_500] - peaks[500]) / 2_000 < 150


def test_a_text_that_cannot_be_written_as_utf8_is_rejected_from_reqa_files_and_pairs(tmp_path):
    lone = "\ud800"
    reqa = {"questions": ["Who?", lone], "candidates": ["He did.", lone], "ground_truths": [[0], [0]]}
    pairs = {"questions": ["Who?", lone, "What?"], "answers": ["He did.", "It.", lone], "question_ids": [1, 2, 3]}
    for name, content, read in (("reqa", reqa, read_reqa), ("pairs", pairs, read_answer_pairs)):
        (tmp_path / name).write_text(json.dumps(content))
        found = read(tmp_path / name)
        assert found.questions["text"].to_pylist() == ["Who?"]
        assert found.sentences["text"].to_pylist() == ["He did."]
        assert len(found.rejected) == 2

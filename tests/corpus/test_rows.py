"""Bytes in, rows with a line out: gzip, UTF-8, CSV and JSON Lines of files of questions."""

import gzip
import json

import pytest
from helpers.question_files import CONTENTS, PASSAGE, QA, fault, qa, read, squad, write

from raydist.corpus.rejected import BROKEN_JSON, INVALID_UTF8, MISSING_KEY, WRONG_TYPE, WRONG_WIDTH


def test_a_truncated_or_damaged_gzip_is_named(tmp_path):
    packed = gzip.compress(json.dumps(squad(*(qa(id=str(i), question=f"Where {i * 7919}?") for i in range(500)))).encode())
    for name, data in {
        "cut": packed[:-20],
        "cut early": packed[:15],
        "damaged": packed[:300] + b"\0" * 50 + packed[350:],
    }.items():
        (tmp_path / name).write_bytes(data)
        assert "gzip file cut short or damaged" in fault(tmp_path / name)


@pytest.mark.parametrize("rows", ["Where?,Lund,Lund,\n", "Where?\n", f"Where?\nWhere?,{PASSAGE},Lund\n"])
def test_a_first_csv_row_of_another_width_is_refused_alone(tmp_path, rows):
    examples, [rejected], _ = read(write(tmp_path / "x.csv", "question,context,answer\n" + rows))
    assert len(examples) == rows.count("\n") - 1
    assert (rejected.line, rejected.reason) == (2, WRONG_WIDTH)
    assert rejected.detail == f"{rows.splitlines()[0].count(',') + 1} cells, the header has 3"


def test_csv_bytes_that_are_not_utf8_cost_their_row_alone(tmp_path):
    data = f"question,context,answer\nWhere?,{PASSAGE},Lund\n".encode() + b"Qu\xe9?,Lund,Lund\nWho?,Lund,Lund\n"
    examples, [rejected], _ = read(write(tmp_path / "x.csv", data))
    assert len(examples) == 2
    assert (rejected.line, rejected.reason) == (3, INVALID_UTF8)


def test_csv_with_an_open_quote_is_refused_with_its_line(tmp_path):
    assert "starts in line 3" in fault(write(tmp_path / "x.csv", f'question,context\nWhere?,{PASSAGE}\nWho?,"open\n'))


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


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"question": "Qu\xe9", "context": "a"}', INVALID_UTF8),
        (b'{"question": "\xed\xa0\x80", "context": "a"}', INVALID_UTF8),  # a surrogate as bytes
        (b'{"question": "a", "context": ', BROKEN_JSON),
        (b"[" * 100_000, BROKEN_JSON),
        (b'{"question": ' + b"9" * 5000 + b"}", BROKEN_JSON),  # more digits than Python takes
        (b'["question", "context"]', WRONG_TYPE),
        (b'{"question": "a"}', MISSING_KEY),
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


def test_a_document_that_is_not_utf8_names_the_byte(tmp_path):
    data = json.dumps(squad(qa()), ensure_ascii=False).encode().replace(b"Lund", b"L\xfcnd", 1)
    assert f"byte {data.index(0xFC) + 1} is 0xfc" in fault(write(tmp_path / "x", data))

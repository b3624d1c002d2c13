"""`raydist ask`: the best spans of a passage, and what is said of input that is wrong."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from helpers.tiny_reader import write_reader

from raydist.cli import job
from raydist.config import load_config, to_yaml
from raydist.reader.answers import Answer, Reader

PASSAGE = "Mina Orlov built the bridge in 1894. Es fiel 1911 – über Nacht.\n"


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return str(write_reader(tmp_path_factory.mktemp("ask") / "reader"))


@pytest.fixture
def bridge(tmp_path):
    (tmp_path / "bridge.txt").write_text(PASSAGE, encoding="utf-8")
    return str(tmp_path / "bridge.txt")


def test_ask_shows_spans_of_the_passage_best_first(reader, bridge, capsys):
    assert job("ask", [reader, "When was it built?", "--passage", bridge, "--n-best", "3"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("the passage does not")]
    answer = Reader.load(reader).ask("When was it built?", PASSAGE, n_best=3)
    assert len(lines) == 3
    for rank, (line, span) in enumerate(zip(lines, answer.nbest), 1):
        number, probability, place, text = line.split(None, 3)
        assert (int(number), place, text) == (rank, f"{span.start}-{span.end}", span.text)
        assert float(probability) == pytest.approx(span.probability, abs=1e-3)


def test_ask_reads_standard_input_and_writes_json(reader):
    raydist = [sys.executable, "-m", "raydist", "ask", reader, "When was it built?", "--passage", "-", "--json"]
    done = subprocess.run(raydist, input=PASSAGE.encode(), capture_output=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr.decode()
    answer = json.loads(done.stdout)
    assert PASSAGE[answer["start"] : answer["end"]] == answer["text"] == answer["nbest"][0]["text"]
    assert answer.keys() == {field.name for field in fields(Answer)}


def test_ask_says_where_the_passage_does_not_seem_to(bridge, tmp_path, capsys):
    write_reader(tmp_path / "run" / "model")
    (tmp_path / "run" / "config.yaml").write_text(to_yaml(load_config("debug_reader").config))
    for threshold, shown in ((-1e6, True), (1e6, False)):
        (tmp_path / "run" / "metrics.json").write_text(json.dumps({"dev.null_threshold": threshold}))
        assert job("ask", [str(tmp_path / "run"), "Who?", "--passage", bridge]) == 0
        assert ("the passage does not seem to say (p 0." in capsys.readouterr().out) == shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/such/reader", "Who?", "--passage", "BRIDGE"], "error: model 'no/such/reader': no such folder; at hand"),
        (["builtin:tiny", "Who?", "--passage", "BRIDGE"], "has no weights for qa_outputs"),
        (["READER", "Who?", "--passage", "absent.txt"], "error: absent.txt cannot be read: No such file or directory"),
        (["READER", "Who?", "--passage", "."], "error: . cannot be read: Is a directory"),
        (["READER", "Who?", "--passage", "LATIN"], "is not UTF-8 text (byte 1); convert it first, for example with iconv"),
        (["READER", "Who?", "--passage", "BRIDGE", "--n-best", "0"], "error: n_best is 0; wanted 1 or more"),
        (["READER", " ", "--passage", "BRIDGE"], "error: the question of pair 1 is empty; leave it out"),
        (["READER", "Who?"], "is a reader: give it a text (--passage FILE), or take it for an index of documents (--reader)"),
        (["READER", "--passage", "BRIDGE"], "--passage needs a question"),
    ],
)
def test_what_cannot_be_asked_is_one_message(reader, bridge, tmp_path, capsys, arguments, message):
    (tmp_path / "latin.txt").write_bytes("für".encode("latin-1"))
    named = {"READER": reader, "BRIDGE": bridge, "LATIN": str(tmp_path / "latin.txt")}
    assert job("ask", [named.get(argument, argument) for argument in arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())

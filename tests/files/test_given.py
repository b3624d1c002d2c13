"""What users give: paths, files, JSON."""

import os
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from raydist.asking.questions import read_questions
from raydist.cli_ask import read_text
from raydist.config import find_config
from raydist.corpus.examples import plan_splits
from raydist.corpus.formats import open_corpus
from raydist.corpus.rows import table_rows
from raydist.errors import InputError
from raydist.files.given import expanded, parse_json
from raydist.files.storage import Storage, Unreachable, file_digest
from raydist.models.folders import model_folder
from raydist.reader.metrics import read_predictions
from raydist.retrieval.metrics import read_trec_run

READERS = {
    "config": find_config,
    "questions of a reader": lambda path: plan_splits([path]),
    "questions about documents": lambda path: read_questions([path]),
    "corpus": lambda path: open_corpus("documents", [Path(path)]),
    "rows": lambda path: next(table_rows(Path(path))),
    "digest": file_digest,
    "predictions": read_predictions,
    "ranked lists": lambda path: read_trec_run(Path(path)),
    "passage": read_text,
}


@pytest.mark.parametrize("kind", READERS)
def test_a_pipe_or_a_device_is_refused_and_not_waited_for(kind, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe.jsonl")
    os.symlink("/dev/zero", zeros := tmp_path / "zeros.jsonl")
    for path, what in ((pipe, "a pipe"), (zeros, "a device")):
        with pytest.raises(InputError, match=f"{path.name} is {what}, and a regular file is wanted"):
            READERS[kind](str(path))


HOMELESS = {
    "path": expanded,
    "storage": lambda name: Storage(name).exists("x"),
    "model": model_folder,
    "questions": lambda name: plan_splits([name]),
}


@pytest.mark.parametrize("kind", HOMELESS)
def test_a_home_folder_that_does_not_exist_is_named(kind):
    with pytest.raises(InputError, match="there is no user nosuchuser; give the full path"):
        HOMELESS[kind]("~nosuchuser/x.json")


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("text", "why"), [(DEEP, "too many lists or objects"), ("9" * 5000, "an integer with thousands of digits")]
)
@pytest.mark.parametrize("read", [parse_json, partial(parse_json, object_pairs_hook=dict)])
def test_json_without_a_bottom_or_an_end_has_a_short_message(read, text, why):
    with pytest.raises(ValueError, match=why) as caught:
        read(f'{{"a": {text}}}')
    assert len(str(caught.value)) < 100


class Refusing(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_) -> None:
        pass


def test_an_object_store_that_refuses_is_one_short_message_without_the_password():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    store = Storage(f"s3://key:secret@bucket/runs?endpoint_override=127.0.0.1:{server.server_port}&scheme=http")
    with pytest.raises(InputError, match=r"storage s3://\*\*\*@bucket/runs.*: no answer, or a refusal .*check its address"):
        store.check_reachable()
    for ask in (store.files, store.tree, store.folders, partial(store.read_bytes, "x"), partial(store.local_copy, "x")):
        with pytest.raises(Unreachable) as caught:
            ask()
        assert len(str(caught.value)) < 800
        assert "secret" not in str(caught.value)
    server.shutdown()


@pytest.mark.parametrize("uri", ["hdfs://nowhere:1/x", "foo://x/y"])
def test_a_storage_that_cannot_be_opened_is_one_short_message(uri):
    with pytest.raises(InputError, match=r"cannot be opened .*give a folder or an s3://") as caught:
        Storage(uri).exists("x")
    assert len(str(caught.value)) < 600

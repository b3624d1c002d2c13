"""Parsing in a separate process: a parser's crash, hang or memory growth costs one file, and not the worker.

    python -m raydist.documents.apart     a JSON line in: {path, name, max_bytes}; one out: {document} or {reason, detail}

The process ends with its input, so it never outlives the worker.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from raydist.corpus.rejected import CRASHED, DAMAGED, TOO_LARGE, TOO_SLOW, Fault
from raydist.documents.document import Block, Document, File
from raydist.documents.formats import checked, read
from raydist.documents.metadata import from_json, to_json
from raydist.errors import InputError

MEMORY = 4 << 30  # bytes of address space; a parser needs about ten times a file's size


class Apart:
    """A process that reads files one by one; started on demand, restarted after its death."""

    def __init__(self, max_seconds: float) -> None:
        self.max_seconds = max_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, file: File) -> Document:
        """The document in a file; raises a Fault if it cannot be read."""
        process, is_late = self._running(), threading.Event()

        def stop() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(self.max_seconds, stop)
        timer.start()
        answer = _asked(process, {"path": os.fspath(file.path), "name": file.name, "max_bytes": file.max_bytes})
        timer.cancel()
        if not answer or is_late.is_set():
            process.kill()
            status, self._process = process.wait(), None
            if is_late.is_set():
                raise Fault(TOO_SLOW, f"more than documents.max_seconds, which is {self.max_seconds:g}")
            raise Fault(CRASHED, f"the process that parsed it ended with status {status}")
        return _taken(json.loads(answer))

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "raydist.documents.apart"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            weakref.finalize(self, _end, self._process)
            assert self._process.stdout
            self._process.stdout.readline()  # signals its start
        return self._process


def _asked(process: subprocess.Popen[bytes], request: dict[str, Any]) -> bytes:
    """The answer to a request; empty if the process ends without one."""
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except OSError:
        return b""
    return answer if answer.endswith(b"\n") else b""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _taken(answer: dict[str, Any]) -> Document:
    if problem := answer.get("problem"):
        raise InputError(problem)
    if reason := answer.get("reason"):
        raise Fault(reason, answer["detail"])
    blocks = [Block(text, tuple(headings), *others) for text, headings, *others in answer["blocks"]]
    metadata = {name: from_json(value) for name, value in answer["metadata"].items()}
    return Document(blocks, answer["title"], answer["language"], metadata)


# --- in that process -------------------------------------------------------------------------------------------------


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """The document in a file, or the reason for its rejection, as JSON values."""
    try:
        (document,) = read(File(Path(request["path"]), request["name"], request["max_bytes"]))
        checked(document)
    except Fault as fault:
        return {"reason": fault.reason, "detail": fault.detail}
    except InputError as error:
        return {"problem": str(error)}
    except MemoryError:
        return {"reason": TOO_LARGE, "detail": f"needs more than {MEMORY >> 30} GiB of memory to parse"}
    except Exception as error:  # from a parser: any error is the file's fault
        return {"reason": DAMAGED, "detail": f"{type(error).__name__}: {error}"[:200]}
    return {
        "blocks": [[one.text, one.headings, one.line, one.page, one.is_line] for one in document.blocks],
        "title": document.title,
        "language": document.language,
        "metadata": {name: to_json(value) for name, value in document.metadata.items()},
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps parsers' prints out of the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker's to handle
    _bound_memory()
    answers.write(b"ready\n")
    answers.flush()
    for line in sys.stdin.buffer:
        answers.write(json.dumps(answer_to(json.loads(line))).encode() + b"\n")
        answers.flush()


def _bound_memory() -> None:
    """Limit memory to MEMORY beyond the current size: libraries reserve address space in proportion to the cores."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # not supported on every system
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))


if __name__ == "__main__":
    main()

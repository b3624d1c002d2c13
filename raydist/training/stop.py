"""Ctrl-C during a training: a checkpoint after the current step, then the command ends. A second one ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from raydist.files.storage import StorageError

TOLD = b"\nstopping: a checkpoint is taken after this step; Ctrl-C again ends at once\n"


class StopRequest:
    """Turns the first Ctrl-C within a `with` into a request, which the training looks up; at the end it is a KeyboardInterrupt.

    SIGTERM is Ctrl-C to a command (exits.py).
    """

    def __init__(self, pass_on: Callable[[], None] = lambda: None) -> None:
        """`pass_on` is called once, in a thread, for those who train elsewhere."""
        self.asked, self._pass_on, self._asked = False, pass_on, threading.Event()
        self._before: Any = None
        self._waiting = threading.Thread(target=self._wait, name="stop request", daemon=True)

    def __enter__(self) -> Self:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._waiting.start()
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._before:
            signal.signal(signal.SIGINT, self._before)
            self._asked.set()
            self._waiting.join()
        if self.asked and kind is None:
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self._before(number, frame)
            return
        self.asked = True
        os.write(2, TOLD)  # print is not for signal handlers
        self._asked.set()

    def _wait(self) -> None:
        self._asked.wait()
        if not self.asked:
            return
        try:
            self._pass_on()
        except (OSError, StorageError) as error:
            print(f"the train workers cannot be told to stop ({error}): Ctrl-C again ends at once", file=sys.stderr)

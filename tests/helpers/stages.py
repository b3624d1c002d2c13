"""Small stages for tests of what makes stages.

They stand here and not in test modules since workers of a Ray cluster cannot import tests: this module goes to them by value.
"""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from raydist.errors import InputError
from raydist.files.making import make_stages
from raydist.files.stage import ASIDE, Executor, Made, Part, Stage, Worker
from raydist.files.storage import Storage, StorageError
from raydist.runs.run import Run
from raydist.runs.stages import read_stages


@dataclass(frozen=True)
class First:
    """What the line of a part of squares says of it."""

    first: int


@dataclass(frozen=True)
class Squares(Stage):
    """Ten squares a part. Notes in a file which parts were made."""

    name: ClassVar[str] = "squares"

    title: str
    number_of_parts: int
    log: str = field(metadata=ASIDE)
    bad: tuple[int, ...] = field(default=(), metadata=ASIDE)  # parts that stop at their input
    full: tuple[int, ...] = field(default=(), metadata=ASIDE)  # parts for which there is no space
    slow: float = field(default=0.0, metadata=ASIDE)  # seconds for each

    @property
    def parts(self) -> int:
        return self.number_of_parts

    def open(self, worker: Worker) -> Callable[[int], Part]:
        def make(number: int) -> Part:
            first = 10 * number
            time.sleep(self.slow)
            if number in self.bad:
                raise InputError(f"part {first} is bad; mend it")
            if number in self.full:
                raise StorageError("cannot write x: no space is left on the device")
            with open(self.log, "a") as file:
                file.write(f"{first}\n")
            return Part(pa.table({"n": [n * n for n in range(first, first + 10)]}), counts=First(first))

        return make

    def made(self) -> list[str]:
        """The parts that were made, in order, by their first number."""
        return Path(self.log).read_text().split()


@dataclass(frozen=True)
class SquaresByModel(Squares):
    """The same on a device, where there is one."""

    uses_model: ClassVar[bool] = True


@dataclass(frozen=True)
class Device(Stage):
    """Reading, computing and writing take their time; when the model was at work stands in a file."""

    name: ClassVar[str] = "device"
    uses_model: ClassVar[bool] = True

    number_of_parts: int
    log: str = field(metadata=ASIDE)
    seconds: tuple[float, float, float]  # of reading, the model and writing

    @property
    def parts(self) -> int:
        return self.number_of_parts

    def read(self, number: int) -> tuple[int, int]:
        time.sleep(self.seconds[0])
        return number, os.getpid()

    def open(self, worker: Worker) -> Callable[[tuple[int, int]], tuple[int, int, int]]:
        def compute(read: tuple[int, int]) -> tuple[int, int, int]:
            begun = time.monotonic()
            time.sleep(self.seconds[1])
            with open(self.log, "a") as file:
                file.write(f"{begun} {time.monotonic()}\n")
            return (*read, os.getpid())

        return compute

    def store(self, made: tuple[int, int, int], number: int, folder: Storage) -> Part:
        time.sleep(self.seconds[2])
        return Part(pa.table({"n": [number], "reader": [made[1]], "model": [made[2]], "writer": [os.getpid()]}))

    def at_work(self) -> list[list[float]]:
        """(begin, end) of the model's work on each part, in order."""
        return sorted([float(when) for when in line.split()] for line in Path(self.log).read_text().splitlines())


@dataclass(frozen=True)
class Crowd(Stage):
    """Notes in a folder how many of its tasks run at once: those that read, and those that make and write."""

    name: ClassVar[str] = "crowd"

    number_of_parts: int
    log: str = field(metadata=ASIDE)

    @property
    def parts(self) -> int:
        return self.number_of_parts

    def read(self, number: int) -> int:
        self._work()
        return number

    def open(self, worker: Worker) -> Callable[[int], int]:
        return lambda number: number

    def store(self, made: int, number: int, folder: Storage) -> Part:
        self._work()
        return Part(pa.table({"n": [made]}))

    def _work(self) -> None:
        with tempfile.NamedTemporaryFile(dir=self.log):
            here = len(os.listdir(self.log))
            time.sleep(0.2)
            here = max(here, len(os.listdir(self.log)))
        with open(f"{self.log}.seen", "a") as file:
            file.write(f"{here}\n")

    def most_at_once(self) -> int:
        return max(int(line) for line in Path(f"{self.log}.seen").read_text().splitlines())


@dataclass(frozen=True)
class CrowdByModel(Crowd):
    """The same on a device: three operators."""

    name: ClassVar[str] = "crowd_by_model"
    uses_model: ClassVar[bool] = True


@dataclass(frozen=True)
class Many(Stage):
    """Parts that cost nothing, all alike."""

    name: ClassVar[str] = "many"

    number_of_parts: int

    @property
    def parts(self) -> int:
        return self.number_of_parts

    def open(self, worker: Worker) -> Callable[[int], Part]:
        return lambda number: Part(pa.table({"n": [0]}))


@dataclass(frozen=True)
class Waiting(Stage):
    """Two parts, of which the second is made only when the first was said."""

    name: ClassVar[str] = "waiting"
    said: str = field(metadata=ASIDE)

    @property
    def parts(self) -> int:
        return 2

    def open(self, worker: Worker) -> Callable[[int], Part]:
        def make(number: int) -> Part:
            ends = time.monotonic() + 20
            while number and not Path(self.said).exists():
                if time.monotonic() > ends:
                    raise InputError("the first part was not said while the second was made")
                time.sleep(0.1)
            return Part(pa.table({"n": [number]}))

        return make


def make(executor: Executor, storage: str, stage: Stage, label: str = "squares") -> Made:
    """One stage in a storage."""
    (made,) = make_stages(executor, Storage(storage), [(stage, getattr(stage, "title", label))], label=label)
    return made


def contents(storage: str, stage: Stage) -> dict[str, bytes]:
    """The files of a stage, but for its manifest, which says how long it took."""
    folder = Path(storage) / stage.folder
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "manifest.json"}


def folders_of(run: Run) -> dict[str, str]:
    """The folders of the stages that a run used, by title."""
    return {use.title: use.folder for use in read_stages(run.folder).values()}

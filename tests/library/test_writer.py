"""One writer of a library: a second is refused by name, and one that came too late does no harm."""

import json
from dataclasses import asdict, replace

import pytest

from raydist.errors import InputError
from raydist.files.lease import Owner
from raydist.library.library import Library
from raydist.library.writer import LibraryWriter

from .conftest import passage_rows, table


def test_a_second_writer_is_refused_with_the_name_of_the_first(tmp_path):
    with LibraryWriter(tmp_path), pytest.raises(InputError, match=r"is being written by process .* readers are not disturbed"):
        LibraryWriter(tmp_path).__enter__()
    with LibraryWriter(tmp_path):
        pass


def test_a_writer_that_was_taken_for_dead_puts_nothing_in_force(tmp_path):
    with LibraryWriter(tmp_path) as writer:
        writer.add(table(passage_rows("a", 0)))
    lock = tmp_path / "writer.lock"

    def late() -> None:
        with LibraryWriter(tmp_path) as writer:
            writer.delete(["a"])
            theirs = replace(Owner.me(), token="theirs")
            lock.write_text(json.dumps(asdict(theirs)))

    with pytest.raises(InputError, match="another writer took over"):
        late()
    assert lock.exists(), "theirs is theirs"
    assert Library.open(tmp_path).documents == 1

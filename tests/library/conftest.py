import random

import pyarrow as pa
import pytest

from raydist.documents.schema import PASSAGES
from raydist.library.building import known_encoder
from raydist.library.settings import LibrarySettings

WORDS = "river bridge tower mill stone old built wide fell ship water road lamp north winter garden".split()  # noqa: SIM905
METADATA = [("year", pa.int64()), ("draft", pa.bool_())]


def passage_rows(document: str, version: int) -> list[dict]:
    """The passages of a document, drawn by its name and version."""
    draw = random.Random(f"{document} {version}")
    return [
        {
            "passage_id": f"{document}#{number}",
            "document_id": document,
            "title": document.replace("-", " "),
            "headings": draw.sample(["Bridges", "Towers", "Mills"], draw.randrange(3)),
            "page": None,
            "line": number + 1,
            "text": " ".join(draw.choices(WORDS, k=draw.randrange(0, 12))),
            "language": draw.choice(["en", "de"]),
            "year": draw.choice([None, 1900, 1950, 2000]),
            "draft": draw.choice([True, False]),
        }
        for number in range(draw.randrange(1, 4))
    ]


def table(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([*PASSAGES, *METADATA]))


@pytest.fixture(scope="session")
def with_vectors() -> LibrarySettings:
    return LibrarySettings(encoder=known_encoder("builtin:tiny", passage_length=32, question_length=16), depth=20)

"""The formats of files of questions and of corpora, by their config names.

A new format is a file in this folder (see ``base``) and a line below; its name joins the literals of the config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raydist.corpus.formats.base import Container, CorpusFiles, CorpusFormat, CorpusOfRows, ReaderFormat
from raydist.corpus.formats.beir import Beir
from raydist.corpus.formats.chinese import Cmrc, DuReader
from raydist.corpus.formats.documents import Documents
from raydist.corpus.formats.flat import Flat
from raydist.corpus.formats.hotpotqa import HotpotQa
from raydist.corpus.formats.mrqa import Mrqa
from raydist.corpus.formats.msmarco import MsMarco
from raydist.corpus.formats.natural_questions import NaturalQuestions
from raydist.corpus.formats.newsqa import NewsQa
from raydist.corpus.formats.pairs import Pairs
from raydist.corpus.formats.qed import Qed
from raydist.corpus.formats.reader_files import ReaderFiles
from raydist.corpus.formats.reqa import Reqa
from raydist.corpus.formats.squad import Squad, SquadV2
from raydist.corpus.formats.tables import Tables
from raydist.corpus.formats.triviaqa import TriviaQa
from raydist.corpus.formats.tydiqa import TydiQa
from raydist.corpus.messages import nearest
from raydist.corpus.open_set import OpenSet, RetrievalSet
from raydist.errors import InputError

READER_FORMATS: dict[str, ReaderFormat] = {  # the first that recognises a row wins
    "squad": Squad(),
    "squad_v2": SquadV2(),
    "newsqa": NewsQa(),
    "qed": Qed(),
    "natural_questions": NaturalQuestions(),
    "tydiqa": TydiQa(),
    "triviaqa": TriviaQa(),
    "cmrc": Cmrc(),
    "dureader": DuReader(),
    "mrqa": Mrqa(),
    "hotpotqa": HotpotQa(),
    "qa": Flat(),
    "parquet": Container(),
    "csv": Container(),
}

CORPUS_FORMATS: dict[str, CorpusFormat] = {
    "beir": Beir(),
    "reqa": Reqa(),
    "pairs": Pairs(),
    "squad": ReaderFiles(),
    "tables": Tables(),
    "msmarco": MsMarco(),
    "documents": Documents(),
}


def open_corpus(
    format: str,
    paths: Sequence[Path],
    *,
    split: str = "train",
    columns: Mapping[str, Mapping[str, str]] | None = None,
    boundaries: Path | None = None,
    language: str | None = None,
) -> OpenSet | RetrievalSet:
    """A corpus, questions and gold answers; large parts are streamed."""
    check_format(format, CORPUS_FORMATS)
    return CORPUS_FORMATS[format].open(CorpusFiles(paths, split, columns or {}, boundaries, language))


def open_additions(paths: Sequence[Path], format: str, columns: Mapping[str, str] | None = None) -> OpenSet:
    """Read additional rows exactly as the corpus was read, so that a grown index equals one built at once.

    Formats without separate corpus files take documents.
    """
    check_format(format, CORPUS_FORMATS)
    rows = CORPUS_FORMATS[format]
    return (rows if isinstance(rows, CorpusOfRows) else Documents()).open_rows(paths, columns or {})


def check_format(format: str, table: Mapping[str, Any], *others: str) -> None:
    """Require a format in the table, or one of some other names."""
    wanted = (*others, *table)
    if format not in wanted:
        first = " or one of ".join([*others, ""])
        raise InputError(f"unknown format {format!r}; wanted {first}{', '.join(table)}{nearest(format, table)}")

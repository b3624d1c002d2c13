"""From files to indexes: a block reads of its inputs what it needs, and no more."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from helpers.corpora import AROUND, TEXTS, corpus_in, tiny_encoder

from raydist.corpus import columns
from raydist.corpus.formats.beir import open_beir
from raydist.corpus.sentences import split_sentences
from raydist.errors import InputError
from raydist.files.local import make_part
from raydist.files.stage import Made, Part, Worker, describe_part, encode_table
from raydist.files.storage import Place, Storage
from raydist.retrieval.corpus_stages import ROW_GROUP, CorpusShare, CorpusTables, Sentences, open_sentences
from raydist.retrieval.encode import TextEncoder
from raydist.retrieval.index_stages import Vectors


@pytest.fixture
def corpus(tmp_path, world):
    """All questions and gold answers as the stage of a set writes them, in small row groups; block 3 is rows 150 to 199."""
    by_question = [("question_id", "ascending")]
    return corpus_in(tmp_path, world.questions.sort_by(by_question), world.gold.sort_by(by_question), block=50, row_group=40)


def test_a_block_is_its_questions_and_their_gold_answers(corpus, world):
    every = sorted(world.questions["question_id"].to_pylist())
    ids = every[150:200]
    questions = corpus.questions(3)
    assert questions["question_id"].to_pylist() == ids
    gold = corpus.gold(questions)
    mine = world.gold.filter(pc.is_in(world.gold["question_id"], value_set=pa.array(ids)))
    assert gold.sort_by("sentence_id").to_pylist() == mine.sort_by("sentence_id").to_pylist()
    for size, number in ((1, 0), (3, 13), (7, len(every) // 7), (len(every), 0)):  # 13 has rows of two groups
        block = replace(corpus, block_questions=size).questions(number)
        assert block["question_id"].to_pylist() == every[size * number : size * (number + 1)]


def test_other_blocks_are_not_read(corpus, tmp_path):
    questions = corpus.questions(3)
    gold = corpus.gold(questions)
    for name in ("questions", "gold"):
        file = tmp_path / f"{name}-00000.parquet"
        content, footer = bytearray(file.read_bytes()), pq.read_metadata(file)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        wanted = set(questions["question_id"].to_pylist())
        for number, group in enumerate(groups):  # every group without a row of the block is made unreadable
            if wanted & set(pq.ParquetFile(file).read_row_group(number)["question_id"].to_pylist()):
                continue
            for place in range(group.num_columns):
                column = group.column(place)
                start = column.dictionary_page_offset or column.data_page_offset
                content[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
        file.write_bytes(content)
        with pytest.raises((OSError, pa.ArrowException)):
            pq.read_table(file)
    assert corpus.questions(3).equals(questions)
    assert corpus.gold(questions).equals(gold)


def tables_of(format: str, *files: Path, columns: Mapping | None = None, split: str = "") -> CorpusTables:
    """The stage that reads some files, all of their questions."""
    places = tuple(Place(str(file)) for file in files)
    return CorpusTables(format, split, columns or {}, None, 0, files=(), places=places, boundaries=None)


def stored(stage: CorpusTables, folder: Path) -> Part:
    """Its part."""
    return stage.store(stage.open(Worker())(stage.read(0)), 0, Storage(str(folder)))


def test_a_set_is_written_in_row_groups(tmp_path, world):
    """What reading a block rests on: the stage says so, in the order of the questions."""
    rows = {
        "corpus": [{"sentence_id": "s1", "text": "It is."}, {"sentence_id": "s2", "text": "It was."}],
        "questions": [{"question_id": f"q{n}", "text": "Is it?"} for n in (3, 1, 2)],
        "gold": [{"question_id": f"q{n}", "sentence_id": "s1"} for n in (2, 3, 1)],
    }
    for name, listed in rows.items():
        pq.write_table(pa.Table.from_pylist(listed), tmp_path / f"{name}.parquet")
    made = stored(tables_of("tables", *(tmp_path / f"{name}.parquet" for name in rows)), tmp_path / "stage")
    assert made.row_group == ROW_GROUP
    for name in ("questions", "gold"):
        assert made.beside[name]["question_id"].to_pylist() == ["q1", "q2", "q3"]
    many = pa.table({"question_id": np.arange(3 * ROW_GROUP).astype(str)})
    content = encode_table(many, "parquet", {}, made.row_group)
    assert pq.ParquetFile(pa.BufferReader(content)).num_row_groups == 3


def test_sentences_are_written_block_by_block_and_stand_for_the_rows_of_the_part(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "BLOCK_ROWS", 3)
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    texts = ["It fell. It rose.", "It rose! It fell.", "It fell. Again it fell."]
    rows = [{"_id": f"d{n}", "text": texts[n % 3], "sentences": split_sentences(texts[n % 3])} for n in range(7)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "What rose?"}\n{"_id": "r", "text": "Of dev?"}\n')
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\td6#1\t1\n")
    stage = tables_of("beir", folder, split="train")
    made = stored(stage, tmp_path / "stage")
    line = describe_part("part-00000.parquet", encode_table(made.table, "parquet", made.info))
    assert line.rows == made.counts.rows == 14
    assert made.counts.duplicates == {"exact": 11, "near": 0}
    assert made.beside["rejected"]["reason"].to_pylist() == ["duplicate id"]
    assert made.counts.notes == {"questions without gold answers in this split: left out": 1}
    whole = open_beir(folder, "train").whole()
    for name in ("sentences", "passages"):
        with Storage(str(tmp_path / "stage")).open_input(f"{name}-00000.parquet") as file:
            written = pq.ParquetFile(file)
            assert written.num_row_groups == 3
            assert written.read().equals(getattr(whole, name))
    assert stored(stage, tmp_path / "again").counts == made.counts
    for name in ("sentences", "passages"):  # what the next stage is known by
        files = [tmp_path / of / f"{name}-00000.parquet" for of in ("stage", "again")]
        assert files[0].read_bytes() == files[1].read_bytes()
    tables = Made(Storage(str(tmp_path / "stage")), "retrieval_set", stage.fingerprint)
    make_part(Sentences(**made.counts.digests, tables=tables), Storage(str(tmp_path / "table")), 0, Worker())
    opened = open_sentences(Storage(str(tmp_path / "table")))
    assert opened.texts(opened.find(["d6#1"])).to_pylist() == ["It rose."]
    assert opened.passage_texts(opened.find(["d6#1"])).to_pylist() == ["It fell. It rose."]


def test_documents_make_a_set_without_questions(tmp_path):
    (tmp_path / "a.csv").write_text("name,text\nOder,It flows. It ends.\n")
    (tmp_path / "b.csv").write_text("name,text\nTarn,It is deep.\n")
    stage = tables_of("documents", tmp_path / "*.csv", columns={"corpus": {"document_id": "name"}})
    made = stored(stage, tmp_path / "stage")
    assert (made.counts.rows, made.counts.passages, made.counts.questions) == (3, 2, 0)
    assert made.beside["questions"].num_rows == made.beside["gold"].num_rows == 0
    assert pq.read_table(tmp_path / "stage" / "sentences-00000.parquet")["sentence_id"].to_pylist() == [
        "Oder#0000#000",
        "Oder#0000#001",
        "Tarn#0000#000",
    ]


def test_a_dense_index_is_of_sentences_with_their_own_paragraphs(tmp_path, three_paragraphs):
    encoder = tiny_encoder(pooling="mean", context=True, answer=64)
    sentences = Made(Storage(str(tmp_path)), "sentences", "made")
    stage = Vectors(sentences, shard_rows=3, rows=3, encoder=encoder, settings={"kind": "flat"})
    make_part(stage, Storage(str(tmp_path)), 0, Worker())
    ids = sorted(AROUND)
    plain = TextEncoder("builtin:tiny", pooling="mean", max_length=64)
    wanted = np.stack([plain.encode([TEXTS[id]], [AROUND[id]])[0] for id in ids])
    found = np.load(tmp_path / "shard-00000" / "vectors.npy")
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert abs(found - plain.encode([TEXTS[id] for id in ids])).max() > 1e-4  # what sentences alone would give


def test_a_share_of_the_questions_is_held_out_by_their_text(tmp_path, world):
    """The same text under two ids is on one side, whatever its case; all gold answers go with their questions."""
    twins = world.questions.slice(0, 60)
    twins = twins.set_column(0, "question_id", pa.array([f"twin {id}" for id in twins["question_id"].to_pylist()]))
    twins = twins.set_column(1, "text", pc.utf8_upper(twins["text"]))
    questions = pa.concat_tables([world.questions, twins.select(world.questions.column_names).cast(world.questions.schema)])
    tables = corpus_in(tmp_path, questions, world.gold, block=50).tables
    sides = {dev: CorpusShare(tables, 0, 0.3, dev).part() for dev in (False, True)}
    ids = {dev: set(part.beside["questions"]["question_id"].to_pylist()) for dev, part in sides.items()}
    assert not ids[True] & ids[False]
    assert len(ids[True]) + len(ids[False]) == len(questions)
    assert 0.2 < len(ids[True]) / len(questions) < 0.4
    for twin in twins["question_id"].to_pylist():
        assert (twin in ids[True]) == (twin.removeprefix("twin ") in ids[True])
    for dev, part in sides.items():
        assert set(part.beside["gold"]["question_id"].to_pylist()) <= ids[dev]
        assert (part.counts.questions, part.counts.gold) == (len(ids[dev]), part.beside["gold"].num_rows)
    assert sum(part.counts.gold for part in sides.values()) == world.gold.num_rows
    assert CorpusShare(tables, 1, 0.3, True).part().beside["questions"] != sides[True].beside["questions"]


def test_a_share_that_leaves_nothing_is_refused(tmp_path, world):
    tables = corpus_in(tmp_path, world.questions.slice(0, 3), world.gold, block=50).tables
    with pytest.raises(
        InputError, match="dev_share 1e-09 of 3 questions leaves none to choose a model by: raise it, or set it to"
    ):
        CorpusShare(tables, 0, 1e-9, True).part()
    with pytest.raises(InputError, match="leaves none to train on: lower it"):
        CorpusShare(tables, 0, 0.999999, False).part()

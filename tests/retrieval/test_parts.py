"""What makes the parts of the retrieval stages reads of its inputs what its block needs, and no more."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from raydist.retrieval.parts import read_gold, read_questions
from transformers import AutoTokenizer

from raydist.corpus.duplicates import duplicate_keys
from raydist.corpus.sentence_table import build_sentence_table
from raydist.files.stage import encode_table
from raydist.models.folders import model_folder
from raydist.objectives.ranking import allowed_columns
from raydist.records import SILVER_SCHEMA
from raydist.retrieval import parts
from raydist.retrieval.encode import TextEncoder
from raydist.retrieval.rows import PairRows


@pytest.fixture
def spec(tmp_path, world):
    """All questions and gold answers as the stage of a set writes them, in small row groups; the block is rows 150 to 199."""
    by_question = [("question_id", "ascending")]
    tables = {"questions": world.questions.sort_by(by_question), "gold": world.gold.sort_by(by_question)}
    for name, table in tables.items():
        (tmp_path / f"{name}.parquet").write_bytes(encode_table(table, "parquet", {}, 40))
    where = {name: {"folder": str(tmp_path), "name": f"{name}.parquet"} for name in tables}
    return {"block": where["questions"] | {"first": 150, "last": 200}, "gold": where["gold"]}


def test_a_block_is_its_questions_and_their_gold_answers(spec, world):
    ids = sorted(world.questions["question_id"].to_pylist())[150:200]
    questions = read_questions(spec)
    assert questions["question_id"].to_pylist() == ids
    gold = read_gold(spec, questions)
    mine = world.gold.filter(pc.is_in(world.gold["question_id"], value_set=pa.array(ids)))
    assert gold.sort_by("sentence_id").to_pylist() == mine.sort_by("sentence_id").to_pylist()
    for first, last in ((0, 1), (39, 41), (len(world.questions) - 3, len(world.questions))):
        block = spec | {"block": spec["block"] | {"first": first, "last": last}}
        assert (
            read_questions(block)["question_id"].to_pylist() == sorted(world.questions["question_id"].to_pylist())[first:last]
        )


def test_other_blocks_are_not_read(spec, tmp_path):
    questions = read_questions(spec)
    gold = read_gold(spec, questions)
    for name in ("questions", "gold"):
        file = tmp_path / f"{name}.parquet"
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
    assert read_questions(spec).equals(questions)
    assert read_gold(spec, questions).equals(gold)


def test_a_set_is_written_in_row_groups(tmp_path, world):
    """What the two functions rest on: the maker says so, in the order of the questions."""
    rows = {
        "corpus": [{"sentence_id": "s1", "text": "It is."}, {"sentence_id": "s2", "text": "It was."}],
        "questions": [{"question_id": f"q{n}", "text": "Is it?"} for n in (3, 1, 2)],
        "gold": [{"question_id": f"q{n}", "sentence_id": "s1"} for n in (2, 3, 1)],
    }
    for name, listed in rows.items():
        pq.write_table(pa.Table.from_pylist(listed), tmp_path / f"{name}.parquet")
    files = [{"folder": "", "name": str(tmp_path / f"{name}.parquet")} for name in rows]
    spec = {"format": "tables", "files": files, "columns": {}, "questions": None, "seed": 0, "boundaries": None, "split": ""}
    spec["stage"] = str(tmp_path / "stage")
    made = parts.retrieval_set_part_maker()(spec)
    assert made["row_group"] == parts.ROW_GROUP
    for name in ("questions", "gold"):
        assert made["beside"][name]["question_id"].to_pylist() == ["q1", "q2", "q3"]
    many = pa.table({"question_id": np.arange(3 * parts.ROW_GROUP).astype(str)})
    content = encode_table(many, "parquet", {}, made["row_group"])
    assert pq.ParquetFile(pa.BufferReader(content)).num_row_groups == 3


def test_sentences_are_written_block_by_block_and_stand_for_the_rows_of_the_part(tmp_path, monkeypatch):
    from raydist.corpus import columns
    from raydist.corpus.formats.beir import open_beir
    from raydist.corpus.sentences import split_sentences
    from raydist.files.stage import describe_part
    from raydist.files.storage import Storage

    monkeypatch.setattr(columns, "BLOCK_ROWS", 3)
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    texts = ["It fell. It rose.", "It rose! It fell.", "It fell. Again it fell."]
    rows = [{"_id": f"d{n}", "text": texts[n % 3], "sentences": split_sentences(texts[n % 3])} for n in range(7)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "What rose?"}\n{"_id": "r", "text": "Of dev?"}\n')
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\td6#1\t1\n")
    spec = {"format": "beir", "files": [{"folder": "", "name": str(folder)}], "split": "train", "questions": None}
    spec["stage"] = str(tmp_path / "stage")
    made = parts.retrieval_set_part_maker()(spec)
    line = describe_part("part-00000.parquet", encode_table(made["part"], "parquet", made["info"]))
    assert line["rows"] == made["info"]["rows"] == 14
    assert made["info"]["duplicates"] == {"exact": 11, "near": 0}
    assert made["beside"]["rejected"]["reason"].to_pylist() == ["duplicate id"]
    assert made["info"]["notes"] == {"questions that this split's gold says nothing of: left out": 1}
    whole = open_beir(folder, "train").whole()
    for name in ("sentences", "passages"):
        with Storage(spec["stage"]).open_input(f"{name}-00000.parquet") as file:
            written = pq.ParquetFile(file)
            assert written.num_row_groups == 3
            assert written.read().equals(getattr(whole, name))
    again = parts.retrieval_set_part_maker()(spec | {"stage": str(tmp_path / "again")})
    assert again["info"] == made["info"]
    for name in ("sentences", "passages"):  # what the next stage is known by
        files = [tmp_path / stage / f"{name}-00000.parquet" for stage in ("stage", "again")]
        assert files[0].read_bytes() == files[1].read_bytes()
    table = {"set": spec["stage"], "sentences": "sentences-00000.parquet", "passages": "passages-00000.parquet"}
    parts.sentence_table_part_maker()(table | {"stage": str(tmp_path / "table")})
    opened = parts.open_sentences(str(tmp_path / "table"))
    assert opened.texts(opened.find(["d6#1"])).to_pylist() == ["It rose."]
    assert opened.passage_texts(opened.find(["d6#1"])).to_pylist() == ["It fell. It rose."]


def test_documents_make_a_set_without_questions(tmp_path):
    (tmp_path / "a.csv").write_text("name,text\nOder,It flows. It ends.\n")
    (tmp_path / "b.csv").write_text("name,text\nTarn,It is deep.\n")
    spec = {"format": "documents", "files": [{"folder": "", "name": str(tmp_path / "*.csv")}], "questions": None}
    spec |= {"stage": str(tmp_path / "stage"), "columns": {"corpus": {"document_id": "name"}}}
    made = parts.retrieval_set_part_maker()(spec)
    assert (made["info"]["rows"], made["info"]["passages"], made["info"]["questions"]) == (3, 2, 0)
    assert made["beside"]["questions"].num_rows == made["beside"]["gold"].num_rows == 0
    assert pq.read_table(tmp_path / "stage" / "sentences-00000.parquet")["sentence_id"].to_pylist() == [
        "Oder#0000#000",
        "Oder#0000#001",
        "Tarn#0000#000",
    ]


# --- rows of the dual encoder ----------------------------------------------------------------------------------------

TEXTS = {
    "built": "The bridge was built in 1907.",
    "fell": "The old tower fell.",
    "in_1907": "In 1907 the bridge was built.",  # the words of `built`
    "again": "The old tower fell!",  # the text of `fell`
    "ships": "Ships pass below it.",
}


@pytest.fixture
def hidden_pairs(tmp_path, make_sentences):
    """From texts, questions, gold pairs and silver ones {question_id, sentence_id, p, kept}: which columns rows do not have.

    A row and an answer are written "question sentence", a mined negative is "not sentence". `block` is questions in a part.
    """

    def hidden_pairs(texts, questions, gold, silver=(), hard_negatives=0, block=9, weighting="silver") -> set[tuple[str, str]]:
        if not (tmp_path / "table").exists():
            make_sentences(tmp_path, texts).folder.rename(tmp_path / "table")
        nothing, ids = dict.fromkeys(SILVER_SCHEMA.names), sorted(questions)
        tables = {
            "questions": pa.table({"question_id": ids, "text": [questions[id] for id in ids]}),
            "gold": pa.table({"question_id": [q for q, _ in gold], "sentence_id": [s for _, s in gold]}),
        }
        blocks = [ids[first : first + block] for first in range(0, len(ids), block)]
        for number, mine in enumerate(blocks):
            rows = [nothing | {"logit": 0.0, "weight": 1.0} | row for row in silver if row["question_id"] in mine]
            tables[f"silver-{number}"] = pa.Table.from_pylist(rows, SILVER_SCHEMA)
        for name, table in tables.items():
            (tmp_path / f"{name}.parquet").write_bytes(encode_table(table, "parquet", {}))
        where = {name: {"folder": str(tmp_path), "name": f"{name}.parquet"} for name in tables}
        kept = [where[f"silver-{number}"] for number in range(len(blocks))] if weighting != "gold" else []
        make = parts.pair_rows_part_maker(
            model={"name": "builtin:tiny"},
            context=False,
            lengths={"max_question_length": 32, "max_answer_length": 32},
            weighting=weighting,
            negatives={"hard_negatives": hard_negatives, "negative_p": 0.1},
            everything={"questions": where["questions"], "gold": where["gold"], "silver": kept},
        )
        files = []
        for number, mine in enumerate(blocks):
            spec = {"gold": where["gold"], "silver": where[f"silver-{number}"], "sentences": str(tmp_path)}
            spec["block"] = where["questions"] | {"first": block * number, "last": block * number + len(mine)}
            files.append(tmp_path / f"rows-{number}.arrow")
            files[-1].write_bytes(encode_table(make(spec)["part"], "arrow", {}))
        rows = PairRows(files)
        allowed_BN = allowed_columns(rows.group(np.arange(len(rows))), np.arange(len(rows)))
        also = () if weighting == "gold" else silver
        kept = sorted({*gold, *((row["question_id"], row["sentence_id"]) for row in also if row["kept"])})
        rejected = {
            question: [row["sentence_id"] for row in silver if row["question_id"] == question and not row["kept"]]
            for question in questions
        }
        names = [" ".join(pair) for pair in kept]
        columns = names + [f"not {id}" for question, _ in kept for id in rejected[question][:hard_negatives]]
        assert allowed_BN.shape == (len(names), len(columns))
        return {(names[row], columns[column]) for row, column in zip(*np.nonzero(~allowed_BN))}

    return hidden_pairs


@pytest.fixture
def pair_rows(tmp_path, three_paragraphs):
    """The dual encoder's rows of one question: `built` is gold, `ships` a silver pair of weight 0.49, `fell` a rejected one."""
    nothing = dict.fromkeys(SILVER_SCHEMA.names) | {"question_id": "q", "logit": 0.0, "bm25_rank": 1}
    silver = [
        nothing | {"sentence_id": "fell", "p": 0.01, "weight": 0.0, "kept": False},
        nothing | {"sentence_id": "ships", "p": 0.7, "weight": 0.49, "kept": True},
    ]
    tables = {
        "block": pa.table({"question_id": ["q"], "text": ["When was it built?"]}),  # and all questions
        "gold": pa.table({"question_id": ["q"], "sentence_id": ["built"]}),
        "silver": pa.Table.from_pylist(silver, SILVER_SCHEMA),
    }
    for name, table in tables.items():
        (tmp_path / f"{name}.parquet").write_bytes(encode_table(table, "parquet", {}))
    spec = {name: {"folder": str(tmp_path), "name": f"{name}.parquet"} for name in tables} | {"sentences": str(tmp_path)}
    spec["block"] |= {"first": 0, "last": 1}

    def pair_rows(*, context=False, weighting="silver", hard_negatives=1, **settings) -> pa.Table:
        make = parts.pair_rows_part_maker(
            model={"name": "builtin:tiny"},
            context=context,
            lengths={"max_question_length": 32, "max_answer_length": 64},
            weighting=weighting,
            negatives={"hard_negatives": hard_negatives, "negative_p": 0.1},
            everything={"questions": spec["block"], "gold": spec["gold"], "silver": [spec["silver"]]},
            **settings,
        )
        return make(spec)["part"]

    return pair_rows


AROUND = {"built": "Of bridges.", "fell": "Of towers.", "ships": "Of ships."}


@pytest.fixture
def three_paragraphs(tmp_path):
    """Sentences, each in a paragraph of its own, as a table on disk."""
    rows = [
        {"sentence_id": id, "text": TEXTS[id], "passage_id": f"p-{id}", "document_id": "d"}
        | dict(zip(("text_key", "bag_key"), duplicate_keys(TEXTS[id])))
        for id in AROUND
    ]
    passages = [{"passage_id": f"p-{id}", "text": around} for id, around in AROUND.items()]
    build_sentence_table(tmp_path / "table", [pa.Table.from_pylist(rows)], [pa.Table.from_pylist(passages)])


def test_prefixes_stand_before_questions_answers_and_negatives(pair_rows):
    made = pair_rows(weighting="gold", prefixes={"question": "ask: ", "answer": "text: "})
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    wanted = {"question": "ask: When was it built?", "answer": f"text: {TEXTS['built']}", "negative": f"text: {TEXTS['fell']}"}
    for of, text in wanted.items():
        assert made[f"{of}_ids"].to_pylist() == [tokenizer(text)["input_ids"]], of


@pytest.mark.parametrize(("weighting", "weights"), [("silver", [1.0, 0.49]), ("none", [1.0, 1.0]), ("gold", [1.0])])
def test_a_silver_pair_is_trained_on_with_its_weight_or_with_1_and_a_gold_one_with_1(pair_rows, weighting, weights):
    made = pair_rows(weighting=weighting)
    np.testing.assert_allclose(made["weight"].to_pylist(), weights)
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    assert made["answer_ids"].to_pylist() == tokenizer([TEXTS["built"], TEXTS["ships"]])["input_ids"][: len(weights)]


def test_an_answer_and_a_negative_have_their_own_paragraphs_behind_them(pair_rows):
    made = pair_rows(context=True)
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    for of, sentences in {"answer": ["built", "ships"], "negative": ["fell", "fell"]}.items():
        wanted = tokenizer([TEXTS[id] for id in sentences], [AROUND[id] for id in sentences])
        assert made[f"{of}_ids"].to_pylist() == wanted["input_ids"], of
        assert made[f"{of}_types"].to_pylist() == wanted["token_type_ids"], of
    assert made["question_ids"].to_pylist() == [tokenizer("When was it built?")["input_ids"]] * 2


def test_a_dense_index_is_of_sentences_with_their_own_paragraphs(tmp_path, three_paragraphs):
    encoder = {"pooling": "mean", "max_length": 64}
    make = parts.dense_shard_part_maker(
        model={"name": "builtin:tiny"}, encoder=encoder, context=True, threads=1, settings={"kind": "flat"}
    )
    make({"sentences": str(tmp_path), "first": 0, "last": 3, "stage": str(tmp_path), "name": "shard"})
    ids = sorted(AROUND)
    plain = TextEncoder("builtin:tiny", **encoder)
    wanted = np.stack([plain.encode([TEXTS[id]], [AROUND[id]])[0] for id in ids])
    found = np.load(tmp_path / "shard" / "vectors.npy")
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert abs(found - plain.encode([TEXTS[id] for id in ids])).max() > 1e-4  # what sentences alone would give


def test_an_answer_with_the_words_of_another_is_no_negative_of_it(hidden_pairs):
    questions = {"q1": "When was it built?", "q2": "What happened in 1907?", "q3": "What fell?"}
    pairs = [("q1", "built"), ("q2", "in_1907"), ("q3", "fell")]
    assert hidden_pairs(TEXTS, questions, pairs) == {("q1 built", "q2 in_1907"), ("q2 in_1907", "q1 built")}


def test_a_mined_negative_with_the_words_of_another_rows_answer_is_no_negative_of_it(hidden_pairs):
    questions = {"q1": "When was it built?", "q2": "What fell?"}
    low = [{"question_id": "q2", "sentence_id": "in_1907", "p": 0.01, "kept": False, "bm25_rank": 1}]
    pairs = [("q1", "built"), ("q2", "fell")]
    assert hidden_pairs(TEXTS, questions, pairs, low, hard_negatives=1) == {("q1 built", "not in_1907")}


def test_what_says_the_same_as_another_answer_of_the_question_is_no_negative_of_it(hidden_pairs):
    """Of q1 `built` and `fell` are answers, gold and silver: so the exact and the near duplicate of either are, too."""
    questions = {"q1": "What is old?", "q2": "What happened in 1907?", "q3": "What fell?", "q4": "What passes?"}
    silver = [{"question_id": "q1", "sentence_id": "fell", "p": 0.9, "kept": True, "dense_rank": 3}]
    found = hidden_pairs(TEXTS, questions, [("q1", "built"), ("q2", "in_1907"), ("q3", "again"), ("q4", "ships")], silver)
    same = {("q1 built", "q2 in_1907"), ("q2 in_1907", "q1 built"), ("q1 fell", "q3 again"), ("q3 again", "q1 fell")}
    same |= {("q1 built", "q1 fell"), ("q1 fell", "q1 built")}
    assert found == same | {("q1 built", "q3 again"), ("q1 fell", "q2 in_1907")}


def test_a_question_under_two_ids_is_one_question(hidden_pairs):
    questions = {"q1": "What is old?", "q2": "What  IS old", "q3": "What fell?"}
    found = hidden_pairs(TEXTS, questions, [("q1", "built"), ("q2", "fell"), ("q3", "again")])
    same = {("q2 fell", "q3 again"), ("q3 again", "q2 fell")}
    assert found == same | {("q1 built", "q2 fell"), ("q2 fell", "q1 built"), ("q1 built", "q3 again")}


@pytest.mark.parametrize("weighting", ["silver", "none", "gold"])
def test_what_a_row_masks_does_not_depend_on_the_size_of_a_part(hidden_pairs, weighting):
    """q1, q3 and q5 are one question: what is known of it stands in three parts, and as gold and as silver."""
    questions = {"q1": "What is old?", "q2": "What passes?", "q3": "What  IS old", "q4": "What fell?", "q5": "what is old"}
    gold = [("q1", "built"), ("q2", "ships"), ("q3", "fell"), ("q4", "again"), ("q5", "built")]
    silver = [{"question_id": "q5", "sentence_id": "ships", "p": 0.9, "kept": True, "dense_rank": 1}]
    silver += [{"question_id": "q4", "sentence_id": "in_1907", "p": 0.01, "kept": False, "dense_rank": 1}]
    masks = [
        hidden_pairs(TEXTS, questions, gold, silver, hard_negatives=1, block=block, weighting=weighting) for block in (1, 2, 5)
    ]
    assert masks[0] == masks[1] == masks[2]
    assert {("q1 built", "q4 again"), ("q1 built", "q3 fell"), ("q1 built", "not in_1907")} <= masks[0]
    assert (("q1 built", "q2 ships") in masks[0]) == (weighting != "gold")  # an answer of q5, silver, in the last part


def test_no_table_but_that_of_the_questions_is_read_where_none_is_repeated(tmp_path, make_sentences):
    sentences = make_sentences(tmp_path, TEXTS)
    table = pa.table({"question_id": ["q1", "q2"], "text": ["What is old?", "What fell?"]})
    (tmp_path / "questions.parquet").write_bytes(encode_table(table, "parquet", {}))
    where = {"folder": str(tmp_path), "name": "questions.parquet"}
    keys, bags = parts.repeated_positives(sentences, where, {"folder": str(tmp_path), "name": "nowhere"}, [])
    assert len(keys) == len(bags) == 0


def test_scores_do_not_depend_on_the_size_of_a_part(spec, world, tmp_path):
    """Nor does p, but for the last bits: what is scored together is padded and summed in another order."""
    from raydist.retrieval.cross_encoder import load_cross_encoder, sigmoid

    load_cross_encoder(model_folder("builtin:tiny")).save(tmp_path / "model", model_folder("builtin:tiny"), max_length=96)
    settings = {"max_question_length": 32, "max_length": 96, "token_budget": 1000}
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "table").symlink_to(world.sentences.folder)
    make = parts.scores_part_maker(model={"name": str(tmp_path / "model")}, digest="d", threads=1, settings=settings)
    found = []
    for size in (50, 7):
        ranges = [(first, min(first + size, 200)) for first in range(150, 200, size)]
        blocks = [spec | {"block": spec["block"] | {"first": first, "last": last}} for first, last in ranges]
        made = [make(block | {"sentences": str(tmp_path / "stage"), "plain": True})["part"] for block in blocks]
        found.append(pa.concat_tables(made).to_pandas().sort_values(["question_id", "sentence_id"]))
    assert (found[0]["sentence_id"].to_numpy() == found[1]["sentence_id"].to_numpy()).all()
    p = [sigmoid(table["logit"].to_numpy()) for table in found]
    np.testing.assert_allclose(p[0], p[1], atol=1e-6, rtol=0)
    assert np.ptp(p[0]) > 1e-4  # a new head says nearly the same of all pairs, but a wrong pair would show

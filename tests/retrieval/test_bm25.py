import gzip
import json
import math
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from raydist.errors import InputError
from raydist.retrieval import bm25
from raydist.retrieval.bm25 import (
    Formula,
    Index,
    WordRules,
    add_rows,
    build_index,
    build_shard,
    merge_top_k,
    publish_index,
)
from raydist.retrieval.words import ENGLISH_STOP_WORDS

TEXTS = [
    "The river Oder flows through the town.",
    "The town hall of the town was built in 1611.",
    "A river, a river and another river!",
    "Nothing here matches.",
    "",
    "the river oder flows through THE TOWN",  # the first again: the same words, so the same score
]
IDS = [f"s{n}" for n in range(len(TEXTS))]
QUESTIONS = ["Which river flows through the town?", "town town 1611", "zebra", "", "the"]


DEFAULT = Formula()


def slow(ids, tokens, question, k, formula=DEFAULT):
    """BM25 as a plain loop in float32: rarest word first, ties by id."""
    n, average = len(tokens), sum(map(len, tokens)) / len(tokens)
    df = {word: sum(word in row for row in tokens) for word in set(question)}
    words = sorted((word for word in df if df[word]), key=lambda word: (df[word], word))
    hits = []
    for id, row in zip(ids, tokens):
        score = np.float32(0)
        for word in words:
            if not (tf := row.count(word)):
                continue
            share = tf / (tf + formula.k1 * (1 - formula.b + formula.b * (len(row) / average)))
            score += np.float32(question.count(word) * formula.weight(df[word], n)) * np.float32(share)
        hits.append((-score, id))
    return [(id, -score) for score, id in sorted(hits) if score < 0][:k]


def listed(index, hits):
    """Hits as lists of (id, score)."""
    return [
        list(zip(index.sentence_ids(rows[rows >= 0]), scores[rows >= 0].tolist()))
        for rows, scores in zip(hits.rows, hits.scores)
    ]


def found(folder, questions=QUESTIONS, k=10, **options):
    index = Index.open(folder)
    return listed(index, index.search(questions, k, **options))


def test_a_score_by_hand(tmp_path):
    build_index(tmp_path, ["a", "b"], ["red red blue", "blue"], formula=Formula(k1=1.0, b=0.5))
    # N = 2, average length 2. idf(red) = ln(1 + 1.5/1.5) = ln 2; in a: tf 2, length 3
    # share = 2 / (2 + 1 * (0.5 + 0.5 * 3/2)) = 2 / 3.25
    [[(id, score)]] = found(tmp_path, ["Red?"])
    assert id == "a"
    assert score == pytest.approx(math.log(2) * 2 / 3.25, rel=1e-6)


@pytest.mark.parametrize(
    ("idf", "weight"), [("lucene", math.log(1 + 7.5 / 3.5)), ("robertson", math.log(7.5 / 3.5)), ("atire", math.log(10 / 3))]
)
def test_the_idf_of_a_term_in_three_rows_of_ten(idf, weight):
    assert Formula(idf=idf).weight(3, 10) == pytest.approx(weight, rel=1e-15)
    assert Formula(idf=idf).weight(10, 10) >= 0


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize("shards", [1, 2, 7])
def test_search_equals_a_plain_loop_bit_for_bit(tmp_path, shards, backend):
    if backend == "numba":
        pytest.importorskip("numba")
    build_index(tmp_path, IDS, TEXTS, shards)
    tokens = [WordRules().tokenize(text) for text in TEXTS]
    expected = [slow(IDS, tokens, WordRules().tokenize(question), 3) for question in QUESTIONS]
    assert found(tmp_path, k=3, backend=backend) == expected
    assert [id for id, _ in expected[0][:2]] == ["s0", "s5"]  # a tie, by id
    assert expected[2] == expected[3] == []


words = st.sampled_from("ant bee cat dog elk fox gnu hen".split())  # noqa: SIM905
corpora = st.lists(st.lists(words, max_size=8).map(" ".join), min_size=1, max_size=30)
formulas = st.builds(
    Formula,
    k1=st.sampled_from([0.0, 0.9, 2.0]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
    idf=st.sampled_from(["lucene", "robertson"]),
)


@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(corpora, st.lists(st.lists(words, max_size=6), min_size=1, max_size=5), st.integers(1, 12), formulas, st.randoms())
def test_no_layout_row_order_backend_or_later_addition_changes_a_bit(tmp_path_factory, texts, questions, k, formula, random):
    folder = tmp_path_factory.mktemp("layouts")
    ids = [f"s{n:02d}" for n in range(len(texts))]
    tokens = [text.split() for text in texts]
    expected = [slow(ids, tokens, question, k, formula) for question in questions]
    for shards in (1, 2, 7):
        rows = list(zip(ids, texts))
        random.shuffle(rows)
        build_index(folder / str(shards), [id for id, _ in rows], [text for _, text in rows], shards, formula=formula)
        assert found(folder / str(shards), questions, k, threads=2) == expected
        assert found(folder / str(shards), questions, k, backend="numpy") == expected
    half = len(texts) // 2
    if half:
        build_index(folder / "grown", ids[half:], texts[half:], formula=formula)
        add_rows(folder / "grown", ids[:half], texts[:half])
        assert found(folder / "grown", questions, k) == expected


def test_shards_searched_apart_and_merged_equal_the_whole(tmp_path):
    build_index(tmp_path, IDS, TEXTS, 3)
    parts = [Index.open(tmp_path, shards=[number]) for number in range(3)]
    rows = []
    for part in parts:
        for question, hits in enumerate(listed(part, part.search(QUESTIONS, 2))):
            rows += [(question, id, score) for id, score in hits]
    question, ids, scores = (list(column) for column in zip(*rows))
    order, rank = merge_top_k(np.array(question), bm25.pa.array(ids), np.array(scores, np.float32), 2)
    merged = [[(ids[at], scores[at]) for at in order if question[at] == number] for number in range(len(QUESTIONS))]
    assert merged == found(tmp_path, k=2)
    assert rank.tolist() == [n for hits in merged for n in range(len(hits))]


def test_adding_rows_leaves_the_old_files_alone_and_gives_the_files_of_an_index_built_anew(tmp_path):
    build_index(tmp_path / "grown", IDS[:4], TEXTS[:4])
    before = {file: file.read_bytes() for file in (tmp_path / "grown" / "shard-00000").iterdir()}
    add_rows(tmp_path / "grown", IDS[4:], TEXTS[4:])
    assert {file: file.read_bytes() for file in (tmp_path / "grown" / "shard-00000").iterdir()} == before
    build_index(tmp_path / "anew", IDS, TEXTS)
    assert found(tmp_path / "grown") == found(tmp_path / "anew")
    for name in ("terms_bytes", "terms_offsets", "heads", "counts"):
        new = np.load(tmp_path / "anew" / "statistics-00001" / f"{name}.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "grown" / "statistics-00002" / f"{name}.npy"), new)


def test_an_index_that_was_open_goes_on_with_what_it_opened(tmp_path):
    build_index(tmp_path, IDS[:4], TEXTS[:4])
    index = Index.open(tmp_path)
    before = listed(index, index.search(QUESTIONS, 5))
    for number in range(3):
        add_rows(tmp_path, [f"x{number}"], ["a river"])
    assert listed(index, index.search(QUESTIONS, 5)) == before
    assert len(list(tmp_path.glob("statistics-*"))) == 2  # the one in force and the one before


def test_statistics_of_many_shards_are_merged_in_several_steps(tmp_path):
    count = 2 * bm25.MERGE_SHARDS + 3
    texts = [f"word{n % 5} common" for n in range(count)]
    build_index(tmp_path, [f"s{n:02d}" for n in range(count)], texts, shards=count)
    index = Index.open(tmp_path)
    counts = dict(zip(index.vocabulary.terms.to_pylist(), index.counts.tolist()))
    assert counts == {"common": count, **{f"word{n}": len(range(n, count, 5)) for n in range(5)}}


def test_the_same_rows_give_the_same_bytes(tmp_path):
    for name in "ab":
        build_index(tmp_path / name, IDS, TEXTS, 2)
    files = sorted(file.relative_to(tmp_path / "a") for file in (tmp_path / "a").rglob("*") if file.is_file())
    assert len(files) > 20
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


def test_pairs_of_frequency_and_length_take_wider_codes_when_there_are_many():
    frequency, length = np.repeat(np.arange(1, 301), 300), np.tile(np.arange(1000, 1300), 300)
    codes, frequencies, lengths = bm25._code_pairs(frequency, length)
    assert codes.dtype == np.uint32
    np.testing.assert_array_equal(frequencies[codes], frequency)
    np.testing.assert_array_equal(lengths[codes], length)
    codes, frequencies, lengths = bm25._code_pairs(np.array([1, 2**20, 1]), np.array([2**30, 5, 2**30]))  # beyond a table
    assert (codes.tolist(), frequencies[codes].tolist(), lengths[codes].tolist()) == (
        [0, 1, 0],
        [1, 2**20, 1],
        [2**30, 5, 2**30],
    )


def test_stop_words_and_short_words_are_neither_found_nor_counted(tmp_path):
    rules = WordRules(stop_words=ENGLISH_STOP_WORDS)
    assert rules.tokenize("The town of a Q is it") == ["town"]
    build_index(tmp_path, ["a", "b"], ["the town of the elk", "elk"], rules=rules)
    assert Index.open(tmp_path).average_length == 1.5  # town, elk; elk
    assert found(tmp_path, ["the of"]) == [[]]


def test_stems_meet_at_search(tmp_path):
    pytest.importorskip("Stemmer")
    build_index(tmp_path, ["a", "b"], ["rivers flowing", "a stone"], rules=WordRules(stemmer="english"))
    assert [id for id, _ in found(tmp_path, ["flows river rivers"])[0]] == ["a"]
    index = Index.open(tmp_path)
    twice = index.search([["river", "river"]], 1).scores  # two words of one stem weigh twice
    np.testing.assert_array_equal(index.search(["river rivers"], 1).scores, twice)
    with pytest.raises(InputError, match="klingon"):
        WordRules(stemmer="klingon").tokenize("word")


# bad input


def test_bad_input_is_named(tmp_path):
    with pytest.raises(InputError, match="empty"):
        build_index(tmp_path / "a", [], [])
    with pytest.raises(InputError, match="'x' is given to more than one row"):
        build_index(tmp_path / "b", ["x", "y", "x"], ["1", "2", "3"])
    with pytest.raises(InputError, match="'x' is given to more than one row"):
        build_index(tmp_path / "c", ["x", "y", "x"], ["1", "2", "3"], shards=3)
    with pytest.raises(InputError, match="2 ids for 1 texts"):
        build_shard(tmp_path / "d", ["x", "y"], ["1"])
    with pytest.raises(InputError, match="no bm25 index"):
        Index.open(tmp_path / "nowhere")
    with pytest.raises(InputError, match="k1"):
        Formula(k1=-1)
    with pytest.raises(InputError, match="tf-idf"):
        Formula(idf="tf-idf")
    build_index(tmp_path / "e", IDS, TEXTS)
    with pytest.raises(InputError, match="already has 1 of these ids, 's3'"):
        add_rows(tmp_path / "e", ["new", "s3"], ["1", "2"])
    assert len(Index.open(tmp_path / "e").shards) == 1
    build_shard(tmp_path / "e" / "other", ["new"], ["text"], WordRules(min_chars=1))
    with pytest.raises(InputError, match="other word rules"):
        publish_index(tmp_path / "e", ["shard-00000", "other"])
    with pytest.raises(InputError, match="k of 1 or more"):
        Index.open(tmp_path / "e").search(["river"], 0)
    assert Index.open(tmp_path / "e").search([], 5).rows.shape == (0, 5)


def test_a_build_that_dies_leaves_nothing_that_looks_whole(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; import numpy as np; from raydist.retrieval import bm25; save = np.save\n"
        "def dying(path, array, **more):\n"
        "    if 'codes' in str(path): os._exit(9)\n"
        "    save(path, array, **more)\n"
        "np.save = dying; bm25.build_index(Path(sys.argv[1]), ['a', 'b'], ['one river', 'two'])"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ).returncode == 9
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
    build_index(tmp_path, ["a", "b"], ["one river", "two"])
    assert [id for id, _ in found(tmp_path, ["river"])[0]] == ["a"]


# the established library


@pytest.mark.parametrize("idf", ["lucene", "robertson", "atire"])
@pytest.mark.parametrize("shards", [1, 2, 7])
def test_bm25s_ranks_the_same(tmp_path, shards, idf):
    bm25s = pytest.importorskip("bm25s")
    rng = np.random.default_rng(0)
    draw = rng.zipf(1.3, 8000)
    lengths = rng.integers(1, 30, 400)
    rows = [[f"word{n}" for n in part if n < 400] for part in np.split(draw, np.cumsum(lengths))[:400]]
    questions = [[f"word{n}" for n in rng.integers(1, 60, 6)] for _ in range(50)]
    ids = [f"s{n:03d}" for n in range(len(rows))]
    build_index(tmp_path, ids, [" ".join(row) for row in rows], shards, formula=Formula(k1=1.2, b=0.7, idf=idf))
    theirs = bm25s.BM25(k1=1.2, b=0.7, method=idf, dtype="float64")
    theirs.index(rows, show_progress=False)
    for question, hits in zip(questions, found(tmp_path, questions, 20)):
        scores = theirs.get_scores([word for word in question if word in theirs.vocab_dict])
        scores = scores / (2.2 if idf == "atire" else 1)  # there the share is times k1 + 1
        np.testing.assert_allclose([score for _, score in hits], sorted(scores[scores > 0])[::-1][:20], rtol=1e-5)
        at = [ids.index(id) for id, _ in hits]
        for first, second in pairwise(at):  # their scores go down along our ranking, and ids go up where they are equal
            assert scores[first] > scores[second] * (1 - 1e-6)
            assert first < second or scores[first] - scores[second] > 1e-12


@pytest.mark.realdata
@pytest.mark.parametrize("shards", [1, 4])
def test_the_size_of_an_index_of_real_sentences_is_known_in_advance(tmp_path, data_dir, shards):
    with gzip.open(data_dir / "reqa_squad" / "test-A.json.gz", "rt", encoding="utf-8") as file:
        texts = json.load(file)["candidates"]
    ids = [f"s{number:09d}" for number in range(len(texts))]
    build_index(tmp_path, ids, texts, shards=shards)
    size = sum(file.stat().st_size for file in tmp_path.rglob("*.npy"))
    told = bm25.estimate_bytes(len(texts), sum(len(text.encode()) for text in texts), 10 * len(texts), shards)
    assert told == pytest.approx(size, rel=0.25)


@pytest.mark.realdata
def test_real_sentences_are_found_as_well_as_by_the_library(tmp_path, data_dir):
    with gzip.open(data_dir / "reqa_squad" / "test-A.json.gz", "rt", encoding="utf-8") as file:
        reqa = json.load(file)
    candidates, truths = reqa["candidates"], [set(places) for places in reqa["ground_truths"]]
    build_index(tmp_path, [f"s{n:08d}" for n in range(len(candidates))], candidates)
    rows = Index.open(tmp_path).search(reqa["questions"], 100).rows
    ranks = [
        next((rank for rank, row in enumerate(best, 1) if row in truth), math.inf) for best, truth in zip(rows.tolist(), truths)
    ]
    figures = [100 * np.mean([rank <= n for rank in ranks]) for n in (1, 5, 10)] + [100 * np.mean([1 / rank for rank in ranks])]
    assert figures == pytest.approx([67.8, 83.5, 87.4, 75.1], abs=0.1)

"""BM25 over texts at hand gives what an index of a run gives."""

import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest

from raydist.errors import InputError
from raydist.retrieval import bm25
from raydist.retrieval.bm25_texts import BM25

WORDS = "the river bridge built long wide of stone Brücke мост 橋 and a tower in north".split()  # noqa: SIM905
QUESTIONS = ["the bridge of stone", "мост", "橋 north", "the the the", "", "unheard of", "stones"]


def draw_texts(number: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(number)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"k1": 1.5, "b": 0.75, "idf": "atire"},
        {"stop_words": "english", "stemmer": "english"},
        {"stop_words": ["stone"], "min_chars": 4, "idf": "robertson"},
    ],
)
def test_scores_are_bit_for_bit_those_of_an_index_in_several_shards(tmp_path, settings):
    texts = draw_texts(200)
    formula = bm25.Formula(**{key: settings[key] for key in ("k1", "b", "idf") if key in settings})
    words = frozenset(bm25.stop_words(settings.get("stop_words", "none")))
    rules = bm25.WordRules(settings.get("min_chars", 2), words, settings.get("stemmer", ""))
    bm25.build_index(tmp_path / "index", [f"{n:04d}" for n in range(200)], texts, 3, rules, formula)
    index = bm25.Index.open(tmp_path / "index")
    wanted = index.search(QUESTIONS, 20)
    for rows, scores, hits in zip(wanted.rows, wanted.scores, BM25(texts, **settings).search(QUESTIONS, 20)):
        ids = index.sentence_ids(rows[rows >= 0])
        assert [(int(id), float(score)) for id, score in zip(ids, scores)] == [(hit.number, hit.score) for hit in hits]
        assert [hit.text for hit in hits] == [texts[hit.number] for hit in hits]
    assert (wanted.rows[0] >= 0).any(), "else nothing was compared"


def test_of_equal_scores_the_first_text_wins():
    hits = BM25(["a bridge"] * 12).search("bridge", k=12)
    assert [hit.number for hit in hits] == list(range(12))


def test_one_question_gives_a_list_and_several_give_lists():
    searcher = BM25(["a bridge", "a tower"])
    assert [searcher.search("tower")] == searcher.search(["tower"])
    assert searcher.search([]) == []
    assert len(searcher) == 2


def test_its_files_go_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    searcher = BM25(["a bridge"])
    assert len(list(Path(tmp_path).iterdir())) == 1
    del searcher
    gc.collect()
    assert list(Path(tmp_path).iterdir()) == []


@pytest.mark.parametrize("texts", [[], "a bridge"])
def test_what_is_no_list_of_texts_is_refused(texts):
    with pytest.raises(InputError, match="no texts to search in"):
        BM25(texts)

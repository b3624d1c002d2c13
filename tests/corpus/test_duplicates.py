"""Duplicates."""

import pyarrow as pa

from raydist.corpus.cutting import sentence_row
from raydist.corpus.duplicates import count_duplicates, duplicate_keys, normalise_text
from raydist.corpus.schemas import SENTENCE_SCHEMA


def test_duplicates_are_told_by_normalised_text():
    assert normalise_text("  The “ﬁrst” TOWN,\n(it's) Straße!  ") == "the first town it s strasse"
    assert normalise_text("पानी") == "पानी"  # marks stay
    one, again, turned, other = (
        duplicate_keys(text) for text in ("The town, Oder.", "the TOWN Oder", "Oder: the town", "Oder")
    )
    assert one == again
    assert one[0] != turned[0]
    assert one[1] == turned[1]
    assert not set(one) & set(other)
    assert duplicate_keys("!!") != duplicate_keys("??")
    texts = ["The town, Oder.", "the TOWN Oder", "Oder: the town", "Oder", "oder"]
    sentences = pa.Table.from_pylist([sentence_row(f"s{n}", text) for n, text in enumerate(texts)], SENTENCE_SCHEMA)
    assert count_duplicates(sentences) == {"exact": 2, "near": 1}

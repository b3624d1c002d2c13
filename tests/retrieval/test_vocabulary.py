import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from raydist.files.shards import write_folder
from raydist.retrieval.vocabulary import Vocabulary


@settings(max_examples=40, deadline=None)
@given(st.sets(st.text(st.sampled_from("ab\0é\U0001f600"), max_size=12), max_size=40), st.lists(st.text("abé", max_size=12)))
def test_the_vocabulary_finds_what_it_holds_and_nothing_else(tmp_path_factory, terms, others):
    terms = sorted(term for term in terms if "\0" not in term and term)
    folder = tmp_path_factory.mktemp("terms")
    write_folder(folder / "v", Vocabulary.arrays(pa.array(terms, pa.large_string())), {}, "v.json")
    vocabulary = Vocabulary(folder / "v")
    asked = terms + others
    assert vocabulary.find(asked).tolist() == [terms.index(term) if term in terms else -1 for term in asked]

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raydist.kernels.text_slices import text_slices

TEXTS = st.lists(st.text(st.sampled_from("ab é\U0001f600\0東"), max_size=30), min_size=1, max_size=5)


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.randoms(use_true_random=False))
def test_pieces_of_texts_are_those_of_python(contexts, random):
    """Short pieces stand in Arrow's views themselves, those above twelve bytes do not; texts may come twice."""
    contexts = [*contexts, contexts[0]]
    which = [random.randrange(len(contexts)) for _ in range(20)]
    cuts = [sorted(random.choices(range(len(contexts[one]) + 1), k=2)) for one in which]
    start, end = (np.array(ends, np.int64) for ends in zip(*cuts))
    found = text_slices(contexts, np.array(which), start, end)
    assert found.to_pylist() == [contexts[one][a:b] for one, (a, b) in zip(which, cuts)]

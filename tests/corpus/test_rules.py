import pytest

from raydist.corpus.rules import choose_rule


def files(*named):
    return {"files": [{"name": name, "format": format} for name, format in named]}


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (files(("test-context-de-question-es.json", "squad"), ("MLQA.dev.json.gz", "squad")), "mlqa"),
        (files(("NewsQA.jsonl.gz", "mrqa"), ("RACE.jsonl.gz", "mrqa")), "mrqa"),
        (files(("xquad.es.json", "squad")), "squad"),
        (files(("test-context-de-question-es.json", "squad"), ("xquad.es.json", "squad")), "squad"),  # of two kinds
        (files(("NewsQA.jsonl.gz", "mrqa"), ("dev.json", "squad")), "squad"),
        ({"hub": ["facebook/mlqa", "test", "mlqa.ar.de"]}, "mlqa"),
        ({"hub": ["google/xtreme", "test", "MLQA.ar.de"]}, "mlqa"),
        ({"hub": ["mrqa", "validation", None]}, "mrqa"),
        (files(("dev.json", "hotpotqa")), "hotpotqa"),
        ({"hub": ["hotpotqa/hotpot_qa", "validation", "distractor"]}, "hotpotqa"),
        ({"hub": ["mlqa/squad", "validation", None]}, "squad"),
    ],
)
def test_the_rule_goes_by_what_the_data_are_unless_it_is_given(source, rule):
    assert choose_rule("auto", source) == rule
    assert choose_rule("squad", source) == "squad"

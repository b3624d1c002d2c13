"""What sections say of their keys together."""

import pytest

from raydist.config import EXAMPLE_COLUMNS, Config, ConfigError, load_config, override

TABLES = "corpus: {train: {files: [a, b, c], format: tables, columns: %s}}\n"


def test_rows_of_other_workers_are_rivals_where_they_are_gathered(write):
    text = "objectives: {answer_contrast: {negatives: in_batch}}\ntrain: {batch_size: 4}\ncluster: {workers: 4}\n"
    assert load_config(write("a.yaml", text)).config.objectives.answer_contrast.gather


@pytest.mark.parametrize("settings", ["align: cos", "lambda2: 0", "perturber: gaussian"])
def test_an_attention_without_second_derivative_is_fine_where_no_critic_asks_for_one(write, settings):
    text = f"objectives: {{pfa: {{penalty_at: embedding, {settings}}}}}\nmodel: {{attention: sdpa}}\n"
    assert not load_config(write("a.yaml", text)).config.objectives.pfa.has_critic


def test_what_a_config_knows_of_readers_and_sample_is_theirs():
    from raydist.corpus.columns import COLUMNS
    from raydist.sample.write import MIN_CORPUS

    assert EXAMPLE_COLUMNS == COLUMNS
    assert override(Config(), {"data.sample.size": MIN_CORPUS}).data.sample.size == MIN_CORPUS
    with pytest.raises(ConfigError, match=f"{MIN_CORPUS}, got {MIN_CORPUS - 1}"):
        override(Config(), {"data.sample.size": MIN_CORPUS - 1})


def test_lists_are_as_deep_as_the_names_of_their_metrics_say():
    from raydist.retrieval.metrics import score_run

    metrics = score_run({}, {"a question": {"a sentence": 1}}).values
    deepest = max(int(name.partition("@")[2]) for name in metrics)
    assert override(Config(), {"retriever.search_depth": deepest}).retriever.search_depth == deepest
    said = rf"retriever\.search_depth: MRR@{deepest} and recall@{deepest} need .* give {deepest} or more, got {deepest - 1}"
    with pytest.raises(ConfigError, match=said):
        override(Config(), {"retriever.search_depth": deepest - 1})


def test_columns_are_of_all_tables_or_of_each(write):
    for columns, corpus, questions in (
        ("{}", {}, {}),
        ("{text: body, question_id: q}", *[{"text": "body", "question_id": "q"}] * 2),
        ("{corpus: {text: body}, questions: {text: q}}", {"text": "body"}, {"text": "q"}),
    ):
        config = load_config(write("a.yaml", TABLES % columns)).config
        source = config.corpus.train
        assert (source.columns_of("corpus"), source.columns_of("questions")) == (corpus, questions)
        assert Config.model_validate(config.model_dump(mode="json")) == config
    assert source.columns_of("gold") == {}


@pytest.mark.parametrize(
    ("kind", "settings", "search"),
    [
        ("flat", {}, {}),
        ("ivf", {"nlist": 64}, {"nprobe": 8}),
        ("hnsw", {"hnsw_m": 16, "ef_construction": 99}, {"ef_search": 77}),
        ("pq", {"nlist": 64, "pq_m": 12, "pq_bits": 6}, {"nprobe": 8}),
    ],
)
def test_a_dense_index_gets_the_parameters_of_its_kind_alone(kind, settings, search):
    """So a parameter of another kind makes no other index: it would be built anew for nothing."""
    from raydist.retrieval.dense import DenseSearch, DenseSettings

    sections = {"ivf": {"nlist": 64, "nprobe": 8}, "hnsw": {"m": 16, "ef_construction": 99, "ef_search": 77}}
    index = override(Config(), {"index": {"dense": kind, **sections, "pq": {"m": 12, "bits": 6}}}).index
    assert index.dense_settings() == {"kind": kind, **settings}
    assert index.dense_search() == search
    assert DenseSettings(**index.dense_settings()).kind == kind
    assert DenseSearch(**index.dense_search())


def test_without_a_word_the_parameters_of_config_and_index_are_the_same():
    from raydist.retrieval.dense import DenseSearch, DenseSettings

    for kind in ("flat", "ivf", "hnsw", "pq"):
        index = override(Config(), {"index.dense": kind}).index
        assert DenseSettings(**index.dense_settings()) == DenseSettings(kind)
        assert DenseSearch(**index.dense_search()) == DenseSearch()


def test_a_quota_of_cpus_bounds_workers_and_actors():
    cluster = load_config("debug_reader", ["cluster.workers=[2,8]", "cluster.actors=9", "cluster.max_cpus=4"]).config.cluster
    assert (cluster.num_workers, cluster.max_workers, cluster.num_actors) == ((2, 4), 4, 4)
    with pytest.raises(ConfigError, match=r"cluster: workers take a CPU each: 5 are more than max_cpus \(4\) allows"):
        load_config("debug_reader", ["cluster.workers=5", "cluster.max_cpus=4"])

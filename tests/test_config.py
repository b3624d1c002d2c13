import pytest

from raydist.config import (
    EXAMPLE_COLUMNS,
    Config,
    ConfigError,
    find_config,
    flatten,
    load_config,
    override,
    shipped_configs,
    to_yaml,
)


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_command_line_beats_file_beats_what_it_extends_beats_default(write):
    write("base.yaml", "optim: {lr: 1.0e-3, weight_decay: 0.5}\ntrain: {epochs: 7}\n")
    child = write("child.yaml", "extends: base.yaml\noptim: {lr: 2.0e-3}\n")
    loaded = load_config(child, ["train.batch_size=8"])
    optim, train = loaded.config.optim, loaded.config.train
    assert (optim.lr, optim.weight_decay, train.epochs, train.batch_size, optim.clip_norm) == (2e-3, 0.5, 7, 8, 1.0)
    assert loaded.origins["optim.lr"].endswith("child.yaml")
    assert loaded.origins["optim.weight_decay"].endswith("base.yaml")
    assert loaded.origins["train.batch_size"] == "command line"
    assert "optim.clip_norm" not in loaded.origins


def test_all_problems_are_reported_at_once_with_the_nearest_key(write):
    config = write("wrong.yaml", "objectives: {spn: {reduction: mean}}\noptim: {lr: -1}\ntrain: {batch_size: many}\n")
    with pytest.raises(ConfigError) as error:
        load_config(config, ["lr=3"])
    message = str(error.value)
    assert "wrong.yaml with 1 override: 4 problems" in message
    assert "objectives.spn: unknown key; did you mean objectives.span?" in message
    assert "optim.lr: should be greater than 0, got -1" in message
    assert "train.batch_size: should be a valid integer" in message
    assert "lr: unknown key; did you mean optim.lr?" in message


TABLES = "corpus: {train: {files: [a, b, c], format: tables, columns: %s}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "train: {batch_size: 1, early_stop: 2, metric: accuracy}\nobjectives: {infomax: {}}\ncluster: {workers: 2}\n",
            ["the config: 2 workers cannot share 1 rows", "needs a dev set", "one forward pass has 1 row", "not accuracy"],
        ),
        ("train: {accumulate: 20, evaluate_every: 0}\n", ["train: cannot cut a batch of 16", "train: choosing the best"]),
        (
            "train: {early_stop: 2, epochs: 0, accumulate: 20}\noptim: {betas: [2, 2], warmup_steps: 1, warmup_share: 1}\n",
            ["train.epochs: should be", "train: cannot cut a batch of 16", "optim.betas.0", "optim.betas.1", "are both given"],
        ),
        ("optim: {lr: -1}\ntrain: {early_stop: 2}\n", ["optim.lr: should be", "train.early_stop needs a dev set"]),
        ("train: {batch_size: 0}\ncluster: {workers: 64}\n", ["train.batch_size: should be"]),  # 64 may be right for another
        ("trian: {}\ntrain: {early_stop: 2}\n", ["trian: unknown key", "train.early_stop needs a dev set"]),
        ("data: {dev: {leave_out: [2, 2]}}\n", ["data.dev: give either files or hub", "data.dev: leave_out is [fold, folds]"]),
    ],
)
def test_problems_between_keys_are_told_together(write, text, said):
    with pytest.raises(ConfigError, match=f"{len(said)} problems?\n") as error:
        load_config(write("wrong.yaml", text))
    for part in said:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("optim: {lr: 1}\noptim: {lr: 2}\n", "line 2: key 'optim' is given twice"),
        ("- 1\n", "a config is a mapping"),
        ("a: [1\n", "not readable as YAML"),
        ("extends: self.yaml\n", "extends itself"),
        ("extends: 5\n", "self.yaml: extends should be the name of a config or a list of names, got 5"),
        ("extends: [1]\n", "self.yaml: extends should be the name of a config or a list of names, got [1]"),
        ("extends: {a: b}\n", "or a list of names, got {'a': 'b'}"),
        ("optim: {warmup_steps: 3, warmup_share: 0.1}\n", "warmup_share and warmup_steps are both given"),
        ("cluster: {workers: [3, 2]}\n", "workers [min, max] should not fall"),
        ("train: {batch_size: 2}\ncluster: {workers: 4}\n", "4 workers cannot share 2 rows"),
        ("name: stages\n", "choose another name"),
        ("name: ../elsewhere\n", "name: string should match pattern"),
        ("data: {train: {files: [a], hub: squad}}\n", "give either files or hub"),
        ("data: {test: {dev: a.json}}\n", "cannot be called 'dev'"),
        ("train: {accumulate: 20}\n", "cannot cut a batch of 16 into 20 groups"),
        ("optim: {lr: .inf}\n", "optim.lr"),
        ("optim: {betas: [0.9, 1.0]}\n", "optim.betas.1: should be less than 1, got 1.0"),
        ("optim: {betas: [-0.1, 0.9]}\n", "optim.betas.0: should be greater than or equal to 0, got -0.1"),
        ("data: {dev: a.json}\npredict: {split: [dve]}\n", "predict.split: there is no data set 'dve'; there are dev"),
        ("evaluate: {predictions: {dev: a.json}}\n", "evaluate.predictions: there is no data set 'dev'; there are none"),
        ("objectives: {infomax: {}}\ntrain: {batch_size: 1}\n", "draws negatives from the batch"),
        ("objectives: {infomax: {}}\ntrain: {batch_size: 7, accumulate: 4}\n", "one forward pass has 1 row"),
        ("objectives: {pfa: {penalty_at: embedding}}\nmodel: {attention: sdpa}\n", "needs a second derivative"),
        ("objectives: {infomax: {alpha: 0, beta: 0}}\n", "objectives.infomax: alpha and beta are both 0, which leaves nothing"),
        ("objectives: {pfa: {lambda1: 0, lambda2: 0}}\n", "objectives.pfa: lambda1 and lambda2 are both 0"),
        ("objectives: {pfa: {perturber: dropout, delta: 1}}\n", "should be below 1, got 1"),
        ("objectives: {pfa: {perturber: gaussian, every: 4}}\n", "every 4 does not go with perturber: gaussian"),
        ("objectives: {pfa: {critic_steps: 2, penalty_at: embedding}}\n", "critic_steps works on finished representations"),
        ("objectives: {answer_contrast: {theta: 3, top: 2}}\n", "theta 3 is more than the top 2 spans"),
        ("objectives: {answer_contrast: {hard_from_others: true, negatives: in_batch}}\n", "needs hard negatives"),
        ("objectives: {answer_contrast: {negatives: in_batch}}\ntrain: {batch_size: 1}\n", "in_batch needs two rows or more"),
        (
            "objectives: {answer_contrast: {negatives: in_batch, gather: false}}\n"
            "train: {batch_size: 7}\ncluster: {workers: 4}\n",
            "without gather each of 4 workers has 1: raise train.batch_size, or set gather: true",
        ),
        ("objectives: {answer_contrast: {alpha: 1}}\n", "objectives.answer_contrast.alpha: should be less than 1, got 1"),
        (
            "objectives: {hard_learning: {nbest_folds: 2}}\ndata: {train: {files: a, leave_out: [0, 3]}}\n",
            "nbest_folds 2 lets each base reader leave out a fold of its own, and data.train.leave_out is [0, 3]",
        ),
        ("objectives: {answer_contrast: {schedule: sequential}}\ntrain: {epochs: 1}\n", "it would never act"),
        ("cross_encoder: {train: {metric: em}}\n", "a cross-encoder has f1, average_precision and accuracy, not em"),
        ("cross_encoder: {train: {dev_questions: 5}}\n", "dev_questions has no effect: a cross-encoder is judged by all pairs"),
        ("task: retriever\ntrain: {early_stop: 2}\n", "train.early_stop has no effect: a retriever is judged after training"),
        ("task: retriever\ntrain: {evaluate_every: 9}\n", "train.evaluate_every has no effect"),
        ("task: retriever\ntrain: {dev_questions: 9}\n", "train.dev_questions has no effect"),
        ("task: retriever\ntrain: {metric: accuracy}\n", "train.metric has no effect"),
        (
            "mining: {hard_negatives: 1}\nretriever: {loss: kl, objective: prob}\n",
            "retriever.objective: prob is about the columns",
        ),
        (
            "mining: {hard_negatives: 1}\nretriever: {loss: margin_mse, mask_known_positives: false}\n",
            "retriever.mask_known_positives: false is about the columns of retriever.loss: softmax, and the loss is margin_mse",
        ),
        ("task: retriever\nobjectives: {infomax: {}}\n", "objectives.infomax is for readers, and task is retriever"),
        ("objectives: {pfa: {bottleneck: 0}}\n", "objectives.pfa.bottleneck: should be greater than or equal to 1, got 0"),
        ("index: {ivf: {nlist: 8, nprobe: 9}}\n", "index.ivf: nprobe 9 is more than the 8 cells of nlist: lower it"),
        ("index: {hnsw: {m: 1}}\n", "index.hnsw.m: should be greater than or equal to 2, got 1"),
        ("index: {pq: {bits: 16}}\n", "index.pq.bits: should be less than or equal to 12, got 16"),
        ("retriever: {temperature: 0.05}\n", "the loss is softmax: set retriever.scale (20 is this temperature)"),
        ("retriever: {loss: margin_mse, temperature: 2}\nmining: {hard_negatives: 1}\n", "the loss is margin_mse"),
        ("corpus: {train: {files: a, columns: {text: b}}}\n", "columns: format beir has names of its own"),
        ("index: {stop_words: german}\n", "index.stop_words: should be 'none' or 'english', got 'german'"),
        ("index: {stop_words: german}\n", "index.stop_words: should be a valid list, got 'german'"),
        ("index: {stop_words: [yes, the]}\n", "index.stop_words.0: should be a valid string, got True"),
        ("corpus: {train: {files: a, format: documents, questions: 5}}\n", "there are none about documents to choose from"),
        (
            "corpus: {train: {files: a, format: documents, columns: {id: b}}}\n",
            "no 'id' to map; there are document_id, language",
        ),
        (TABLES % "{text: 5}", "2 problems\n  corpus.train.columns.text: should be a valid dictionary, got 5\n"),
        (TABLES % "{text: 5}", "\n  corpus.train.columns.text: should be a valid string, got 5"),
        (TABLES % "{corpus: {text: 5}}", "1 problem\n  corpus.train.columns.corpus.text: should be a valid string, got 5"),
        (TABLES % "{txt: b}", "there is no 'txt' to map; there are document_id, language"),
        (TABLES % "{corpus: {text: b}, text: c}", "or such a map for each of corpus, questions, gold; got {'corpus'"),
        (TABLES % "{pairs: {text: b}}", "or such a map for each of corpus, questions, gold; got {'pairs'"),
        (TABLES % "{gold: {text: b}}", "there is no 'text' to map; there are question_id, sentence_id, relevance"),
        ("? [a]\n: b\n", "not readable as YAML: line 1: a key should be a plain value, got ['a']"),
        ("optim: {? {a: b} : 1}\n", "not readable as YAML: line 1: a key should be a plain value, got {'a': 'b'}"),
        ("name: 2026-02-31\n", "not readable as YAML: day is out of range"),
        (
            "data: {train: {files: a, columns: {contxt: x}}}\n",
            "data.train: columns: there is no 'contxt' to map; did you mean context?",
        ),
        (
            "data: {train: {files: a, columns: {zzz: x}}}\n",
            "columns: there is no 'zzz' to map; there are id, question, context",
        ),
        ("data: {sample: {size: -4}}\n", "data.sample.size: should be greater than or equal to 100, got -4"),
        ("objectives: {answer_contrast: {tau: 0}}\n", "objectives.answer_contrast.tau: should be greater than 0, got 0"),
    ],
)
def test_a_wrong_config_is_refused_by_name(write, text, said):
    with pytest.raises(ConfigError, match=r"problem|extends|mapping|YAML") as error:
        load_config(write("self.yaml", text))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("cluster.workers=0", "cluster.workers: should be greater than or equal to 1, got 0"),
        ("cluster.workers=[0, 2]", "cluster.workers.0: should be greater than or equal to 1, got 0"),
        ("cluster.workers=[1]", "cluster.workers.1: field required, got [1]"),
        (
            "cluster.workers=many",
            "cluster.workers: should be a valid integer, unable to parse string as an integer, got 'many'",
        ),
        ("data.sample.size=99", "data.sample.size: should be greater than or equal to 100, got 99"),
        ("index.stop_words=[the, 1]", "index.stop_words.1: should be a valid string, got 1"),
        ("optim.eps={[a]: 1}", "optim.eps: not YAML: '{[a]: 1}' (line 1: a key should be a plain value, got ['a'])"),
    ],
)
def test_of_alternatives_the_one_is_told_whose_shape_the_value_has(write, override, said):
    with pytest.raises(ConfigError) as error:
        load_config(write("a.yaml", ""), [override])
    assert str(error.value).splitlines()[1:] == [f"  {said}"]


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
    said = rf"retriever\.search_depth: MRR@{deepest} and recall@{deepest} are of .* give {deepest} or more, got {deepest - 1}"
    with pytest.raises(ConfigError, match=said):
        override(Config(), {"retriever.search_depth": deepest - 1})


def test_a_text_with_a_colon_is_a_text_in_an_override_and_a_mapping_is_in_braces():
    config = load_config("retriever", ["retriever.question_prefix=query: ", "corpus.test={mine: {files: a}}"]).config
    assert config.retriever.question_prefix == "query: "
    assert config.corpus.test["mine"].files == ["a"]
    with pytest.raises(ConfigError, match=r"corpus\.test: .* got 'mine: a'"):
        load_config("retriever", ["corpus.test=mine: a"])


def test_a_key_in_the_wrong_section_is_found_where_it_belongs(write):
    for text, near in (("train: {lr: 1}\n", "optim.lr"), ("train: {batchsize: 1}\n", "train.batch_size")):
        with pytest.raises(ConfigError, match=f"unknown key; did you mean {near}"):
            load_config(write("a.yaml", text))


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("data.test.adversarial.file", "data.test.adversarial.files"),
        ("data.test.other.langauge", "data.test.other.language"),
        ("corpus.test.mine.boundary", "corpus.test.mine.boundaries"),
        ("data.test.other.lr", "optim.lr"),
    ],
)
def test_the_nearest_key_of_a_test_set_is_one_of_its_own(write, key, near):
    config = write("a.yaml", "data: {test: {other: b.json}}\ncorpus: {test: {mine: c}}\n")
    with pytest.raises(ConfigError) as error:
        load_config(config, [f"{key}=a"])
    assert f"{key}: unknown key; did you mean {near}?" in str(error.value)


def test_extends_with_nothing_behind_it_is_as_if_left_out(write):
    assert load_config(write("a.yaml", "extends:\noptim: {lr: 1}\n")).config == override(Config(), {"optim.lr": 1})


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


def test_yaml_reads_3e_5_as_text_and_the_field_mends_it(write):
    assert load_config(write("a.yaml", "optim: {lr: 3e-5}\n")).config.optim.lr == 3e-5


def test_an_override_may_change_one_key_of_a_source_given_as_plain_files(write):
    source = load_config(write("a.yaml", "data: {dev: [a.json, b.json]}\n"), ["data.dev.language=de"]).config.data.dev
    assert (source.files, source.language) == (["a.json", "b.json"], "de")


def test_an_override_inside_a_plain_value_is_told_with_the_other_problems(write):
    text = "name: mine\nmodel: {name: bert}\noptim: {lr: 1.0}\ntrain: {epochs: 0}\n"
    for key, parent, seen in (
        ("optim.lr.foo", "optim.lr", "1.0"),
        ("name.foo", "name", "'mine'"),
        ("model.name.revision", "model.name", "'bert'"),
    ):
        with pytest.raises(ConfigError, match=r"1 override: 2 problems\n") as error:
            load_config(write("a.yaml", text), [f"{key}=3"])
        assert f"{key}: {parent} is {seen}, which has no keys; set {parent} itself" in str(error.value)
        assert "train.epochs: should be greater than 0" in str(error.value)
    with pytest.raises(ConfigError, match=r"optim\.lr\.foo: optim\.lr is 1\.0"):
        override(override(Config(), {"optim.lr": 1.0}), {"optim.lr.foo": 3})


def test_a_section_that_is_a_plain_value_is_told(write):
    for text, key, seen in (("model: bert\n", "model.dropout", "'bert'"), ("optim: 5\n", "optim.lr", "5")):
        section = key.split(".")[0]
        with pytest.raises(ConfigError, match="2 problems") as error:
            load_config(write("a.yaml", text), [f"{key}=1"])
        assert f"  {section}: should be a valid dictionary" in str(error.value)
        assert f"{key}: {section} is {seen}, which has no keys" in str(error.value)


def test_an_override_may_fill_a_section_that_is_null(write):
    assert load_config(
        write("a.yaml", "objectives: {infomax: null}\n"), ["objectives.infomax.beta=1"]
    ).config.objectives.infomax


def test_workers_may_be_a_range_and_stay_one(write):
    config = load_config(write("a.yaml", "cluster: {workers: [1, 2]}\n")).config
    assert config.cluster.workers == (1, 2)
    assert Config.model_validate(config.model_dump(mode="json")) == config


def test_the_saved_config_runs_again_as_it_is(write):
    config = load_config("quickstart", ["optim.lr=5e-4"]).config
    assert load_config(write("again.yaml", to_yaml(config))).config == config


def test_the_saved_config_of_a_retriever_runs_again_as_it_is(write):
    config = load_config(write("plain.yaml", "task: retriever\n")).config
    assert load_config(write("again.yaml", to_yaml(config))).config == config


def test_override_changes_dotted_keys_and_checks_them():
    config = override(Config(), {"optim.lr": 1e-4, "train.epochs": 3})
    assert (config.optim.lr, config.train.epochs) == (1e-4, 3)
    with pytest.raises(ConfigError, match=r"optim\.lr"):
        override(config, {"optim.lr": 0})


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


@pytest.mark.parametrize("path", sorted(shipped_configs().rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_is_valid(path):
    if "cluster" not in path.parts:
        assert flatten(load_config(str(path)).config)


def test_a_config_is_found_by_its_name_and_a_wrong_name_is_helped():
    assert find_config("quickstart").name == "quickstart.yaml"
    assert find_config("configs/quickstart.yaml").name == "quickstart.yaml"
    with pytest.raises(ConfigError, match="did you mean quickstart"):
        find_config("quikstart")
    with pytest.raises(ConfigError, match="ship with raydist"):
        find_config("zzz")
    with pytest.raises(ConfigError, match="no such config"):
        find_config("../pyproject")

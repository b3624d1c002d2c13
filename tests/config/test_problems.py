"""Problems of a config, one line each."""

import pytest

from raydist.config import Config, ConfigError, load_config, override

TABLES = "corpus: {train: {files: [a, b, c], format: tables, columns: %s}}\n"


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
        (
            "data: {dev: {leave_out: [2, 2]}}\n",
            ["data.dev: give either files or hub", "data.dev: leave_out should be [fold, folds]"],
        ),
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
        ("task: retriever\ntrain: {early_stop: 2}\n", "train.early_stop has no effect: this retriever has no questions"),
        ("task: retriever\ntrain: {evaluate_every: 9}\n", "train.evaluate_every has no effect"),
        ("corpus: {dev: a, dev_share: 0.1}\n", "corpus: dev is a corpus of its own, and dev_share 0.1 holds out questions"),
        ("corpus: {dev: a, test: {dev: a}}\n", "corpus: a test set is called dev, which is the name of the questions"),
        ("data: {dev: {files: a, only: [0, 2], leave_out: [0, 2]}}\n", "leave_out and only are both given"),
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
        ("corpus: {train: {files: a, format: beir, columns: {text: b}}}\n", "columns: format beir has fixed names"),
        ("index: {stop_words: german}\n", "index.stop_words: should be 'none' or 'english', got 'german'"),
        ("index: {stop_words: german}\n", "index.stop_words: should be a valid list, got 'german'"),
        ("index: {stop_words: [yes, the]}\n", "index.stop_words.0: should be a valid string, got True"),
        ("corpus: {train: {files: a, format: documents, questions: 5}}\n", "there are none about documents to choose from"),
        (
            "corpus: {train: {files: a, format: documents, columns: {id: b}}}\n",
            "unknown name 'id'; known are document_id, language",
        ),
        (TABLES % "{text: 5}", "2 problems\n  corpus.train.columns.text: should be a valid dictionary, got 5\n"),
        (TABLES % "{text: 5}", "\n  corpus.train.columns.text: should be a valid string, got 5"),
        (TABLES % "{corpus: {text: 5}}", "1 problem\n  corpus.train.columns.corpus.text: should be a valid string, got 5"),
        (TABLES % "{txt: b}", "unknown name 'txt'; known are document_id, language"),
        (TABLES % "{corpus: {text: b}, text: c}", "or such a map for each of corpus, questions, gold; got {'corpus'"),
        (TABLES % "{pairs: {text: b}}", "or such a map for each of corpus, questions, gold; got {'pairs'"),
        (TABLES % "{gold: {text: b}}", "unknown name 'text'; known are question_id, sentence_id, relevance"),
        ("? [a]\n: b\n", "not readable as YAML: line 1: a key should be a plain value, got ['a']"),
        ("optim: {? {a: b} : 1}\n", "not readable as YAML: line 1: a key should be a plain value, got {'a': 'b'}"),
        ("name: 2026-02-31\n", "not readable as YAML: day is out of range"),
        (
            "data: {train: {files: a, columns: {contxt: x}}}\n",
            "data.train: columns: unknown name 'contxt'; did you mean context?",
        ),
        (
            "data: {train: {files: a, columns: {zzz: x}}}\n",
            "columns: unknown name 'zzz'; known are id, question, context",
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

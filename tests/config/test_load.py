"""Reading a config: files, what they extend, overrides."""

import pytest

from raydist.config import Config, ConfigError, find_config, flatten, load_config, override, shipped_configs, to_yaml


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


def test_a_text_with_a_colon_is_a_text_in_an_override_and_a_mapping_is_in_braces():
    config = load_config("retriever", ["retriever.question_prefix=query: ", "corpus.test={mine: {files: a}}"]).config
    assert config.retriever.question_prefix == "query: "
    assert config.corpus.test["mine"].files == ["a"]
    with pytest.raises(ConfigError, match=r"corpus\.test: .* got 'mine: a'"):
        load_config("retriever", ["corpus.test=mine: a"])


def test_extends_with_nothing_behind_it_is_as_if_left_out(write):
    assert load_config(write("a.yaml", "extends:\noptim: {lr: 1}\n")).config == override(Config(), {"optim.lr": 1})


def test_yaml_reads_3e_5_as_text_and_the_field_mends_it(write):
    assert load_config(write("a.yaml", "optim: {lr: 3e-5}\n")).config.optim.lr == 3e-5


def test_an_override_may_change_one_key_of_a_source_given_as_plain_files(write):
    source = load_config(write("a.yaml", "data: {dev: [a.json, b.json]}\n"), ["data.dev.language=de"]).config.data.dev
    assert (source.files, source.language) == (["a.json", "b.json"], "de")


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


def test_configs_that_fan_out_are_read_once_each_and_a_long_chain_is_refused(write):
    write("level0.yaml", "optim: {lr: 1}\n")
    for number in range(1, 40):
        write(f"level{number}.yaml", f"extends: [level{number - 1}.yaml, level{number - 1}.yaml, level{number - 1}.yaml]\n")
    path = write("top.yaml", "extends: level14.yaml\n")  # 3 ** 14 times, read one by one
    assert load_config(path).config.optim.lr == 1
    with pytest.raises(ConfigError, match="more than 16 configs extend each other"):
        load_config(write("top.yaml", "extends: level39.yaml\n"))


@pytest.mark.parametrize(
    ("override", "why"),
    [
        (".".join(["a"] * 5000) + "=1", "unknown key; no key has 5000 names"),
        ("data=" + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("data=" + "{a: " * 3000 + "1" + "}" * 3000, "nested too deeply"),
        ("seed=" + "9" * 5000, "an integer with thousands of digits"),
        ("task=" + "x" * 5000, "got 'xxx"),
        ("name=" + "n" * 300, "at most 180 characters"),
        ("data.test." + "n" * 300 + "=a.json", "a test set cannot be called"),
        ("x" * 5000, "an override is key=value"),
    ],
)
def test_an_override_without_measure_is_refused_in_a_few_lines(override, why):
    with pytest.raises(ConfigError, match=why) as caught:
        load_config("reader", [override])
    assert len(str(caught.value)) < 1000


def test_many_problems_are_not_all_listed(write):
    path = write("many.yaml", "data:\n" + "".join(f"  k{n}: {n}\n" for n in range(5000)))
    with pytest.raises(ConfigError, match="many problems") as caught:
        load_config(path)
    assert str(caught.value).count("unknown key") == 50
    assert str(caught.value).endswith("and others")


def test_a_name_that_no_file_can_have_is_no_config():
    with pytest.raises(ConfigError, match="no such config"):
        find_config("c" * 5000)

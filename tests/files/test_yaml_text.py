"""YAML of users: strict, and bounded in size and depth."""

import time

import pytest

from raydist.files.yaml_text import YamlError, load_yaml


def doubling(levels: int, begin: str, inner: str, end: str) -> str:
    rows = [f"a0: &a0 {begin}{end}"]
    rows += [f"a{n}: &a{n} {begin}{inner.format(n - 1)}{end}" for n in range(1, levels)]
    return "\n".join(rows)


@pytest.mark.parametrize(
    "text",
    [
        doubling(60, "[", "*a{0}, *a{0}", "]"),
        doubling(60, "{", "x: *a{0}, y: *a{0}", "}"),
        doubling(60, "!!set {", "<<: [*a{0}, *a{0}]", "}"),
        "\n".join(f"k{n}: {n}" for n in range(30_000)),
        "x" * (1 << 20) + "y",
    ],
    ids=["lists", "mappings", "merged sets", "a long mapping", "a long text"],
)
def test_what_multiplies_or_is_too_long_is_refused_soon(text):
    began = time.process_time()
    with pytest.raises(YamlError, match=r"more than 20,000 values|longer than 1 MB"):
        load_yaml(text)
    assert time.process_time() - began < 20  # unbounded it would take years


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000 + "]" * 5000,
        "{a: " * 5000 + "1" + "}" * 5000,
        "\n".join(" " * n + "a:" for n in range(300)),
        "\n".join(["a0: &a0 [1]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 200))]),
    ],
    ids=["lists", "mappings", "blocks", "aliases"],
)
def test_what_is_nested_without_a_bottom_is_refused(text):
    with pytest.raises(YamlError, match="nested too deeply"):
        load_yaml(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("seed: " + "9" * 5000, "an integer with thousands of digits"),
        ("seed: 0x" + "9" * 5000, "line 1: an integer of more than 64 bits"),
        ("seed: 1" + ":59" * 5000, "line 1: an integer of more than 64 bits"),
        ("seed: 1" + ":59" * 5000 + ".5", "a number that is too large"),
        ("a: &a [*a]", "recursive"),
        ("a: 1\na: 2", "line 2: key 'a' is given twice"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("a: 2026-02-31", "day"),
    ],
)
def test_what_is_no_plain_value_is_refused_in_one_line(text, why):
    with pytest.raises(YamlError, match=why) as caught:
        load_yaml(text)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_an_alias_gives_equal_values_that_do_not_change_together():
    found = load_yaml("dev: &a {files: [x]}\ntest: *a")
    assert found == {"dev": {"files": ["x"]}, "test": {"files": ["x"]}}
    found["dev"]["files"].append("y")
    assert found["test"] == {"files": ["x"]}

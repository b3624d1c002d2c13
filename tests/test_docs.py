"""The pages: their links lead somewhere, all of them are in the navigation, and what they say of the code is so."""

import inspect
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import typer
from helpers.pages import Block, anchor_of, anchors, blocks, in_the_navigation, links
from helpers.reference_pages import PAGES, command_section, every_key, keys_page
from helpers.walk import Walk, command_lines

import raydist
from raydist.cli import app
from raydist.config.keys import find_key

CHECKOUT = Path(__file__).resolve().parents[1]
DOCS = CHECKOUT / "docs"
WRITTEN = [*CHECKOUT.glob("*.md"), *(path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).as_posix() not in PAGES)]
NAMES = sorted([path.relative_to(CHECKOUT).as_posix() for path in WRITTEN] + [f"docs/{name}" for name in PAGES])
TABLES = DOCS / "reference"
SHORT = ["concepts.md", *(path.relative_to(DOCS).as_posix() for path in sorted((DOCS / "guides").glob("*.md")))]


@cache
def text_of(name: str) -> str:
    made = PAGES.get(name.removeprefix("docs/"))
    return made() if made else (CHECKOUT / name).read_text(encoding="utf-8")


# --- links and navigation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_and_their_anchors_exist(name):
    broken = [link for link in links(text_of(name)) if not re.match(r"\w+:", link) and not leads_somewhere(name, link)]
    assert broken == []


def leads_somewhere(name: str, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (CHECKOUT / name).parent.joinpath(path).resolve() if path else CHECKOUT / name
    if not target.is_relative_to(CHECKOUT):
        return False
    found = target.relative_to(CHECKOUT).as_posix()
    if not (target.exists() or found in NAMES):
        return False
    return not anchor or anchor in anchors(text_of(found))


def test_a_broken_link_is_seen():
    assert leads_somewhere("docs/library.md", "methods.md#58-data")
    assert not leads_somewhere("docs/library.md", "methods.md#58-dada")
    assert not leads_somewhere("docs/library.md", "method.md")
    assert not leads_somewhere("docs/library.md", "../../elsewhere.md")
    assert links("[a](b.md#c) `[d](e)` ![f](g.png)") == ["b.md#c", "g.png"]
    assert anchors("# A `b`, c\n# A b c\n```\n# d\n```\n") == {"a-b-c", "a-b-c-1"}
    assert anchor_of("5.8 Data") == "58-data"


def test_every_page_is_in_the_navigation():
    pages = {name.removeprefix("docs/") for name in NAMES if name.startswith("docs/")} - {"index.md"}
    named = in_the_navigation(text_of("docs/index.md"), DOCS)
    assert pages - named == set(), "name these in a toctree of docs/index.md"
    assert named - pages == set(), "named in docs/index.md, and not there"


# --- what pages say of the code --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHORT)
def test_what_guides_and_concepts_show_is_so(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Walk(monkeypatch).page(text_of(f"docs/{name}"))


@pytest.mark.parametrize("name", NAMES)
def test_commands_on_a_page_have_these_options_and_keys(name):
    wrong = [problem for block in blocks(text_of(name)) for line in raydist_lines(block) if (problem := problem_of(line))]
    assert wrong == []


def raydist_lines(block: Block) -> list[str]:
    """The lines of a block that call raydist, as a reader would type them."""
    if block.kind not in ("", "sh"):
        return []
    return [line for line in command_lines(block.text) if line.startswith("raydist ") and " | " not in line]


def problem_of(line: str) -> str | None:
    """What is wrong with a command line: an unknown command, option or key."""
    words = shlex.split(line.split("   ")[0].replace("[key=value ...]", ""), comments=True)[1:]
    group = typer.main.get_command(app)
    command = group.commands.get(words[0])
    if command is None:
        return f"{line}: no such command"
    if inner := getattr(command, "commands", None):
        command = inner.get(words[1])
        if command is None:
            return f"{line}: no such command"
    known = {option for parameter in command.params for option in getattr(parameter, "opts", ())} | {"--help"}
    takes_keys = any(parameter.name in ("overrides", "words") for parameter in command.params)
    for word in words[1:]:
        if word.startswith("-") and word.partition("=")[0] not in known:
            return f"{line}: no option {word}"
        key, equals, _ = word.partition("=")
        is_key = takes_keys and equals and re.fullmatch(r"[A-Za-z_.0-9]+", key)
        if is_key and find_key(key) is None and "optm" not in key:
            return f"{line}: no key {key}"
    return None


def test_a_wrong_command_is_seen():
    assert problem_of("raydist run reader optim.lr=1 --fresh") is None
    assert "no key optim.lrr" in problem_of("raydist run reader optim.lrr=1")
    assert "no option --frsh" in problem_of("raydist run reader --frsh")
    assert "no such command" in problem_of("raydist rnu reader")
    assert "no such command" in problem_of("raydist jobs lst")


def test_the_errors_that_the_page_explains_are_raised_in_the_code():
    code = "\n".join(path.read_text(encoding="utf-8") for path in (CHECKOUT / "raydist").rglob("*.py"))
    code = re.sub(r"\s+", " ", re.sub(r'"\s*\n\s*f?"', "", code))
    shown = re.findall(r"^\| `([^`]+)`", (TABLES / "errors.md").read_text(encoding="utf-8"), re.MULTILINE)
    pieces = [piece.strip(" :") for message in shown for piece in message.split("…")]
    assert len(shown) > 25
    assert [piece for piece in pieces if piece not in code] == []


def test_the_page_of_keys_has_every_key_once_with_its_description():
    text = keys_page()
    for key in every_key():
        heading = f"## `{key.name}`\n" if f"## `{key.name}`\n" in text else f"- **`{key.name}`**: "
        assert text.count(heading) == 1, key.name
    assert {"mining.threshold", "data.test", "data.train.files", "sweep.space", "objectives.pfa.bottleneck"} <= {
        key.name for key in every_key()
    }
    entry = text[text.index("- **`mining.threshold`**") :].split("\n- ")[0]
    for fact in ("default `0.5`", "at least 0, at most 1", "affects rows", "[5.4](../methods.md#54-"):
        assert fact in entry


def test_every_command_and_option_has_help_and_an_example():
    group = typer.main.get_command(app)
    commands = {}
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        commands |= {f"{name} {each}": inner[each] for each in inner} if inner else {name: command}
    for name, command in commands.items():
        text = command_section(name, command)
        assert f"```sh\nraydist {name}" in text, name
        for parameter in command.params:
            assert parameter.help, (name, parameter.name)


def test_every_public_name_and_method_has_a_docstring():
    for name in raydist.PUBLIC:
        value = getattr(raydist, name)
        assert inspect.getdoc(value), name
        methods = vars(value).items() if inspect.isclass(value) else ()
        for method, function in methods:
            if inspect.isfunction(function) and not method.startswith("_") and method != "forward":
                assert inspect.getdoc(function), f"{name}.{method}"

"""docs/api.md from the docstrings of the public names: `python tests/helpers/api_page.py > docs/api.md`."""

import dataclasses
import inspect
import re
import textwrap
from typing import Any

import raydist
from raydist.objectives.base import Objective

INTRO = """# Python API

`import raydist` imports nothing heavy: a name is loaded when it is first used. The names on this page keep their names; what is
not here may change. Every example is run by the tests. This page is made of the docstrings:
`python tests/helpers/api_page.py > docs/api.md`.

Wrong input raises `raydist.InputError`, whose message says what was seen, what was wanted and the way out. Nothing starts Ray
unless it is asked to (`ray=True`). Objectives follow docs/methods.md, whose letters (B rows, T tokens, H hidden units) are in
the names of tensors.
"""
GROUPS = {
    "load_config": "What the commands do",
    "Reader": "What was trained, in use",
    "squad_scores": "Scores",
    "SpanReader": "Objectives, for a loop of one's own",
}
INTERNAL = {"encode_sentences"}  # of public classes, for raydist itself


def page() -> str:
    parts = [INTRO]
    for name in raydist.PUBLIC:
        if name in GROUPS:
            parts.append(f"## {GROUPS[name]}\n")
        parts.append(section(name, getattr(raydist, name)))
    return "\n".join(parts)


def section(name: str, value: Any) -> str:
    head = f"### `{name}`\n\n"
    if not inspect.isclass(value):
        return head + call(name, value) + body(value)
    if names := fields(value):
        head += "Fields: " + ", ".join(f"`{each}`" for each in names) + ".\n\n"
    elif "__init__" in vars(value):
        head += call(name, value.__init__)
    methods = [] if issubclass(value, Objective) else [getattr(value, each) for each in vars(value) if is_method(value, each)]
    listed = "".join(f"- `{each.__name__}{signature(each)}`: {first_sentence(each)}\n" for each in methods)
    return head + body(value) + (f"\n{listed}" if listed else "")


def is_method(value: type, name: str) -> bool:
    function = getattr(vars(value)[name], "__func__", vars(value)[name])
    return not name.startswith("_") and name not in INTERNAL and inspect.isfunction(function) and bool(function.__doc__)


def fields(value: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return getattr(value, "_fields", ())


def call(name: str, function: Any) -> str:
    """A signature in a fence, in lines that are not too long."""
    text = name + signature(function)
    lines = textwrap.wrap(text, 126, subsequent_indent="    ", break_long_words=False)
    return "```python\n" + "\n".join(lines) + "\n```\n\n"


def signature(function: Any) -> str:
    taken = inspect.signature(function)
    parts, starred = [], False
    for parameter in taken.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts, starred = [*parts, "*"], True
        if parameter.name != "self":
            parts.append(described(parameter))
    returned = taken.return_annotation
    return f"({', '.join(parts)})" + (f" -> {returned}" if returned not in (inspect.Signature.empty, "None") else "")


def described(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {parameter.annotation}{default}"


def first_sentence(function: Any) -> str:
    return " ".join(inspect.getdoc(function).split("\n\n")[0].split())


def body(value: Any) -> str:
    """A docstring with its examples in fences."""
    text = inspect.getdoc(value)
    examples = re.compile(r"((?:^>>> .*\n(?:^(?!>>> ).+\n)*)+)", re.MULTILINE)
    return examples.sub(r"```python\n\1```\n", text + "\n")


if __name__ == "__main__":
    print(page(), end="")

"""The measures of a checkout, on packages of a few lines whose figures are counted by hand."""

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import journeys
import measures
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def package(tmp_path):
    """Writes modules of a package `raydist`, and returns its root."""

    def write(**modules: str) -> Path:
        for name, text in {"__init__": "", **modules}.items():
            path = tmp_path / "raydist" / (name.replace("__in__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        return tmp_path

    return write


def read(root: Path, *entries: str) -> tuple[list[str], str]:
    """The functions of a journey in reading order, and its figures."""
    journey = journeys.Journey(journeys.Package(root))
    journey.go(entries)
    return [function.node.name for function in journey.read], str(journey.distance())


def test_a_journey_is_read_depth_first_and_each_function_once(package):
    root = package(
        flow="""
            from raydist import deep, help

            def run():
                deep.first(help.small())   # the argument before the call
                own()
                deep.second()
                help.small()

            def own(): ...
        """,
        deep="""
            from raydist.help import small, other

            def first():
                small()
                inner()

            def inner(): other()
            def second(): ...
        """,
        help="""
            def small(): ...
            def other(): ...
        """,
    )
    # run (flow) | small (help) | first (deep) inner (deep) | other (help, back) | own (flow, re-entry) | second (deep, back)
    assert read(root, "raydist/flow.py:run") == (["run", "small", "first", "inner", "other", "own", "second"], "5 / 3 / 1")


def test_methods_are_followed_by_the_class_of_what_they_are_called_on(package):
    root = package(
        flow="""
            from __future__ import annotations
            from raydist.shapes import Base, Leaf, make
            from raydist.tools import Tool

            TABLE = {"leaf": Leaf}

            def run(tool: Tool, leaves: list[Leaf]) -> None:
                tool.use(TABLE)
                for leaf in leaves:
                    leaf.grow()
                made = make()
                made.size
        """,
        shapes="""
            class Base:
                def grow(self): self.hidden()
                def hidden(self): ...

            class Leaf(Base):
                def __init__(self): ...
                def hidden(self): ...      # declared by its base: read where a leaf is made
                def unused(self): ...
                @property
                def size(self): return 1

            def make() -> "Leaf":
                return Leaf()
        """,
        tools="""
            from typing import Protocol

            class Tool(Protocol):
                def use(self, table): ...

            class Hammer:
                def use(self, table): ...
        """,
    )
    assert read(root, "raydist/flow.py:run")[0] == ["run", "__init__", "hidden", "use", "grow", "make", "size"]
    journey = journeys.Journey(journeys.Package(root))
    journey.assume(journey.package.find("raydist/tools.py:Hammer"))
    journey.go(["raydist/flow.py:run"])
    assert [function.owner.node.name for function in journey.read if function.node.name == "use"] == ["Hammer"]


def test_a_journey_does_not_enter_what_it_is_without(package):
    root = package(flow="from raydist.far import go\ndef run(): go()", far="def go(): ...")
    journey = journeys.Journey(journeys.Package(root), without=("raydist/far.py",))
    journey.go(["raydist/flow.py:run"])
    assert [function.node.name for function in journey.read] == ["run"]
    with pytest.raises(SystemExit, match=r"there is no function raydist/flow.py:walk: name an entry as FILE:FUNCTION"):
        journey.go(["raydist/flow.py:walk"])


FLOWS = {
    "reader__in__flow": "def run_all(): ...",
    "retrieval__in__flow": "def run_all(): ...\ndef index(): ...",
    "cli": "def search(): ...",
}


def test_every_bound_can_be_exceeded(package):
    root = package(
        **FLOWS,
        corpus__in__rows="\n" * 501,
        sample__in__languages__in__en="\n" * 600,
        sample__in__languages__in__de="\n" * 600,
        sample__in__languages__in__hi="\n" * 600,
        cluster__in__stages="import raydist.reader.flow",
        cluster__in__fit="import ray",
        runs__in__run="def show():\n    import ray",
        training__in__loop="def late():\n    from raydist.models import loading",
        models__in__loading="import raydist.training.loop",
    )
    for name in ("cli", "reader/search"):
        (root / f"raydist/{name}.py").write_text("def search():\n" + "    import raydist.reader.flow\n" * 41)
    found = measures.measure(root, {})
    assert measures.exceeded(found) == [
        "raydist/corpus/rows.py has 501 lines",
        "3 modules of language data have more than 500 lines, and 2 may",
        "raydist/cluster/stages.py is in cluster/ and imports no ray",
        "raydist/runs/run.py imports ray and is not in cluster/",
        "packages import each other: raydist.models, raydist.training",
        "42 imports of own modules stand inside functions, and 40 may",
    ]


def test_imports_for_type_checkers_alone_make_no_cycle(package):
    root = package(
        **FLOWS,
        models__in__loading="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from raydist.training import loop",
        training__in__loop="from raydist.models import loading",
    )
    found = measures.measure(root, {})
    assert found["package_cycles"] == []
    assert measures.exceeded(found) == []


def test_this_checkout_is_measured_as_a_table_and_as_json():
    command = [sys.executable, str(CHECKOUT / "benchmarks" / "measures.py")]
    values = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    assert values == json.loads(json.dumps(measures.measure(CHECKOUT, {})))
    table = dict(measures.rows(values))
    assert table["modules; lines"] == f"{values['modules']}; {values['lines']:,}"
    question = values["journeys"]["question"]["files"]
    figures = f"{question['hops']} / {question['jumps_back']} / {question['re_entries']} between {question['places']} files"
    assert table["a question, file to score"].startswith(figures)
    assert question["hops"] - question["jumps_back"] == question["places"] - 1


def test_a_module_cut_in_two_changes_nothing_between_packages(package):
    root = package(
        reader__in__flow="from raydist.reader import inner\nfrom raydist.files import stage\ndef run():\n"
        "    inner.first()\n    stage.make()\n    inner.second()",
        reader__in__inner="def first(): ...\ndef second(): ...",
        files__in__stage="def make(): ...",
    )
    journey = journeys.Journey(journeys.Package(root))
    journey.go(["raydist/reader/flow.py:run"])
    assert str(journey.distance()) == "3 / 1 / 0"  # flow, inner, stage, inner
    assert str(journey.distance(measures.package_of)) == "2 / 1 / 1"  # reader, files, reader


def test_a_journey_can_be_read_line_by_line(package, monkeypatch, capsys):
    root = package(**FLOWS | {"reader__in__flow": "from raydist.files import stage\ndef run_all(): stage.make()"})
    (root / "raydist/files").mkdir()
    (root / "raydist/files/stage.py").write_text("def make(): ...")
    monkeypatch.setattr(sys, "argv", ["measures", str(root), "--read", "question"])
    assert measures.main() == 0
    assert capsys.readouterr().out.splitlines() == [
        "         raydist/reader/flow.py:2 run_all",
        "hop      raydist/files/stage.py:1 make",
    ]


def test_this_checkout_is_within_its_bounds():
    assert measures.exceeded(measures.measure(CHECKOUT, {})) == []

"""How the house stands: modules, imports, packages and how far a reader walks, for a checkout of raydist.

    python benchmarks/measures.py                        # this checkout
    python benchmarks/measures.py ../other --json        # another one, for a program
    python benchmarks/measures.py --check                # status 1 where a bound is exceeded

The measures, and what `--check` bounds:

- modules above 500 lines: none but language data (raydist/sample/languages), at most 2 of that;
- modules in raydist/cluster that import no ray, and modules elsewhere that do: none;
- imports of the package's own modules inside functions (statements): at most 40 beside those of the command line and of the
  functions that do the same (cli*.py, api.py), which wait for the command that needs them; those of
  heavy packages, which wait for who needs them, do not count;
- cycles between packages: none. A package is a folder of raydist, or a module beside them; what imports it, inside functions or
  not, depends on it (imports for type checkers alone do not count). raydist/__init__.py, the command line and __main__ stand
  above all packages, and are left out;
- lines of functions: the median, and the longest;
- hops / jumps back / re-entries of journeys, which journeys.py defines, between files and between packages: a question from its
  file to its score (a run of the reader); a sentence to a search hit (an index, and a search in it); the same with mining and
  training between the two. A journey does not enter the other's packages, the sample world and reports. Code with types can be
  followed further than code that passes dicts, so figures of unlike trees compare with care: the number of functions on the way
  stands beside them. An entry is FILE:FUNCTION; several, with commas.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from journeys import PACKAGE, Distance, Journey, Module, Package, imports

CLUSTER = f"{PACKAGE}.cluster"
LANGUAGES = f"{PACKAGE}/sample/languages/"
ROOT_MODULES = (PACKAGE, f"{PACKAGE}.cli", f"{PACKAGE}.__main__")  # above all packages
MOST_LINES, MOST_LANGUAGES, MOST_INNER_IMPORTS = 500, 2, 40
COMMANDS = (f"{PACKAGE}/cli", f"{PACKAGE}/api.py")
LONGEST = 5

RETRIEVAL = ("raydist/retrieval/", "raydist/mining/", "raydist/retriever/", "raydist/cluster/retrieval.py")
STRANGERS = ("raydist/sample/", "raydist/report/")  # of both journeys
MACHINE = "raydist/cluster/machine.py:RayMachine"


class Way(NamedTuple):
    """A journey: where it starts (the first of these that a checkout has), and what it does not enter."""

    title: str
    entries: tuple[str, ...]
    without: tuple[str, ...]


JOURNEYS = {
    "question": Way(
        "a question, file to score",
        ("raydist/reader/flow.py:run_all", "raydist/cluster/pipeline.py:run_all"),
        (*RETRIEVAL, *STRANGERS),
    ),
    "sentence": Way(
        "a sentence to a search hit",
        (
            "raydist/retrieval/flow.py:index,raydist/cli.py:search",
            "raydist/cluster/retrieval.py:index,raydist/cli.py:search",
        ),
        ("raydist/reader/", *STRANGERS),
    ),
    "mined": Way(
        "the same, mined and trained",
        ("raydist/retrieval/flow.py:run_all", "raydist/cluster/retrieval.py:run_retrieval"),
        ("raydist/reader/", *STRANGERS),
    ),
}


def lines(module: Module, root: Path) -> int:
    return len((root / module.file).read_text(encoding="utf-8").splitlines())


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def inner_imports(module: Module) -> list[int]:
    """Lines where a function imports a module of this package."""
    statements = {node for function in functions(module.tree) for node in import_statements(function)}
    return sorted(node.lineno for node in statements if any(room(one.module) for one in imports(node, module).values()))


def import_statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports, but those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from import_statements(other)
        else:
            yield from import_statements(child)


def imported_modules(module: Module, package: Package) -> set[str]:
    """Full names of what a module imports: of this package as modules, of others by the first word."""
    found = set()
    for statement in import_statements(module.tree):
        if isinstance(statement, ast.Import):
            found |= {
                alias.name if alias.name in package.modules else alias.name.partition(".")[0] for alias in statement.names
            }
            continue
        for bound in imports(statement, module).values():
            inner = f"{bound.module}.{bound.name}"
            ours = inner if inner in package.modules else bound.module
            found.add(ours if ours in package.modules else bound.module.partition(".")[0])
    return found


def room(name: str) -> str:
    """The package of a module, such as raydist.reader; empty for modules of others."""
    return ".".join(name.split(".")[:2]) if name.partition(".")[0] == PACKAGE else ""


def dependencies(package: Package) -> dict[str, set[str]]:
    """Which packages each package imports."""
    found: dict[str, set[str]] = {}
    for name, module in package.modules.items():
        if name not in ROOT_MODULES:
            others = {
                room(one) for one in imported_modules(module, package) if one in package.modules and one not in ROOT_MODULES
            }
            found.setdefault(room(name), set()).update(others - {room(name)})
    return found


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of packages of which each can be reached from each other one."""
    reached = {start: _reachable(graph, start) for start in graph}
    groups = {
        tuple(sorted(one for one in reached[start] if start in reached[one])) for start in graph if start in reached[start]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        one = waiting.pop()
        if one not in reached:
            reached.add(one)
            waiting += graph.get(one, ())
    return reached


def measure(root: Path, entries: Mapping[str, str]) -> dict[str, Any]:
    """All measures of a checkout, as plain values."""
    package = Package(root)
    sizes = {module.file: lines(module, root) for module in package.modules.values()}
    with_ray = {name for name, module in package.modules.items() if "ray" in imported_modules(module, package)}
    in_cluster = {name for name in package.modules if room(name) == CLUSTER}
    without_ray = {package.modules[name].file for name in in_cluster - with_ray}
    lengths = {
        f"{module.file}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in package.modules.values()
        for node in functions(module.tree)
    }
    inner = {module.file: found for module in package.modules.values() if (found := inner_imports(module))}
    return {
        "modules": len(sizes),
        "lines": sum(sizes.values()),
        "largest": dict(sorted(sizes.items(), key=lambda item: -item[1])[:1]),
        "above_500": {file: size for file, size in sizes.items() if size > MOST_LINES},
        "cluster_without_ray": {file: sizes[file] for file in sorted(without_ray) if sizes[file]},
        "ray_elsewhere": sorted(package.modules[name].file for name in with_ray - in_cluster),
        "inner_imports": {file: len(found) for file, found in inner.items()},
        "package_cycles": cycles(dependencies(package)),
        "functions": len(lengths),
        "median_function": statistics.median(lengths.values()),
        "longest_functions": dict(sorted(lengths.items(), key=lambda item: -item[1])[:LONGEST]),
        "journeys": {name: distances(journey(package, name, entries.get(name))) for name in JOURNEYS},
    }


def journey(package: Package, name: str, entry: str | None = None) -> Journey:
    """One journey, from the entry that is named, else from the first default that is there."""
    path = JOURNEYS[name]
    chosen = next((one for one in [entry, *path.entries] if one and (one == entry or has_entries(package, one))), None)
    if chosen is None:
        raise SystemExit(
            f"none of {', '.join(path.entries)} is there: name where the journey starts with --{name} FILE:FUNCTION"
        )
    walk = Journey(package, path.without)
    if (machine := package.find(MACHINE)) is not None:
        walk.assume(machine)
    walk.go(chosen.split(","))
    return walk


def distances(journey: Journey) -> dict[str, dict[str, int]]:
    """How far a reader walks between files, and between packages."""
    return {"files": journey.distance()._asdict(), "packages": journey.distance(package_of)._asdict()}


def package_of(file: str) -> str:
    """The folder of raydist that a file is in, or the file itself beside them."""
    return "/".join(file.split("/")[:2])


def has_entries(package: Package, entries: str) -> bool:
    return all(package.find(entry) is not None for entry in entries.split(","))


def exceeded(measures: Mapping[str, Any]) -> list[str]:
    """The bounds that a checkout exceeds, one line each."""
    data = {file for file in measures["above_500"] if file.startswith(LANGUAGES)}
    problems = [f"{file} has {size} lines" for file, size in measures["above_500"].items() if file not in data]
    if len(data) > MOST_LANGUAGES:
        problems.append(f"{len(data)} modules of language data have more than {MOST_LINES} lines, and {MOST_LANGUAGES} may")
    problems += [f"{file} is in cluster/ and imports no ray" for file in measures["cluster_without_ray"]]
    problems += [f"{file} imports ray and is not in cluster/" for file in measures["ray_elsewhere"]]
    problems += [f"packages import each other: {', '.join(group)}" for group in measures["package_cycles"]]
    inner = {file: count for file, count in measures["inner_imports"].items() if not file.startswith(COMMANDS)}
    if (total := sum(inner.values())) > MOST_INNER_IMPORTS:
        problems.append(f"{total} imports of own modules stand inside functions, and {MOST_INNER_IMPORTS} may")
    return problems


def rows(measures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The table: a measure and its value."""
    (largest, size), above = next(iter(measures["largest"].items())), measures["above_500"]
    without, inner = measures["cluster_without_ray"], measures["inner_imports"]
    yield "modules; lines", f"{measures['modules']}; {measures['lines']:,}"
    yield "largest module", f"{largest}, {size:,} lines"
    yield f"modules above {MOST_LINES} lines", f"{len(above)}" + _listed(above)
    yield "in cluster/ without ray", f"{len(without)} modules, {sum(without.values()):,} lines" + _listed(without)
    yield "ray outside cluster/", f"{len(measures['ray_elsewhere'])}" + _listed(measures["ray_elsewhere"])
    most = sorted(inner, key=lambda file: -inner[file])[:LONGEST]
    yield "own imports in functions", f"{sum(inner.values())}" + _listed([f"{file} {inner[file]}" for file in most])
    yield (
        "cycles between packages",
        f"{len(measures['package_cycles'])}" + _listed([", ".join(one) for one in measures["package_cycles"]]),
    )
    yield "functions; median lines", f"{measures['functions']:,}; {measures['median_function']:g}"
    yield "longest functions", _listed([f"{length} {name}" for name, length in measures["longest_functions"].items()]).lstrip()
    for name, path in JOURNEYS.items():
        files, packages = (Distance(**measures["journeys"][name][kind]) for kind in ("files", "packages"))
        walk = f"{files} between {files.places} files, {packages} between {packages.places} packages"
        yield path.title, f"{walk}; {files.functions} functions, a re-entry of a package in {_every(packages)}"


def _every(distance: Distance) -> str:
    return f"{distance.functions / distance.re_entries:.0f}" if distance.re_entries else "none"


def _listed(names: Sequence[str] | Mapping[str, int]) -> str:
    listed = [f"{name} {size}" for name, size in names.items()] if isinstance(names, Mapping) else names
    return "".join(f"\n{'':28}{name.replace(f'{PACKAGE}.', '')}" for name in listed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1], help="a checkout")
    for name, path in JOURNEYS.items():
        parser.add_argument(f"--{name}", metavar="FILE:FUNCTION[,...]", help=f"where the journey of {path.title!r} starts")
    parser.add_argument("--read", choices=JOURNEYS, help="print the functions of a journey in reading order, with its hops")
    parser.add_argument("--json", action="store_true", help="print the values as JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is exceeded")
    options = parser.parse_args()
    entries = {name: entry for name in JOURNEYS if (entry := getattr(options, name))}
    if options.read:
        print(*journey(Package(options.root), options.read, entries.get(options.read)).lines(), sep="\n")
        return 0
    measures = measure(options.root, entries)
    if options.json:
        print(json.dumps(measures, indent=1))
    else:
        for name, value in rows(measures):
            print(f"{name:28}{value}")
    problems = exceeded(measures) if options.check else []
    for problem in problems:
        print(f"EXCEEDED: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

"""Promises about the project itself."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(
    path.relative_to(CHECKOUT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for path in (CHECKOUT / "raydist").rglob("*.py")
)


def test_only_cluster_imports_ray():
    """Each module outside raydist.cluster, imported in a fresh interpreter, must not bring ray in."""
    others = [name for name in PACKAGES if not name.startswith("raydist.cluster")]
    code = (
        "import sys, importlib\n"
        f"for name in {others!r}:\n"
        "    importlib.import_module(name)\n"
        "    if 'ray' in sys.modules: sys.exit(f'{name} imports ray')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr


def imports_ray(path: Path) -> bool:
    """Whether a module imports ray, at its top or when one of its functions runs."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        if any(name.split(".")[0] == "ray" for name in names):
            return True
    return False


def test_every_module_of_cluster_imports_ray_and_no_other_does_even_inside_functions():
    """What is imported when a function runs is not seen by importing its module."""
    modules = {path for path in (CHECKOUT / "raydist").rglob("*.py") if path.name != "__init__.py" or path.stat().st_size}
    inside = {path for path in modules if path.is_relative_to(CHECKOUT / "raydist" / "cluster")}
    ours = {path for path in modules if imports_ray(path)}
    assert sorted(ours - inside) == [], "outside cluster, and imports ray"
    assert sorted(inside - ours) == [], "in cluster, and needs no ray"


def test_the_command_line_starts_without_torch_or_ray():
    code = "import sys, raydist.cli; sys.exit(' '.join({'ray', 'torch', 'transformers'} & sys.modules.keys()) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr


def test_rays_own_schema_accepts_cluster_yaml():
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((CHECKOUT / "cluster.yaml").read_text())
    validate_config(prepare_config(config))
    with pytest.raises(Exception, match="max_wrkers"):
        validate_config(prepare_config(config | {"max_wrkers": 3}))


def test_every_job_file_is_a_command_and_short():
    from raydist.cli import app

    commands = {info.name or info.callback.__name__ for info in app.registered_commands}
    for job in (CHECKOUT / "jobs").glob("*.py"):
        assert job.stem in commands
        assert len(job.read_text().splitlines()) <= 40


def test_every_command_has_an_example_in_its_help():
    from raydist.cli import app, config_app, jobs_app

    for info in [*app.registered_commands, *config_app.registered_commands, *jobs_app.registered_commands]:
        assert "Example: raydist " in info.callback.__doc__, info.callback.__name__


def test_constraints_pin_every_dependency_direct_or_not_at_the_installed_version():
    import tomllib
    from importlib.metadata import requires, version

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(name): number for name, _, number in (line.partition("==") for line in lines) if number}
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]  # what is installed may be an older one
    direct, extras = project["dependencies"], project["optional-dependencies"]
    named = {canonicalize_name(Requirement(text).name) for texts in (direct, *extras.values()) for text in texts}
    assert named <= pinned.keys()

    docs = extras["docs"] if importlib.util.find_spec("sphinx") else []  # `make docs` installs it
    waiting = list(map(Requirement, direct + extras["cpu"] + extras["dev"] + docs))
    seen: set[tuple[str, frozenset[str]]] = set()
    installed = {}
    while waiting:
        requirement = waiting.pop()
        name, wanted = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, wanted) in seen or name.startswith(("nvidia-", "cuda-", "triton")):  # the last: of torch's builds for GPUs
            continue
        seen.add((name, wanted))
        installed[name] = version(name).partition("+")[0]  # torch 2.13.0+cpu is 2.13.0
        for inner in map(Requirement, requires(name) or ()):
            if not inner.marker or any(inner.marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                waiting.append(inner)
    assert {name: pinned.get(name) for name in installed} == installed
    assert pinned["torch"] == "2.13.0"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout."""
    import shutil

    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    generated = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(
        CHECKOUT,
        source,
        ignore=lambda folder, names: {*generated(folder, names), *({"runs"} if Path(folder) == CHECKOUT else ())},
    )
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_installed_wheel_trains_outside_of_the_repository(wheel, tmp_path):
    """In an environment of its own, with the packages that are here, but not this checkout."""
    import venv

    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
        str(wheel),
    ]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    theirs = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "theirs.pth").write_text("".join(f"{path}\n" for path in theirs))
    code = """
import raydist, pathlib
small = {"data.sample.size": 200, "data.train.questions": 20, "data.dev.questions": 10, "data.test": {}}
outcome = raydist.run("debug_reader", small | {"train.max_steps": 2})
print(pathlib.Path(raydist.__file__).parent, outcome.metrics["train.steps"])
"""
    (tmp_path / "work").mkdir()
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, cwd=tmp_path / "work")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == [str(packages / "raydist"), "2"]
    told = subprocess.run([str(python.with_name("raydist")), "config", "check", "quickstart"], capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


def test_the_wheel_holds_every_module_every_config_the_vocabulary_and_the_pins(wheel):
    import zipfile

    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "raydist").rglob("*.py")}
    wanted |= {
        f"raydist/configs/{path.relative_to(CHECKOUT / 'configs').as_posix()}"
        for path in (CHECKOUT / "configs").rglob("*.yaml")
    }
    wanted |= {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "raydist" / "report" / "published").glob("*.yaml")}
    wanted |= {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "raydist" / "serving" / "page").iterdir()}
    wanted |= {"raydist/models/tiny_vocabulary.txt", "raydist/py.typed", "raydist/constraints.txt"}
    assert wanted <= held
    pins = zipfile.ZipFile(wheel).read("raydist/constraints.txt")
    assert pins == (CHECKOUT / "constraints.txt").read_bytes()


PAGES = sorted(path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "docs").rglob("*.md"))
PAGES += ["CONTRIBUTING.md", "README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_a_page_names_are_there(page):
    """A path such as `reader/flow.py`, from the root or inside raydist."""
    named = set(re.findall(r"[`(]((?:\w+/)+\w+\.py)\b", (CHECKOUT / page).read_text(encoding="utf-8")))
    missing = {path for path in named if not ((CHECKOUT / path).is_file() or (CHECKOUT / "raydist" / path).is_file())}
    assert sorted(missing - {"tests/objectives/test_NAME.py"}) == []


def test_the_architecture_page_names_every_module():
    page = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", page.partition("```")[2].partition("```")[0]))
    modules = [path.relative_to(CHECKOUT / "raydist").as_posix() for path in (CHECKOUT / "raydist").rglob("*.py")]
    as_one = re.compile(r"(corpus/formats|documents/formats|objectives|sample|report|kernels)/|.*__\w+__\.py")
    single = [path for path in modules if not as_one.match(path)]
    assert sorted(path for path in single if Path(path).stem not in words) == []

"""Where raydist runs, and what it says where it does not."""

import ast
from pathlib import Path

import pytest

from raydist import supported


@pytest.mark.parametrize(
    ("version", "platform", "said"),
    [
        ((3, 9, 1), "linux", "needs Python 3.11 or later, and this is 3.9"),
        ((3, 12, 0), "win32", "install it in WSL 2"),
        ((3, 11, 0), "linux", None),
        ((3, 12, 0), "darwin", None),
    ],
)
def test_an_old_python_and_windows_are_told_what_to_do(version, platform, said):
    found = supported.problem(version, platform)
    assert found is None if said is None else said in found


@pytest.mark.parametrize(
    ("program", "error"), [("/usr/bin/raydist", SystemExit), ("C:\\x\\raydist.exe", SystemExit), ("x.py", ImportError)]
)
def test_a_command_stops_with_a_line_and_an_import_with_an_error(monkeypatch, program, error):
    monkeypatch.setattr(supported, "problem", lambda: "needs another")
    monkeypatch.setattr("sys.argv", [program])
    with pytest.raises(error, match="needs another"):
        supported.check()


def test_old_pythons_can_read_what_tells_them():
    ast.parse(Path(supported.__file__).read_text(), feature_version=(3, 7))


def test_doctor_says_what_to_install(monkeypatch):
    from raydist import doctor

    needs = ["torch>=2", "pyarrow>=99", "absent-package", 'lxml>=99; extra == "documents"']
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: needs)
    found = [f"{name}: {value}" for name, value in doctor._to_install()]
    assert len(found) == 3
    assert found[0].startswith("to install: pip install 'pyarrow>=99'  (here: ")
    assert found[1] == "to install: pip install 'absent-package'  (here: nothing)"
    assert found[2].endswith("pip install 'raydist[documents]'  (missing: lxml)")
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: needs[:1])
    assert list(doctor._to_install()) == [("to install", "nothing that raydist needs is missing")]

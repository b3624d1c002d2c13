"""Commands that need neither Ray nor torch, called in this process."""

import pytest
from typer.testing import CliRunner

from raydist.cli import app, job


@pytest.fixture
def shown(tmp_path):
    """What `config show` says of each key: its value and where it came from."""

    def shown(text: str, *overrides: str) -> dict[str, tuple[str, str]]:
        (tmp_path / "a.yaml").write_text(text)
        done = CliRunner().invoke(app, ["config", "show", str(tmp_path / "a.yaml"), *overrides])
        assert done.exit_code == 0, done.output
        rows = {}
        for line in done.stdout.splitlines():
            key, _, rest = line.partition(" = ")
            value, _, origin = rest.rpartition("  # ")
            rows[key] = (value.strip(), origin.removeprefix(f"{tmp_path}/"))
        return rows

    return shown


def test_config_show_tells_every_value_and_where_it_came_from(shown):
    rows = shown("optim: {lr: 1.0e-3}\n", "train.epochs=3")
    assert rows["optim.lr"] == ("0.001", "a.yaml")
    assert rows["train.epochs"] == ("3.0", "command line")
    assert rows["optim.clip_norm"] == ("1.0", "default")


def test_config_show_tells_defaults_beside_what_is_given_in_short(shown):
    text = "data: {dev: a.json, test: {x: [b.json, c.json]}}\nobjectives: {infomax: {}}\n"
    rows = shown(text, "data.train=x.json", "data.test.x.language=de")
    assert rows["data.dev.files"] == ("['a.json']", "a.yaml")
    assert rows["data.train.files"] == ("['x.json']", "command line")
    assert rows["data.test.x.files"] == ("['b.json', 'c.json']", "a.yaml")
    assert rows["data.test.x.language"] == ("'de'", "command line")
    for key in ("data.dev.rule", "data.train.split", "data.test.x.format", "objectives.infomax.alpha"):
        assert rows[key][1] == "default", key


@pytest.mark.parametrize(
    ("capabilities", "told"), [({"avx512_bf16": True, "amx_bf16": False}, "yes"), ({"avx2": True}, "emulated")]
)
def test_doctor_tells_whether_bf16_pays_on_this_cpu(monkeypatch, capabilities, told):
    import torch

    from raydist import doctor

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert doctor._bf16().startswith(told)


def test_doctor_tells_what_is_here(monkeypatch):
    from raydist import doctor

    monkeypatch.setattr(doctor, "_gpus", lambda: "none")  # the two lines that would load torch
    monkeypatch.setattr(doctor, "_bf16", lambda: "emulated")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    found = {line[:22].strip(): line[23:] for line in done.stdout.splitlines()}
    assert "not installed" not in (found["raydist"], found["ray"], found["torch"])
    assert int(found["cores"]) >= 1
    assert found["builtin:tiny"] == "found"
    assert {"python", "faiss", "memory", "disk here", "Ray authentication", "Ray address"} <= found.keys()


def test_ctrl_c_is_status_130_whatever_the_command_does(monkeypatch, capsys, tmp_path):
    from raydist.sample import write

    def interrupted(*_, **__) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write, "write_sample", interrupted)
    assert job("sample", [str(tmp_path / "out")]) == 130
    assert "interrupted; the same command goes on where this one stopped" in capsys.readouterr().err
    assert job("config", ["check", "quickstart"]) == 0
    assert job("config", ["check"]) == 2

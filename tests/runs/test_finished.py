"""A finished run and a later version: it is taken as it is, or refused with the keys that differ."""

import json
import shutil
from pathlib import Path

import pytest

from raydist.config import load_config
from raydist.errors import InputError
from raydist.here import Here
from raydist.reader import flow
from raydist.runs.run import Run

FINISHED = Path(__file__).parents[1] / "config" / "finished"  # what the version before wrote


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """A storage with that run; of its model what says that it is whole."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(FINISHED, folder / "earlier")
    (folder / "earlier" / "model").mkdir()
    (folder / "earlier" / "model" / "config.json").write_text("{}")
    return folder


def train(storage: Path, *overrides: str) -> None:
    config = load_config(str(FINISHED / "config.yaml"), [f"storage={storage}", *overrides]).config
    flow.train(Run(config, Here()))


def test_it_is_done(storage, capsys):
    train(storage)
    assert "train: already done (2 steps)" in capsys.readouterr().out


def test_it_is_done_where_keys_that_it_did_not_have_are_at_their_defaults(storage, capsys):
    file = storage / "earlier" / "training.json"
    whole = file.read_text()
    earlier = json.loads(whole)
    for name in ("train.early_stop", "optim.final_lr_share", "objectives.pfa.every", "objectives.answer_contrast"):
        del earlier["identity"][name]
    file.write_text(json.dumps(earlier))
    train(storage)
    assert "train: already done (2 steps)" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"settings:\n  optim.final_lr_share: was 0.0, now 0.5\ngive this one another"):
        train(storage, "optim.final_lr_share=0.5")
    file.write_text(whole)


def test_it_is_refused_with_every_key_that_differs(storage):
    changes = ("optim.lr=3", "objectives.infomax={}", "data.max_length=200", "train.log_every=7", "cluster.actors=2")
    with pytest.raises(InputError) as error:
        train(storage, *changes)
    assert [line.strip() for line in str(error.value).splitlines()[1:-1]] == [
        *("data.dev.max_length: was 192, now 200", "data.train.max_length: was 192, now 200"),
        *("objectives.infomax: was None, now set", "optim.lr: was 0.001, now 3.0"),
    ]


def test_a_dev_set_that_is_left_out_is_named_as_the_config_names_it(storage):
    with pytest.raises(InputError, match=r"settings:\n  train.choose: .*\n  data.dev: was set, and has chosen the model\ngive"):
        train(storage, "data.dev=null", "train.choose=last")

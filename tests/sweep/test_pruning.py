"""What is deleted of trials that are not among the best."""

import contextlib
import threading
from pathlib import Path

from helpers.sweeps import end_trials, mined_config, stages_of

from raydist.here import Here
from raydist.runs.clean import unused_stages
from raydist.sweep.driver import Sweep


def test_pruning_deletes_stages_that_only_pruned_trials_refer_to(tmp_path):
    sweep = Sweep(mined_config(tmp_path, "sweep.space.mining.threshold=[0,0.5,1]"), Here())
    one, two, three = (f"{sweep.config.name}/trials/{id}" for id in sweep.trials)
    shared = {"dense index of sample": "stages/vectors-untrained", "scores of train": "stages/scores-1"}
    refers = {
        sweep.config.name: shared,
        one: shared | {"dense index of sample (2)": "stages/vectors-1", "silver of train": "stages/silver-1"},
        two: shared | {"dense index of sample (2)": "stages/vectors-2", "silver of train": "stages/silver-2"},
        three: shared | {"dense index of sample (2)": "stages/vectors-1", "silver of train": "stages/silver-1"},  # the same
    }

    def there() -> set[str]:
        return {f"stages/{name}" for name in sweep.store.folders("stages")}

    for run, stages in refers.items():
        sweep.store.write_json(f"{run}/stages.json", {title: {"folder": folder} for title, folder in stages.items()})
        for folder in stages.values():
            sweep.store.write_bytes(f"{folder}/part-00000.parquet", b"")
    everything = there()

    sweep.store.delete(f"{three}/stages.json")  # not begun
    sweep.prune(end_trials(sweep, [0.1, 0.2]))
    assert there() == everything - {"stages/vectors-1"}, "silver pairs may serve a trial that is to come"

    sweep.store.write_json(f"{three}/stages.json", {title: {"folder": folder} for title, folder in refers[three].items()})
    sweep.prune(end_trials(sweep, [0.1, 0.2, 0.1]))
    assert there() == everything - {"stages/vectors-1", "stages/silver-1"}
    assert stages_of(Path(sweep.store.path(one))).keys() == shared.keys()
    assert stages_of(Path(sweep.store.path(two))).keys() == refers[two].keys()
    assert not set(unused_stages(sweep.store))


def test_pruning_a_trial_whose_workers_still_write_does_not_stop_the_sweep(tmp_path):
    sweep = Sweep(mined_config(tmp_path), Here())
    first = sweep.folder.at("trials", next(iter(sweep.trials)))
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            folder = Path(first.path("checkpoints", "checkpoint_1"))
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "state.json").touch()

    entries = end_trials(sweep, [0.1, 0.2])
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            sweep.prune(entries)
    finally:
        over.set()
        writer.join()
    sweep.prune(entries)
    assert not first.exists("checkpoints")

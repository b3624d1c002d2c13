"""What a run's log says: lines of means, times of the whole training, and who hears of it while it grows."""

import json
from pathlib import Path

from raydist.files.storage import Storage
from raydist.training.checkpoints import TrainState
from raydist.training.log import RunLog, Watch
from raydist.training.loop import StepReport


def test_a_training_that_was_over_before_anyone_looked_is_seen_to_have_started(tmp_path):
    """The watch looks once a second, and a last time at the end, when it first hears of such a training."""
    started = []
    run = Storage(str(tmp_path))
    with Watch(run, started=lambda: started.append(True)):
        RunLog(run, TrainState(), total=1, per_epoch=1, batch_size=8).close()
    assert started == [True]


def test_a_resumed_training_tells_the_time_and_the_speed_of_all_its_steps(tmp_path):
    state = TrainState(step=6, log={"seconds": 60.0, "evaluating": 20.0})
    log = RunLog(Storage(str(tmp_path)), state, 9, 3, 16)
    told = log.summary(TrainState(step=9))
    log.close()
    assert 60 <= told["seconds"] < 70
    assert 9 * 16 / 50 < told["examples_per_s"] <= 9 * 16 / 40


def test_a_line_of_the_log_tells_of_the_steps_before_a_checkpoint_too(tmp_path):
    def log_steps(log: RunLog, first: int, last: int) -> TrainState:
        for step in range(first, last + 1):
            log.seen_step(StepReport(1 / step, {"span": 0.5 / step}, {"span": 10.0 + step}, 0.1 * step), {"span": 1.0})
            if step % 10 == 0:
                log.step(step, 1e-3)
        return TrainState(step=last, log=json.loads(json.dumps(log.kept())))  # as state.json holds it

    def lines(folder: Path) -> list[dict]:
        found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key != "examples_per_s"} for line in found]

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    log_steps(RunLog(Storage(str(whole)), TrainState(), 20, 5, 16), 1, 20)
    state = log_steps(RunLog(Storage(str(cut)), TrainState(), 20, 5, 16), 1, 15)
    log_steps(RunLog(Storage(str(cut)), state, 20, 5, 16), 16, 20)
    assert [line["step"] for line in lines(whole)] == [10, 20]
    assert lines(cut) == lines(whole)


def test_what_each_term_adds_to_the_loss_is_logged_as_its_weight_times_the_term(tmp_path):
    log = RunLog(Storage(str(tmp_path)), TrainState(), 20, 5, 16)
    rows = {"span": 16.0, "answer_contrast": 12.0, "answer_contrast.nearest": 12.0, "other": 12.0}
    # two steps of one line; the contrast begins with the second: (0 * 4 + 0.25 * 2) / 2, and (1 * 3 + 0.5 * 1) / 2 of the span
    for span, contrast, weights in ((3.0, 4.0, (1.0, 0.0)), (1.0, 2.0, (0.5, 0.25))):
        terms = {"span": span, "answer_contrast": contrast, "answer_contrast.nearest": 0.9, "other": 7.0}
        by_name = {"span": weights[0], "answer_contrast": weights[1], "answer_contrast.nearest": 0.0}
        loss = sum(weight * terms[name] for name, weight in by_name.items())
        log.seen_step(StepReport(loss, terms, rows, 1.0), by_name)
    log.step(2, 1e-3)
    log.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    told = {name: value for name, value in line.items() if name.startswith("weighted.")}
    assert told == {
        "weighted.span": 1.75,
        "weighted.answer_contrast": 0.25,
        "weighted.answer_contrast.nearest": 0.0,  # logged only; what has no weight at all is no part of the loss
    }
    assert sum(told.values()) == line["loss"]
    assert (line["loss.span"], line["loss.answer_contrast"], line["loss.other"]) == (2.0, 3.0, 7.0)

"""Every question that an official script scores is scored, with that script's result, whatever is wrong with offsets."""

import gzip
import json
import re
import string
from collections import Counter

import pytest
from helpers.tiny_reader import write_reader

from raydist.config import load_config
from raydist.here import Here
from raydist.reader import flow
from raydist.runs.run import Run

SCORED = {  # as many as stand in the file
    "arcd/arcd-train.json.gz": 693,
    "squad_it/test-it.A.json.gz": 3987,
    "squad_es/dev-es-small.A.json.gz": 3331,
    "covid_qa/200423_covidQA.json.gz": 1380,
    "hotpotqa/test-A.jsonl.gz": 250,
    "hotpotqa/dev-100.json.gz": 100,
    "mrqa_format/NewsQA_sample.jsonl.gz": 17,
}


# --- twins of the official scripts, from the file as it is -----------------------------------------------------------


def normal(text: str) -> str:
    text = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def word_f1(prediction: str, gold: str, closed: tuple[str, ...] = ()) -> float:
    prediction, gold = normal(prediction), normal(gold)
    if prediction != gold and (prediction in closed or gold in closed):
        return 0.0
    common = sum((Counter(prediction.split()) & Counter(gold.split())).values())
    if not common:
        return 0.0
    precision, recall = common / len(prediction.split()), common / len(gold.split())
    return 2 * precision * recall / (precision + recall)


def golds_of(path) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Question -> what its script compares with; and the answers that are right or wrong as a whole."""
    content = gzip.decompress(path.read_bytes()).decode()
    if "hotpotqa" in str(path):
        rows = json.loads(content) if content.lstrip()[0] == "[" else map(json.loads, content.splitlines())
        return {row["_id"]: [row["answer"]] for row in rows}, ("yes", "no", "noanswer")
    if "mrqa" in str(path):
        lines = [json.loads(line) for line in content.splitlines()]
        return {qa["qid"]: qa["answers"] for line in lines if "header" not in line for qa in line["qas"]}, ()
    paragraphs = [paragraph for article in json.loads(content)["data"] for paragraph in article["paragraphs"]]
    qas = [qa for paragraph in paragraphs for qa in paragraph["qas"]]
    return {str(qa["id"]): [answer["text"] for answer in qa["answers"]] for qa in qas}, ()


def some_predictions(golds: dict[str, list[str]]) -> dict[str, str]:
    """Right, shortened, decorated, another's, closed and empty answers, and none."""
    ids, predictions = list(golds), {}
    for number, id in enumerate(ids):
        gold = golds[id][number % len(golds[id])]
        words = gold.split() or ["it"]
        other = golds[ids[number - 1]][0]
        made = (gold, " ".join(words[: (len(words) + 1) // 2]), f"The {gold.upper()}!", other, "no", "yes it is", "", None)
        if (text := made[number % len(made)]) is not None:
            predictions[id] = text
    return predictions


def score(run_settings: list[str], tmp_path) -> tuple[dict, Run]:
    settings = [f"storage={tmp_path}/runs", "data.train=null", "data.dev=null", *run_settings]
    run = Run(load_config("debug_reader", settings).config, Here())
    run.begin()
    return flow.evaluate(run), run


@pytest.mark.realdata
@pytest.mark.parametrize("name", SCORED)
def test_a_file_has_as_many_scored_questions_and_the_scores_of_its_official_script(data_dir, tmp_path, name):
    golds, closed = golds_of(data_dir / name)
    predictions = some_predictions(golds)
    (tmp_path / "theirs.json").write_text(json.dumps(predictions))
    settings = [f"data.test={{set: {data_dir / name}}}", f"evaluate.predictions.set={tmp_path}/theirs.json"]
    found, _ = score([*settings, "evaluate.bootstrap=0"], tmp_path)
    assert found["set"]["questions"] == len(golds) == SCORED[name]
    assert found["set"]["rule"] == ("hotpotqa" if "hotpot" in name else "mrqa" if "mrqa" in name else "squad")
    answered = {id: predictions[id] for id in golds if id in predictions}
    em = sum(any(normal(text) == normal(gold) for gold in golds[id]) for id, text in answered.items())
    f1 = sum(max(word_f1(text, gold, closed) for gold in golds[id]) for id, text in answered.items())
    assert found["set"]["em"] == pytest.approx(100 * em / len(golds), abs=1e-9)
    assert found["set"]["f1"] == pytest.approx(100 * f1 / len(golds), abs=1e-9)
    assert 10 < found["set"]["em"] < 90


def squad_file(path, *qas, context="Ada was born in Lund. Ada died in Oslo."):
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": list(qas)}]}]}))
    return path


def asked(id, *answers):
    return {"id": id, "question": "Where was Ada born?", "answers": [{"text": t, "answer_start": s} for t, s in answers]}


def test_questions_without_a_usable_label_are_answered_and_scored_but_not_trained_on(tmp_path):
    labelled, off, empty = asked("good", ("Lund", 16)), asked("off", ("Lund", 3)), asked("empty", ("", -1))
    mixed = asked("mixed", ("", -1), ("Oslo", 34), ("Ada of Lund", 0))
    path = squad_file(tmp_path / "set.json", labelled, off, empty, mixed)
    rows = [
        {"_id": "yes", "question": "Is it?", "answer": "yes", "context": [["Ada", ["She was born in Lund."]]]},
        {"_id": "absent", "question": "Is it?", "answer": "Rome", "context": [["Ada", ["She was born in Lund."]]]},
        {"_id": "bare", "question": "Is it?", "answer": "Rome", "context": []},
    ]
    (tmp_path / "hotpot.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = write_reader(tmp_path / "reader")
    files = f"data.test={{squad: {path}, hotpot: {tmp_path / 'hotpot.jsonl'}}}"
    found, run = score([files, f"model.name={reader}", f"predict.model={reader}"], tmp_path)
    assert found["squad"]["questions"] == 4
    assert found["hotpot"]["questions"] == 3
    assert not found["squad"]["missing"] + found["hotpot"]["missing"]
    answers = {name: json.loads((tmp_path / f"runs/debug_reader/predictions/{name}.json").read_text()) for name in found}
    assert list(answers["squad"]) == ["good", "off", "empty", "mixed"]
    assert all(answers["squad"].values())
    assert answers["hotpot"]["bare"] == ""  # there is nothing to find
    examples = [row for table in run.prepared["squad"].examples.tables() for row in table.to_pylist()]
    assert [row["golds"] for row in examples] == [["Lund"], ["Lund"], [""], ["", "Oslo", "Ada of Lund"]]
    assert [len(row["answers"]) for row in examples] == [1, 0, 0, 1]

    again = Run(
        load_config("debug_reader", [f"storage={tmp_path}/more", f"data.train={path}", "data.max_rejected=1"]).config, Here()
    )
    with again:
        trained = flow.prepare(again, ["train"])["train"].examples
    assert [id for table in trained.tables(["id"]) for id in table["id"].to_pylist()] == ["good", "mixed"]


def test_offsets_that_are_wrong_in_a_test_set_are_said_and_stop_nothing(tmp_path, capsys):
    path = squad_file(tmp_path / "set.json", asked("good", ("Lund", 16)), asked("off", ("Lund", 3)))
    (tmp_path / "theirs.json").write_text('{"good": "Lund", "off": "Lund"}')
    settings = [f"data.test={{set: {path}}}", f"evaluate.predictions.set={tmp_path}/theirs.json", "data.max_rejected=0"]
    found, _ = score(settings, tmp_path)
    assert (found["set"]["em"], found["set"]["questions"]) == (100, 2)
    said = capsys.readouterr()
    assert "set: 1 of 2 answers are not where their offset says, or empty: scored by their texts" in said.out + said.err
    assert "rejected" not in (said.out + said.err).replace("rejected/set.parquet", "")

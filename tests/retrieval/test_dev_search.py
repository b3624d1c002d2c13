"""A dual encoder is judged by a search for the answers of held-out questions."""

from functools import partial

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from helpers.corpora import corpus_in
from helpers.tiny import on_ranks

from raydist.config import Config, override
from raydist.models.folders import model_folder
from raydist.retrieval.corpus_stages import DevQuestions, paragraphs
from raydist.retrieval.dual_encoder import load_dual_encoder
from raydist.retrieval.encode import TextEncoder
from raydist.training.dev_search import DevSearch

CONFIG = override(
    Config(),
    {
        "task": "retriever",
        "corpus.dev_share": 0.1,
        "model.name": "builtin:tiny",
        "retriever.pooling": "mean",
        "retriever.max_question_length": 32,
        "retriever.max_answer_length": 48,
    },
)


@pytest.fixture
def dev(tmp_path, world) -> DevQuestions:
    """Forty questions among all sentences of a small world."""
    by_question = [("question_id", "ascending")]
    questions = world.questions.sort_by(by_question).slice(0, 40)
    gold = world.gold.filter(pc.is_in(world.gold["question_id"], value_set=questions["question_id"].combine_chunks()))
    (tmp_path / "table").symlink_to(world.sentences.folder)
    return DevQuestions(corpus_in(tmp_path, questions, gold.sort_by(by_question), block=50), seed=0)


def task_of(seed: int = 0) -> torch.nn.Module:
    class Task(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = load_dual_encoder(model_folder("builtin:tiny"), pooling="mean", seed=seed)

    return Task()


def search(dev: DevQuestions, config: Config = CONFIG, rank: int = 0, ranks: int = 1) -> DevSearch:
    folder = model_folder("builtin:tiny")
    return DevSearch(config, dev, folder, folder, rank, ranks)


def plain_mrr(dev: DevQuestions, rows: np.ndarray) -> float:
    """The same from all products, one question after the other."""
    table, gold = dev.corpus.sentence_table(), dev.corpus.read("gold")
    vectors = {
        length: TextEncoder(model_folder("builtin:tiny"), pooling="mean", max_length=length).encode for length in (32, 48)
    }
    questions = dev.corpus.read("questions")
    scores_QA = (
        vectors[32](questions["text"].to_pylist()) @ vectors[48](table.texts(rows).to_pylist(), paragraphs(table, rows)).T
    )
    found = []
    for question, scores in zip(questions["question_id"].to_pylist(), scores_QA):
        answers = gold.filter(pc.equal(gold["question_id"], question))["sentence_id"]
        is_gold = np.isin(rows, table.find(answers))
        others = scores[~is_gold] - scores[is_gold].max()
        found.append(1 / (1 + (others > 1e-6).sum() + (abs(others) <= 1e-6).sum() / 2))
    return 100 * float(np.mean(found))


def test_it_is_the_mrr_among_all_sentences_and_training_goes_on_as_before(dev):
    task = task_of().train()
    assert search(dev)(task)["mrr"] == pytest.approx(plain_mrr(dev, np.arange(len(dev.corpus.sentence_table()))), abs=1e-3)
    assert task.training
    assert all(module.training for module in task.modules())


def test_of_many_sentences_a_choice_is_searched_with_all_gold_answers_among_them(dev):
    config = override(CONFIG, {"retriever.dev_sentences": 100})
    found = search(dev, config)
    table = dev.corpus.sentence_table()
    gold = np.unique(table.find(dev.corpus.read("gold")["sentence_id"]))
    drawn = np.random.default_rng(0).choice(len(table), 100, replace=False, shuffle=False)
    rows = np.union1d(drawn, gold)
    assert (found.sentences, found.of) == (len(rows), len(table))
    assert found(task_of())["mrr"] == pytest.approx(plain_mrr(dev, rows), abs=1e-3)


def test_an_encoder_to_which_all_is_the_same_finds_nothing(dev):
    task = task_of()
    for parameter in task.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.ones_(task.encoder.question_tower.encoder.layer[-1].output.LayerNorm.bias)
    assert search(dev)(task)["mrr"] < 1


def scores_of_rank(dev: DevQuestions, rank: int) -> dict:
    found = search(dev, rank=rank, ranks=2)
    return found(task_of()) | {"sentences": float(len(found.answer_tokens[0]))}


def test_ranks_share_the_work_and_all_get_the_score(dev, tmp_path):
    alone = search(dev)
    ranks = on_ranks(partial(scores_of_rank, dev), tmp_path)
    assert sum(found["sentences"] for found in ranks) == len(alone.answer_tokens[0])
    assert ranks[0]["mrr"] == ranks[1]["mrr"] == pytest.approx(alone(task_of())["mrr"], abs=1e-3)


def test_questions_are_a_seeded_choice_where_fewer_are_asked_for(dev):
    few = search(dev, override(CONFIG, {"train.dev_questions": 10}))
    assert few.num_questions == 10
    assert search(dev).num_questions == 40

"""Judgements of mined pairs: what was accepted is gold, what was rejected is a negative of both models and never silver."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import raydist
from raydist.config import load_config
from raydist.config.roles import plain_settings
from raydist.corpus.duplicates import duplicate_keys
from raydist.errors import InputError
from raydist.files.storage import Storage
from raydist.judgements.journal import Journal
from raydist.judgements.judgement import Answer, Judgement
from raydist.retrieval.candidates import find_candidates
from raydist.retrieval.judged import judgements_digest, resolve
from raydist.retrieval.negatives import JUDGED, draw_negatives
from raydist.retrieval.silver import JUDGED as JUDGED_WRONG
from raydist.retrieval.silver import mined_table, select_silver, training_pairs
from raydist.runs.stages import read_stages
from raydist.serving.pairs import MinedPairs

SMALL = {
    "data.sample.size": 120,
    "corpus.train.questions": 24,
    "corpus.test": {},
    "retriever.variants": [],
    "mining.part_questions": 10,
    "mining.hard_negatives": 1,
    "mining.negative_p": 1.0,
    "mining.threshold": 0.4,
    "train.max_steps": 2,
    "cross_encoder.train.max_steps": 2,
}


def stages_of(run: Path, name: str) -> list[Path]:
    uses = read_stages(Storage(str(run)))
    return [run.parent / folder for folder, use in uses.items() if use.name == name]


def rows_of(run: Path, name: str, part: str = "part-*.parquet") -> pa.Table:
    (folder,) = stages_of(run, name)
    return pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob(part))])


def pairs(table: pa.Table) -> list[tuple[str, str]]:
    return list(zip(table["question_id"].to_pylist(), table["sentence_id"].to_pylist()))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run, two judgements of its pairs, and a run with them."""
    folder = tmp_path_factory.mktemp("judged")
    settings = SMALL | {"storage": str(folder)}
    before = Path(raydist.run("debug_retrieval", settings | {"name": "before"}).folder)
    mined = pq.read_table(before / "mining/silver.parquet").sort_by([("p", "descending")])
    rejected, *_, accepted = mined.filter(mined["kept"]).to_pylist()
    journal = Journal(before / "judgements.jsonl")
    for row, right in ((accepted, True), (rejected, False)):
        journal.add(Judgement(row["question"], right, row["sentence"], row["question_id"], row["sentence_id"]))
    journal.add(Judgement("Who asked this?", True, "Nobody."))
    content = journal.path.read_bytes()
    after = Path(raydist.run("debug_retrieval", settings | {"name": "after", "corpus.judgements": str(journal.path)}).folder)
    assert journal.path.read_bytes() == content
    return before, after, accepted, rejected


def test_an_accepted_pair_becomes_gold(runs):
    before, after, accepted, _ = runs
    pair = accepted["question_id"], accepted["sentence_id"]
    assert pair in pairs(pq.read_table(before / "mining/silver.parquet"))
    assert pair not in pairs(pq.read_table(after / "mining/silver.parquet"))  # no candidate: known already
    labelled = rows_of(after, "labelled_pairs")
    assert dict(zip(pairs(labelled), labelled["label"].to_pylist()))[pair] == 1
    assert pair in pairs(rows_of(after, "judged_pairs", "gold-*.parquet"))


def test_a_rejected_pair_is_a_negative_of_both_models_and_never_silver(runs):
    _, after, _, rejected = runs
    pair = rejected["question_id"], rejected["sentence_id"]
    labelled = rows_of(after, "labelled_pairs")
    judged = labelled.filter(pc.equal(labelled["source"], JUDGED))
    assert pairs(judged) == [pair]
    assert judged["label"].to_pylist() == [0]
    mined = pq.read_table(after / "mining/silver.parquet")
    (row,) = (row for row in mined.to_pylist() if (row["question_id"], row["sentence_id"]) == pair)
    assert (row["kept"], row["why_not"], row["weight"]) == (False, JUDGED_WRONG, 0)
    (folder,) = stages_of(after, "pair_rows")
    tables = [pa.ipc.open_file(file).read_all() for file in sorted(folder.glob("part-*.arrow"))]
    words = duplicate_keys(rejected["sentence"])[1]
    has_it = [words in negatives for table in tables for negatives in table["negative_bag_key"].to_pylist()]
    assert any(has_it)


def test_a_run_shows_its_pairs_in_their_paragraphs(runs):
    before, *_ = runs
    pairs = MinedPairs(Storage(str(before)), lambda: Journal(before / "judgements.jsonl"), "before")
    assert pairs.progress() == {"pairs": len(pairs.page("near", "any", -1, 1000)), "accepted": 1, "rejected": 1, "skipped": 0}
    for pair in pairs.page("kept", "undecided", -1, 20):
        assert pair["sentence"] in pair["passage"]
        assert pair["gold"]


def test_searches_are_reused_and_all_that_reads_gold_is_made_anew(runs):
    before, after, *_ = runs
    for name in ("bm25_hits", "dense_hits", "sentences"):
        assert set(stages_of(after, name)) <= set(stages_of(before, name)), name
    for name in ("labelled_pairs", "candidates", "scores", "silver", "pair_rows", "cross_rows"):
        assert not set(stages_of(after, name)) & set(stages_of(before, name)), name


def test_without_judgements_nothing_is_named_anew():
    plain, empty = (load_config("debug_retrieval", given).config for given in ([], ["corpus.judgements=[]"]))
    assert plain == empty
    assert "judgements" not in plain_settings(plain)["corpus"]
    with pytest.raises(InputError, match="there is no train"):
        load_config("debug_retrieval", ["corpus.train=null", "corpus.judgements=a.jsonl"])


def test_pairs_are_found_by_id_else_by_text(world):
    questions = world.questions.to_pylist()
    sentence = world.table.to_pylist()[5]
    asked, text, id = questions[0], sentence["text"], sentence["sentence_id"]

    def verdicts(*judgements):
        return resolve(judgements, world.questions, world.sentences)

    same = [row["question_id"] for row in questions if row["text"] == asked["text"]]
    by_ids = Judgement(asked["text"], True, text, asked["question_id"], id)
    assert verdicts(by_ids) == ({(asked["question_id"], id): True}, 0)
    by_texts, _ = verdicts(Judgement(asked["text"].upper(), False, text, "other", "other"))
    assert {question for question, _ in by_texts} == set(same)
    ((found,),) = [{sentence for _, sentence in by_texts}]
    assert world.sentences.text_keys[world.sentences.find([found])[0]] == duplicate_keys(text)[0]
    assert verdicts(Judgement("Unheard of?", True, text), Judgement(asked["text"], True, "Unheard of."))[1] == 2
    changed = Judgement(asked["text"], True, text, questions[1]["question_id"], id)  # the id of another question
    assert {question for question, _ in verdicts(changed)[0]} == set(same)


def test_of_a_judged_passage_the_sentence_counts_that_holds_the_answer(world):
    asked, rows = world.questions.to_pylist()[0], world.table.to_pylist()
    one, other = rows[3]["text"], rows[4]["text"]
    passage, word = f"{one} {other}", other.split()[1]
    start = passage.index(word, len(one))
    judgement = Judgement(asked["text"], True, passage, answer=Answer(word, start, start + len(word)))
    verdicts, unknown = resolve([judgement, Judgement(asked["text"], True, passage)], world.questions, world.sentences)
    assert unknown == 1  # without an answer it is of no sentence
    (sentence,) = {sentence for _, sentence in verdicts}
    row = world.sentences.find([sentence])
    assert world.sentences.texts(row)[0].as_py() == other


def test_the_digest_is_of_what_is_said():
    one, other = Judgement("a?", True, "b", source="x"), Judgement("c?", False, "d")
    again = Judgement("a?", True, "b", source="y", time="2020")
    assert judgements_digest([one, other]) == judgements_digest([other, again])
    assert judgements_digest([one]) != judgements_digest([Judgement("a?", False, "b")])


def test_copies_of_a_rejected_sentence_are_no_silver_pairs_and_answers_no_negatives(world):
    given = world.given()
    found = find_candidates(**given, top=5, same_doc=0, seed=0)
    numbers = np.arange(len(found), dtype=np.float32)
    scored = found.append_column("logit", pa.array(numbers)).append_column("p", pa.array(np.full(len(found), 0.9, np.float32)))
    scored = scored.append_column("cross_encoder", pa.array(["m"] * len(found)))
    wrong = found.slice(3, 1).select(["question_id", "sentence_id"])
    silver = select_silver(scored, sentences=world.sentences, wrong=wrong)
    why = dict(zip(pairs(silver), silver["why_not"].to_pylist()))
    assert why[pairs(wrong)[0]] == JUDGED_WRONG
    told = mined_table(silver, world.questions, world.sentences)
    same = [
        row["why_not"]
        for row in told.to_pylist()
        if row["question_id"] == wrong["question_id"][0].as_py()
        and duplicate_keys(row["sentence"])[1] == world.sentences.bag_keys[world.sentences.find(wrong["sentence_id"])[0]]
    ]
    assert set(same) == {JUDGED_WRONG}
    gold = world.gold.slice(0, 1).select(["question_id", "sentence_id"])
    drawn = draw_negatives(**given, seed=0, wrong=pa.concat_tables([wrong, gold]))
    judged = drawn.filter(pc.equal(drawn["source"], JUDGED))
    assert pairs(judged) == pairs(wrong)


def test_rejected_sentences_are_the_first_negatives_of_their_question_whatever_their_p(world):
    question = world.gold["question_id"][0].as_py()
    gold = world.gold.filter(pc.equal(world.gold["question_id"], question))
    found = find_candidates(**world.given(), top=5, same_doc=0, seed=0)
    found = found.filter(pc.equal(found["question_id"], question))
    p = pa.array(np.linspace(0.01, 0.4, len(found)).astype(np.float32))
    scored = found.append_column("logit", p).append_column("p", p).append_column("cross_encoder", pa.array(["m"] * len(found)))
    silver = select_silver(scored, sentences=world.sentences)
    assert not any(silver["kept"].to_pylist())
    best = silver.sort_by([("p", "descending")])["sentence_id"][0].as_py()
    far = next(id for id in world.table["sentence_id"].to_pylist()[::-1] if id not in set(found["sentence_id"].to_pylist()))
    answer = gold["sentence_id"][0].as_py()
    wrong = pa.table({"question_id": [question] * 3, "sentence_id": [answer, best, far]})

    def negatives(**settings):
        (row, *_) = training_pairs(gold, silver, world.sentences, wrong=wrong, **settings).to_pylist()
        return dict(zip(row["negatives"], row["negative_logits"]))

    assert list(negatives()) == [best, far]  # and not the answer
    assert negatives()[far] is None
    assert list(negatives(hard_negatives=1, negative_p=0.1))[:2] == [best, far]
    assert len(negatives(hard_negatives=1, negative_p=0.1)) == 3
    scores = gold.select(["question_id", "sentence_id"]).append_column("logit", pa.array([1.0] * len(gold), pa.float32()))
    assert list(negatives(gold_scored=scores)) == [best]  # distillation needs a logit of each

"""Scores of ranked lists: the driver holds those of one block of questions, whatever the number of questions."""

import tracemalloc

import pyarrow as pa

from raydist.config import load_config
from raydist.files.stage import Made, encode_table
from raydist.here import Here
from raydist.retrieval.corpus_stages import Corpus
from raydist.retrieval.evaluate import write_scores
from raydist.retrieval.metrics import score_run, trec_gold, trec_run
from raydist.runs.run import Run

QUESTIONS, BLOCK, DEPTH = 600, 20, 100


def test_one_block_of_lists_is_in_memory_at_a_time_and_the_files_are_those_of_all(tmp_path):
    config = load_config("debug_retrieval", [f"storage={tmp_path}", "evaluate.ties=pessimistic", "evaluate.bootstrap=0"]).config
    run = Run(config, Here())
    ids = [f"q{number:04d}" for number in range(QUESTIONS)]
    gold = {id: {f"s{7 * number % 150:03d}": 1} for number, id in enumerate(ids)}
    folder = run.storage.at("stages/retrieval_set-made")
    judged = {"question_id": ids, "sentence_id": [next(iter(gold[id])) for id in ids], "relevance": [1] * QUESTIONS}
    for name, table in (("questions", pa.table({"question_id": ids})), ("gold", pa.table(judged))):
        folder.write_bytes(f"{name}-00000.parquet", encode_table(table, "parquet", {}, 100))
    made = Made(folder, "retrieval_set", "made")
    corpus = Corpus("made", made, made, QUESTIONS, num_sentences=150, num_gold=QUESTIONS, block_questions=BLOCK)

    def lists(number: int) -> list[tuple[str, float]]:
        return [(f"s{(number + place) % 150:03d}", float(place // 2)) for place in range(DEPTH)]  # every score twice

    def blocks():
        for first in range(0, QUESTIONS, BLOCK):
            yield {ids[number]: lists(number) for number in range(first, first + BLOCK)}

    write_scores(run, corpus, {"warm": blocks()})  # what is imported on the way is not counted
    tracemalloc.start()
    everything = {id: lists(number) for number, id in enumerate(ids)}
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    tracemalloc.start()
    write_scores(run, corpus, {"one": blocks(), "two": blocks()})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size / 4

    expected = trec_run(everything, ties="pessimistic", gold=gold).encode()
    for method in ("one", "two"):
        assert run.folder.read_bytes(f"ranked/made.{method}.trec") == expected
    assert run.folder.read_bytes("ranked/made.qrels") == trec_gold(gold).encode()
    means = score_run(everything, gold, ties="pessimistic").means()
    metrics = run.folder.read_json("metrics.json")
    assert metrics == {f"retrieval.made.{m}.{name}": round(v, 6) for m in ("one", "two") for name, v in means.items()}

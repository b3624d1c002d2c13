"""A cross-encoder that reads paragraphs: in training, scoring and re-ranking alike, and known by it."""

import pyarrow as pa
import pyarrow.parquet as pq
from helpers.stages import folders_of

from raydist.config import load_config
from raydist.retrieval import flow
from raydist.retrieval.prepare import open_corpora
from raydist.retrieval.scoring import CrossScorer
from raydist.runs.run import Run


def test_training_scoring_and_reranking_read_the_paragraph_and_are_known_by_it(untrained, tmp_path):
    changes = [f"storage={tmp_path / 'runs'}", "data.sample.size=200", "retriever.variants=[]", "cluster.threads_per_worker=1"]
    identities, folders = {}, {}
    for context in ("none", "paragraph"):
        run = Run(load_config("debug_retrieval", [*changes, f"cross_encoder.answer_context={context}"]).config, untrained)
        run.begin()
        corpora = open_corpora(run)
        cross_encoder, variants = flow.train_all(run, corpora["train"], fresh=True)
        flow.score_methods(run, cross_encoder, variants, corpora)
        identities[context] = cross_encoder.folder.read_json("training.json")["identity"]
        own, beside = (folders_of(one) for one in (run, cross_encoder))
        names = ("held out scores of train", "scores of train", "rerank scores of sample")
        folders[context] = {name: own[name] for name in names} | {"rows": beside["cross rows of train"]}
    assert {key for key in identities["paragraph"] if key not in identities["none"]} == {
        "data.train.context",
        "data.dev.context",
    }
    for name, folder in folders["none"].items():
        assert folders["paragraph"][name] != folder, name

    corpus = corpora["sample"]
    files = sorted((tmp_path / "runs" / folders["paragraph"]["rerank scores of sample"]).glob("part-*"))
    pairs = pa.concat_tables([pq.read_table(file) for file in files]).slice(0, 30).to_pylist()
    asked = dict(zip(*(corpus.read("questions")[name].to_pylist() for name in ("question_id", "text"))))
    table = corpus.sentence_table()
    rows = table.rows_of([pair["sentence_id"] for pair in pairs], "it")
    around = [text or "" for text in table.passage_texts(rows).to_pylist()]
    assert all(around)
    scorer = CrossScorer(cross_encoder.folder.path("model"), max_question_length=32, max_length=96)
    numbers = range(len(pairs))
    questions = [asked[pair["question_id"]] for pair in pairs]
    logits = scorer.score(questions, table.texts(rows).to_pylist(), numbers, numbers, around)
    assert max(abs(logits - [pair["logit"] for pair in pairs])) < 1e-5

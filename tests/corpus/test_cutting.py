"""Documents, passages, sentences."""

import pyarrow as pa

from raydist.corpus.cutting import cut_documents, cut_passages
from raydist.corpus.schemas import PASSAGE_SCHEMA, SENTENCE_SCHEMA


def test_documents_become_passages_become_sentences_with_stable_ids():
    documents = pa.table(
        {"document_id": ["Oder", "Leer"], "text": ["It flows. It is long.\n\nIt ends.", " \n\n "], "title": ["O", None]}
    )
    cut = cut_documents(documents)
    assert cut.schema == PASSAGE_SCHEMA
    assert cut["passage_id"].to_pylist() == ["Oder#0000", "Oder#0001"]
    sentences = cut_passages(cut)
    assert sentences.schema == SENTENCE_SCHEMA
    assert sentences["sentence_id"].to_pylist() == ["Oder#0000#000", "Oder#0000#001", "Oder#0001#000"]
    texts = dict(zip(cut["passage_id"].to_pylist(), cut["text"].to_pylist()))
    for row in sentences.to_pylist():
        assert texts[row["passage_id"]][row["start"] : row["end"]] == row["text"]
        assert row["document_id"] == "Oder"
    # block by block gives the rows of the whole
    blocks = pa.concat_tables([cut_passages(cut.slice(0, 1)), cut_passages(cut.slice(1))])
    assert blocks.to_pylist() == sentences.to_pylist()

"""Windows in batches: what stands in the lists is the windows' own."""

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer

from raydist.files.stage import encode_table
from raydist.models.folders import model_folder
from raydist.objectives.base import Batch, ReaderOutput
from raydist.reader.features import make_windows
from raydist.reader.predict import predict_examples
from raydist.reader.rows import WindowRows
from raydist.records import Example, examples_table

TEXT = "Mina Orlov built the old bridge in 1894, and it fell in 1911 during a flood. "


class ByWord(nn.Module):
    """Logits that depend on the token alone, so that no rounding hides behind a batch's shape; padding has the highest."""

    def __init__(self, vocabulary: int, pad_id: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.start_V, self.end_V = (nn.Parameter(torch.randn(vocabulary, generator=random)) for _ in range(2))
        with torch.no_grad():
            self.start_V[pad_id] = self.end_V[pad_id] = 50.0

    def forward(self, batch: Batch) -> ReaderOutput:
        ids_BT = batch.input_ids_BT
        return ReaderOutput(ids_BT[..., None].float(), self.start_V[ids_BT], self.end_V[ids_BT])


@pytest.mark.parametrize("compat", ["exact", "top_n_product"])
def test_the_token_budget_of_a_batch_changes_nothing(compat, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    contexts = [TEXT[:12], TEXT, TEXT * 2, TEXT * 7]  # some windows are much shorter than others
    examples = examples_table([Example(str(i), "When?", context, [], passage_id=str(i)) for i, context in enumerate(contexts)])
    windows = make_windows(examples, tokenizer, max_length=64, max_question_length=8, doc_stride=12)
    (tmp_path / "part.arrow").write_bytes(encode_table(windows, "arrow", {"examples": len(contexts)}))
    rows, pad_id = WindowRows([tmp_path / "part.arrow"]), tokenizer.pad_token_id
    assert rows.lengths.max() - rows.lengths.min() > 20  # the product of tops takes 20: padding could fill all of them
    reader = ByWord(len(tokenizer), pad_id)

    def lists(batch_tokens: int) -> list[dict]:
        options = {"k": 10, "max_answer_length": 5, "batch_tokens": batch_tokens, "pad_id": pad_id, "compat": compat}
        return predict_examples(reader, rows, examples, **options).to_pylist()

    alone = lists(1)
    assert all(row["nbest"] for row in alone)
    for batch_tokens in (128, 10_000):
        assert lists(batch_tokens) == alone

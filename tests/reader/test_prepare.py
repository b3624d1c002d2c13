"""What is wrong with a reader's model or data is said before any of it is read."""

import pytest
from transformers import AutoTokenizer, DistilBertConfig, DistilBertModel, MPNetConfig, MPNetModel, RobertaConfig, RobertaModel

from raydist.config import load_config
from raydist.errors import InputError
from raydist.here import Here
from raydist.models.folders import model_folder
from raydist.reader.prepare import check_model
from raydist.runs.run import Run

SHAPE = {
    "vocab_size": 9000,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 200,
}
ENCODERS = {
    "mpnet": (lambda: MPNetModel(MPNetConfig(**SHAPE)), 198),  # positions 0 and 1 are for padding
    "roberta": (lambda: RobertaModel(RobertaConfig(**SHAPE, pad_token_id=0)), 199),
    "distilbert": (lambda: DistilBertModel(DistilBertConfig(**SHAPE, dim=8, n_layers=1, n_heads=2, hidden_dim=8)), 200),
}


@pytest.mark.parametrize("kind", ENCODERS)
def test_windows_longer_than_the_models_longest_input_are_refused(tmp_path, kind):
    make, longest = ENCODERS[kind]
    make().save_pretrained(tmp_path / "encoder")
    AutoTokenizer.from_pretrained(model_folder("builtin:tiny")).save_pretrained(tmp_path / "encoder")

    def run(length: int) -> Run:
        of_model = [f"model.name={tmp_path / 'encoder'}", f"data.max_length={length}", f"storage={tmp_path}"]
        return Run(load_config("debug_reader", of_model).config, Here())

    check_model(run(longest))
    with pytest.raises(InputError, match=f"data.max_length is {longest + 1}, and .*encoder has {longest} positions: lower it"):
        check_model(run(longest + 1))

import pytest
import torch
import torch.nn.functional as F

from raydist.models.folders import model_folder
from raydist.models.loading import load_pretrained
from raydist.training.dropout import draw_mask, fast_dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_share_of_the_elements_is_dropped_and_the_rest_makes_up_for_it(rate):
    torch.manual_seed(0)
    mask = draw_mask(torch.empty(1000, 1001), rate)
    assert mask.unique().tolist() == pytest.approx([0, 1 / (1 - rate)])
    spread = (rate * (1 - rate) / mask.numel()) ** 0.5
    assert abs(float((mask == 0).double().mean()) - rate) < 5 * spread + 1e-5


def test_torchs_seed_decides_and_no_two_calls_are_alike():
    x = torch.ones(50, 77)
    with fast_dropout():
        torch.manual_seed(3)
        first, second = F.dropout(x, 0.3), F.dropout(x, 0.3)
        torch.manual_seed(3)
        again = F.dropout(x, 0.3)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_elements_are_dropped_independently_of_their_neighbours():
    torch.manual_seed(0)
    dropped = (draw_mask(torch.empty(2_000_003), 0.5) == 0).double()
    for lag in (1, 2, 3, 4, 8):
        together = float((dropped[lag:] * dropped[:-lag]).mean())
        assert abs(together - 0.25) < 5 * (0.25 * 0.75 / 2_000_000) ** 0.5


def test_the_gradient_passes_where_the_value_did():
    x = torch.randn(40, 40, dtype=torch.float64, requires_grad=True)
    with fast_dropout():
        kept = F.dropout(x, 0.25)
    kept.sum().backward()
    assert kept.dtype == torch.float64
    torch.testing.assert_close(x.grad, (kept != 0).double() / 0.75)


def test_nothing_changes_without_dropout_or_outside():
    x = torch.randn(5, 5)
    with fast_dropout():
        assert torch.equal(F.dropout(x, 0.5, training=False), x)
        assert torch.equal(F.dropout(x, 0.0), x)
        assert F.dropout(x, 1.0).abs().sum() == 0
    torch.manual_seed(0)
    outside = F.dropout(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(outside, torch.nn.Dropout(0.5)(x))


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_attention_is_torchs_where_hardly_anything_is_dropped(mask):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 7, 8, dtype=torch.float64)
    real = torch.rand(2, 1, 1, 7) < 0.7
    real[..., 0] = True
    masks = {"none": None, "bool": real, "float": torch.zeros(2, 1, 1, 7).double().masked_fill(~real, -torch.inf)}
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=masks[mask], scale=0.3)
    with fast_dropout():
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=masks[mask], dropout_p=1e-9, scale=0.3)
        causal = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=1e-9)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(causal, F.scaled_dot_product_attention(query, key, value, is_causal=True))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_model_of_transformers_in_training_drops_what_its_rate_says(attention):
    """Its output is right on average: over many passes it comes near what torch's own dropout gives."""
    from transformers import AutoModel

    model = load_pretrained(AutoModel, model_folder("builtin:tiny"), attention=attention, dropout=0.2).train()
    ids = torch.arange(5, 29)[None]

    def mean_output(passes: int) -> torch.Tensor:
        return model(input_ids=ids.expand(passes, -1)).last_hidden_state.detach().mean(0)

    torch.manual_seed(0)
    own, other = mean_output(600), mean_output(600)
    with fast_dropout():
        ours = mean_output(600)
    between = (own - other).square().mean()
    assert (ours - own).square().mean() < 1.5 * between
    with fast_dropout():
        model.eval()
        evaluated = mean_output(1)
    assert (ours - evaluated).square().mean() > 2 * between  # dropout was on

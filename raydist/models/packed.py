"""Encoders without gradients, by token budget: packed without padding on a CPU, in padded batches everywhere else.

A BERT-shaped encoder on a CPU gets the tokens of all sequences of a batch in a row: no padding is computed, linear layers
are one product each, attention goes over groups of sequences of equal length (neighbours, since sequences are sorted by
length). If only the first token counts, the last layer is computed for it alone. Batches are small, about 1,000
tokens: activations stay in the cache. Each of torch's threads works on a batch of its own: no operation waits for its other
half, a wait that takes a sixth of the time for operations this small. Weights are those of the transformers model.

Guarantees, except for bf16: float32, equal to the plain model to 1e-5. A result is a pure function of the given list (batches
are cut by length and place alone) on the same kind of processor, packed with any number of threads. It is not bit-identical
for other lists or other budgets, because a matrix product may sum in another order when it has more rows: differences are of
the order of 1e-6. Packed, bf16 applies to products of linear layers and attention over long sequences; sums, norms and
scores stay in float32. Memory grows with threads: each holds the activations of a batch.

Shapes: N sequences of a batch, T tokens of all of them in a row, L tokens of each sequence of a group, H hidden units,
A attention heads, D units of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raydist.errors import InputError
from raydist.models.checked import check_tokenizer
from raydist.models.encoders import counts_positions, encoder_of, longest_input, takes_types
from raydist.models.loading import open_tokenizer, open_weights, refuse_missing

Pooling = Literal["cls", "mean"]
Ids = Sequence[int]

CPU_TOKENS, GPU_TOKENS = 1024, 16_384  # of a batch; on a CPU more fall out of the cache
PLAIN_ATTENTION = 96  # tokens of a sequence, at most


def cut_by_tokens(lengths: Sequence[int], token_budget: int) -> Iterator[list[int]]:
    """Batches of places, longest first, with rows x longest row within the budget; a longer row goes alone."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])  # stable: equals stay in the order given
    start = 0
    while start < len(order):
        end = start + max(1, token_budget // lengths[order[start]])
        yield order[start:end]
        start = end


# ----------------------------------------------------------------------------------------------------------- texts to ids


def load_for_inference(auto_class: str, folder: Path, device: str | None = None) -> tuple[Any, Any]:
    """The model of a folder, opened with this class of transformers, and its tokenizer. A missing head is refused."""
    import transformers

    model, lacking = open_weights(getattr(transformers, auto_class), folder)
    tokenizer = open_tokenizer(folder)
    check_tokenizer(tokenizer, model.config, folder)
    missing = [name for name in lacking if "pooler" not in name or auto_class != "AutoModel"]
    refuse_missing(folder, auto_class, missing)
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")), tokenizer


def tokenize(tokenizer: Any, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
    """The token ids of each text, at most ``max_tokens``, without special tokens."""
    if not len(texts):
        return []
    return tokenizer(list(texts), add_special_tokens=False, truncation=True, max_length=max_tokens)["input_ids"]


class PairFormat:
    """The places of a tokenizer's special tokens around two texts, learnt from a probe pair."""

    def __init__(self, tokenizer: Any) -> None:
        probe = tokenizer(["a"], ["b"])
        ids, sources = probe["input_ids"][0], probe.sequence_ids(0)
        types = probe["token_type_ids"][0] if "token_type_ids" in probe else [0] * len(ids)
        first, second = sources.index(0), sources.index(1)
        ends = [0, first, first + sources.count(0), second, second + sources.count(1), len(ids)]
        self.before, _, self.between, _, self.after = ([*ids[a:b]] for a, b in pairwise(ends))
        self.types = [types[a] if a < b else 0 for a, b in pairwise(ends)]
        self.num_special = len(self.before) + len(self.between) + len(self.after)

    def pair(self, first: Ids, second: Ids, max_length: int) -> tuple[list[int], list[int]]:
        """Ids and types of a pair; the second text is cut to the remaining room."""
        second = second[: max(0, max_length - self.num_special - len(first))]
        parts = (self.before, first, self.between, second, self.after)
        types = [type for type, part in zip(self.types, parts) for _ in part]
        return [*self.before, *first, *self.between, *second, *self.after], types

    def triple(self, first: Ids, second: Ids, third: Ids, max_length: int) -> tuple[list[int], list[int]]:
        """A pair whose second text is two, with the same special tokens between them; the longer one is cut first. A third
        text that is empty, or finds no room, is left out.
        """
        room = max_length - self.num_special - len(first) - len(self.between)
        kept, of_third = cut_longer_first(len(second), len(third), room)
        if not of_third:
            return self.pair(first, second, max_length)
        return self.pair(first, [*second[:kept], *self.between, *third[:of_third]], max_length)


def cut_longer_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths kept when two texts share `room`: the longer is truncated first, as tokenizers do; two that are both longer than
    half of the room get half of it each.
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second, max(0, room) // 2)
    longer = max(0, room) - shorter
    return (shorter, longer) if first <= second else (longer, shorter)


# --------------------------------------------------------------------------------------------------------------- encoder


class PackedEncoder:
    """An AutoModel or AutoModelForSequenceClassification, ready for inference in float32, or with products in bf16."""

    def __init__(self, model: Any, token_budget: int | None = None, precision: str = "fp32") -> None:
        self.model = model.eval()
        self.base = model.base_model
        self.in_bf16 = precision == "bf16"
        self.device: torch.device = next(model.parameters()).device
        self.token_budget = token_budget or (CPU_TOKENS if self.device.type == "cpu" else GPU_TOKENS)
        self.takes_types = takes_types(self.base)
        self.max_tokens = longest_input(model.config) or 10**9
        dtype = torch.bfloat16 if self.in_bf16 else torch.float32
        found = list(self.base.encoder.layer) if self._can_pack() else []
        self.layers = [_Layer(layer, dtype, is_last=layer is found[-1]) for layer in found]

    @property
    def is_packed(self) -> bool:
        return bool(self.layers)

    def score(self, sequences: Sequence[tuple[Ids, Ids]]) -> np.ndarray:
        """Logits of (token ids, token types), [number of sequences, number of labels]."""
        ids, types = [ids for ids, _ in sequences], [types for _, types in sequences]
        return self._run(ids, types, self._score_packed if self.is_packed else self._score_padded, self.model.config.num_labels)

    def token_states(self, ids: Sequence[Ids], types: Sequence[Ids] | None = None) -> Tensor:
        """The last hidden states of all tokens of some sequences in a row, [T, H]; only if packed, as one batch."""
        return self._all_tokens(_Batch.of(list(range(len(ids))), ids, types, self.device))

    def encode(
        self,
        ids: Sequence[Ids],
        types: Sequence[Ids] | None = None,
        *,
        pooling: Pooling = "cls",
        normalise: bool = True,
        together: int | None = None,
    ) -> np.ndarray:
        """Vectors [number of sequences, H]: the last hidden state of the first token, or the mean over all tokens.
        A batch stays within a run of ``together`` consecutive sequences: the first so many, the next, and so on; None: all.
        """

        def vectors(batch: _Batch) -> Tensor:
            pool = self._pool_packed if self.is_packed else self._pool_padded
            pooled_NH = pool(batch, pooling).float()  # bf16 would keep a norm of 1 only to a thousandth
            return F.normalize(pooled_NH, dim=1) if normalise else pooled_NH

        return self._run(ids, types, vectors, self.base.config.hidden_size, together)

    def _run(
        self,
        ids: Sequence[Ids],
        types: Sequence[Ids] | None,
        work: Callable[[_Batch], Tensor],
        width: int,
        together: int | None = None,
    ) -> np.ndarray:
        lengths = [len(row) for row in ids]
        for place, length in enumerate(lengths):
            if not 1 <= length <= self.max_tokens:
                raise InputError(f"sequence {place} has {length} tokens; the encoder takes 1 to {self.max_tokens}")
        results = np.empty((len(ids), width), np.float32)

        def batches() -> Iterator[list[int]]:
            step = together or len(lengths)
            for first in range(0, len(lengths), step or 1):
                for places in cut_by_tokens(lengths[first : first + step], self.token_budget):
                    yield [first + place for place in places]

        def fill(places: list[int]) -> None:
            with torch.inference_mode(), torch.autocast(self.device.type, enabled=False):  # of this thread
                results[places] = work(_Batch.of(places, ids, types, self.device)).float().cpu().numpy()

        _each(batches(), fill, torch.get_num_threads() if self.is_packed else 1)
        return results

    # ------------------------------------------------------------------------------------------------------------ packed

    def _can_pack(self) -> bool:
        config = self.base.config
        is_plain = getattr(config, "position_embedding_type", None) in (None, "absolute")
        is_plain &= not getattr(config, "is_decoder", False)
        is_float = all(weight.dtype == torch.float32 for weight in self.base.parameters())
        return encoder_of(config).is_packed and is_plain and is_float and self.device.type == "cpu"

    def _embed(self, batch: _Batch) -> Tensor:
        tables = self.base.embeddings
        positions_T = torch.cat(
            [self._positions(batch.ids_T[group.tokens].view(group.shape)).flatten() for group in batch.groups]
        )
        types_T = torch.zeros_like(batch.ids_T) if batch.types_T is None else batch.types_T
        words_TH = tables.word_embeddings(batch.ids_T) + tables.token_type_embeddings(types_T)
        return tables.LayerNorm(words_TH + tables.position_embeddings(positions_T))

    def _positions(self, ids_NL: Tensor) -> Tensor:
        if not counts_positions(self.base.config):
            return torch.arange(ids_NL.shape[1]).expand_as(ids_NL)
        pad = self.base.config.pad_token_id
        is_word_NL = ids_NL != pad  # a text can hold the padding token as a word; transformers does not count it
        return is_word_NL.cumsum(1) * is_word_NL + pad

    def _all_tokens(self, batch: _Batch) -> Tensor:
        hidden_TH = self._embed(batch)
        for layer in self.layers:
            hidden_TH = layer(hidden_TH, batch.groups)
        return hidden_TH

    def _first_tokens(self, batch: _Batch) -> Tensor:
        hidden_TH = self._embed(batch)
        for layer in self.layers[:-1]:
            hidden_TH = layer(hidden_TH, batch.groups)
        return self.layers[-1].first_tokens(hidden_TH, batch.groups)

    def _pool_packed(self, batch: _Batch, pooling: Pooling) -> Tensor:
        if pooling == "cls":
            return self._first_tokens(batch)
        hidden_TH = self._all_tokens(batch)
        return torch.cat([hidden_TH[group.tokens].view(*group.shape, -1).mean(1) for group in batch.groups])

    def _score_packed(self, batch: _Batch) -> Tensor:
        first_N1H = self._first_tokens(batch)[:, None]  # the heads of transformers take the first of all tokens
        pooler = getattr(self.base, "pooler", None)
        return self.model.classifier(first_N1H if pooler is None else pooler(first_N1H))

    # ------------------------------------------------------------------------------------------------------------ padded

    def _padded(self, batch: _Batch) -> dict[str, Tensor]:
        """Rows padded to one length: ids, mask and, if the model has them, types."""
        pad = getattr(self.base.config, "pad_token_id", None) or 0
        mask_NL = (
            torch.arange(max(batch.lengths), device=self.device) < torch.tensor(batch.lengths, device=self.device)[:, None]
        )
        ids_NL = torch.full(mask_NL.shape, pad, device=self.device).masked_scatter(mask_NL, batch.ids_T)
        inputs = {"input_ids": ids_NL, "attention_mask": mask_NL.long()}
        if self.takes_types and batch.types_T is not None:
            inputs["token_type_ids"] = torch.zeros_like(ids_NL).masked_scatter(mask_NL, batch.types_T)
        return inputs

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bf16)

    def _pool_padded(self, batch: _Batch, pooling: Pooling) -> Tensor:
        inputs = self._padded(batch)
        with self._autocast():
            hidden_NLH = self.base(**inputs).last_hidden_state
        if pooling == "cls":
            return hidden_NLH[:, 0]
        mask_NL1 = inputs["attention_mask"][:, :, None].to(hidden_NLH.dtype)
        return (hidden_NLH * mask_NL1).sum(1) / mask_NL1.sum(1)

    def _score_padded(self, batch: _Batch) -> Tensor:
        with self._autocast():
            return self.model(**self._padded(batch)).logits


def _each(batches: Iterator[list[int]], work: Callable[[list[int]], None], threads: int) -> None:
    """Work on all batches: one after another, or on several threads, each running single-threaded operations."""
    if threads == 1:
        for batch in batches:
            work(batch)
        return
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for _ in pool.map(work, batches):
            pass
    finally:
        try:
            pool.shutdown(cancel_futures=True)
        finally:  # a second Ctrl-C ends the waiting
            torch.set_num_threads(threads)  # the threads' own setting partly applies to the whole process


class _Group(NamedTuple):
    """Sequences of equal length that lie one after another: their tokens and their places in the batch."""

    tokens: slice
    sequences: slice
    shape: tuple[int, int]


class _Batch(NamedTuple):
    ids_T: Tensor
    types_T: Tensor | None
    lengths: list[int]
    groups: list[_Group]

    @classmethod
    def of(cls, places: list[int], ids: Sequence[Ids], types: Sequence[Ids] | None, device: torch.device) -> _Batch:
        def in_a_row(rows: Sequence[Ids]) -> Tensor:
            return torch.tensor(list(chain.from_iterable(rows[place] for place in places)), device=device)

        lengths = [len(ids[place]) for place in places]
        groups, token, sequence = [], 0, 0
        for length, equals in groupby(lengths):
            rows = len(list(equals))
            groups.append(_Group(slice(token, token + rows * length), slice(sequence, sequence + rows), (rows, length)))
            token, sequence = token + rows * length, sequence + rows
        return cls(in_a_row(ids), None if types is None else in_a_row(types), lengths, groups)


class _Layer:
    """One layer of a BERT-shaped encoder over packed tokens, with query, key and value as one product."""

    def __init__(self, layer: Any, dtype: torch.dtype, *, is_last: bool) -> None:
        attention = layer.attention.self
        self.heads: int = attention.num_attention_heads
        parts = (attention.query, attention.key, attention.value)
        weight = torch.cat([part.weight.detach() for part in parts])
        bias = torch.cat([part.bias.detach() for part in parts])
        scale_3H1 = torch.ones(len(weight), 1)  # of attention, as part of the query
        scale_3H1[: len(weight) // 3] = attention.attention_head_size**-0.5
        self.qkv = _Linear(weight * scale_3H1, bias * scale_3H1[:, 0], dtype)
        self.for_first_tokens = (weight, bias) if is_last else None  # little work: in float32 always
        attended, up, down = layer.attention.output, layer.intermediate, layer.output
        self.out, self.out_norm = _Linear(attended.dense.weight, attended.dense.bias, dtype), attended.LayerNorm
        self.up = _Linear(up.dense.weight, up.dense.bias, dtype, up.intermediate_act_fn)
        self.down, self.down_norm = _Linear(down.dense.weight, down.dense.bias, dtype), down.LayerNorm

    def __call__(self, hidden_TH: Tensor, groups: list[_Group]) -> Tensor:
        qkv_T3H = self.qkv(hidden_TH)
        attended_TH = qkv_T3H.new_empty(hidden_TH.shape)
        for group in groups:
            qkv_3NALD = qkv_T3H[group.tokens].view(*group.shape, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            attended_TH[group.tokens].view(*group.shape, self.heads, -1).copy_(_attend(qkv_3NALD).transpose(1, 2))
        return self._feed_forward(attended_TH, hidden_TH)

    def first_tokens(self, hidden_TH: Tensor, groups: list[_Group]) -> Tensor:
        """The layer's output for the first token of each sequence, [N, H].

        One query against L keys: instead of L keys K = W h and values, the query goes through W. <q, W h> = <W' q, h>;
        a key's bias adds the same to all scores, which softmax removes; a value's bias passes through the mean.
        """
        hidden = hidden_TH.shape[1]
        assert self.for_first_tokens is not None
        (w_query, w_key, w_value), (b_query, _, b_value) = (of.chunk(3) for of in self.for_first_tokens)
        starts = [torch.arange(group.tokens.start, group.tokens.stop, group.shape[1]) for group in groups]
        first_NH = hidden_TH[torch.cat(starts)]
        query_AND = F.linear(first_NH, w_query, b_query).view(len(first_NH), self.heads, -1).transpose(0, 1)
        query_NAH = torch.bmm(query_AND * query_AND.shape[2] ** -0.5, w_key.view(self.heads, -1, hidden)).transpose(0, 1)
        means = []
        for group in groups:
            hidden_NLH = hidden_TH[group.tokens].view(*group.shape, hidden)
            share_NAL = torch.bmm(query_NAH[group.sequences], hidden_NLH.transpose(1, 2)).softmax(2)
            means.append(torch.bmm(share_NAL, hidden_NLH))
        mean_ANH = torch.cat(means).transpose(0, 1)
        attended_AND = torch.bmm(mean_ANH, w_value.view(self.heads, -1, hidden).transpose(1, 2))
        return self._feed_forward(attended_AND.transpose(0, 1).reshape(-1, hidden) + b_value, first_NH)

    def _feed_forward(self, attended_TH: Tensor, hidden_TH: Tensor) -> Tensor:
        hidden_TH = self.out_norm(self.out(attended_TH, plus=hidden_TH))
        return self.down_norm(self.down(self.up(hidden_TH), plus=hidden_TH))


def _attend(qkv_3NALD: Tensor) -> Tensor:
    """Attention within sequences of equal length, [N, A, L, D], with queries already scaled. Short ones by plain products in
    float32: torch's own attention, made for long ones, takes 1.2 to 1.5 times as long for 20 to 80 tokens.
    """
    sequences, heads, length = qkv_3NALD.shape[1:4]
    if length > PLAIN_ATTENTION:
        query, key, value = qkv_3NALD
        return F.scaled_dot_product_attention(query, key, value, scale=1.0)
    in_float32 = qkv_3NALD.to(torch.float32, memory_format=torch.contiguous_format)  # bf16 in one copy with what follows
    query, key, value = in_float32.reshape(3, sequences * heads, length, -1)
    share = torch.bmm(query, key.transpose(1, 2)).softmax(2)
    return torch.bmm(share, value).view(sequences, heads, length, -1)


class _Linear:
    """A linear layer without gradients, then an activation, or the sum with ``plus``. If torch has oneDNN, a copy of the
    weights is laid out for its products, which makes them a tenth faster; they include an exact GELU and, in float32, the sum,
    and rounding to bf16 is not repeated in each batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype, activation: Any = None) -> None:
        self.weight, self.bias, self.activation = weight.detach().to(dtype), bias.detach().to(dtype), activation
        self.is_gelu = type(activation).__name__ == "GELUActivation"
        self.by_onednn = torch.backends.mkldnn.is_available() and (
            dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        )
        if self.by_onednn:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, CPU_TOKENS)

    def __call__(self, tokens: Tensor, plus: Tensor | None = None) -> Tensor:
        tokens = tokens.to(self.bias.dtype)
        if not self.by_onednn:
            found = F.linear(tokens, self.weight, self.bias)
            found = torch.ops.aten.gelu_(found) if self.is_gelu else found  # in place: saves a pass
        elif plus is not None and plus.dtype == self.bias.dtype:
            return torch.ops.mkldnn._linear_pointwise.binary(tokens, plus, self.weight, self.bias, "add")
        else:
            after = "gelu" if self.is_gelu else "none"
            found = torch.ops.mkldnn._linear_pointwise(tokens, self.weight, self.bias, after, [], "none")
        found = found if self.activation is None or self.is_gelu else self.activation(found)
        return found if plus is None else found + plus

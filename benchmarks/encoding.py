"""Sentence vectors in float32: ours against SentenceTransformer.encode, in interleaved rounds.

    python benchmarks/encoding.py [--sentences 4000] [--rounds 5] [--threads 2] [--data-dir ../shared/data]

Sentences are those of ReQA-SQuAD, invented where the data is absent; the model is the built-in MiniLM. Ours are encoded as the
stage does it, `ENCODE_ROWS` at a time; the peer has all of them in one call, which sorts them by length, at the batch size
that is best for it here. Vectors are compared. --wait-policy: benchmarks/waiting.py. Exit status 1 where the target is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from waiting import add_option, wait_policy

os.environ.update(wait_policy())  # before torch starts its threads

import numpy as np
from scoring import matmul_rate, rounds_of, seconds, texts, work_of
from sentence_transformers import SentenceTransformer

from raydist.cores import use_cores
from raydist.models.folders import model_folder
from raydist.retrieval.encode import ENCODE_ROWS, TextEncoder

TARGET, BATCH_SIZES = 1.3, (4, 8, 16, 32, 64, 128)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--sentences", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    add_option(parser)
    options = parser.parse_args()
    use_cores(options.threads, keep_all=False)  # of both sides
    sentences = texts(options.data_dir)[1][: options.sentences]
    peer = SentenceTransformer(str(model_folder("builtin:minilm")), device="cpu")
    encoder = TextEncoder("builtin:minilm", device="cpu")

    def theirs(batch_size: int, of: list[str] = sentences) -> np.ndarray:
        return peer.encode(of, batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False)

    def ours() -> np.ndarray:
        return encoder.encode(sentences, together=ENCODE_ROWS)

    sample = sentences[: max(32, len(sentences) // 8)]
    theirs(8, sample)  # warms up
    tried = {size: min(seconds(lambda size=size: theirs(size, sample)) for _ in range(2)) for size in BATCH_SIZES}
    best = min(tried, key=lambda size: tried[size])
    difference = float(np.abs(ours() - theirs(best)).max())
    assert difference < 1e-5, f"vectors differ by {difference}"

    their_s, our_s, ratio, said = rounds_of(lambda: theirs(best), ours, options.rounds)
    rows = encoder.tokenizer(sentences, truncation=True, max_length=encoder.max_length)["input_ids"]
    lengths, config = np.array([len(ids) for ids in rows]), encoder.encoder.base.config
    rate, limit = work_of(config, lengths, all_tokens=True) / our_s, matmul_rate(config)
    num = len(sentences)
    print(
        f"{num} sentences of {lengths.mean():.0f} tokens, {options.rounds} interleaved rounds, {options.threads} threads, "
        f"waiting: {options.wait_policy}\n"
        f"  ours, {ENCODE_ROWS} at a time, {num / our_s:.1f}/s; SentenceTransformer, all at once, at its best batch, {best}, "
        f"{num / their_s:.1f}/s\n"
        f"  {said}\n"
        f"  vectors differ by {difference:.1e} at most\n"
        f"  {rate / 1e9:.0f} GFLOP/s of {limit / 1e9:.0f} in matrix products ({rate / limit:.0%})\n"
        f"target ({TARGET} x) {'met' if ratio >= TARGET else 'MISSED'}"
    )
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())

"""`raydist serve` beside a plain FastAPI app over sentence-transformers, bm25s and transformers: the same documents, models and
questions, each side in a process of its own on 127.0.0.1, by turns.

    python benchmarks/serving.py --data-dir ../shared/data                        paragraphs of SQuAD's dev set
    python benchmarks/serving.py --data-dir ../shared/data --reader runs/real_squad/model --seconds 20 --rounds 3

The plain app is the better of two that people write: a lock lets one question at a time use the models, which on a CPU is
faster than 32 threads that share it. Both find 10 passages by reciprocal ranks over 100 of each list, in fp32, read windows of
384 tokens, and rank spans alike; the share of equal answers is printed. Without --reader the head of the reader is drawn:
times are those of a trained one, answers make no sense, and are the same all the same.

Clients ask one question after another. Each figure is the median over rounds; exit status 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import requests
from pydantic import BaseModel

CLIENTS = (1, 8, 32)
TARGETS = {1: 1.0, 32: 2.0}  # throughput, ours / theirs
DEPTH, K, RRF, MAX_LENGTH, STRIDE, LONGEST = 100, 10, 60, 384, 128, 30
START_S = 180


# --- the plain app ---------------------------------------------------------------------------------------------------


class Body(BaseModel):
    question: str


def peer_app(texts: Sequence[str], encoder: str, reader: str) -> Any:
    import bm25s
    import torch
    from fastapi import FastAPI
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    from raydist.asking.calibration import RANK_COST

    def words(of: Sequence[str]) -> Any:
        return bm25s.tokenize(list(of), lower=True, stopwords=None, show_progress=False)

    index = bm25s.BM25(k1=0.9, b=0.4)
    index.index(words(texts), show_progress=False)
    towers = SentenceTransformer(encoder, device="cpu")
    vectors = towers.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
    tokenizer = AutoTokenizer.from_pretrained(reader)
    model = AutoModelForQuestionAnswering.from_pretrained(reader).eval()
    app, lock = FastAPI(), threading.Lock()

    def find(question: str) -> list[int]:
        rows, _ = index.retrieve(words([question]), k=min(DEPTH, len(texts)), show_progress=False)
        nearest = np.argsort(-(vectors @ towers.encode(question, normalize_embeddings=True, show_progress_bar=False)))[:DEPTH]
        total: dict[int, float] = {}
        for ranked in (rows[0].tolist(), nearest.tolist()):
            for rank, row in enumerate(ranked, 1):
                total[row] = total.get(row, 0.0) + 1 / (RRF + rank)
        return sorted(total, key=lambda row: (-total[row], row))[:K]

    def read(question: str, passages: Sequence[str]) -> tuple[str, float]:
        given = tokenizer(
            [question] * len(passages),
            list(passages),
            truncation="only_second",
            max_length=MAX_LENGTH,
            stride=STRIDE,
            padding=True,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        of, offsets = given.pop("overflow_to_sample_mapping").tolist(), given.pop("offset_mapping").tolist()
        is_passage = np.array([[part == 1 for part in given.sequence_ids(row)] for row in range(len(of))])
        with torch.inference_mode():
            output = model(**given)
        best = ("", -np.inf)
        for row, place in enumerate(of):
            start, end = (
                np.where(is_passage[row], of_row[row].numpy(), -np.inf) for of_row in (output.start_logits, output.end_logits)
            )
            sums = np.triu(start[:, None] + end[None, :])
            allowed = np.triu(np.ones_like(sums, bool)) & ~np.triu(np.ones_like(sums, bool), LONGEST)
            first, last = np.unravel_index(np.where(allowed, sums, -np.inf).argmax(), sums.shape)
            score = float(sums[first, last]) - RANK_COST * np.log1p(place)
            if score > best[1]:
                best = (passages[place][offsets[row][first][0] : offsets[row][last][1]], score)
        return best

    @app.post("/v1/ask")
    def ask(body: Body) -> dict[str, Any]:
        with lock:
            rows = find(body.question)
            text, score = read(body.question, [texts[row] for row in rows])
        return {"text": text, "score": score, "passages": rows}

    return app


# --- documents and models --------------------------------------------------------------------------------------------


def squad(data: Path, paragraphs: int, questions: int) -> tuple[list[str], list[str]]:
    articles = json.loads(gzip.decompress((data / "squad" / "dev-A-v1.1.json.gz").read_bytes()))["data"]
    kept = [paragraph for article in articles for paragraph in article["paragraphs"]][:paragraphs]
    texts = list(dict.fromkeys(paragraph["context"] for paragraph in kept))
    asked = [asked["question"] for paragraph in kept for asked in paragraph["qas"]]
    return texts, list(np.random.default_rng(0).permutation(asked)[:questions])


def write_reader(folder: Path) -> str:
    """MiniLM with a head that is drawn."""
    import torch
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    from raydist.models.folders import model_folder

    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_pretrained(model_folder("builtin:minilm"))
    torch.nn.init.normal_(model.qa_outputs.weight, std=0.5)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder("builtin:minilm")).save_pretrained(folder)
    return str(folder)


def write_index(folder: Path, texts: Sequence[str]) -> str:
    import pyarrow as pa

    from raydist.library.building import known_encoder
    from raydist.library.settings import LibrarySettings
    from raydist.library.writer import LibraryWriter

    ids = [f"p{row:05d}" for row in range(len(texts))]
    rows = pa.table({"passage_id": ids, "document_id": ids, "text": list(texts)})
    with LibraryWriter(folder, LibrarySettings(encoder=known_encoder("builtin:minilm"), fusion="rrf", depth=DEPTH)) as writer:
        writer.add(rows)
        writer.commit()
    return str(folder)


# --- both sides ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(command: Sequence[str], port: int, log: Path) -> Iterator[str]:
    """A side in a process of its own: its address."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | {"TOKENIZERS_PARALLELISM": "false"})
    address, ends = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    try:
        while not is_up(address):
            if process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"{command}: did not start\n{log.read_text()}")
            time.sleep(0.2)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def is_up(address: str) -> bool:
    try:
        return requests.get(f"{address}/openapi.json", timeout=2).status_code == 200
    except requests.RequestException:
        return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@dataclass
class Load:
    """What clients that ask one question after another got: answers per second, seconds of each, the text for each question."""

    rate: float = 0.0
    seconds: list[float] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)


def load(address: str, questions: Sequence[str], clients: int, seconds: float) -> Load:
    done = Load()
    ends = time.perf_counter() + seconds

    def ask(number: int) -> None:
        with requests.Session() as session:
            while time.perf_counter() < ends:
                question, begun = questions[number % len(questions)], time.perf_counter()
                answer = session.post(f"{address}/v1/ask", json={"question": question}, timeout=300)
                answer.raise_for_status()
                done.seconds.append(time.perf_counter() - begun)
                done.texts[question] = answer.json()["text"]
                number += clients

    begun = time.perf_counter()
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.rate = len(done.seconds) / (time.perf_counter() - begun)
    return done


def compare(sides: dict[str, str], questions: Sequence[str], seconds: float, rounds: int) -> bool:
    """Print the table; whether the targets are reached."""
    print(f"{'clients':>7}  {'':8}{'per second':>11}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}")
    reached, texts = True, {name: {} for name in sides}
    for clients in CLIENTS:
        found: dict[str, list[Load]] = {name: [] for name in sides}
        for number in range(rounds):
            for name in sorted(sides, reverse=bool(number % 2)):
                found[name].append(load(sides[name], questions, clients, seconds))
                texts[name] |= found[name][-1].texts
        for name, results in found.items():
            p50, p95, p99 = np.percentile([value for each in results for value in each.seconds], (50, 95, 99)) * 1000
            rate = np.median([each.rate for each in results])
            print(f"{clients:7}  {name:8}{rate:11.2f}{p50:9.0f}{p95:9.0f}{p99:9.0f}", flush=True)
        ratio = float(np.median([ours.rate / theirs.rate for ours, theirs in zip(found["raydist"], found["plain"])]))
        target = TARGETS.get(clients)
        print(f"{clients:7}  {ratio:.2f} x" + (f", target {target:g} x" if target else ""), flush=True)
        reached &= target is None or ratio >= target
    both = [question for question in texts["plain"] if question in texts["raydist"]]
    same = np.mean([texts["plain"][question] == texts["raydist"][question] for question in both])
    print(f"equal answers: {same:.1%} of {len(both)} questions")
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="../shared/data")
    parser.add_argument("--reader", help="folder of a model; default: MiniLM with a head that is drawn")
    parser.add_argument("--paragraphs", type=int, default=1000)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", nargs=3, metavar=("TEXTS", "READER", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        serve_peer(*options.peer)
        return
    texts, questions = squad(Path(options.data_dir), options.paragraphs, options.questions)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        here = Path(folder)
        reader = options.reader or write_reader(here / "reader")
        index = write_index(here / "index", texts)
        (here / "texts.json").write_text(json.dumps(texts))
        (here / "config.yaml").write_text("task: documents\nasking: {products: fp32}\n")
        ports = {"raydist": free_port(), "plain": free_port()}
        commands = {
            "raydist": [
                sys.executable,
                "-m",
                "raydist",
                "serve",
                index,
                "serving.rate=null",
                "serving.timeout=300",
                "--reader",
                reader,
                "-k",
                str(K),
            ],
            "plain": [sys.executable, __file__, "--peer", str(here / "texts.json"), reader, str(ports["plain"])],
        }
        commands["raydist"] += ["--port", str(ports["raydist"])]
        sides = {
            name: stack.enter_context(serving(command, ports[name], here / f"{name}.log")) for name, command in commands.items()
        }
        for address in sides.values():
            load(address, questions, 2, 2.0)  # warm
        reached = compare(sides, questions, options.seconds, options.rounds)
    sys.exit(0 if reached else 1)


def serve_peer(texts: str, reader: str, port: str) -> None:
    import uvicorn

    from raydist.models.folders import model_folder

    app = peer_app(json.loads(Path(texts).read_text()), str(model_folder("builtin:minilm")), reader)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()

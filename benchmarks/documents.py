"""Documents: what reading a folder costs on one core, against the format's parser alone on the same files.

    python benchmarks/documents.py                     # 200 documents of each format, three rounds, interleaved
    python benchmarks/documents.py --documents 50 --formats pdf,docx

The stage looks at the files, has them parsed in a process apart, packs blocks, detects languages and writes parts; the parser
gives the text. Seconds are those of a CPU, of both processes, with their start and the model of languages: the best round.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raydist.documents.scan import scan
from raydist.documents.stages import DocumentPassages, Reading
from raydist.files.local import LocalExecutor
from raydist.files.making import make_stages
from raydist.files.storage import Storage

WORDS = "the mill by a river was built of stone and wood for many years until its owner sold it to his brother".split()  # noqa: SIM905


def paragraphs(draw: random.Random) -> list[str]:
    """About 20 kB."""
    return [" ".join(draw.choices(WORDS, k=80)).capitalize() + "." for _ in range(45)]


def write_markdown(path: Path, texts: list[str]) -> None:
    path.write_text("\n\n".join(f"## Part {n}\n\n{text}" if n % 5 == 0 else text for n, text in enumerate(texts)))


def write_html(path: Path, texts: list[str]) -> None:
    body = "".join(f"<h2>Part {n}</h2><p>{text}</p>" if n % 5 == 0 else f"<p>{text}</p>" for n, text in enumerate(texts))
    path.write_text(f"<!doctype html><html><head><title>Mill</title></head><body>{body}</body></html>")


def write_text(path: Path, texts: list[str]) -> None:
    path.write_text("\n\n".join(texts))


def write_pdf(path: Path, texts: list[str]) -> None:
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, SimpleDocTemplate

    SimpleDocTemplate(str(path)).build([Paragraph(text, getSampleStyleSheet()["BodyText"]) for text in texts])


def write_docx(path: Path, texts: list[str]) -> None:
    import docx

    document = docx.Document()
    for text in texts:
        document.add_paragraph(text)
    document.save(str(path))


def write_jsonl(path: Path, texts: list[str]) -> None:
    path.write_text(
        "".join(json.dumps({"id": f"{path.stem}-{n}", "text": text, "n": n}) + "\n" for n, text in enumerate(texts))
    )


def write_parquet(path: Path, texts: list[str]) -> None:
    rows = {"id": [f"{path.stem}-{n}" for n in range(len(texts))], "text": texts, "n": list(range(len(texts)))}
    pq.write_table(pa.table(rows), path)


def parse_markdown(path: Path) -> int:
    from markdown_it import MarkdownIt

    return len(MarkdownIt("commonmark").enable("table").parse(path.read_text()))


def parse_html(path: Path) -> int:
    from lxml import html

    return len(html.document_fromstring(path.read_bytes()).text_content())


def parse_pdf(path: Path) -> int:
    import pypdfium2

    pdf = pypdfium2.PdfDocument(path)
    return sum(len(page.get_textpage().get_text_range()) for page in pdf)


def parse_docx(path: Path) -> int:
    import docx

    return sum(len(paragraph.text) for paragraph in docx.Document(str(path)).paragraphs)


def parse_jsonl(path: Path) -> int:
    return sum(len(json.loads(line)["text"]) for line in path.read_text().splitlines())


FORMATS: dict[str, tuple[Callable[[Path, list[str]], None], Callable[[Path], int]]] = {
    "md": (write_markdown, parse_markdown),
    "html": (write_html, parse_html),
    "txt": (write_text, lambda path: len(path.read_text())),
    "pdf": (write_pdf, parse_pdf),
    "docx": (write_docx, parse_docx),
    "jsonl": (write_jsonl, parse_jsonl),
    "parquet": (write_parquet, lambda path: pq.read_table(path).num_rows),
}


def cpu_seconds() -> float:
    """Of this process, and of those that it has seen end."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def stage_seconds(folder: Path, storage: str) -> tuple[float, int]:
    """Scan and stage, in this process and the one that parses; and how many documents came of it."""
    begun = cpu_seconds()
    found = scan([str(folder)])
    stage = DocumentPassages(Reading(), 16 << 20, tuple(found.sources), found.roots)
    (made,) = make_stages(LocalExecutor(1), Storage(storage), [(stage, "passages")], label="read")
    gc.collect()  # ends that process
    return cpu_seconds() - begun, sum(part.info["documents"] for part in made.manifest.parts)


def parser_seconds(folder: Path, parse: Callable[[Path], int]) -> float:
    begun = cpu_seconds()
    for path in folder.iterdir():
        parse(path)
    return cpu_seconds() - begun


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--documents", type=int, default=200)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--formats", default=",".join(FORMATS))
    asked = arguments.parse_args()
    lines = []
    for name in asked.formats.split(","):
        write, parse = FORMATS[name]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "docs"
            folder.mkdir()
            texts = [paragraphs(random.Random(number)) for number in range(asked.documents)]
            for number, own in enumerate(texts):
                write(folder / f"{number:04d}.{name}", own)
            size = sum(len(text) for own in texts for text in own) / 1e6
            rounds = [
                (*stage_seconds(folder, f"{scratch}/runs{number}"), parser_seconds(folder, parse))
                for number in range(asked.rounds)
            ]
            stage, alone, documents = min(one[0] for one in rounds), min(one[2] for one in rounds), rounds[0][1]
            lines.append(
                f"{name:8} {documents / stage:9,.0f} documents/s {size / stage:7.1f} MB/s of text; parser alone "
                f"{size / alone:8.1f} MB/s; share {alone / stage:.2f}"
            )
    print("\n".join(lines))


if __name__ == "__main__":
    main()

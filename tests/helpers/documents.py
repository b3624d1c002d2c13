"""Documents of each format, made with real libraries, and runs that read folders of them."""

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import docx
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen.canvas import Canvas

from raydist.config import load_config
from raydist.documents.document import Document, File
from raydist.documents.flow import keep, read_documents
from raydist.documents.formats import read
from raydist.here import Here
from raydist.runs.run import Run

Page = Sequence[str]  # lines


def read_file(path: Path, **settings) -> list[Document]:
    """What a file holds, read in this process."""
    return list(read(File(path, path.name, **settings)))


def read_one(path: Path, content: str | bytes, **settings) -> Document:
    """The document of a file that is written first."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    (document,) = read_file(path, **settings)
    return document


def read_block_texts(path: Path, content: str | bytes) -> list[str]:
    return [block.text for block in read_one(path, content).blocks]


def write_pdf(path: Path, pages: Sequence[Page], *, title: str = "", marks: Sequence[tuple[int, int, str]] = (), password=None):
    """Pages of lines; `marks` are bookmarks: number of the page, level from 0, title."""
    encryption = StandardEncryption(password, canPrint=0) if password else None
    canvas = Canvas(str(path), encrypt=encryption, invariant=True)
    canvas.setTitle(title)
    canvas.setAuthor("Ada")
    for number, lines in enumerate(pages):
        for mark, (page, level, text) in enumerate(marks):
            if page == number:
                canvas.bookmarkPage(f"mark{mark}")
                canvas.addOutlineEntry(text, f"mark{mark}", level)
        for place, line in enumerate(lines):
            canvas.drawString(50, 800 - 14 * place, line)
        canvas.showPage()
    canvas.save()


def write_scanned_pdf(path: Path, pages: int = 2):
    """Pages that are pictures."""
    from PIL import Image
    from reportlab.lib.utils import ImageReader

    canvas = Canvas(str(path), invariant=True)
    for _ in range(pages):
        canvas.drawImage(ImageReader(Image.new("RGB", (40, 40), "gray")), 0, 0, 500, 800)
        canvas.showPage()
    canvas.save()


def write_pdf_bomb(path: Path, size: int) -> None:
    """A page whose text is packed twice, from many bytes into few."""
    packer = zlib.compressobj(9)
    block = b"(a) Tj " * 100_000
    once = b"".join(packer.compress(block) for _ in range(size // len(block))) + packer.flush()
    twice = zlib.compress(once, 9)
    stream = b"<</Filter [/FlateDecode /FlateDecode]/Length %d>>stream\n%s\nendstream" % (len(twice), twice)
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>"
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    pages = b"<</Type/Pages/Kids[3 0 R]/Count 1>>"
    content, places = b"%PDF-1.4\n", []
    for number, part in enumerate((b"<</Type/Catalog/Pages 2 0 R>>", pages, page, stream, font), 1):
        places.append(len(content))
        content += b"%d 0 obj%sendobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"xref\n0 6\n0000000000 65535 f \n%strailer<</Size 6/Root 1 0 R>>startxref\n%d\n%%%%EOF" % (table, len(content))
    path.write_bytes(content + end)


def write_docx(path: Path, *, title: str = "", author: str = "") -> None:
    """Headings, paragraphs, a list and a table."""
    document = docx.Document()
    document.core_properties.title, document.core_properties.author = title, author
    document.add_heading("Mills", 1)
    document.add_paragraph("The mill was built in 1746.")
    document.add_heading("Owners", 2)
    document.add_paragraph("Ada Lamb", style="List Bullet")
    table = document.add_table(rows=2, cols=2)
    for row, cells in zip(table.rows, (("Owner", "Year"), ("Ada Lamb", "1746"))):
        for cell, text in zip(row.cells, cells):
            cell.text = text
    document.add_heading("Rivers", 1)
    document.add_paragraph("Two rivers meet below it.")
    document.save(str(path))


def zip_with(path: Path, entries: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def docx_with(path: Path, name: str, content: bytes) -> None:
    """A Word document, one part of it replaced."""
    whole = io.BytesIO()
    docx.Document().save(whole)
    with zipfile.ZipFile(whole) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    zip_with(path, entries | {name: content})


class Folder:
    """A folder of documents and a run that reads it, in this process unless there is another machine."""

    def __init__(self, path: Path, storage: Path, machine=None) -> None:
        self.path, self.storage, self.machine = path, storage, machine or Here()
        path.mkdir(exist_ok=True)

    def write(self, **texts: str) -> None:
        """Files by their names, _ for the dot."""
        for name, text in texts.items():
            (self.path / name.replace("_", ".")).write_text(text)

    def run(self, *overrides: str) -> Run:
        files = f"documents.files=['{self.path}']"
        run = Run(load_config("documents", [f"storage={self.storage}", files, *overrides]).config, self.machine)
        run.begin()
        return run

    def update(self, *overrides: str):
        """What has changed; from now on it is known."""
        run = self.run(*overrides)
        update = read_documents(run)
        keep(run, update)
        return update

    def rejected(self, *overrides: str) -> dict[str, str]:
        """Reasons by file, of what is left out."""
        from raydist.files.storage import read_parquet

        run = self.run(*overrides, "data.max_rejected=1")
        read_documents(run)
        if not run.folder.exists("rejected/documents.parquet"):
            return {}
        table = read_parquet(run.folder, "rejected/documents.parquet").to_pylist()
        return {row["file"]: row["reason"] for row in table}


def passages_of(update) -> list[dict]:
    return [row for table in update.passages() for row in table.to_pylist()]

"""Documents on a cluster: the same parts as in this process, and one file's parser that costs no worker."""

import pytest
from helpers.documents import Folder, passages_of, write_docx, write_pdf, write_scanned_pdf
from helpers.stages import contents, make

from raydist.cluster.executor import RayExecutor
from raydist.documents.scan import scan
from raydist.documents.stages import DocumentPassages, Reading
from raydist.files.local import LocalExecutor

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


@pytest.fixture
def folder(tmp_path) -> Folder:
    folder = Folder(tmp_path / "docs", tmp_path / "runs")
    folder.write(a_md="---\nyear: 2020\n---\n# A\n\nOne.", b_html="<p>Two.", c_jsonl='{"id": "x", "text": "Three."}', d_txt="")
    write_pdf(folder.path / "e.pdf", [["Four."]])
    write_scanned_pdf(folder.path / "f.pdf")
    write_docx(folder.path / "g.docx")
    return folder


def test_parts_are_the_same_on_a_cluster_and_in_this_process(folder, tmp_path):
    found = scan([str(folder.path)])
    stage = DocumentPassages(Reading(), 1 << 10, tuple(found.sources), found.roots)
    assert stage.parts > 2
    written = []
    for name, executor in (("here", LocalExecutor()), ("ray", RayExecutor(actors=2))):
        storage = str(tmp_path / name)
        made = make(executor, storage, stage)
        assert made.rows == 7
        written.append((contents(storage, stage), made.manifest.parts))
    assert written[0] == written[1]


def test_a_folder_is_read_and_kept_up_on_a_cluster(folder, machine):
    folder.machine = machine
    first = folder.update()
    assert set(first.added) == {"a.md", "b.html", "x", "e.pdf", "g.docx"}
    folder.write(b_html="<p>Other.")
    second = folder.update()
    assert (list(second.changed), [row["text"] for row in passages_of(second)]) == (["b.html"], ["Other."])
    assert {name: reason.split(",")[0] for name, reason in folder.rejected().items()} == {
        "d.txt": "empty document",
        "f.pdf": "scanned",
    }

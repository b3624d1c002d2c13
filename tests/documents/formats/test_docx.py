import pytest
from helpers.documents import docx_with, read_file, write_docx, zip_with

from raydist.corpus.rejected import DAMAGED, ENCRYPTED, TOO_LARGE, WRONG_CONTENT, Fault

BODY = b'<?xml version="1.0"?><w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>%s</w:body></w:document>'


def test_headings_paragraphs_lists_and_tables(tmp_path):
    write_docx(tmp_path / "a.docx", title="The mill", author="Ada")
    (document,) = read_file(tmp_path / "a.docx")
    assert [(block.text, block.headings, block.is_line) for block in document.blocks] == [
        ("The mill was built in 1746.", ("Mills",), False),
        ("Ada Lamb", ("Mills", "Owners"), True),
        ("Owner | Year", ("Mills", "Owners"), True),
        ("Ada Lamb | 1746", ("Mills", "Owners"), True),
        ("Two rivers meet below it.", ("Rivers",), False),
    ]
    assert (document.title, document.metadata["author"]) == ("The mill", "Ada")


def test_text_in_content_controls_is_read(tmp_path):
    control = b"<w:sdt><w:sdtContent><w:p><w:r><w:t>inside</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    docx_with(tmp_path / "a.docx", "word/document.xml", BODY % control)
    (document,) = read_file(tmp_path / "a.docx")
    assert [block.text for block in document.blocks] == ["inside"]


def with_entities(path, declared: bytes) -> None:
    content = BODY % b"<w:p><w:r><w:t>before &h; after</w:t></w:r></w:p>"
    docx_with(path, "word/document.xml", content.replace(b"<w:document", b"<!DOCTYPE x [%s]><w:document" % declared, 1))


def test_entities_that_grow_are_refused(tmp_path):
    tenfold = b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(7))
    with_entities(tmp_path / "a.docx", b'<!ENTITY a "aaaaaaaaaa">' + tenfold)
    with pytest.raises(Fault, match="entity amplification") as fault:
        read_file(tmp_path / "a.docx")
    assert fault.value.reason == DAMAGED


def test_no_other_file_is_read_for_an_entity(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    with_entities(tmp_path / "a.docx", b'<!ENTITY h SYSTEM "%s">' % (tmp_path / "secret.txt").as_uri().encode())
    (document,) = read_file(tmp_path / "a.docx")
    assert "secret" not in str(document)


@pytest.mark.parametrize(
    ("write", "reason", "said"),
    [
        (lambda path: path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), ENCRYPTED, "encrypted, or saved as .doc"),
        (lambda path: path.write_bytes(b"%PDF-1.4"), WRONG_CONTENT, "not a Word document: a PDF"),
        (lambda path: zip_with(path, {"a.txt": b"x"}), WRONG_CONTENT, "a ZIP archive, but not a Word document"),
        (lambda path: path.write_bytes(b"PK\x03\x04 cut short"), DAMAGED, "cut short or damaged"),
        (lambda path: docx_with(path, "word/document.xml", b"<broken"), DAMAGED, "not to be read as a Word document"),
        (
            lambda path: docx_with(path, "word/media/x.png", bytes(30 << 20)),
            TOO_LARGE,
            "'word/media/x.png' unpacks to 31,457,280",
        ),
        (lambda path: zip_with(path, {f"{n}": bytes(9 << 20) for n in range(5)}), TOO_LARGE, "in 5 entries"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path, write, reason, said):
    path = tmp_path / "a.docx"
    write(path)
    with pytest.raises(Fault) as fault:
        read_file(path, max_bytes=40 << 20)
    assert fault.value.reason == reason
    assert said in fault.value.detail

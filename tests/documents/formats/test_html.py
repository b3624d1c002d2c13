import pytest
from helpers.documents import read_block_texts, read_one

from raydist.corpus.rejected import INVALID_UTF8, TOO_DEEP, WRONG_CONTENT, Fault

PAGE = """<!doctype html><html lang="de-AT"><head><title>Die  M&uuml;hle</title>
<meta name="Author" content="Ada"><meta name="year" content="1746"><meta name="viewport" content="width=1">
<script>document.write("<p>no</p>")</script><style>p {}</style></head>
<body><nav>Menu</nav><h1>Mills</h1><p>One <b>bold</b>word
and<br>more.</p>
<ul><li>first<ul><li>inner</li></ul></li><li>second</li></ul>
<h2>Owners</h2>
<table><tr><th>Owner</th><th>Year</th></tr>
<tr><td><p>Ada</p></td><td>1746</td></tr></table>
<pre>x
  y</pre>loose<div hidden>hidden</div><template>t</template><p>end &lt;b&gt;</body></html>"""


@pytest.fixture
def page(tmp_path):
    return read_one(tmp_path / "page.html", PAGE)


def test_text_is_what_a_browser_shows_under_its_headings_and_with_its_line(page):
    assert [(block.text, block.headings, block.line) for block in page.blocks] == [
        ("One boldword and more.", ("Mills",), 4),
        ("first", ("Mills",), 6),
        ("inner", ("Mills",), 6),
        ("second", ("Mills",), 6),
        ("Owner | Year", ("Mills", "Owners"), 8),
        ("Ada | 1746", ("Mills", "Owners"), 9),
        ("x", ("Mills", "Owners"), 10),
        ("  y", ("Mills", "Owners"), 11),
        ("loose", ("Mills", "Owners"), 10),
        ("end <b>", ("Mills", "Owners"), 11),
    ]


def test_the_head_gives_title_language_and_metadata(page):
    assert (page.title, page.language, page.metadata) == ("Die Mühle", "de-AT", {"author": "Ada", "year": 1746})


@pytest.mark.parametrize(
    "content",
    [
        "<meta charset=iso-8859-1><p>M\xfchle".encode("latin-1"),
        '<meta http-equiv="Content-Type" content="text/html; charset=windows-1252"><p>M\xfchle'.encode("cp1252"),
        "<p>Mühle".encode("utf-8-sig"),
        "<p>Mühle".encode("utf-16"),
        "<p>Mühle".encode(),
        b"<meta charset=no-such-thing><p>M\xc3\xbchle",
        '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><body><p>Mühle</p></body></html>'.encode(),
    ],
)
def test_the_charset_is_that_of_the_mark_or_the_head_or_utf_8(tmp_path, content):
    assert read_block_texts(tmp_path / "a.html", content) == ["Mühle"]


def test_another_charset_that_is_not_stated_is_refused(tmp_path):
    with pytest.raises(Fault) as fault:
        read_one(tmp_path / "a.html", b"<p>M\xfchle")
    assert (fault.value.reason, fault.value.detail) == (INVALID_UTF8, "byte 5 is 0xfc (utf-8); save it as UTF-8")


def test_elements_may_be_nested_deep_but_not_without_end(tmp_path):
    assert read_block_texts(tmp_path / "a.html", "<div>" * 1000 + "deep" + "</div>" * 1000 + "<p>after") == ["deep", "after"]
    with pytest.raises(Fault) as fault:
        read_one(tmp_path / "a.html", "<div>" * 100_000 + "deep")
    assert fault.value.reason == TOO_DEEP


def test_bytes_that_are_no_text_are_refused(tmp_path):
    for content, said in ((b"<p>\0</p>", "NUL"), (b"%PDF-1.4 ...", "holds a PDF")):
        with pytest.raises(Fault) as fault:
            read_one(tmp_path / "a.html", content)
        assert fault.value.reason == WRONG_CONTENT
        assert said in fault.value.detail


def test_broken_html_is_read_as_far_as_it_goes(tmp_path):
    assert read_block_texts(tmp_path / "a.html", "<table><tr><td>a<td>b<p>c</table></div><li>d<h2>e") == ["a | b c", "d"]
    assert read_block_texts(tmp_path / "b.html", "&#0;&#xD800;&#x1F600;<p x=<y>>") != []
    assert read_one(tmp_path / "c.html", "  ").blocks == []

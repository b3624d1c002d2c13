"""How Sphinx builds the site: `make docs`. Nothing is fetched, neither while it is built nor while it is read."""

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers.reference_pages import PAGES

import raydist

project, author, copyright = "raydist", "the raydist maintainers", "the raydist maintainers, Apache-2.0"
version = release = raydist.__version__
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = {"math"}
myst_heading_anchors = 4
nitpicky = True
highlight_language = "none"
html_theme = "furo"
html_title = f"raydist {version}"
html_math_renderer = "mathml"
html_theme_options = {"top_of_page_buttons": []}
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["raydist.css"]

AS_MATHML = {r"\texttt": r"\mathtt", r"\Big": ""}  # what docutils does not know of TeX


def mathml(node: nodes.Element, *, as_block: bool) -> str:
    """A formula as MathML, which browsers show without a script."""
    text = node.astext()
    for known, instead in AS_MATHML.items():
        text = text.replace(known, instead)
    return latex2mathml.tex2mathml(text, as_block=as_block)


def visit_inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node, as_block=False))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def write_reference(app: Any) -> None:
    """The pages that are made of the code, written where their links expect them."""
    for name, page in PAGES.items():
        path = Path(app.srcdir) / name
        text = page()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    write_reference(app)

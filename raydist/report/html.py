"""``report.html``: one self-contained file without scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from raydist.files.storage import Storage
from raydist.report.comparison import COMPARISONS
from raydist.report.markup import Html, el, join
from raydist.report.plots import COLOURS
from raydist.report.runs import load_runs
from raydist.report.same_sets import part_sets
from raydist.report.sections import SECTIONS

# Keeps the browser from running or fetching anything, should data ever get through as markup.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

CSS = """
:root { color-scheme: light dark; --page: #fff; --ink: #1c2128; --soft: #5b6673; --line: #d9dee4; --wash: #f4f6f8;
  --gold: #fde68a; --predicted: #bfdbfe; --both: #bbf7d0; --right: #1a7f4b; --wrong: #b3402e; --notice: #fff6e0; }
@media (prefers-color-scheme: dark) { :root { --page: #14181d; --ink: #e2e6ea; --soft: #98a3af; --line: #333b45;
  --wash: #1d232a; --gold: #7a5c0a; --predicted: #1d4f86; --both: #1b6340; --right: #4cc38a; --wrong: #ee8272;
  --notice: #33290f; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 78rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .8rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
h4 { font-size: .95rem; margin: 1.4rem 0 .5rem; }
h5 { font-size: .95rem; margin: 0 0 .3rem; }
p { margin: .4rem 0; }
small, .note, .legend, footer, dt, nav, figcaption { color: var(--soft); }
small, .note, .legend, figcaption { font-size: .85rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .9rem; margin-top: .6rem; }
nav a { color: inherit; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; }
.tiles div { flex: 1 1 8.5rem; max-width: 13rem; background: var(--wash); border-radius: .5rem; padding: .6rem .8rem; }
.tiles b { display: block; font-size: 1.6rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tiles b small { font-size: .9rem; font-weight: 500; }
.tiles span { color: var(--soft); font-size: .85rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .7rem 1rem; margin: 1rem 0; }
dl > div { min-width: 0; }
dt { font-size: .8rem; } dd { margin: 0; }
.notice { background: var(--notice); border-radius: .5rem; padding: .4rem .9rem; margin: 1rem 0; font-size: .92rem; }
.notice.loud { border-left: .4rem solid var(--wrong); font-size: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
.wide table { min-width: 50%; overflow-wrap: normal; }
th, td { text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); }
tbody th { font-weight: 600; } thead th { color: var(--soft); font-weight: 500; font-size: .85rem; }
.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
.text td, .text th { min-width: 7rem; max-width: 22rem; overflow-wrap: anywhere; font-weight: 400; }
.interval { display: block; white-space: normal; min-width: 6.5rem; }
.range { display: block; position: relative; width: 6.5rem; height: .7rem; margin-top: .1rem;
  background: linear-gradient(var(--line), var(--line)) center / 100% 1px no-repeat; }
.range i { position: absolute; top: .22rem; height: .26rem; min-width: 2px; background: var(--soft); border-radius: 2px; }
.range em { position: absolute; top: 0; height: .7rem; width: 2px; margin-left: -1px; background: var(--ink); }
.difference { font-size: .85rem; color: var(--soft); } .difference b { color: var(--ink); }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: 1.2rem 1.6rem;
  margin: 1rem 0; }
figure { margin: 0; min-width: 0; break-inside: avoid; display: flex; flex-direction: column; }
figcaption b { color: var(--ink); font-weight: 600; }
svg { display: block; margin-top: auto; width: 100%; height: auto; color: var(--soft); }
svg text { font-family: inherit; }
svg * { stroke-linejoin: round; }
.legend span { margin-right: 1rem; white-space: nowrap; }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .4em; }
.bars { width: 100%; } .bars th { width: 1%; white-space: nowrap; font-weight: 500; } .bars th, .bars td { border: 0; }
.bars td { padding-right: 0; }
.bars th, .bars td { padding-top: .15rem; padding-bottom: .15rem; vertical-align: middle; }
.bar { display: flex; align-items: center; gap: .5rem; }
.track { position: relative; flex: 1; height: .85rem; background: var(--wash); border-radius: 2px; }
.fill { position: absolute; left: 0; top: 0; bottom: 0; border-radius: 2px; }
.whisker { position: absolute; top: 50%; height: 1px; background: var(--ink); }
.value { min-width: 6.4rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
details { border-top: 1px solid var(--line); } details:last-of-type { border-bottom: 1px solid var(--line); }
summary { cursor: pointer; padding: .5rem 0; font-weight: 600; } summary small { font-weight: 400; }
article { border-inline-start: 3px solid var(--wrong); background: var(--wash); border-radius: .3rem;
  padding: .6rem .9rem; margin: 0 0 .7rem; break-inside: avoid; font-size: .93rem; }
article.right { border-color: var(--right); } article.unknown { border-color: var(--soft); }
article p { margin: .15rem 0; } .what { color: var(--soft); font-size: .85rem; }
.passage { font-size: .88rem; margin: .5rem 0 .3rem; } .cut { color: var(--soft); }
footer { font-size: .78rem; }
mark { color: inherit; border-radius: 2px; padding: 0 .1em; -webkit-box-decoration-break: clone; box-decoration-break: clone; }
.gold { background: var(--gold); } .predicted { background: var(--predicted); text-decoration: underline dotted; }
.both { background: var(--both); text-decoration: underline; }
pre { background: var(--wash); border-radius: .3rem; padding: .8rem; overflow-x: auto; font-size: .82rem;
  overflow-wrap: normal; }
code { font-size: .88em; }
@media print { body { max-width: none; font-size: 9pt; padding: 0; } nav { display: none; }
  h2 { margin-top: 1.4rem; break-after: avoid; }
  .swatch, .fill, .track, mark, article, .range, .range *, .tiles div {
    print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  details::details-content { content-visibility: visible; block-size: auto; } pre { white-space: pre-wrap; } }
"""
CSS += "\n".join(f".c{place} {{ background: {colour}; }}" for place, colour in enumerate(COLOURS))


def write_report(runs: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report on one run, or on several side by side, and return its path (default: in the first run)."""
    loaded = load_runs(runs)
    out = out or runs[0] / "report.html"
    if len(loaded) == 1:
        title = loaded[0].name
        sections = [(heading, make(loaded[0])) for heading, make in SECTIONS]
    elif len({run.config.get("task", "reader") for run in loaded}) > 1:  # not comparable: one after the other
        title = " · ".join(run.name for run in loaded)
        sections = [(f"{run.name}: {heading.lower()}", make(run)) for run in loaded for heading, make in SECTIONS]
    else:
        part_sets(loaded)
        title = " · ".join(run.name for run in loaded)
        sections = [(heading, compare(loaded)) for heading, compare in COMPARISONS]
    return write_page(out, title, sections)


def write_page(out: Path, title: str, sections: Sequence[tuple[str, Html | None]]) -> Path:
    """Write a document of the non-empty sections."""
    text = page(title, [(heading, section) for heading, section in sections if section])
    Storage(str(out.parent)).write_bytes(out.name, text.encode("utf-8", "replace"))
    return out


def page(title: str, sections: Sequence[tuple[str, Html]]) -> Html:
    """A document with a table of contents."""
    named = [(re.sub(r"\W+", "-", heading.lower()), heading, section) for heading, section in sections]
    contents = el("nav", *(el("a", heading, href=f"#{anchor}") for anchor, heading, _ in named), aria_label="Contents")
    body = [el("section", el("h2", heading, id=anchor), section) for anchor, heading, section in named]
    head = join(
        [
            Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
            Html('<meta name="robots" content="noindex"><meta name="generator" content="raydist">'),
            el("title", f"{title} – raydist"),
            el("style", Html(CSS)),
        ]
    )
    main = el("body", el("header", el("h1", title, dir="auto"), contents), el("main", *body))
    return join([Html("<!doctype html>\n"), Html(f'<html lang="en"><head>{head}</head>'), main, Html("</html>\n")])

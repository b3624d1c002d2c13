"""MultiReQA's sentence boundaries in the passages of its data sets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raydist.corpus.cutting import Spans, fits
from raydist.corpus.rejected import WRONG_BOUNDARY, Fault
from raydist.corpus.rows import table_rows
from raydist.errors import InputError
from raydist.records import Example, Rejected


@dataclass(slots=True)
class Boundaries:
    """Sentence boundaries of passages."""

    spans: dict[str, Spans]  # by passage id; checked to fit
    rejected: list[Rejected] = field(default_factory=list)
    unmatched: int = 0  # lines about other passages


def read_boundaries(path: Path, examples: Iterable[Example]) -> Boundaries:
    """Sentence spans from a MultiReQA file, joined to the passages of the examples.

    Lines are {candidate_id: "<dataset>_<qid>/<qid>/.../_<n>", response_start, response_end}, or already one line per
    paragraph, {title, paragraph, sentences: [[start, end], ...]}, the n-th paragraph with questions under that title. If a
    paragraph has lost all its questions, later ones have moved up: so a line goes to the paragraph that it covers from the
    first character to the last, and only without such a paragraph to the n-th, if its sentences fit there.
    """
    path = Path(path)
    texts: dict[str, str] = {}
    passage_of_question: dict[str, str] = {}
    paragraphs: defaultdict[str, list[str]] = defaultdict(list)
    for example in examples:
        texts.setdefault(example.passage_id, example.context)
        passage_of_question.setdefault(example.id, example.passage_id)
        if paragraphs[example.title][-1:] != [example.passage_id]:  # a text repeated further down is another paragraph
            paragraphs[example.title].append(example.passage_id)
    found: defaultdict[str, list[tuple[int, tuple[int, int]]]] = defaultdict(list)  # by passage: line and span
    uncertain: list[tuple[int, list[str], list[tuple[int, int]]]] = []  # line, the n-th paragraph if there is one, spans
    unread: list[tuple[int, Fault]] = []
    unmatched = 0
    for line, row, fault in table_rows(path):
        if fault:
            unread.append((line, fault))
            continue
        try:
            if "candidate_id" in row:
                question_ids = row["candidate_id"].partition("_")[2].rpartition("_")[0].split("/")
                names = {passage_of_question[id] for id in question_ids if id in passage_of_question}
                spans = [(int(row["response_start"]), int(row["response_end"]))]
            else:
                number, under = int(row["paragraph"]), paragraphs.get(row["title"], [])
                spans = [(int(start), int(end)) for start, end in row["sentences"]]
                nth = under[number : number + 1]
                names = _covered(spans, nth, texts) or _covered(spans, under, texts)
                if len(names) != 1:
                    uncertain.append((line, nth, spans))
                    continue
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InputError(f"{path}, line {line}: no MultiReQA boundaries ({error!r}): {str(row)[:200]}") from error
        unmatched += not names
        for name in names:
            found[name] += [(line, span) for span in spans]
    for line, fault in unread:
        raise InputError(f"{path}, line {line}: {fault.reason}: {fault.detail}")
    misfits: list[tuple[int, str, Spans]] = []
    for line, nth, spans in uncertain:
        if not nth or nth[0] in found:
            unmatched += 1
        elif _stand(spans, texts[nth[0]]):
            found[nth[0]] = [(line, span) for span in spans]
        else:
            misfits.append((line, nth[0], spans))
    if not found and not misfits:
        raise InputError(f"{path} is about none of these passages; is it the boundary file of the same split?")
    fitting: dict[str, Spans] = {}
    for id, cuts in found.items():
        spans = sorted({span for _, span in cuts})
        if fits(spans, len(texts[id])):
            fitting[id] = spans
        else:
            misfits.append((cuts[0][0], id, spans))
    rejected = [
        Rejected(str(path), line, id, "boundaries", WRONG_BOUNDARY, f"{len(texts[id])} characters, {list(spans)[:5]}"[:200])
        for line, id, spans in misfits
    ]
    return Boundaries(fitting, rejected, unmatched)


def _stand(spans: Spans, text: str) -> bool:
    """Whether the spans could be sentences of the text: they fit, and none begins or ends with a blank."""
    return fits(spans, len(text)) and all(text[start:end] == text[start:end].strip() for start, end in spans)


def _covered(spans: Spans, ids: Iterable[str], texts: Mapping[str, str]) -> set[str]:
    """The passages that the spans could cut completely: only blanks are left over."""
    covered = set()
    for id in ids:
        ends = [0, *(place for span in sorted(spans) for place in span), None]
        left_over = (texts[id][start:end] for start, end in zip(ends[::2], ends[1::2]))
        if _stand(spans, texts[id]) and not any(map(str.strip, left_over)):
            covered.add(id)
    return covered

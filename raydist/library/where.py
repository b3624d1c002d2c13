"""Conditions on metadata: "year >= 2020 and lang = 'de'" -> an Arrow expression. No part of the text is executed.

    condition   any of `and`, `or`, `not`, parentheses, over comparisons
    comparison  COLUMN = VALUE   !=  <  <=  >  >=   COLUMN [not] in (VALUE, ...)   COLUMN is [not] null   COLUMN (true or false)
    COLUMN      a name, in "double quotes" if it has blanks or the like
    VALUE       'text' (a quote within is doubled), a number, true, false, a day 2024-01-31 or '2024-01-31', '2024-01-31T12:00'

A comparison with null is neither true nor false, as in SQL, and only true rows pass. `headings = 'Storage'` is true if one of
the headings is Storage.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import reduce
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from raydist.errors import InputError

LONGEST, DEEPEST = 10_000, 50  # characters; nested parentheses and nots
COMPARED: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TOKENS = re.compile(
    r"""(?P<blank>\s+)
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<day>\d{4}-\d\d-\d\d(?!\w))
    |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
    |(?P<word>[^\W\d][\w.]*)
    |(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,)""",
    re.VERBOSE,
)
KEYWORDS = ("and", "or", "not", "in", "is", "null", "true", "false")
BETWEEN = "\x1f"  # separates the elements of a list, joined to one text


class _Token(NamedTuple):
    kind: str  # of TOKENS, "keyword" or "end"
    text: str
    place: int  # in the condition, from 0


class Condition(NamedTuple):
    """A parsed condition on rows."""

    expression: pc.Expression
    columns: frozenset[str]  # that it reads


def parse(text: str, columns: Mapping[str, pa.DataType]) -> Condition:
    """The condition over these columns; an InputError reports the place of a mistake and the alternatives."""
    parser = _Parser(text, columns)
    return Condition(parser.parse(), frozenset(parser.used))


def _tokens(text: str) -> list[_Token]:
    found, place = [], 0
    while place < len(text):
        match = TOKENS.match(text, place)
        if match is None:
            what = "a quote is not closed" if text[place] in "'\"" else f"{text[place]!r} means nothing here"
            raise _wrong(text, place, what)
        kind = str(match.lastgroup)
        if kind == "word" and match[0].lower() in KEYWORDS:
            found.append(_Token("keyword", match[0].lower(), place))
        elif kind != "blank":
            found.append(_Token(kind, match[0], place))
        place = match.end()
    return [*found, _Token("end", "", len(text))]


def _wrong(text: str, place: int, what: str) -> InputError:
    return InputError(f"where: {what} (character {place + 1}):\n  {text}\n  {' ' * place}^")


class _Parser:
    """Recursive descent, a method for each line of the grammar."""

    def __init__(self, text: str, columns: Mapping[str, pa.DataType]) -> None:
        if len(text) > LONGEST:
            raise InputError(f"where: a condition of {len(text):,} characters; at most {LONGEST:,} are read")
        self.text, self.columns = text, columns
        self.tokens, self.at, self.depth = _tokens(text), 0, 0
        self.used: set[str] = set()

    def parse(self) -> pc.Expression:
        condition = self._either()
        if self._now.kind != "end":
            self._fail("expected and, or, or the end")
        return condition

    # --- tokens ------------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> _Token:
        return self.tokens[self.at]

    def _take(self) -> _Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def _skip(self, *texts: str) -> bool:
        """Take these keywords or signs, if all of them come now."""
        coming = self.tokens[self.at : self.at + len(texts)]
        if tuple(token.text for token in coming if token.kind in ("keyword", "sign")) != texts:
            return False
        self.at += len(texts)
        return True

    def _fail(self, what: str, token: _Token | None = None) -> NoReturn:
        raise _wrong(self.text, (token or self._now).place, what)

    # --- grammar -----------------------------------------------------------------------------------------------------

    def _either(self) -> pc.Expression:
        parts = [self._both()]
        while self._skip("or"):
            parts.append(self._both())
        return reduce(operator.or_, parts)

    def _both(self) -> pc.Expression:
        parts = [self._negated()]
        while self._skip("and"):
            parts.append(self._negated())
        return reduce(operator.and_, parts)

    def _negated(self) -> pc.Expression:
        self.depth += 1
        if self.depth > DEEPEST:
            self._fail(f"more than {DEEPEST} parentheses and nots within each other")
        try:
            if self._skip("not"):
                return ~self._negated()
            if self._skip("("):
                inside = self._either()
                self._expect(")")
                return inside
            return self._comparison()
        finally:
            self.depth -= 1

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            self._fail(f"expected {sign}")

    def _comparison(self) -> pc.Expression:
        column = self._column()
        if self._skip("is", "not", "null"):
            return column.field.is_valid()
        if self._skip("is", "null"):
            return column.field.is_null()
        if self._skip("not", "in"):
            return ~self._among(column)
        if self._skip("in"):
            return self._among(column)
        sign = {"==": "=", "<>": "!="}.get(self._now.text, self._now.text)
        if self._now.kind == "sign" and sign in COMPARED:
            self._take()
            return column.compare(sign, self._value(column), self)
        if pa.types.is_boolean(column.type):
            return column.field
        self._fail(f"expected one of {' '.join(COMPARED)}, in, or is null, after the column {column.name}")

    def _column(self) -> _Column:
        token = self._take()
        if token.kind not in ("word", "quoted"):
            self._fail("expected a column" + (", as in year >= 2020" if token.kind != "end" else ""), token)
        name = token.text[1:-1].replace('""', '"') if token.kind == "quoted" else token.text
        if name not in self.columns:
            self._fail(f"there is no column {name!r}; there are {', '.join(self.columns)}", token)
        self.used.add(name)
        return _Column(name, self.columns[name], token)

    def _among(self, column: _Column) -> pc.Expression:
        self._expect("(")
        values = [self._value(column)]
        while self._skip(","):
            values.append(self._value(column))
        self._expect(")")
        return reduce(operator.or_, (column.compare("=", value, self) for value in values))

    def _value(self, column: _Column) -> Any:
        token = self._take()
        readers: Sequence[tuple[Callable[[pa.DataType], bool], str, Callable[[_Token], Any]]] = (
            (_is_text, "text: write it as 'text'", _text),
            (_is_number, "numbers", _number),
            (pa.types.is_boolean, "true or false", _boolean),
            (pa.types.is_date, "days: write 2024-01-31", _day),
            (pa.types.is_timestamp, "times: write '2024-01-31T12:00' or a day", lambda token: _time(token, column.type)),
        )
        for is_it, wanted, read in readers:
            if is_it(column.element):
                value = read(token)
                if value is None:
                    self._fail(f"the column {column.name} holds {wanted}", token)
                return value
        self._fail(f"the column {column.name} is of type {column.type}, which nothing is compared with", column.token)


class _Column(NamedTuple):
    name: str
    type: pa.DataType
    token: _Token

    @property
    def field(self) -> pc.Expression:
        return pc.field(self.name)

    @property
    def is_list(self) -> bool:
        return pa.types.is_list(self.type) or pa.types.is_large_list(self.type)

    @property
    def element(self) -> pa.DataType:
        return self.type.value_type if self.is_list else self.type

    def compare(self, sign: str, value: Any, parser: _Parser) -> pc.Expression:
        if not self.is_list:
            return COMPARED[sign](self.field, pc.scalar(value))
        if sign not in ("=", "!=") or not isinstance(value, str):
            parser._fail(f"the column {self.name} is a list of texts, which = and != are for", self.token)
        joined = pc.binary_join(self.field, pc.scalar(BETWEEN))
        bounded = pc.binary_join_element_wise(pc.scalar(""), joined, pc.scalar(""), pc.scalar(BETWEEN))
        has = pc.match_substring(bounded, pattern=f"{BETWEEN}{value}{BETWEEN}")
        return has if sign == "=" else ~has


# --- values ----------------------------------------------------------------------------------------------------------


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _text(token: _Token) -> str | None:
    return token.text[1:-1].replace(token.text[0] * 2, token.text[0]) if token.kind in ("text", "quoted") else None


def _number(token: _Token) -> int | float | None:
    if token.kind != "number":
        return None
    is_whole = token.text.lstrip("+-").isdigit()
    if is_whole and abs(int(token.text)) < 2**63:
        return int(token.text)
    return float(token.text)


def _boolean(token: _Token) -> bool | None:
    return {"true": True, "false": False}.get(token.text) if token.kind == "keyword" else None


def _day(token: _Token) -> date | None:
    try:
        return date.fromisoformat(token.text if token.kind == "day" else _text(token) or "")
    except ValueError:
        return None


def _time(token: _Token, kind: pa.DataType) -> pa.Scalar | None:
    """A time without a zone is in UTC, if the column has a zone."""
    try:
        found = datetime.fromisoformat(token.text if token.kind == "day" else _text(token) or "")
    except ValueError:
        return None
    if kind.tz and found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    elif not kind.tz and found.tzinfo:
        found = found.astimezone(UTC).replace(tzinfo=None)
    return pa.scalar(found, pa.timestamp("us", tz=kind.tz))

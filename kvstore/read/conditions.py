"""Conditions on rows as text, as ``--where`` and the console take them: ``size > 100 and path like 'src/%'``.

A value is read as its column's type, in the forms of docs/cli.md: text, dates and times go in single quotes. Nothing of
the text is executed.
"""

from __future__ import annotations

import re
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import shown
from kvstore.errors import InvalidRequest, SchemaMismatch
from kvstore.read.scan import check_filter
from logformat.rows.json_form import from_text
from logformat.rows.python_values import MISFITS

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")*")
    | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    | (?P<word>[^\W\d]\w*) | (?P<sign><=|>=|<>|!=|==|[=<>(),]))""",
    re.VERBOSE,
)
_KEYWORDS = frozenset(("and", "or", "not", "is", "null", "in", "like", "true", "false"))
_DEPTH_MAX = 50
_COMPARED = {"=": "==", "<>": "!="}


def parse_filter(text: str | None, schema: pa.Schema) -> pc.Expression | None:
    """A condition as text, as the filter of a scan: ``parse_filter("size > 100 and path like 'src/%'", t.schema)``.

    The language is that of ``--where`` on the command line. Nothing of the text is executed.

    Args:
        text: The condition; None for none.
        schema: Columns that it may use; their types say how its values are read.

    Raises:
        InvalidRequest: It is no condition on these columns. The message has the place.
    """
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidRequest("A condition is a text, such as \"n > 3 and name = 'x'\".", given=shown(text))
    expression = _Parser(text, schema).whole()
    check_filter(expression, schema)
    return expression


class _Parser:
    """Reads a condition from left to right: ``or`` binds weakest, then ``and``, then ``not``."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        self._tokens: list[tuple[str, str, int]] = []
        self._next = 0
        self._depth = 0
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                position += len(text[position:]) - len(text[position:].lstrip())
                self._refuse(position, "This can't be read")
            kind = match.lastgroup or ""
            value, start = match[kind], match.start(kind)
            if kind == "word" and value.lower() in _KEYWORDS:
                kind, value = "keyword", value.lower()
            self._tokens.append((kind, value, start))
            position = match.end()

    def whole(self) -> pc.Expression:
        condition = self._any()
        if self._next < len(self._tokens):
            self._refuse(self._position(), "Here `and` or `or` is expected")
        return condition

    def _any(self) -> pc.Expression:
        condition = self._all()
        while self._takes("keyword", "or"):
            condition = condition | self._all()
        return condition

    def _all(self) -> pc.Expression:
        condition = self._one()
        while self._takes("keyword", "and"):
            condition = condition & self._one()
        return condition

    def _one(self) -> pc.Expression:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._refuse(self._position(), "The condition is nested too deeply here")
        if self._takes("keyword", "not"):
            condition = ~self._one()
        elif self._takes("sign", "("):
            condition = self._any()
            self._expect("sign", ")")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> pc.Expression:
        column = self._column()
        value = pc.field(column.name)
        if self._takes("keyword", "is"):
            negated = self._takes("keyword", "not")
            self._expect("keyword", "null")
            return value.is_valid() if negated else value.is_null()
        negated = self._takes("keyword", "not")
        if self._takes("keyword", "in"):
            self._expect("sign", "(")
            values = [self._value(column)]
            while self._takes("sign", ","):
                values.append(self._value(column))
            self._expect("sign", ")")
            listed = value.isin(pa.array(values, column.type))
            # `isin` is false for a null, and so its negation would be true.
            return ~listed & value.is_valid() if negated else listed
        if self._takes("keyword", "like"):
            if not pa.types.is_string(column.type):
                self._refuse(self._position(), f"`like` is for text, and column {column.name} is {column.type}")
            matched = pc.match_like(value, self._value(column).as_py())
            return ~matched if negated else matched
        kind, sign, position = self._token()
        if negated or kind != "sign" or sign in "(),":
            self._refuse(position, "Here =, !=, <, <=, >, >=, `in (...)`, `like` or `is null` is expected")
        self._next += 1
        other = self._value(column)
        match _COMPARED.get(sign, sign):
            case "==":
                return value == other
            case "!=":
                return value != other
            case "<":
                return value < other
            case "<=":
                return value <= other
            case ">":
                return value > other
            case _:
                return value >= other

    def _column(self) -> pa.Field:
        kind, word, position = self._token()
        if kind not in ("word", "quoted"):
            self._refuse(position, "Here the name of a column is expected")
        name = word[1:-1].replace('""', '"') if kind == "quoted" else word
        if name not in self._schema.names:
            self._refuse(position, f"There is no column {name}; columns are {', '.join(self._schema.names)}")
        self._next += 1
        return self._schema.field(name)

    def _value(self, column: pa.Field) -> pa.Scalar:
        kind, word, position = self._token()
        is_text = not (_is_number(column.type) or pa.types.is_boolean(column.type))
        if kind == "text":
            word = word[1:-1].replace("''", "'")
        elif kind not in ("number", "keyword") or (kind == "keyword" and word not in ("true", "false")):
            hint = "text goes in single quotes" if kind in ("word", "quoted") else "`is null` finds nulls"
            self._refuse(position, f"Here a value is expected; {hint}")
        elif is_text:
            self._refuse(position, f"Column {column.name} is {column.type}, so the value goes in single quotes")
        try:
            (value,) = from_text(pa.array([word], pa.string()), column.type)
        except (*MISFITS, SchemaMismatch) as error:
            raise InvalidRequest(
                "A value of the condition does not fit its column.",
                column=column.name,
                expected=column.type,
                given=word,
                reason=str(error).partition("\n")[0],
            ) from error
        self._next += 1
        return value

    def _token(self) -> tuple[str, str, int]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "", len(self._text))

    def _position(self) -> int:
        return self._token()[2]

    def _takes(self, kind: str, word: str) -> bool:
        is_taken = self._token()[:2] == (kind, word)
        self._next += is_taken
        return is_taken

    def _expect(self, kind: str, word: str) -> None:
        if not self._takes(kind, word):
            self._refuse(self._position(), f"Here `{word}` is expected")

    def _refuse(self, position: int, what: str) -> NoReturn:
        raise InvalidRequest(
            f"{what}: a condition is such as \"n > 3 and name = 'x'\".",
            at=repr(self._text[position:]) if position < len(self._text) else "the end",
        )


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)

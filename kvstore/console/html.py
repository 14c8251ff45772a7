"""HTML as values: text is escaped where it enters a page, so no module can forget it.

A character that does not print (a control character, one that turns the direction of text, a NUL) is shown by its
number, and marked.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlencode

_VOID = frozenset({"br", "hr", "input", "link", "meta"})


@dataclass(frozen=True, slots=True)
class Html:
    """HTML that goes into a page as it is; :func:`tag` and :func:`text` make it."""

    source: str


Content: TypeAlias = "Html | str | int | float | Iterable[Content] | None"
Attribute: TypeAlias = str | int | bool | None


def tag(name: str, /, *content: Content, **attributes: Attribute) -> Html:
    """An element.

    Args:
        content: Elements as they are, text to be escaped; None is left out.
        attributes: ``class_`` and ``aria_label`` stand for ``class`` and ``aria-label``. True is an attribute without
            a value; None and False leave it out.
    """
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{''.join(map(_source, content))}</{name}>")


def text(given: str) -> Html:
    """Text, escaped; characters that do not print are shown by their number."""
    if given.isprintable():
        return Html(html.escape(given))
    return Html("".join(map(_letter, given)))


def document(*content: Content, lang: str = "en") -> str:
    """A whole document."""
    return f"<!doctype html>\n{tag('html', *content, lang=lang).source}\n"


def printed(given: str) -> str:
    """Text in which every character prints."""
    return "".join(letter if letter.isprintable() else _number(letter) for letter in given)


def url(path: str, **parameters: str | int | list[str] | None) -> str:
    """A path of the console with parameters; those that are None are left out."""
    there = {name: value for name, value in parameters.items() if value is not None}
    return f"{path}?{urlencode(there, doseq=True, errors='surrogatepass')}" if there else path


def _source(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Html):
        return content.source
    if isinstance(content, (str, int, float)):
        return text(str(content)).source
    return "".join(map(_source, content))


def _attribute(name: str, value: Attribute) -> str:
    name = name.removesuffix("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    shown = _sendable(str(value)) if name == "value" else printed(str(value))
    return f' {name}="{html.escape(shown)}"'


def _sendable(given: str) -> str:
    """The value of a field, which a form sends back as it is; HTML has no NUL and no surrogates."""
    return "".join(_number(letter) if letter == "\0" or "\ud800" <= letter <= "\udfff" else letter for letter in given)


def _letter(letter: str) -> str:
    if letter.isprintable():
        return html.escape(letter)
    return f'<span class="code-point" title="U+{ord(letter):04X}">{_number(letter)}</span>'


def _number(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")

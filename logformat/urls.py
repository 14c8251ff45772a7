"""URLs of places, which are kept in catalogs and shipped to replicas: how they are shown without credentials. Pure.

A URL has credentials if it has user info, or a parameter that is not known to be harmless.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

HARMLESS_PARAMETERS = ("endpoint_override", "region", "scheme")
"""Parameters that a job's URL may have; all else belongs into the environment."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?", re.DOTALL)
_URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]*\]|[^:@]*)(?::\d*)?")
_CONTAINER_FIRST = ("abfs", "abfss")
"""Schemes of Azure whose URLs say ``container@account`` where others have user info."""
_HIDDEN = "…"


def shown_url(url: str) -> str:
    """A URL without its credentials; what is no URL, or has none, as it is."""
    parts = _URL.fullmatch(url)
    if parts is None:
        return url
    scheme, authority, path, query, fragment = parts.groups(default="")
    before, at, host = authority.rpartition("@")
    if _HOST.fullmatch(unquote(host)) is None:
        return f"{scheme}://{_HIDDEN}"  # a secret may have a slash, and what follows that is no path then
    if at and not (scheme.lower() in _CONTAINER_FIRST and _HOST.fullmatch(unquote(before)) and ":" not in before):
        authority = f"{_HIDDEN}@{host}"
    return f"{scheme}://{authority}{path}{_shown_query(query) if '?' in url else ''}{fragment}"


def shown_text(text: str) -> str:
    """Text in which URLs have no credentials."""
    if "://" not in text:
        return text
    return shown_url(text) if _URL.fullmatch(text) else _URL_IN_TEXT.sub(lambda match: shown_url(match[0]), text)


def without_credentials(fact: Any) -> Any:
    """A fact of the catalog in its JSON form, with the credentials removed from every URL."""
    if isinstance(fact, str):
        return shown_text(fact)
    if isinstance(fact, dict):
        return {shown_text(name): without_credentials(value) for name, value in fact.items()}
    return [without_credentials(each) for each in fact] if isinstance(fact, list) else fact


def _shown_query(query: str) -> str:
    if not query:
        return "?"
    kept = [each for each in query.split("&") if _is_harmless(each)]
    return "?" + "&".join(kept if len(kept) == query.count("&") + 1 else [*kept, _HIDDEN])


def _is_harmless(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    if name not in HARMLESS_PARAMETERS:
        return False
    return name != "endpoint_override" or _HOST.fullmatch(unquote(value)) is not None

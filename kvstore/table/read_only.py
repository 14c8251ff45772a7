"""A table that can only be read, and says so of every call that writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from kvstore.errors import UnsupportedOperation
from kvstore.table.access import Access, Opened
from kvstore.table.read_table import ReadTable
from kvstore.table.table import Table


class ReadOnlyTable(ReadTable):
    """A table that can only be read; what :class:`kvstore.Table` has besides raises UnsupportedOperation.

    Args:
        opened, access: See :class:`kvstore.table.read_table.ReadTable`.
        refused: The message of what is refused, with ``{name}`` for the name.
    """

    def __init__(self, opened: Opened, access: Access, refused: str) -> None:
        super().__init__(opened, access)
        self._refused = refused

    def __setitem__(self, key: object, row: object) -> NoReturn:
        raise UnsupportedOperation(self._refused.format(name="__setitem__"))

    def __delitem__(self, key: object) -> NoReturn:
        raise UnsupportedOperation(self._refused.format(name="__delitem__"))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            refuse(self, Table, name, "" if name.startswith("_") else self._refused)


def refuse(of: object, whole: type, name: str, refused: str) -> NoReturn:
    """Refuse a public name of a class that writes, too.

    Raises:
        UnsupportedOperation: The class has the name.
        AttributeError: It does not.
    """
    if hasattr(whole, name) and not name.startswith("_"):
        raise UnsupportedOperation(refused.format(name=name))
    raise AttributeError(f"{type(of).__name__!r} object has no attribute {name!r}", name=name, obj=of)

"""Shared tables that are opened in their place, to be read as the tables of a replica are."""

from __future__ import annotations

from kvstore.replica.client import Client
from kvstore.shared.table import SharedTable
from logformat.replica import shared_table


class SharedCatalog:
    """The shared tables at a URL; a definition is read once, as it never changes."""

    def __init__(self, url: str, client: Client) -> None:
        self._url = url
        self._client = client
        self._found: dict[str, SharedTable] = {}

    def names(self) -> list[str]:
        """Names of all tables, sorted.

        Raises:
            CorruptData: A definition is damaged.
            Unavailable: The object store can't be reached.
        """
        listed = [name for name, _ in self._client.list(f"{shared_table.DEFINITIONS_PREFIX}/")]
        name_of = {shared_table.definition_name(name): name for name in self._found}
        for name in set(listed) - name_of.keys():
            data = self._client.get(name, bytes_max=shared_table.DEFINITION_BYTES_MAX)
            described = shared_table.decode_named_definition(bytes(data), name)
            self._found[described.name] = SharedTable(self._url, self._client, described)
            name_of[name] = described.name
        return sorted(name_of[name] for name in listed)

    def find(self, name: str) -> SharedTable:
        """The table of a name; raises what :meth:`SharedTable.find` raises."""
        if name not in self._found:
            self._found[name] = SharedTable.find(self._url, self._client, name)
        return self._found[name]

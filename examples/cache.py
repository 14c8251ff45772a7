"""A cache that forgets a row once it changes, in this process or in another."""

import tempfile
import threading
import time
from contextlib import suppress

import kvstore
from kvstore.errors import StoreClosed


class Cache:
    def __init__(self, table, key):
        self._table, self._key, self._rows = table, key, {}
        self._lock, self._seen = threading.Lock(), 0
        changes = table.changelog("latest", follow=True, columns=[key])  # begins here, before the first row is kept
        threading.Thread(target=self._forget, args=[changes], daemon=True).start()

    def get(self, key):
        if key not in self._rows:
            seen = self._seen
            row = self._table.get(key)
            with self._lock:
                if seen != self._seen:  # something changed meanwhile, perhaps this row
                    return row
                self._rows[key] = row
        return self._rows.get(key) or self._table.get(key)

    def _forget(self, changes):
        with suppress(StoreClosed):
            for batch in changes:
                with self._lock:
                    self._seen += 1
                    for key in batch.column(self._key).to_pylist():
                        self._rows.pop(key, None)


with kvstore.open(tempfile.mkdtemp()) as store:
    users = store.create_table("users", {"name": "string", "city": "string"}, primary_key="name")
    users.upsert({"name": "ana", "city": "Lima"})
    cache = Cache(users, "name")
    assert cache.get("ana") == cache.get("ana") == {"name": "ana", "city": "Lima"}
    users.upsert({"name": "ana", "city": "Quito"})
    while cache.get("ana")["city"] != "Quito":  # a few milliseconds
        time.sleep(0.001)

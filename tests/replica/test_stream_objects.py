"""The objects of one stream, as a replica lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore.errors import InvalidRequest
from logformat.replica.object_file import place_of_stream


def test_objects_of_a_stream_are_what_was_shipped_of_it(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", {"k": "int64"}, primary_key="k")
        replica = store.add_replica(str(tmp_path / "r"), "r")
        for number in range(3):
            table.upsert({"k": number})
            replica.ship()
        assert {place_of_stream(each.stream) for each in replica.status().shipped} == {"catalog", "tables/1/0"}
        found = replica.objects("tables/1/0", 100)
        files = sorted((tmp_path / "r/tables/1/0").iterdir())
        assert [(tmp_path / "r" / str(name), size) for name, size in found.sizes.items()] == [
            (each, each.stat().st_size) for each in files
        ]
        assert (found.shipped.start, found.shipped.end, found.missing) == (0, 3, [])
        assert replica.objects("tables/1/0", 3) == found
        cut = replica.objects("tables/1/0", 2)
        assert (len(cut.sizes), cut.missing) == (2, None)
        files[0].unlink()
        assert replica.objects("tables/1/0", 100).missing == [(0, 1)]
        assert replica.report().to_json()["findings"] == []  # a report reads nothing of the replica
        with pytest.raises(InvalidRequest, match="Nothing of this stream was shipped"):
            replica.objects("tables/2/0", 100)
        with pytest.raises(InvalidRequest, match="most"):
            replica.objects("tables/1/0", 0)
        store.drop_replica("r")
        for call in (replica.status, lambda: replica.objects("catalog", 1)):
            with pytest.raises(InvalidRequest):
                call()

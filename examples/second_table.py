"""A second table that has some rows of the first, exactly, whenever the program that keeps it is killed."""

import tempfile

import pyarrow.compute as pc

import kvstore

COLUMNS = {"id": "int64", "state": "string"}


def keep(orders, open_orders, killed_after=None):
    if "open orders" not in orders.consumers:  # the current rows come, perhaps once more: begin with an empty table
        open_orders.truncate()
    number = 0
    # Leave `follow` out to wait for more.
    with orders.subscribe("open orders", filter=pc.field("state") == "open", follow=False) as changes:
        for batch in changes:
            rows = {}
            for change in batch.to_pylist():
                gone = change["_change_type"] in ("delete", "update_preimage")
                rows[change["id"]] = None if gone else {name: change[name] for name in COLUMNS}
            open_orders.upsert([row for row in rows.values() if row is not None])
            open_orders.delete([key for key, row in rows.items() if row is None])
            if number == killed_after:
                return  # killed: this batch is applied, and comes again
            changes.ack(batch)
            number += 1


with kvstore.open(tempfile.mkdtemp()) as store:
    orders = store.create_table("orders", COLUMNS, primary_key="id", buckets=2)
    open_orders = store.create_table("open_orders", COLUMNS, primary_key="id")
    orders.upsert([{"id": id, "state": "open"} for id in range(100)])
    for killed_after in (0, 1, None, 0, None):
        orders.upsert([{"id": id, "state": "paid"} for id in range(0, 100, 7)])
        keep(orders, open_orders, killed_after)
        orders.upsert([{"id": id, "state": "open"} for id in range(0, 100, 3)])
        orders.delete(list(range(0, 100, 5)))
    keep(orders, open_orders)
    expected = orders.to_arrow(filter=pc.field("state") == "open").sort_by("id")
    assert open_orders.to_arrow().sort_by("id") == expected

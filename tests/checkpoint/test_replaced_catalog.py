"""A worker writes nothing where the path of the catalog leads elsewhere, to the catalog of a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kvstore
from kvstore.checkpoint.messages import Task
from kvstore.checkpoint.worker import run
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import StoreReplaced
from logformat.catalog import store_file
from logformat.ids import Epoch, Txid
from tests.support.path_changes import tree


@pytest.mark.parametrize("is_link", [True, False])
def test_a_worker_leaves_the_catalog_of_a_copy_alone(tmp_path: Path, is_link: bool) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    with kvstore.open(path) as store:
        store.create_table("t", {"k": "int64"}, "k")
        runtime = store.runtime
        assert runtime.held is not None
        task = Task(
            epoch=Epoch(1),
            store=str(path),
            store_id=store_file.decode((path / "STORE").read_bytes()).store_id,
            txid=Txid(1),
            seconds=60,
            directory=runtime.held.identity,
            catalog=runtime.held.identity_of(path / "meta"),
        )
    shutil.copytree(path, copy)
    (path / "meta").rename(tmp_path / "away")
    if is_link:
        (path / "meta").symlink_to(copy / "meta")
    else:
        shutil.copytree(copy / "meta", path / "meta")
    before = tree(copy), tree(path / "meta")
    with pytest.raises(StoreReplaced):
        run(task, Files(), SystemClock())
    assert (tree(copy), tree(path / "meta")) == before

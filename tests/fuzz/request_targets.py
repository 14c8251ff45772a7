"""Targets about what is given in words: names, paths, options of Spark, keys on a command line."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kvstore.arguments import printable
from kvstore.commit.consumers import consumer_name
from kvstore.errors import CorruptImage, InvalidRequest
from kvstore.spark.options import NAMES, Options
from kvstore.store.store import table_name
from logformat import paths
from logformat.ids import Offset, TableId, Txid

_STORE = Path("/store")


def spark_options(data: bytes) -> None:
    """Options as Spark hands them: names and texts, separated by NUL."""
    words = _text(data).split("\0")
    given = dict(zip(words[::2], words[1::2], strict=False))
    options = Options.of(given)
    for use in ("read", "batch write", "stream write"):
        with suppress(InvalidRequest):
            options.check_use(use)


def spark_options_seeds() -> list[bytes]:
    """One of each, and what the documentation shows."""
    values = {
        "asOf": ["17", '{"0": 17, "1": 4}', "2026-11-22T12:00:00+01:00"],
        "startingOffsets": ["full", '{"0": 17}', "latest"],
        "startingTimestamp": ["1700000000000"],
        "endingOffsets": ['{"0": 99}', "latest"],
        "endingTimestamp": ["-5"],
        "columns": ["a, b"],
        "maxOffsetsPerTrigger": ["100"],
        "failOnDataLoss": ["FALSE"],
        "pushFilters": ["true"],
        "filter": ["n > 3"],
        "consumer": ["c"],
        "txnId": ["ü"],
        "writer": ["w"],
        "takeover": ["true"],
    }
    assert set(values) == set(NAMES) - {"path", "table"}
    places = ("/a/store", "file:///a", "s3://bucket/x", "file://elsewhere/x")
    seeds = [f"path\0{place}\0table\0t$changelog\0startingOffsets\0earliest" for place in places]
    for name, texts in values.items():
        kind = "$binlog" if name.startswith(("starting", "ending", "filter")) else ""
        seeds += [f"path\0/a\0table\0t{kind}\0{name}\0{text}" for text in texts]
    return [seed.encode() for seed in seeds]


def _text(data: bytes) -> str:
    """Any text that Python may hold: lone surrogates too."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape")


def names(data: bytes) -> None:
    """Names that users choose: what is accepted can be shown and stored, and is never a path."""
    text = _text(data)
    for accepts in (table_name, consumer_name, lambda given: printable("name", given, 255)):
        with suppress(InvalidRequest):
            name = accepts(text)
            assert name == text
            assert 1 <= len(name.encode()) <= 255, "it can be written as UTF-8"
            assert name.isprintable()
            assert not set(name) & set("\0\n\r\x1b")


def names_seeds() -> list[bytes]:
    """Names that have been trouble elsewhere."""
    return [
        *(b"t", b"..", b"../x", b"a/b", b"CON", b"nul.txt", b"\xed\xa0\x80", b"\xff", b"a\nb", b"a\0b", b"t$changelog"),
        *("ﬁ".encode(), "é".encode(), "e\u0301".encode(), "\u202egnp".encode(), b"x" * 255, b"x" * 256, b" ", b""),
    ]


def file_names(data: bytes) -> None:
    """Names of files in a store: what is taken for one of ours is one that we make, and lies where it should."""
    name = data.decode("utf-8", "surrogateescape")
    found = {
        paths.segment_base: lambda number: paths.segment_file(_STORE, Offset(number)),
        paths.sparse_index_base: lambda number: paths.sparse_index_file(_STORE, Offset(number)),
        paths.writers_base: lambda number: paths.writers_file(_STORE, Offset(number)),
        paths.snapshot_offset: lambda number: paths.snapshot_directory(_STORE, Offset(number)),
        paths.image_txid: lambda number: paths.image_file(_STORE, Txid(number)),
        paths.repair_number: lambda number: paths.repair_directory(_STORE, number),
    }
    for number_in, path_of in found.items():
        number = number_in(name)
        assert number is None or path_of(number).name == name, number_in.__name__
    with suppress(CorruptImage):
        staged = paths.staged_file(_STORE, name)
        assert Path(os.path.normpath(staged)).parent == _STORE / paths.STAGING, "it leads out of its directory"
    commit = paths.staged_commit(name, TableId(7))
    assert commit is None or paths.staged_file(_STORE, commit).name == name


def file_names_seeds() -> list[bytes]:
    """One of each, and others that look like it."""
    made = ["0" * 20 + suffix for suffix in (".log", ".index", ".writers", "")]
    made += ["image." + "1" * 20, "repair." + "9" * 20, "7-" + "a" * 32 + ".batches", "7-" + "0" * 32]
    return [each.encode() for each in [*made, "٠" * 20 + ".log", "0" * 20 + ".log\n", "../" + "0" * 20, "..", "a/../b"]]

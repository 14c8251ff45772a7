"""Targets about the catalog: sequences of edits, images, and the small files beside them."""

from __future__ import annotations

import io
import re
from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from kvstore.checkpoint import messages
from kvstore.checkpoint.process import error_of
from kvstore.errors import CorruptData, InvalidRequest
from kvstore.meta import image
from kvstore.meta.state import CatalogState
from logformat import paths
from logformat.catalog import edits, following_file, store_file
from logformat.catalog.image import ITEMS, Reader, counts_of
from logformat.catalog.replicas import Shipped
from logformat.ids import Epoch
from logformat.log import snapshot_manifest
from logformat.replica import follower_status, manifest as replica_manifest
from tests.fuzz import golden, seal
from tests.support.filled import Filler

STORE = UUID(int=5)
_LINE = re.compile(rb"(\d{1,5})@(\d{1,3}) (.*)", re.DOTALL)
_SUM = re.compile(rb',"crc32c":\d+\}\n?$')


def edits_in_order(data: bytes) -> None:
    """Edits of a journal, whose checksums and txids are right: lines of ``<op>@<epoch> <payload>``.

    What is refused is left out, as if a hostile leader tried again; what is left comes back from an image.
    """
    state = CatalogState()
    for line in data.split(b"\n"):
        found = _LINE.fullmatch(line)
        if found is None or int(found[1]) >= 2**16:
            continue
        written = seal.edit(int(found[1]), state.txid + 1, found[3], epoch=int(found[2]))
        try:
            edit = edits.decode(written)
            following = state.after(edit)
        except CorruptData:
            continue
        except InvalidRequest as error:
            raise AssertionError("a wrong call is no word for a damaged catalog") from error
        assert state.after(edit).is_same(following)
        assert following.after(edit) is following, "an edit that is there changes nothing"
        state = following
        state.lacks(edit.payload)
    _same_from_an_image(state)


def _same_from_an_image(state: CatalogState) -> None:
    made = image.image_of(state, STORE, epoch=Epoch(1), now_ms=1)
    data = b"".join(image.encode_image(made.head, image.items_of(state)))
    assert _state_in(data).is_same(state)


def _state_in(data: bytes) -> CatalogState:
    reader = Reader(io.BytesIO(data).read, len(data))
    return image.state_of(reader.head, reader.items())


def edits_seeds() -> list[bytes]:
    """Every kind of edit, with every field filled; and those of the golden replica."""
    every = [b"%d@0 %b" % (op, msgspec.json.encode(_filled(kind))) for op, kind in sorted(edits.PAYLOADS.items())]
    groups = [every[:11], every[11:17], [every[0], *every[17:]], [every[0], every[8], every[9]], every]
    return [b"\n".join(group) for group in groups] + [b"\n".join([every[0], each]) for each in every]


def _filled(kind: type[edits.Payload]) -> edits.Payload:
    values = {field.name: Filler().of(field.type) for field in msgspec.structs.fields(kind)}
    if "columns" in values:
        values["columns"] = COLUMNS
    return kind(**values)


_K: dict[str, Any] = {"name": "k", "type": "string", "nullable": False}
_V: dict[str, Any] = {"name": "v", "type": "int64", "nullable": True}
COLUMNS: list[dict[str, Any]] = [
    _K,
    {"name": "d", "type": {"decimal128": [10, 2]}, "nullable": True},
    {"name": "f", "type": {"fixed_size_binary": 4}, "nullable": True},
    {"name": "m", "type": {"map": [_K, _V]}, "nullable": True},
    {"name": "l", "type": {"list": {"name": "s", "type": {"struct": [_K, _V]}, "nullable": True}}, "nullable": True},
]


def catalog_image(data: bytes) -> None:
    """An image, raw or as lines of JSON whose checksums are made right; what is read of one can be written as one."""
    whole = data[1:] if data[:1] == b"r" else seal.image(data[1:].split(b"\n"))
    try:
        state = _state_in(whole)
    except InvalidRequest as error:
        raise AssertionError("a wrong call is no word for a damaged image") from error
    _same_from_an_image(state)


def image_seeds() -> list[bytes]:
    """Those of the golden store, and one in which every field is filled."""
    state: CatalogState = Filler().of(CatalogState)
    made = image.image_of(state, STORE, epoch=Epoch(3), now_ms=5)
    assert all(counts_of(image.items_of(state)).values())
    assert len(ITEMS) == len(made.head.counts)
    bodies = [msgspec.json.encode(each) for each in (made.head, *image.items_of(state))]
    whole = [data for name, data in sorted(golden.files("store").items()) if name.startswith("meta/image/image")]
    lines = [b"\n".join(_bodies(data)) for data in whole]
    return [b"r" + whole[0], *(b"j" + each for each in lines), b"j" + b"\n".join(bodies)]


def _bodies(data: bytes) -> list[bytes]:
    """JSON of the records of an image, but for the foot."""
    found, place = [], 0
    while place < len(data):
        length = int.from_bytes(data[place : place + 4], "little")
        found.append(data[place + 8 : place + 8 + length])
        place += 8 + length
    return found[:-1]


def small_files(data: bytes) -> None:
    """STORE, FOLLOWING, TOLD, what a follower says of itself, a snapshot's manifest and writers; checksums right."""
    kind, body = data[:1], data[1:]
    written = seal.line(body)
    if kind == b"S":
        store_file.decode(written)
    elif kind == b"F":
        following = following_file.decode(written)
        assert following_file.decode(following_file.encode(following)) == following
    elif kind == b"T":
        replica_manifest.decode(written, STORE)
    elif kind == b"f":
        follower_status.decode(written)
    elif kind == b"M":
        snapshot_manifest.decode_manifest(written)
    elif kind == b"m":
        snapshot_manifest.decode_manifest(body)
    elif kind == b"W":
        found = snapshot_manifest.decode_writers(body)
        assert snapshot_manifest.decode_writers(snapshot_manifest.encode_writers(found)) == found
    else:
        with suppress(msgspec.DecodeError):  # as they are documented to say it
            if kind == b"a":
                messages.decode_task(body.decode("utf-8", "replace"))
            elif isinstance(answer := messages.decode_answer(body), messages.Refused):
                assert error_of(answer).message == answer.message


def small_files_seeds() -> list[bytes]:
    """One of each."""
    store = golden.files("store")
    manifest = replica_manifest.ReplicaManifest(
        store_id=STORE, leader_epoch=Epoch(0), as_of_ms=1, shipped=Filler().of(list[Shipped])
    )
    sealed = {
        b"S": store[paths.STORE_FILE],
        b"F": following_file.encode(replace(Filler().of(following_file.FollowingFile), format=following_file.FORMAT)),
        b"T": replica_manifest.encode(manifest),
        b"f": follower_status.encode(
            replace(Filler().of(follower_status.FollowerStatus), format=follower_status.FORMAT)
        ),
        b"M": golden.ending("store", "manifest.json")[0],
    }
    plain = {
        b"m": golden.ending("store", "manifest.json")[0],
        b"W": golden.ending("store", "writers.json")[0],
        b"A": messages.encode(Filler().of(messages.Done)),
        b"R": messages.encode(Filler().of(messages.Refused)),
        b"a": messages.encode(Filler().of(messages.Task)),
    }
    lines = [kind + _SUM.sub(b"", data) for kind, data in sealed.items()]
    return [*lines, *(kind + data for kind, data in plain.items())]

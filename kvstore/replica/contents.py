"""Decodes the parts of objects: consecutive batches or edits, the files of a snapshot, or an image.

Data from a replica may be malicious. A part is used only after verification: its checksum is right, it follows the part
before it, and it belongs to the stream of the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from uuid import UUID

from kvstore.errors import CorruptData
from logformat import paths
from logformat.catalog import edits
from logformat.catalog.edits import Edit
from logformat.catalog.image import Reader
from logformat.catalog.replicas import CATALOG
from logformat.checksum import crc32c
from logformat.ids import Txid
from logformat.log.batch import BatchHeader, decode_header, verify
from logformat.log.snapshot_manifest import FileSum, decode_manifest
from logformat.replica.object_file import FoundObject, ObjectName

_FILES = (paths.SNAPSHOT_WRITERS, paths.SNAPSHOT_ROWS)
"""Files of a bucket's snapshot after its manifest, in order."""


def batches(found: FoundObject) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Decode and verify the batches of a range.

    Raises:
        CorruptData: A batch is damaged, belongs to another bucket, or does not follow the batch before it.
    """
    name = found.name
    expected = name.start
    for part in found.parts:
        header = decode_header(part)
        verify(header, part)
        if header.size != len(part) or (header.table_id, header.bucket_id) != (
            name.stream.table_id,
            name.stream.bucket,
        ):
            raise CorruptData("An object has a batch that does not belong to it.", object=str(name))
        if header.base_offset != expected:
            raise CorruptData(
                "A batch of an object does not follow the batch before it.", object=str(name), offset=expected
            )
        yield header, part
        expected = header.next_offset
    if expected != name.end:
        raise CorruptData("The end of an object is not the one in its name.", object=str(name), offset=expected)


def batches_along(objects: Iterable[tuple[FoundObject, int]], start: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Batches of consecutive ranges, each once.

    Args:
        objects: Ranges in order, each with the offset up to which it is used.
        start: Base offset of the first batch, which is in the first range.

    Raises:
        CorruptData: The ranges are not consecutive; also see :func:`batches`.
    """
    at = start
    for found, until in objects:
        for header, data in batches(found):
            if header.next_offset > until:
                break
            if header.base_offset > at or header.base_offset < at < header.next_offset:
                raise CorruptData("Ranges of a replica contradict each other.", object=str(found.name), offset=at)
            if header.base_offset == at:
                yield header, data
                at = header.next_offset


def edits_of(found: FoundObject) -> Iterator[Edit]:
    """Decode the edits of a range of the catalog.

    Raises:
        CorruptData: An edit is damaged, or does not follow the edit before it.
        UnsupportedVersion: A newer version wrote one.
    """
    name = found.name
    txid = Txid(name.start)
    for part in found.parts:
        edit = edits.decode(bytes(part))
        txid = Txid(txid + 1)
        if edit.txid != txid:
            raise CorruptData("An edit of an object does not follow the edit before it.", object=str(name), txid=txid)
        yield edit
    if txid != name.end:
        raise CorruptData("The end of an object is not the one in its name.", object=str(name), txid=txid)


def verify_parts(found: FoundObject, store_id: UUID) -> None:
    """Verify that the content of an object matches its name.

    Raises:
        CorruptData: It does not.
        UnsupportedVersion: A newer version wrote a part of it.
    """
    if found.name.kind == "snapshot":
        parts = snapshot_parts(found)
        if found.name.stream == CATALOG:
            _verify_image(found.name, parts[0], store_id)
        else:
            _verify_snapshot(found.name, parts, store_id)
        return
    checked: Iterator[object] = edits_of(found) if found.name.stream == CATALOG else batches(found)
    for _ in checked:
        pass


def _verify_image(name: ObjectName, data: memoryview, store_id: UUID) -> None:
    reader = Reader(BytesIO(data).read, len(data))
    for _ in reader.items():
        pass
    if (reader.head.store_id, reader.head.txid) != (store_id, name.start):
        raise CorruptData("The image in an object is not the one in its name.", object=str(name), txid=reader.head.txid)


def _verify_snapshot(name: ObjectName, parts: list[memoryview], store_id: UUID) -> None:
    manifest = decode_manifest(bytes(parts[0]))
    sums = {file: FileSum(bytes=len(data), crc32c=crc32c(data)) for file, data in zip(_FILES, parts[1:], strict=True)}
    of = manifest.store_id, manifest.table_id, manifest.bucket_id, manifest.applied_offset
    if of != (store_id, name.stream.table_id, name.stream.bucket, name.start) or manifest.files != sums:
        raise CorruptData("The snapshot in an object is not the one in its name, or is not complete.", object=str(name))


def snapshot_parts(found: FoundObject) -> list[memoryview]:
    """The files of a bucket's snapshot (manifest, writers, rows), or the image of a catalog.

    Raises:
        CorruptData: The number of parts is wrong.
    """
    expected = 1 if found.name.stream == CATALOG else 3
    if len(found.parts) != expected:
        raise CorruptData("A snapshot has the wrong number of files.", object=str(found.name), files=len(found.parts))
    return found.parts

"""The file of a patch (docs/format.md, Patch file): text for people, then the rows as an Arrow stream.

The first line has the length of both parts and a checksum of them: what was reviewed is what is applied.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pyarrow as pa

from kvstore.disk.files import Files, read_file, refusals
from kvstore.errors import CorruptData, InvalidRequest, UnsupportedVersion
from kvstore.patch.contents import VERSION, Contents, Header
from logformat.checksum import crc32c

PATCH_BYTES_MAX = 1 << 31
_FIRST_LINE = re.compile(rb"kvstore patch (\d{1,9}) ([0-9a-f]{8}) (\d{1,12}) (\d{1,12})\n")
_HEADER = b"kvstore.patch"
_COLUMNS = ("what", "before", "after")


def encode(contents: Contents) -> bytes:
    """The bytes of a patch's file."""
    sink = pa.BufferOutputStream()
    schema = contents.rows.schema.with_metadata({_HEADER: msgspec.json.encode(contents.header)})
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(contents.rows)
    text, rows = contents.text().encode("utf-8", "backslashreplace"), sink.getvalue().to_pybytes()
    head = f"kvstore patch {VERSION} {crc32c(rows, crc32c(text)):08x} {len(text)} {len(rows)}\n"
    return b"".join((head.encode(), text, rows))


def decode(data: bytes, path: Path) -> Contents:
    """The patch in the bytes of a file.

    Raises:
        CorruptData: It is no patch, or it was changed.
        UnsupportedVersion: A newer version of kvstore wrote it.
    """
    head = _FIRST_LINE.match(data)
    if head is None:
        raise CorruptData("The file is no patch of kvstore.", path=path)
    version, text, rows = int(head[1]), int(head[3]), int(head[4])
    if version > VERSION:
        raise UnsupportedVersion("A newer version of kvstore wrote this patch.", path=path, version=version)
    body = memoryview(data)[head.end() :]
    if len(body) != text + rows or f"{crc32c(body):08x}".encode() != head[2]:
        raise CorruptData(
            "The file of a patch was changed or is cut short; copy it again as binary data, or make the patch again.",
            path=path,
        )
    try:
        with pa.ipc.open_stream(body[text:]) as stream:
            content = stream.read_all().combine_chunks()
        header = msgspec.json.decode((content.schema.metadata or {}).get(_HEADER, b""), type=Header)
        content.validate(full=True)
    except (pa.ArrowException, msgspec.MsgspecError, OSError, ValueError) as error:
        raise CorruptData("The file of a patch can't be decoded; make the patch again.", path=path) from error
    if tuple(content.schema.names) != _COLUMNS:
        raise CorruptData("The file of a patch has other columns than a patch; make it again.", path=path)
    schema, batches = content.schema.remove_metadata(), content.to_batches()
    rows_found = batches[0] if batches else pa.RecordBatch.from_pylist([], schema)
    return Contents(header, rows_found.replace_schema_metadata(None))


def write(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write the file, in place of one that is there.

    Raises:
        InvalidRequest: The path is a directory, its directory does not exist, or the patch takes more than 2 GiB.
        StoreFull, LogFailed: The disk is full, or refuses.
    """
    target = Path(path)
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise InvalidRequest("A patch is saved in a file of a directory that exists.", path=target)
    data = encode(contents)
    if len(data) > PATCH_BYTES_MAX:
        raise InvalidRequest(
            "The patch is too large for a file; undo in parts.", bytes=len(data), limit=PATCH_BYTES_MAX
        )
    with refusals(target):
        Files().publish(target, data)


def read(path: str | os.PathLike[str]) -> Contents:
    """Read the file.

    Raises:
        InvalidRequest: There is no such file.
        CorruptData, UnsupportedVersion: See :func:`decode`.
    """
    target = Path(path)
    try:
        data = read_file(target, bytes_max=PATCH_BYTES_MAX)
    except OSError as error:
        raise InvalidRequest("The file of a patch can't be read.", path=target, reason=error.strerror) from error
    return decode(data, target)

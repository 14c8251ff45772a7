"""A changed bit of anything that is stored with a checksum is found by what reads it.

``test_bit_flips`` asks a whole store, LMDB too, which takes long; here one reader is asked, so that all bits of more
files can be: segments, writers, sparse indexes, journal entries, images, snapshots, STORE, FOLLOWING, a replica.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from logformat.log import batch
from tests.crash import formats
from tests.fuzz.runner import ROOT, Held
from tests.support.proof import Proves

KINDS = {
    *("segment", "sparse index", "writers", "journal", "index", "image", "snapshot", "STORE", "FOLLOWING", "TOLD"),
    *("follower", "replica object"),
}


def tried(path: Path, how: str, *, step: int) -> int:
    """How many damages of a kind were tried, and found."""
    start = secrets.randbelow(step)
    command = [sys.executable, "-m", "tests.crash.formats", path, how, str(step), str(start)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = Held(path).shown() if done.returncode else ""
    assert not done.returncode, f"{done.returncode} after {last}\n{done.stderr[-3_000:]}"
    return int(done.stdout.split()[-1])


def test_every_kind_of_file_is_there() -> None:
    assert {each.kind for each in formats.every()} == KINDS


def test_some_of_everything(tmp_path: Path) -> None:
    assert tried(tmp_path / "input", ",".join(formats.DAMAGES), step=499) > 3_000


@pytest.mark.long
def test_many_bits_of_every_file(tmp_path: Path, proves: Proves) -> None:
    proves("bits flipped", tried(tmp_path / "input", "bits", step=41))


@pytest.mark.nightly
def test_every_bit_of_every_file(tmp_path: Path, proves: Proves) -> None:
    proves("bits flipped", tried(tmp_path / "input", "bits", step=1))


@pytest.mark.long
@pytest.mark.nightly
def test_every_byte_that_is_set_length_that_is_cut_and_block_that_is_swapped(tmp_path: Path) -> None:
    assert tried(tmp_path / "input", "bytes,cuts,swaps", step=1) > 300_000


def test_a_checksum_that_leaves_something_out_is_found() -> None:
    """Planted: a checksum of the header alone, so that rows are believed as they are."""

    def of_the_header(data: memoryview, magic: int) -> int:
        return batch.crc32c(data[20 : batch.LAYOUTS[magic].size], batch.crc32c(data[:16]))

    stored = next(each for each in formats.every() if each.kind == "segment" and "from" in each.name)
    header = batch.decode_header(stored.data)
    with patch.object(batch, "checksum", of_the_header):
        whole = bytearray(stored.data)
        whole[16:20] = of_the_header(memoryview(whole), header.magic).to_bytes(4, "little")
        planted = formats.Stored(stored.kind, stored.name, bytes(whole), stored.read)
        assert formats.is_found(planted, changed(planted.data, 30))
        assert not formats.is_found(planted, changed(planted.data, 200))
    assert formats.is_found(stored, changed(stored.data, 200))


def changed(data: bytes, at: int) -> bytes:
    """With one bit of a byte changed."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

"""docs/format.md and docs/types.md as tests read them: sections, tables, dumps, and the checksums they describe."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from logformat import checksum, paths
from logformat.binary_column import BinaryColumn
from logformat.ids import Offset, SchemaId, WriterId
from logformat.log import batch
from logformat.rows.rows import RowCodec

ROOT = Path(__file__).parents[1]
LETTERS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q", "i64": "q"}
LETTERS |= {"char": "s", "bytes": "s", "zero": "x"}


# Reading the documents


@dataclass(frozen=True)
class Field:
    """One line of a table of fields."""

    position: int
    size: int
    letter: str
    name: str
    example: str

    def in_bytes(self, data: bytes) -> int | bytes:
        code = f"<{self.size}s" if self.letter in "sx" else f"<{self.letter}"
        value: int | bytes = struct.unpack_from(code, data, self.position)[0]
        return value

    def in_example(self) -> int | bytes:
        text = self.example.strip("`")
        if self.letter == "s":
            return bytes.fromhex(text) if self.size == 16 else text.encode()
        return int(text, 0).to_bytes(self.size, "little") if self.letter == "x" else int(text, 0)


class Document:
    """A page, by its headings."""

    def __init__(self, name: str) -> None:
        self.text = (ROOT / "docs" / name).read_text()
        parts = re.split(r"^#+ (.+)\n", self.text, flags=re.MULTILINE)
        self.sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        assert len(self.sections) == len(parts) // 2, "a heading stands there twice"
        self.prose = re.sub(r"\s+", " ", self.text)

    def tables(self, heading: str) -> list[list[list[str]]]:
        """Every table of a section, cells as text, without the head."""
        text = re.sub(r"^```.*?^```", "", self.sections[heading], flags=re.MULTILINE | re.DOTALL)
        found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
        lines = [table.splitlines()[2:] for table in found]
        return [[[cell.strip() for cell in line.strip("|").split("|")] for line in table] for table in lines]

    def fields(self, heading: str) -> list[Field]:
        fields = []
        for position, size, kind, name, example, _ in self.tables(heading)[0]:
            plain_kind, _, count = kind.strip("]").partition("[")
            assert count in ("", size)
            fields.append(Field(int(position), int(size), LETTERS[plain_kind], name, example))
        return fields

    def blocks(self, heading: str, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```", self.sections[heading], re.MULTILINE | re.DOTALL)

    def dump(self, name: str) -> bytes:
        return b"".join(data for data, _ in self.regions(name))

    def regions(self, name: str) -> list[tuple[bytes, str]]:
        """Bytes of a dump with the comment on them."""
        (block,) = re.findall(rf"^```hex {name}\n(.*?)^```", self.text, re.MULTILINE | re.DOTALL)
        found: list[tuple[bytes, str]] = []
        length = 0
        for line in block.splitlines():
            found_line = re.fullmatch(r"([0-9a-f]{4})  ([0-9a-f ]+?) *(?:; (.*))?", line)
            assert found_line is not None, line
            place, data, comment = found_line.groups("")
            assert int(place, 16) == length, line
            length += len(bytes.fromhex(data))
            if comment or not found:
                found.append((bytes.fromhex(data), comment))
            else:
                found[-1] = (found[-1][0] + bytes.fromhex(data), found[-1][1])
        return found


FORMAT, TYPES = Document("format.md"), Document("types.md")


def plain(cell: str) -> str:
    return cell.strip("`")


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"(?<![\w.])-?\d+(?![\w.])", text)]


def names_in(cell: str) -> list[str]:
    return cell.split(", ") if cell else []


# Things stored

WRITER = WriterId(5)
PEOPLE = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])
OTHERS = pa.schema([("name", pa.string()), ("age", pa.int16()), ("ok", pa.bool_())])
ROW_CODEC = RowCodec({SchemaId(1): OTHERS})
ROW_KEY = bytes.fromhex("02 80 00 00 00 00 00 00 05")
KEY_SUMS = checksum.key_sums(BinaryColumn.from_list([ROW_KEY]))


def parts_of(formats: str) -> Iterator[tuple[int, int, str]]:
    """Position, size and letter of each part of a struct format."""
    for found in re.finditer(r"\d*[a-zA-Z]", formats):
        size = struct.calcsize("<" + found[0])
        yield struct.calcsize(formats[: found.end()]) - size, size, found[0][-1]


@lru_cache
def covered(heading: str) -> Callable[[bytes], tuple[int, bytes]]:
    """From a thing stored, the checksum in it and the bytes it covers, as the document says."""
    (said,) = re.findall(r"Checksum `crc`(.*?)\.\n", FORMAT.sections[heading])
    if said == ", the last 4 bytes: all bytes before it":
        return lambda data: (struct.unpack("<I", data[-4:])[0], data[:-4])
    before = b""
    if said.startswith(": the writer id as `i64`, then "):
        before = struct.pack("<q", WRITER)
        said = ": " + said.removeprefix(": the writer id as `i64`, then ")
    ranges = re.fullmatch(r": bytes (\d+–(?:\d+|end)(?: and \d+–(?:\d+|end))*)", said)
    assert ranges is not None, said
    bounds = [part.split("–") for part in ranges[1].split(" and ")]
    (field,) = (field for field in FORMAT.fields(heading) if field.name == "crc")

    def cover(data: bytes) -> tuple[int, bytes]:
        parts = (data[int(first) : None if last == "end" else int(last) + 1] for first, last in bounds)
        return int(field.in_bytes(data)), before + b"".join(parts)

    return cover


MAGIC_3 = batch.LAYOUTS[batch.MAGIC]
DIGITS = len(paths.segment_file(Path(), Offset(0)).stem)


class Arithmetic:
    """Row hashes, computed with nothing but the constants in the document."""

    def __init__(self) -> None:
        (text,) = FORMAT.blocks("Row checksum", "text")
        self.shifts = [int(shift) for shift in re.findall(r"z >> (\d+)", text)]
        self.factors = [int(factor, 16) for factor in re.findall(r"\)\) \* (0x\w+)$", text, re.MULTILINE)]
        (self.golden,) = (int(value, 16) for value in re.findall(r"^G += (0x\w+)", text, re.MULTILINE))
        self.seeds = {name: int(seed, 16) for name, seed in re.findall(r"^([VK])\[i\] = mix\((0x\w+) \+", text, re.M)}
        assert f"checksum = hash modulo 2^{8 * FORMAT.fields('Row')[0].size}" in text

    def mix(self, z: int) -> int:
        for shift, factor in zip(self.shifts, [*self.factors, 1], strict=True):
            z = (z ^ (z >> shift)) * factor % 2**64
        return z

    def weight(self, kind: str, place: int) -> int:
        return self.mix((self.seeds[kind] + (place + 1) * self.golden) % 2**64) | 1

    def sum(self, kind: str, data: bytes) -> int:
        padded = data + bytes(-len(data) % 8)
        words: list[int] = [word for (word,) in struct.iter_unpack("<Q", padded)]
        return sum(word * self.weight(kind, place) for place, word in enumerate(words)) % 2**64

    def sums(self, key: bytes, value: bytes) -> tuple[int, int, int]:
        """Of a key, of a value whose checksum is taken out, and the hash of both."""
        key_sum = (self.sum("K", key) + len(key) * self.golden) % 2**64
        value_sum = self.sum("V", bytes(4) + value[4:])
        return key_sum, value_sum, self.mix((key_sum + value_sum) % 2**64)

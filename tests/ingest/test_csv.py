"""Rows of CSV, as Python's own reader has them; a file that ends within quotes is refused."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st

import kvstore
from kvstore.errors import SchemaMismatch, StoreError
from kvstore.ingest import formats
from tests.cli.commands import run

TEXTS = st.text(st.sampled_from('a",\n \r'), max_size=4)


def read(
    data: bytes, columns: int, most: Callable[[int], int] = lambda size: size
) -> tuple[list[list[str]], list[int]]:
    """The rows that can be parsed, and the numbers of the others."""

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(most(-1 if size is None else size))

    broken: list[int] = []
    schema = pa.schema([(f"c{number}", pa.string()) for number in range(columns)])
    rows = []
    for count, part in formats.reader_of(formats.Format.CSV).portions(
        Slow(data), schema, lambda row, _: broken.append(row)
    ):
        rows += [["" if cell is None else cell for cell in row.values()] for row in part(0, count).to_pylist()]
    return rows, broken


@given(st.data())
@example(None)
def test_a_file_has_the_rows_that_python_reads_wherever_it_is_cut(data: st.DataObject | None) -> None:
    rows, columns, cut, slow = [["a", '"\n']], 2, 9, False
    if data is not None:
        columns = data.draw(st.integers(1, 3))
        rows = data.draw(st.lists(st.lists(TEXTS, min_size=columns, max_size=columns), max_size=4))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([f"c{number}" for number in range(columns)])
    header = len(text.getvalue())
    writer.writerows(rows)
    if data is not None:
        cut = data.draw(st.integers(header - 1, len(text.getvalue())))
        slow = data.draw(st.booleans())
    written = text.getvalue()[:cut]
    most = (lambda size: min(size, 3)) if slow else (lambda size: size)
    try:
        _, *known = csv.reader(io.StringIO(written, newline=""), strict=True)
    except csv.Error:
        with pytest.raises(pa.ArrowInvalid, match="ends within a cell in quotes"):
            read(written.encode(), columns, most)
        return
    known = [row for row in known if row]  # empty lines are no rows
    found, broken = read(written.encode(), columns, most)
    assert found == [row for row in known if len(row) == columns]
    assert broken == [number for number, row in enumerate(known, 1) if len(row) != columns]


def test_a_file_that_ends_within_quotes_loads_nothing(tmp_path: Path) -> None:
    file = tmp_path / "in" / "f.csv"
    file.parent.mkdir()
    file.write_text('k,s\n1,x\n2,"y\n3,z\n')
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", {"k": "int64", "s": "string"}, "k")
        job = store.create_job("j", source=str(file.parent), format="csv", table="t", max_filter_ratio=1.0)
        with pytest.raises(StoreError, match=r"last row \(2\) ends within a cell in quotes"):
            job.run()
        assert table.count() == 0
        file.write_text('k,s\n1,x\n2,"y"\n3,z')
        job.resume()
        job.run()
        assert table.count() == 3
    with pytest.raises(SchemaMismatch):  # its column is called " "
        read(b" \n \n", 1)
    file.write_text('k,s\n4,"')
    done = run("load", tmp_path / "store", "t", file)
    assert done.code == 2
    assert "last row (1) ends within a cell in quotes" in done.err

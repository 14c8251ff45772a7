from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from logformat import paths
from logformat.errors import CorruptImage
from logformat.ids import BucketId, Offset, TableId

OFFSETS = st.integers(0, 2**63 - 1).map(Offset)


@given(OFFSETS)
def test_a_segments_name_gives_its_base_offset(base: Offset) -> None:
    assert paths.segment_base(paths.segment_file(Path("log"), base).name) == base
    assert paths.writers_base(paths.writers_file(Path("log"), base).name) == base


@given(st.sets(OFFSETS))
def test_names_of_segments_sort_by_offset(bases: set[Offset]) -> None:
    names = sorted(paths.segment_file(Path("log"), base).name for base in bases)
    assert [paths.segment_base(name) for name in names] == sorted(bases)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "log",
        "1.log",
        f"{7:020d}.index",
        f"{7:020d}.writers",
        f"{7:020d}.log.tmp",
        f"{7:021d}.log",
        f"-{7:019d}.log",
    ],
)
def test_other_names_are_not_segments(name: str) -> None:
    assert paths.segment_base(name) is None


@pytest.mark.parametrize("name", ["7.writers", f"{7:020d}.log", f"{7:020d}.writers.tmp", f"{7:021d}.writers"])
def test_other_names_are_not_files_of_writers(name: str) -> None:
    assert paths.writers_base(name) is None


def test_paths_are_frozen() -> None:
    bucket = paths.bucket_directory(Path("store"), TableId(12), BucketId(3))
    assert bucket == Path("store/tables/12/3")
    assert paths.segment_file(bucket, Offset(7)) == bucket / "00000000000000000007.log"
    assert paths.sparse_index_file(bucket, Offset(7)) == bucket / "00000000000000000007.index"
    assert paths.writers_file(bucket, Offset(7)) == bucket / "00000000000000000007.writers"


@pytest.mark.parametrize("name", ["٠" * 20 + ".log", "0" * 19 + "٣.log"])
def test_digits_of_other_scripts_do_not_name_segments(name: str) -> None:
    """Otherwise a file would be taken for another one, which does not exist."""
    assert paths.segment_base(name) is None


@pytest.mark.parametrize("commit_id", ["", "7", "../../x", f"7-{'a' * 31}", f"7-{'a' * 32}/..", f"7-{'a' * 32}\n"])
def test_an_invalid_commit_id_does_not_become_a_path(commit_id: str) -> None:
    """The catalog of a malicious replica may contain anything."""
    with pytest.raises(CorruptImage):
        paths.staged_file(Path("store"), commit_id)
    assert paths.staged_file(Path("store"), f"7-{'a' * 32}").parent == Path("store") / paths.STAGING

"""The library of the native kernel is built where there is a C compiler, and never needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.errors import UnsupportedOperation
from kvstore.kernel import build, library
from tests.support.processes import ran

ROOT = Path(__file__).parents[2]


def test_the_kernel_is_used_where_there_is_a_compiler() -> None:
    """Else all that is tried with it would be tried without."""
    is_there = library.kernel() is not None
    assert is_there == (shutil.which(build.COMPILER) is not None), "run `make setup`: the sources have changed"


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A room of the kernel with other sources, in a process that has loaded nothing."""
    monkeypatch.setattr(library, "ROOM", tmp_path)
    monkeypatch.setattr(build, "ROOM", tmp_path)
    (tmp_path / "one.c").write_text("int one(void);\nint one(void) { return 1; }\n")
    return tmp_path


def test_a_library_of_other_sources_is_replaced(room: Path) -> None:
    if shutil.which(build.COMPILER) is None:
        return
    first = build.build()
    assert first == library.library_path()
    (room / "one.c").write_text("int one(void);\nint one(void) { return 2; }\n")
    assert not library.library_path().exists()
    second = build.build()
    assert [path.name for path in room.glob("*.so")] == [second.name]


def test_sources_that_do_not_compile_leave_the_library(room: Path) -> None:
    if shutil.which(build.COMPILER) is None:
        return
    first = build.build()
    (room / "one.c").write_text("int one(void) { return x; }\n")
    with pytest.raises(UnsupportedOperation, match="does not compile"):
        build.build()
    assert {path.name for path in room.iterdir()} == {"one.c", first.name}


def test_the_sources_compile_without_a_warning(tmp_path: Path) -> None:
    if shutil.which(build.COMPILER) is None:
        return
    build.build(tmp_path / "kernel.so", ("-O0", "-Werror"))


def test_a_machine_of_another_byte_order_goes_without(tmp_path: Path) -> None:
    if shutil.which(build.COMPILER) is None:
        return
    other = "__BYTE_ORDER__"
    with pytest.raises(UnsupportedOperation, match="little-endian"):
        build.build(tmp_path / "kernel.so", (f"-U{other}", f"-D{other}=__ORDER_BIG_ENDIAN__"))


def test_without_a_compiler_the_set_up_says_so(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match=r"Without the native kernel, .*There is no C compiler"):
        build.main()
    assert list(room.glob("*.so")) == []


@pytest.mark.parametrize("path", ["/nowhere/kernel.so", "README.md"])
def test_a_library_that_can_not_be_loaded_is_none(path: str) -> None:
    program = (
        "from pathlib import Path; import sys; from kvstore.kernel import library;"
        "library.library_path = lambda: Path(sys.argv[1]);"
        "assert library.kernel() is None"
    )
    assert ran(program, ROOT / path).returncode == 0


def test_a_loaded_library_needs_no_file() -> None:
    """Another version of kvstore may have taken the place of this one."""
    program = (
        "from pathlib import Path; from kvstore.kernel import library;"
        "there = library.kernel();"
        "library.library_path = lambda: Path('nowhere.so');"
        "assert (library.row_verifier() is None) == (library.bucket_finder() is None) == (there is None);"
        "assert (library.row_hasher() is None) == (library.record_maker() is None) == (there is None)"
    )
    assert ran(program).returncode == 0


def test_importing_kvstore_does_not_load_the_kernel() -> None:
    program = "import kvstore; assert 'kernel-' not in open('/proc/self/maps').read()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)

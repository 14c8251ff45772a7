"""Every way to change a file that the recorder knows, from everywhere it may come."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from tests.proof.second.workload import MARKS, STORE


def change_everything(directory: Path) -> None:
    """Below the store's directory."""
    marks = os.open(directory / MARKS, os.O_WRONLY | os.O_APPEND)
    os.write(marks, b"begun\n")
    root = directory / STORE
    _change(root / "here")
    thread = threading.Thread(target=_change, args=(root / "thread",))
    thread.start()
    thread.join()
    if not (child := os.fork()):
        _change(root / "fork")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    program = (
        f"from pathlib import Path; from {__name__} import _change; _change(Path({os.fspath(root / 'started')!r}))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])
    os.write(marks, b"done\n")


def _change(directory: Path) -> None:
    directory.mkdir()
    here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    file = os.open("a", os.O_RDWR | os.O_CREAT | os.O_EXCL, dir_fd=here)
    os.write(file, b"written")
    os.pwrite(file, b"W", 0)
    os.pwritev(file, [b"one", b"two"], 9000)
    os.writev(file, [b" on"])
    os.fsync(file)
    os.ftruncate(file, 9001)
    os.posix_fallocate(file, 9000, 200)
    os.fdatasync(file)
    direct = os.open(directory / "a", os.O_WRONLY | os.O_DSYNC)
    os.pwrite(direct, b"direct", 3)
    end = os.open(directory / "a", os.O_WRONLY | os.O_APPEND)
    os.write(end, b"end")
    for descriptor in (file, direct, end):
        os.close(descriptor)
    os.mkdir("below", dir_fd=here)
    os.rename("a", "below/b", src_dir_fd=here, dst_dir_fd=here)
    os.link(directory / "below/b", directory / "second")
    (directory / "cut").write_bytes(b"long")
    (directory / "cut").write_bytes(b"")
    (directory / "gone").touch()
    (directory / "gone").unlink()
    (directory / "empty").mkdir()
    (directory / "empty").rmdir()
    (directory / "tree/in").mkdir(parents=True)
    (directory / "tree/in/file").touch()
    shutil.rmtree("tree", dir_fd=here)
    (directory / "cut").replace(directory / "second")
    os.fsync(here)
    os.close(here)

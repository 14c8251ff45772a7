"""Hosts whose file systems share nothing write, stream and read a shared table; one of them is lost meanwhile.

A host is a group of processes in a mount namespace of its own: all that is there may be read only, and its directories
for files are empty file systems in memory, which are gone with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

import kvstore
import kvstore.shared
from kvstore.spark.java import find_java
from tests.spark.drivers.hosts import KEYS
from tests.support.spark_drivers import ROOT, free_port, lines_until

ALONE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")
OWN_FILES = "mount -o remount,bind,ro / && mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm && exec"
WRITES = 6

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        subprocess.run([*ALONE, "sh", "-c", f"{OWN_FILES} true"], capture_output=True, check=False).returncode != 0,
        reason="needs the right to make mount namespaces",
    ),
]


@contextmanager
def on_a_host(*command: object) -> Iterator[subprocess.Popen[str]]:
    """A command on a host of its own, which ends with this."""
    deploy = {"JAVA_HOME": str(find_java()), "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    own = {"TMPDIR": "/tmp", "HOME": "/tmp", "KVSTORE_CACHE_DIR": "/tmp/cache", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*ALONE, "sh", "-c", f'{OWN_FILES} "$@"', "sh", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | deploy | own,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def spark_class(name: str, *arguments: object) -> tuple[object, ...]:
    return (Path(pyspark.__file__).parent / "bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments)


@contextmanager
def worker(master: str, host: str) -> Iterator[subprocess.Popen[str]]:
    """A worker of Spark, once it has said that it is one."""
    arguments = ("--cores", 1, "--memory", "1g", "--webui-port", free_port(), "--work-dir", "/tmp/work")
    with on_a_host(*spark_class("worker.Worker", "--host", host, *arguments, master)) as process:
        lines_with(process, "registered with master")
        yield process


def lines_with(process: subprocess.Popen[str], words: str) -> None:
    """Wait until a process says something."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if words in line:
            return
    raise AssertionError("".join(said))


def test_hosts_that_share_no_file_write_stream_and_read(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
    url, port = f"{s3_url}/tables", free_port()
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        serving = stack.enter_context(
            on_a_host(*spark_class("master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", free_port()))
        )
        lines_with(serving, "New state: ALIVE")
        stack.enter_context(worker(master, "127.0.0.1"))
        lost = stack.enter_context(worker(master, "127.0.0.2"))
        driver = stack.enter_context(on_a_host(sys.executable, "-m", "tests.spark.drivers.hosts", master, url, WRITES))
        assert lines_until(driver, "hosts")[-1].split() == ["hosts", "3", "0"]
        # A bucket's changes are applied where its copy is.
        assert lines_until(driver, "copies")[-1].split() == ["copies", "4"]
        lines_until(driver, f"writing {WRITES // 2}")
        lost.send_signal(signal.SIGKILL)
        stack.enter_context(worker(master, "127.0.0.3"))
        facts = [line.split() for line in lines_until(driver, "done")]
    rows = next(int(fact[2]) for fact in facts if fact[:2] == ["streamed", "in"])
    changes = KEYS * (2 * WRITES - 1) + rows
    sums = [str(KEYS), str(2**WRITES - 1), str(2**WRITES - 1)]
    assert ["read", *sums] in facts
    assert ["streamed", "out", str(changes)] in facts
    assert rows > 0
    assert kvstore.shared.check(url, "t")
    with kvstore.open(url, read_only=True) as opened:
        table = opened["t"]
        assert table.count() == KEYS + rows
        assert table[0]["v"] == 2**WRITES - 1
        assert sum(end for _, end in table.offsets().values()) == changes

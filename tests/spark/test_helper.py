"""The helper process: what it lets in, what it has before it forks, and when it ends."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.spark.connector.messages import Broken, Messages
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

TOKEN = "a-token"


@pytest.fixture(scope="module")
def helper() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A helper, and its socket."""
    command = [sys.executable, "-m", "kvstore.spark.connector.helper"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{TOKEN}\n")
        process.stdin.flush()
        yield process, Path(process.stdout.readline().strip())


def connected(path: Path, token: str) -> Messages:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    messages = Messages(connection)
    messages.send({"token": token})
    connection.close()  # the messages keep it open
    return messages


def test_only_its_user_comes_to_its_socket(helper: tuple[subprocess.Popen[str], Path]) -> None:
    _, path = helper
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_wrong_token_gets_no_answer(helper: tuple[subprocess.Popen[str], Path]) -> None:
    messages = connected(helper[1], "another-token")
    with pytest.raises(Broken):
        messages.receive()


def test_a_refusal_is_one_line_with_the_class_of_the_error(helper: tuple[subprocess.Popen[str], Path]) -> None:
    with connected(helper[1], TOKEN) as messages:
        assert messages.receive() == {}, "the token is right"
        for _ in range(2):
            messages.send({"do": "load", "options": {"path": "/nowhere"}})
            assert messages.receive() == {
                "error": "kvstore.errors.InvalidRequest: Option `table` is missing or empty. given=['path']"
            }


def test_a_defect_is_named_in_the_answer_and_ends_the_conversation(helper: tuple[subprocess.Popen[str], Path]) -> None:
    with connected(helper[1], TOKEN) as messages:
        messages.receive()
        messages.send({"do": "catalog"})
        answer = messages.receive()
        assert answer["error"].startswith("builtins.KeyError: 'path' (its traceback is in")
        assert answer["ends"], "or a request could come before the process has ended"
        with pytest.raises(Broken):
            messages.receive()


def test_it_has_one_thread_when_it_forks(helper: tuple[subprocess.Popen[str], Path]) -> None:
    threads = Path(f"/proc/{helper[0].pid}/task").iterdir()
    names = [(thread / "comm").read_text().strip() for thread in threads]
    # The allocator of pyarrow has one from the start, and knows of forks.
    assert len([name for name in names if name != "jemalloc_bg_thd"]) == 1


def test_what_its_processes_took_is_known_once_they_have_ended(helper: tuple[subprocess.Popen[str], Path]) -> None:
    """The system adds it to their parent's, such as CPU time; page faults are counted one by one."""

    def faults_of_ended() -> int:
        return int(Path(f"/proc/{helper[0].pid}/stat").read_text().rpartition(")")[2].split()[8])

    before = faults_of_ended()
    with pytest.raises(Broken):
        connected(helper[1], "another-token").receive()
    wait_until(lambda: faults_of_ended() > before)


def test_it_ends_with_its_input_and_takes_its_directory_and_its_processes_along(
    helper: tuple[subprocess.Popen[str], Path],
) -> None:
    process, path = helper
    waiting = connected(path, TOKEN)
    waiting.receive()
    waiting.send({"do": "load", "options": {}})
    waiting.receive()
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait() == 0
    assert not path.parent.exists()
    with pytest.raises(Broken):
        waiting.receive()

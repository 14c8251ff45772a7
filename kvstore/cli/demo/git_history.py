"""The history of a git repository as changes of its files, commit by commit."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from kvstore.errors import InvalidRequest, UnsupportedOperation
from logformat.rows.keys import KEY_BYTES_MAX

PATH_BYTES_MAX = KEY_BYTES_MAX - 2
"""Limit of a path in a key, which has a byte before and after it, and two for each byte 01."""
SHORTENED_BYTES = 200
"""Bytes of a longer path that are kept, before its hash."""
SIZES_AT_ONCE = 500
"""Blobs requested before their sizes are read: both pipes have room for more."""


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file as a commit left it; the size of a submodule is None."""

    path: str
    mode: str
    blob: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit and its changes since the previous commit of the sequence; there may be none."""

    id: str
    time: int
    author: str
    written: list[FileVersion] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)


class History(Protocol):
    """Commits that change files."""

    def commits(self) -> list[Commit]:
        """All commits, parents first, without their changes."""

    def changes(self) -> Iterator[Commit]:
        """All commits with their changes; after the nth, the tree is that of the nth commit."""

    def tree(self, commit: str) -> dict[str, tuple[str, str]]:
        """Mode and blob of every file of a commit."""


class Repository:
    """A git repository that can be replayed.

    Raises:
        InvalidRequest: The directory is not a readable git repository, has no commits, or is a shallow clone.
        UnsupportedOperation: git is not installed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if shutil.which("git") is None:
            raise UnsupportedOperation("The demo needs git, which is not on the PATH; install it.")
        answer = self._run("rev-parse", "--git-dir")
        if answer.returncode:
            raise InvalidRequest(
                "This is not a git repository that git can read; give another one with --repo.",
                path=path,
                reason=_reason(answer),
            )
        if self._run("rev-parse", "--verify", "--quiet", "HEAD").returncode:
            raise InvalidRequest("This repository has no commits yet; commit something, or give another.", path=path)
        if self._git("rev-parse", "--is-shallow-repository") == b"true\n":
            raise InvalidRequest(
                "This repository is shallow, its history is cut off; run `git fetch --unshallow` first.", path=path
            )

    def commits(self) -> list[Commit]:
        """All commits that led to HEAD, parents first, without their changes."""
        lines = self._log("%H%x00%ct%x00%an%x1e").decode("utf-8", "backslashreplace").split("\x1e\n")
        fields = (line.split("\0") for line in lines if line)
        return [Commit(id, int(time), author) for id, time, author in fields]

    def changes(self) -> Iterator[Commit]:
        """All commits with their changes; after the nth, the tree is that of the nth commit."""
        commits = self.commits()
        trees = [
            self._git("hash-object", "-t", "tree", "/dev/null").decode().strip(),
            *self._log("%T").decode().split(),
        ]
        pairs = [f"{before} {after}" for before, after in pairwise(trees)]
        differences = self._differences(pairs)
        following = next(differences, None)
        with _Sizes(self._path) as sizes:
            for commit, pair in zip(commits, pairs, strict=True):
                if following is not None and following[0] == pair:
                    written, deleted = following[1:]
                    yield Commit(commit.id, commit.time, commit.author, sizes.add_to(written), deleted)
                    following = next(differences, None)
                else:
                    yield commit

    def tree(self, commit: str) -> dict[str, tuple[str, str]]:
        """Mode and blob of every file of a commit."""
        files = {}
        for entry in self._git("ls-tree", "--full-tree", "-r", "-z", commit).split(b"\0")[:-1]:
            about, path = entry.split(b"\t", 1)
            mode, _, blob = about.decode().split(" ")
            files[_text(path)] = (mode, blob)
        return files

    def _differences(self, pairs: list[str]) -> Iterator[tuple[str, list[FileVersion], list[str]]]:
        """For each pair of trees that differ: the pair, files written, files deleted."""
        raw = self._git(
            "diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", given="\n".join(pairs).encode() + b"\n"
        )
        pair = ""
        written: list[FileVersion] = []
        deleted: list[str] = []
        tokens = iter(raw.split(b"\0")[:-1])
        for token in tokens:
            header, about = (b"", token[1:]) if token.startswith(b":") else token.rsplit(b"\n:", 1)
            if header:
                if pair:
                    yield pair, written, deleted
                # A pair of equal trees has a line, too, without any differences after it.
                pair, written, deleted = header.decode().rpartition("\n")[2], [], []
            _, mode, _, blob, status = about.decode().split(" ")
            path = _text(next(tokens))
            if status == "D":
                deleted.append(path)
            else:
                written.append(FileVersion(path, mode, blob))
        if pair:
            yield pair, written, deleted

    def _log(self, format: str) -> bytes:
        return self._git("log", "--reverse", "--topo-order", f"--format={format}")

    def _git(self, *arguments: str, given: bytes | None = None) -> bytes:
        done = self._run(*arguments, given=given)
        if done.returncode:
            raise InvalidRequest("git failed.", command=" ".join(arguments[:2]), reason=_reason(done))
        return done.stdout

    def _run(self, *arguments: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["git", "-C", self._path, *arguments], input=given, capture_output=True, env=_environment(), check=False
        )


class _Sizes:
    """Sizes of blobs, from one git process."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            ["git", "-C", path, "cat-file", "--batch-check=%(objectsize)"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
        )

    def __enter__(self) -> _Sizes:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def add_to(self, files: list[FileVersion]) -> list[FileVersion]:
        """The same files with their sizes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        sized = []
        for first in range(0, len(files), SIZES_AT_ONCE):
            some = files[first : first + SIZES_AT_ONCE]
            self._process.stdin.write("".join(f"{file.blob}\n" for file in some).encode())
            self._process.stdin.flush()
            for file in some:
                answer = self._process.stdout.readline().strip()
                size = int(answer) if answer.isdigit() else None
                sized.append(FileVersion(file.path, file.mode, file.blob, size))
        return sized


def _environment() -> dict[str, str]:
    """The environment without variables that select another repository, such as ``GIT_DIR``; configuration stays."""
    kept = ("GIT_CONFIG_", "GIT_EXEC_PATH")
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(kept)}


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join(done.stderr.decode(errors="replace").split())


def _text(path: bytes) -> str:
    """A path, which git stores as bytes, as a key; different paths have different keys.

    Nearly always the key is the path. A backslash is doubled, because a byte that is not UTF-8 becomes a backslash and
    a code; a path too long for a key becomes its beginning, one backslash, and its hash.
    """
    text = path.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    if len(text.encode()) + text.count("\1") <= PATH_BYTES_MAX:
        return text
    beginning = text.encode()[:SHORTENED_BYTES].decode("utf-8", "ignore")
    return f"{beginning}\\#{hashlib.sha256(path).hexdigest()}"

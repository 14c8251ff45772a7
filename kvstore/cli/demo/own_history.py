"""A small history that the demo replays where there is no git repository: invented, and the same each time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from random import Random

from kvstore.cli.demo.git_history import Commit, FileVersion

COMMITS = 200
_NAMES = ("readme.md", "build.sh", "main.py", "rooms/kitchen.py", "rooms/attic.py", "tests/test_main.py", "notes.txt")
_AUTHORS = ("Ada", "Grace", "Edsger")
_BEGIN = 1_577_836_800  # 2020-01-01, in seconds
_HOUR = 3600


class OwnHistory:
    """Commits that write, rewrite and remove files; every tenth changes nothing."""

    def __init__(self) -> None:
        self._commits: list[Commit] = []
        self._trees: dict[str, dict[str, tuple[str, str]]] = {}
        random, files = Random(20), dict[str, tuple[str, str]]()  # noqa: S311 - the same each time
        for number in range(COMMITS):
            written: list[FileVersion] = []
            deleted: list[str] = []
            if number % 10 != 9:
                written = [_version(random, number, random.choice(_NAMES))]
                written += [_version(random, number, f"data/{random.randrange(40)}.csv")]
                deleted = random.sample(sorted(files.keys() - {file.path for file in written}), number % 7 == 6)
            for path in deleted:
                del files[path]
            files |= {file.path: (file.mode, file.blob) for file in written}
            id = hashlib.sha1(repr((number, sorted(files.items()))).encode(), usedforsecurity=False).hexdigest()
            self._trees[id] = dict(files)
            self._commits.append(
                Commit(id, _BEGIN + number * _HOUR, random.choice(_AUTHORS), written=written, deleted=deleted)
            )

    def commits(self) -> list[Commit]:
        """All commits, without their changes."""
        return [Commit(commit.id, commit.time, commit.author) for commit in self._commits]

    def changes(self) -> Iterator[Commit]:
        """All commits with their changes."""
        return iter(self._commits)

    def tree(self, commit: str) -> dict[str, tuple[str, str]]:
        """Mode and blob of every file of a commit."""
        return self._trees[commit]


def _version(random: Random, number: int, path: str) -> FileVersion:
    text = f"{path} as of {number}\n" * random.randrange(1, 50)
    blob = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return FileVersion(path, "100755" if path.endswith(".sh") else "100644", blob, len(text))

"""Git repositories for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

IDENTITY = {
    "GIT_AUTHOR_NAME": "A. Author",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "C. Committer",
    "GIT_COMMITTER_EMAIL": "c@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", repository, *arguments], env=os.environ | IDENTITY, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(repository: Path, message: str) -> str:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(repository, "rev-parse", "HEAD")


def new_repository(path: Path) -> Path:
    path.mkdir()
    git(path, "init", "--quiet", "--initial-branch=main")
    return path


def eventful_repository(path: Path) -> Path:
    """Files added, changed, renamed, made executable and deleted; odd names; branches merged; empty commits."""
    new_repository(path)
    (path / "a").write_text("one")
    (path / "b c").write_text("two\nlines")
    (path / "é").write_text("")
    (path / os.fsdecode(b"latin\xe9")).write_text("x")
    commit(path, "add")
    commit(path, "nothing")
    (path / "a").write_text("changed")
    (path / "b c").rename(path / "d")
    (path / "d").chmod(0o755)
    commit(path, "change, rename, make executable")
    git(path, "switch", "--quiet", "--create", "side", "HEAD~1")
    (path / "side").write_text("s")
    (path / "é").unlink()
    commit(path, "on a side branch")
    git(path, "switch", "--quiet", "main")
    (path / "deep" / "er").mkdir(parents=True)
    (path / "deep" / "er" / "file").write_text("deep")
    (path / "link").symlink_to("a")
    commit(path, "deep")
    git(path, "merge", "--quiet", "--no-edit", "side")
    (path / "a").unlink()
    (path / "a").mkdir()
    (path / "a" / "now-a-directory").write_text("")
    commit(path, "a file becomes a directory")
    commit(path, "nothing again")
    return path

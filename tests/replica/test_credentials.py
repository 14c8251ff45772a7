"""A URL with credentials is refused before it is kept; what an old catalog has of that kind is never printed."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import kvstore
from kvstore.errors import InvalidRequest, StoreError
from kvstore.replica.replica import Replica
from kvstore.spark.options import Options
from logformat.catalog import following_file
from logformat.catalog.edits import AddReplica
from tests.cli.commands import run
from tests.replica.objects import SCHEMA, Objects

SECRET = "SEC-RET"
WITH_CREDENTIALS = [
    f"s3://key:{SECRET}@bucket/path",
    f"s3://{SECRET}@bucket/path",
    f"s3://key:SEC/{SECRET}@bucket/path",
    f"s3://bucket/path?aws_secret_access_key={SECRET}",
    f"https://account.blob.core.windows.net/c?sv=1&sig={SECRET}",
    f"file:///tmp/x?{SECRET}",
]


@pytest.mark.parametrize("url", WITH_CREDENTIALS)
def test_every_call_refuses_a_url_with_credentials(tmp_path: Path, url: str) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k")
        before = store.runtime.catalog().txid
        calls: list[Callable[[], object]] = [
            lambda: store.add_replica(url),
            lambda: store.add_replica(url, "r"),
            lambda: store.add_replica(str(tmp_path / "r"), url),
            lambda: store.create_job("j", source=url, format="csv", table="t"),
            lambda: kvstore.follow(url, tmp_path / "c"),
            lambda: kvstore.restore(url, tmp_path / "b"),
            lambda: kvstore.repair(tmp_path / "s", url),
        ]
        if not url.startswith("file:"):  # that is a directory for Spark, whatever is in its name
            calls.append(lambda: Options.of({"path": url, "table": "t"}))
        for call in calls:
            with pytest.raises(InvalidRequest, match="environment variables") as caught:
                call()
            assert SECRET not in "".join(traceback.format_exception(caught.value))
        assert store.runtime.catalog().txid == before
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    for command in (
        ("replica", "add", tmp_path / "s", url),
        ("replica", "follow", url, tmp_path / "c"),
        ("replica", "restore", url, tmp_path / "b"),
        ("check", tmp_path / "s", "--repair", "--from", url),
        ("job", "create", tmp_path / "s", "j", "--source", url, "--format", "csv", "--table", "t"),
    ):
        done = run(*command)
        assert done.code == 2
        assert "environment variables" in done.err
        assert SECRET not in done.out + done.err


@pytest.mark.parametrize("url", [*WITH_CREDENTIALS, f"nonsense://key:{SECRET}@bucket/path"])
def test_credentials_in_an_old_catalog_are_never_printed(tmp_path: Path, url: str) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        # As an earlier version did.
        store.runtime.journal.append(lambda _: AddReplica(name=url, url=url))
        replica = Replica(store.runtime, url, lambda: None, lambda _: objects)
        objects = Objects()
        assert replica.ship().objects
        assert replica.check()
        texts = [repr(store.replicas), repr(replica.report()), replica.name, replica.url, repr(replica)]
        texts += [repr(store.health()), repr(store.runtime.catalog())]
        if url.startswith("nonsense:"):
            texts.append(str(error_of(store.replica(replica.name).ship)))
            texts.append(str(error_of(lambda: store.replica(replica.name).check())))
        store.checkpoint()
    for command in (
        ("replica", "ls", tmp_path / "s"),
        ("meta", "ls", tmp_path / "s"),
        ("meta", "ls", tmp_path / "s", 1),
        ("meta", "show", tmp_path / "s", 2),
        ("meta", "status", tmp_path / "s"),
        ("meta", "dump", tmp_path / "s"),
        ("meta", "recover", tmp_path / "s"),
        ("check", tmp_path / "s"),
    ):
        for more in ((), ("--json",)):
            done = run(*command, *more)
            assert done.code == 0, done.err
            texts += [done.out, done.err]
    assert not [each for each in texts if SECRET in each]
    assert run("replica", "remove", tmp_path / "s", replica.name).code == 0, "the name that is shown is taken"
    with kvstore.open(tmp_path / "s") as store:
        assert not store.replicas


def error_of(call: Callable[[], object]) -> StoreError:
    with pytest.raises(StoreError) as caught:
        call()
    return caught.value


def test_two_replicas_at_one_place_are_refused(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        (tmp_path / "r").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "r")
        store.add_replica(str(tmp_path / "r"), "r")
        store.runtime.journal.append(lambda _: AddReplica(name="b", url="s3://bucket/a/path"))
        others = [
            *(str(tmp_path / "r"), f"{tmp_path}/x/../r/", (tmp_path / "r").as_uri(), str(tmp_path / "link")),
            *("s3://bucket/a/path", "S3://bucket/a/path/", "s3a://bucket/a/p%61th"),
        ]
        for other in others:
            with pytest.raises(InvalidRequest, match="There is a replica at that place"):
                store.add_replica(other, "other")
        store.add_replica(str(tmp_path / "r2"), "other")
        assert sorted(store.runtime.catalog().replicas) == ["b", "other", "r"]


def test_a_copy_of_a_url_with_credentials_still_follows(tmp_path: Path) -> None:
    """It is given without them now."""
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k")
        store.add_replica(str(tmp_path / "r"), "r").ship()
    url = (tmp_path / "r").as_uri()
    kvstore.follow(url, tmp_path / "c").close()
    following = tmp_path / "c" / "meta" / "FOLLOWING"
    was = following_file.decode(following.read_bytes())
    following.write_bytes(following_file.encode(msgspec.structs.replace(was, url=f"{url}?{SECRET}")))
    with kvstore.follow(url, tmp_path / "c") as follower:
        follower.pull()
        assert SECRET not in repr(follower.report()) + follower.url
    with pytest.raises(InvalidRequest, match="follows another") as caught:
        kvstore.follow(str(tmp_path / "q"), tmp_path / "c")
    assert SECRET not in str(caught.value)

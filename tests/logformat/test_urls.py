"""URLs as they are shown: without credentials, and otherwise unchanged."""

from __future__ import annotations

from uuid import UUID

import pytest

from logformat.catalog.edits import AddReplica
from logformat.catalog.following_file import FollowingFile
from logformat.catalog.replicas import ReplicaStatus
from logformat.errors import StoreError
from logformat.urls import shown_text, shown_url


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/path",
        "s3://bucket/in/*.csv?endpoint_override=127.0.0.1:9000&scheme=http&region=eu",
        "http://127.0.0.1:9000/bucket",
        "http://[::1]:9000/bucket",
        "file:///data/copy",
        "abfss://container@account.dfs.core.windows.net/path",
        "/data/100%?x=1@y:z",
    ],
)
def test_a_url_without_credentials_is_shown_as_it_is(url: str) -> None:
    assert shown_url(url) == url
    assert shown_text(url) == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:SECRET@bucket/path", "s3://…@bucket/path"),
        ("s3://SECRET@bucket", "s3://…@bucket"),
        ("s3://key:SEC/RET@bucket/path", "s3://…"),
        ("s3://key%3ASECRET%40bucket/path", "s3://…"),
        ("s3://a@SECRET:x@bucket/path", "s3://…@bucket/path"),
        ("s3://bucket/path?aws_secret_access_key=SECRET", "s3://bucket/path?…"),
        ("s3://bucket/path?region=eu&aws_secret_access_key=SECRET", "s3://bucket/path?region=eu&…"),
        ("s3://bucket?SECRET", "s3://bucket?…"),
        ("s3://bucket?endpoint_override=key:SECRET@host", "s3://bucket?…"),
        ("https://account.blob.core.windows.net/c?sv=1&sig=SECRET", "https://account.blob.core.windows.net/c?…"),
        ("abfss://container:SECRET@account/path", "abfss://…@account/path"),
        ("file://key:SECRET@localhost/dir", "file://…@localhost/dir"),
    ],
)
def test_credentials_are_not_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert shown_url(shown) == shown
    texts = [
        f"Error performing GET '{url}' in 3 s",
        str(StoreError("It can't be reached.", url=url, reason=f"at {url}: no")),
        repr(AddReplica(name=url, url=url)),
        repr(ReplicaStatus(url=url)),
        repr(FollowingFile(store_id=UUID(int=7), url=url, name="c")),
    ]
    assert all("SEC" not in shown_text(each) for each in texts)
    assert "SEC" not in "".join(texts[1:])

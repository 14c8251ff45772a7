"""Where shared tables are created: in an object store, or in a directory."""

from __future__ import annotations

from kvstore.arguments import shown, url_without_credentials
from kvstore.errors import InvalidRequest, UnsupportedOperation
from kvstore.replica.client import ObjectStore, directory_of, normalised
from kvstore.replica.location import is_store


def url_of_tables(url: str) -> str:
    """A URL, or a directory's path as one.

    Raises:
        InvalidRequest: It is none, or has credentials.
    """
    if not isinstance(url, str):
        raise InvalidRequest("A URL is text, such as s3://bucket/path; give that.", url=shown(url))
    return normalised(url_without_credentials("url", url))


def client_of_tables(url: str) -> ObjectStore:
    """A client of shared tables at a URL; a directory is created.

    Raises:
        InvalidRequest: The URL is not valid, or has credentials.
        UnsupportedOperation: There is a store at the URL. Nothing was written.
    """
    tables_url = url_of_tables(url)
    directory = directory_of(tables_url)
    if directory is not None and is_store(directory):
        raise UnsupportedOperation(
            "There is a store in this directory; choose another for shared tables.", url=tables_url
        )
    return ObjectStore(tables_url, create=True)

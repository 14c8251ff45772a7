"""Access to the objects of a replica, in a directory or any object store that obstore supports.

* An object is there as a whole or not at all, also after a process was killed.
* An error is named for what the caller can do, and shows no credentials.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit
from uuid import UUID

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from kvstore.disk.files import resolved
from kvstore.errors import CorruptData, InvalidRequest, Unavailable
from kvstore.process.calls import check_caller
from kvstore.replica import directory as local
from logformat import paths
from logformat.catalog import store_file
from logformat.urls import shown_url

if TYPE_CHECKING:
    from obstore.store import RetryConfig

RETRIES: RetryConfig = {"retry_timeout": dt.timedelta(seconds=15)}
"""Short, because a call that waits for an object store can't be interrupted; shipping tries again anyway."""
NO_RETRIES: RetryConfig = {"max_retries": 0, "retry_timeout": dt.timedelta(seconds=0)}
_LACKS_A_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_CODE = re.compile(r"<Code>([A-Za-z0-9_.-]{1,100})</Code>")
_NO_BUCKET = "There is no such bucket or directory; create it."
_REFUSES = (
    "This place can't be reached, or refuses; see whether the credentials and the endpoint are right, or try again."
)
_SAME_SCHEMES = {"s3a": "s3", "azure": "az", "abfs": "abfss", "adl": "az"}
_BEGIN = dt.datetime.fromtimestamp(0, dt.UTC)


class Client(Protocol):
    """The objects of one replica. A call that fails may have had its effect.

    Every method raises Unavailable if the object store can't be reached or refuses the request.
    """

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        """Name and size in bytes of objects, in no order.

        Args:
            prefix: Ends with ``/``; only names that start with it.
            after: Only names that come after it in the order of their characters.
        """

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        """All of an object.

        Args:
            bytes_max: Size limit of objects of this kind.

        Raises:
            FileNotFoundError: There is no object of this name.
            CorruptData: The object is larger than ``bytes_max``. None of its bytes were fetched.
        """

    def get_first(self, name: str, count: int) -> memoryview:
        """The first ``count`` bytes of an object that has at least as many.

        Raises:
            FileNotFoundError: There is no object of this name.
        """

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        """Create an object and return True; if there is one of this name, change nothing and return False."""

    def replace(self, name: str, pieces: Sequence[bytes | memoryview]) -> None:
        """Create an object, or replace the one of this name."""

    def delete(self, name: str) -> None:
        """Remove an object, if there is one of this name."""

    def modified_ms(self, name: str) -> int:
        """The time at which an object was written (ms), by the object store's clock; the current time if it is gone."""


class ObjectStore:
    """Objects below a URL: ``file:///dir``, ``s3://bucket/path``, ``gs://…``, ``az://…``; or a directory's path.

    Credentials and endpoints come from the environment, as obstore documents.

    Args:
        create: Whether to create the directory if the URL is one and does not exist.
        retries: How often a failed request is repeated.

    Raises:
        InvalidRequest: The URL is not valid.
        Unavailable: The directory does not exist.
    """

    def __init__(self, url: str, *, create: bool = False, retries: RetryConfig = RETRIES) -> None:
        self.url = normalised(url)
        directory = self._directory = directory_of(self.url)
        if not create:
            self._check_directory()
        try:
            if directory is not None and create:
                local.make(directory)
            self._store = from_url(self.url, retry_config=retries)
        except (BaseError, OSError, ValueError) as error:
            raise InvalidRequest(
                "Objects can't be at this URL; give one such as s3://bucket/path.", url=url, reason=_reason(error)
            ) from error

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        """See :class:`Client`."""
        check_caller()
        with _there(self.url):
            for page in obstore.list(self._store, prefix or None, offset=after or None):
                for each in page:
                    if each["path"] > after:
                        yield each["path"], each["size"]

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        """See :class:`Client`."""
        check_caller()
        try:
            with _reached(self.url):
                # Fetches only metadata; the bytes come with `bytes()`.
                answer = obstore.get(self._store, name)
                check_size(name, answer.meta["size"], bytes_max)
                return memoryview(answer.bytes())
        except FileNotFoundError as error:
            self._check_directory(error)
            raise

    def get_first(self, name: str, count: int) -> memoryview:
        """See :class:`Client`."""
        try:
            with _reached(self.url):
                return memoryview(obstore.get_range(self._store, name, start=0, length=count))
        except FileNotFoundError as error:
            self._check_directory(error)
            raise

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        """See :class:`Client`."""
        check_caller()
        self._check_directory()
        try:
            with _there(self.url):
                if self._directory is not None:
                    return local.create(self._directory, name, pieces)
                obstore.put(self._store, name, b"".join(pieces), mode="create", use_multipart=False)
        except _Exists:
            return False
        return True

    def replace(self, name: str, pieces: Sequence[bytes | memoryview]) -> None:
        """See :class:`Client`."""
        check_caller()
        self._check_directory()
        with _there(self.url):
            if self._directory is not None:
                local.replace(self._directory, name, pieces)
                return
            obstore.put(self._store, name, b"".join(pieces))

    def delete(self, name: str) -> None:
        """See :class:`Client`."""
        try:
            with _reached(self.url):
                obstore.delete(self._store, name)
        except FileNotFoundError:
            return

    def modified_ms(self, name: str) -> int:
        """See :class:`Client`."""
        try:
            with _reached(self.url):
                put = obstore.head(self._store, name)["last_modified"]
        except FileNotFoundError:
            put = dt.datetime.now(dt.UTC)
        return (put - _BEGIN) // dt.timedelta(milliseconds=1)

    def _check_directory(self, cause: Exception | None = None) -> None:
        """Check that the directory still exists. If it is gone, nothing can be said of an object in it."""
        if self._directory is not None and not self._directory.is_dir():
            raise Unavailable("There is no such directory; see whether it is mounted.", url=self.url) from cause


def check_size(name: str, size: int, bytes_max: int) -> None:
    """Check the size of an object against the limit of its kind.

    Raises:
        CorruptData: It is larger.
    """
    if size > bytes_max:
        raise CorruptData(
            "An object is larger than its limit; `kvstore replica check` or `kvstore shared check` says what is wrong.",
            object=name,
            bytes=size,
            bytes_max=bytes_max,
        )


def content_of(client: Client, name: str, bytes_max: int) -> bytes | None:
    """All of an object; None if there is none of this name. Raises what :meth:`Client.get` raises."""
    try:
        return bytes(client.get(name, bytes_max=bytes_max))
    except FileNotFoundError:
        return None


def store_id_of(client: Client) -> UUID | None:
    """Id of the store whose replica is there; None if nothing was shipped yet, or the store file is damaged."""
    with suppress(CorruptData):
        file = content_of(client, paths.STORE_FILE, store_file.STORE_BYTES_MAX)
        return None if file is None else store_file.decode(file).store_id
    return None


def normalised(url: str) -> str:
    """The URL of a directory's path; any other URL unchanged.

    Raises:
        InvalidRequest: It is empty, or lacks a slash: as a path it would be in the current directory.
    """
    if "://" in url:
        return url
    if not url or _LACKS_A_SLASH.match(url):
        raise InvalidRequest("Objects can't be at this URL; give one such as s3://bucket/path or file:///dir.", url=url)
    return Path(url).expanduser().absolute().as_uri()


def place_of(url: str) -> str:
    """The location of a URL, equal for all URLs of the location: no credentials, parameters or links, one spelling."""
    directory = directory_of(normalised(url))
    if directory is not None:
        return str(resolved(directory))
    scheme, _, rest = shown_url(url).partition("://")
    host, _, path = re.split(r"[?#]", rest, maxsplit=1)[0].removeprefix("…@").partition("/")
    parts = [part for part in unquote(path).split("/") if part]
    return "/".join([f"{_SAME_SCHEMES.get(scheme.lower(), scheme.lower())}:", host.lower(), *parts])


def directory_of(url: str) -> Path | None:
    """The directory that a URL names; None if it names none."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


class _Exists(Exception):
    pass


@contextmanager
def _reached(url: str) -> Iterator[None]:
    try:
        yield
    except AlreadyExistsError as error:
        raise _Exists from error
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        text = _NO_BUCKET if "<Code>NoSuchBucket</Code>" in str(error) else _REFUSES
        raise Unavailable(text, url=url, reason=_reason(error)) from error


@contextmanager
def _there(url: str) -> Iterator[None]:
    """For requests for which "not found" means that the bucket or directory itself is missing."""
    try:
        with _reached(url):
            yield
    except FileNotFoundError as error:
        raise Unavailable(_NO_BUCKET, url=url, reason=_reason(error)) from error


def _reason(error: Exception) -> str:
    """The first line of an error, and the code of S3's answer, which comes after it."""
    text = str(error)
    line, code = text.partition("\n")[0], _CODE.search(text)
    return line if code is None or code[1] in line else f"{line} {code[1]}"

"""Where files come from: a directory or a pattern, here or in an object store.

* A file is named by its path below the source's directory, and files are in the order of these paths' bytes.
* Names that begin with ``.`` or ``_`` are of files that are being written, and are not listed.
* A file is read as it was listed, or not at all: a local one is looked at before and after, an object is read by one
  request, which says what it has read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from kvstore.arguments import url_without_credentials
from kvstore.errors import InvalidRequest, Unavailable
from kvstore.ingest.formats import SUFFIXES, Format, readable
from logformat.catalog.jobs import SourceFile

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import RetryConfig

_WILD = re.compile(r"[*?\[]")
_WILD_IN_URL = re.compile(r"[*\[]")
"""In a URL a question mark begins its parameters."""
_SECONDS_DIGITS = 10
"""A tag of no more is of a time in seconds."""
_RETRIES: RetryConfig = {"retry_timeout": timedelta(seconds=15)}
"""No longer, because who waits for a store that does not answer can't be interrupted; a job tries again by itself."""
_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_")

Opened = tuple[BinaryIO, Callable[[], SourceFile | None]]
"""The bytes of a file, and what the file is that they are of: the answer is another when it is changed meanwhile."""


class Place(Protocol):
    """A file system, below a directory."""

    def files(self) -> Iterator[SourceFile]:
        """All files, in any order, but for those that are being written.

        Raises:
            Unavailable: The directory can't be listed.
        """

    def opened(self, path: str) -> AbstractContextManager[Opened]:
        """A file, to be read.

        Raises:
            FileNotFoundError: It is gone.
            OSError: It can't be read.
        """


@dataclass(frozen=True)
class Source:
    """A place, and which of its files are meant; it can be sent to other processes.

    Attributes:
        pattern: Regular expression of paths; None for all with a suffix of the format.
    """

    place: Place
    format: Format
    pattern: str | None = None

    def files(self) -> list[SourceFile]:
        """All files there are now, in order.

        Raises:
            Unavailable: The directory can't be listed, or a name is no text.
        """
        found = [file for file in self.place.files() if self._is_meant(file)]
        try:
            return sorted(found, key=lambda file: order_of(file.path))
        except UnicodeEncodeError as error:
            raise Unavailable("The name of a file is no text; rename it.", path=ascii(error.object)) from error

    @contextmanager
    def opened(self, file: SourceFile) -> Iterator[BinaryIO]:
        """A file, as it was listed.

        Raises:
            InvalidRequest: It is gone, is changed before or while it is read, or can't be read.
        """
        with readable(file.path):
            try:
                with self.place.opened(file.path) as (opened, state):
                    _check(file, state())
                    yield opened
                    _check(file, state())
            except FileNotFoundError:
                _check(file, None)

    def _is_meant(self, file: SourceFile) -> bool:
        if self.pattern is None:
            return SUFFIXES.get(os.path.splitext(file.path)[1].lower()) == self.format
        return re.fullmatch(self.pattern, file.path, re.DOTALL) is not None


def source_of(given: str, format: Format) -> Source:
    """What a directory, a pattern such as ``in/*.csv``, or a URL of one (``s3://bucket/in/*.csv``) means.

    In a pattern ``*`` stands for any part of a name, ``**`` for any part of a path.

    Raises:
        InvalidRequest: It is none.
    """
    if "://" in given:
        url_without_credentials("source", given)
        place, mark, parameters = given.partition("?")
        if place.lower().startswith("file:///"):
            base, pattern = _split(unquote(place[len("file://") :]), _WILD_IN_URL)
            return Source(LocalPlace(base), format, pattern)
        base, pattern = _split(place, _WILD_IN_URL)
        _store_of(base + mark + parameters)
        return Source(RemotePlace(base + mark + parameters), format, pattern)
    path = os.path.abspath(os.path.expanduser(given))
    # A directory that is there is meant, whatever is in its name.
    base, pattern = (path, None) if os.path.isdir(path) else _split(path, _WILD)
    return Source(LocalPlace(base), format, pattern)


def is_same(taken: SourceFile, now: SourceFile) -> bool:
    """Whether a file is still as it was taken, as far as is told of it."""
    (then, was), (moment, etag) = (each.tag.partition(" ")[::2] for each in (taken, now))
    if taken.size != now.size:
        return False
    if was and etag:
        return was == etag  # who puts the same bytes again changes nothing
    return then == (moment[: len(then)] if len(then) <= _SECONDS_DIGITS else moment)


def order_of(path: str) -> bytes:
    """What paths are ordered by."""
    return path.encode()


def _split(given: str, wild: re.Pattern[str]) -> tuple[str, str | None]:
    """The directory before the first part with a wildcard, and the rest as a regular expression."""
    found = wild.search(given)
    if found is None:
        return given.rstrip("/") or "/", None
    base = given[: given.rindex("/", 0, found.start())]
    return base or "/", _expression(given[len(base) :].lstrip("/"))


def _expression(pattern: str) -> str:
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    return "".join(
        parts.get(piece) or (piece.replace("[!", "[^") if place % 2 else re.escape(piece))
        for place, piece in enumerate(pieces)
    )


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _check(file: SourceFile, now: SourceFile | None) -> None:
    if now is None:
        raise InvalidRequest(
            "A file is gone that a task had taken; put it back, or resume the job to go on without it.",
            path=file.path,
        )
    if not is_same(file, now):
        raise InvalidRequest(
            "A file was changed after a task had taken it; resume the job to take it as it is now.",
            path=file.path,
            taken=f"{file.size} bytes, {file.tag}",
            found=f"{now.size} bytes, {now.tag}",
        )


@dataclass(frozen=True)
class LocalPlace:
    """A directory of this machine."""

    directory: str

    def files(self) -> Iterator[SourceFile]:
        """See :class:`Place`."""
        try:
            yield from self._below("")
        except OSError as error:
            raise Unavailable(
                "The directory of a job's files can't be listed.",
                path=ascii(error.filename) if error.filename else self.directory,
                reason=error.strerror,
            ) from error

    @contextmanager
    def opened(self, path: str) -> Iterator[Opened]:
        """See :class:`Place`."""
        if self._state(path) is None:  # what is no file any more is not opened: a pipe would wait for somebody
            raise FileNotFoundError(path)
        with Path(self.directory, path).open("rb") as file:
            yield file, lambda: self._state(path)

    def _state(self, path: str) -> SourceFile | None:
        try:
            found = os.stat(os.path.join(self.directory, path))
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return SourceFile(path=path, size=found.st_size, tag=str(found.st_mtime_ns))

    def _below(self, prefix: str) -> Iterator[SourceFile]:
        try:
            entries = os.scandir(os.path.join(self.directory, prefix))
        except FileNotFoundError:
            if prefix:
                return  # it has gone meanwhile
            raise
        with entries:
            for entry in entries:
                if _is_hidden(entry.name):
                    continue
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):  # a link may lead back
                    yield from self._below(f"{path}/")
                elif (found := self._state(path)) is not None:  # it may have gone meanwhile
                    yield found


@dataclass(frozen=True)
class RemotePlace:
    """What begins with a URL in an object store, such as ``s3://bucket/in``.

    Credentials and endpoints come from the environment, as obstore documents.
    """

    url: str

    def files(self) -> Iterator[SourceFile]:
        """See :class:`Place`."""
        try:
            for page in obstore.list(_store_of(self.url)):
                for found in page:
                    if not _is_hidden(found["path"]) and not _is_folder(found):
                        yield _as_told(found["path"], found)
        except (BaseError, OSError) as error:
            raise Unavailable(
                "The place of a job's files can't be listed; see whether its URL and the environment are right.",
                url=self.url,
                reason=_told(error),
            ) from error

    @contextmanager
    def opened(self, path: str) -> Iterator[Opened]:
        """See :class:`Place`; all of it is read at once, for each read is a request."""
        try:
            found = obstore.get(_store_of(self.url), path)
            state, data = _as_told(path, found.meta), found.bytes()
        except BaseError as error:
            raise OSError(_told(error)) from error
        yield BytesIO(data), lambda: state


def _store_of(url: str) -> ObjectStore:
    """A connection is made once in a process, as long as the environment says the same.

    Raises:
        InvalidRequest: Nothing can be at such a URL.
    """
    return _connected(url, tuple(each for each in os.environ.items() if each[0].startswith(_VARIABLES)))


@lru_cache(16)
def _connected(url: str, _environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRequest("A job's files can't be at this URL.", url=url, reason=_told(error)) from error
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    config = {"region": given["region"]} if "region" in given else {}
    if "endpoint_override" in given:
        config["endpoint"] = f"{given.get('scheme', 'https')}://{given['endpoint_override']}"
    client = {"allow_http": True} if given.get("scheme") == "http" else None
    if parts.scheme == "file":
        raise InvalidRequest("A file of this machine is at a URL of three slashes: file:///directory", url=url)
    try:
        return from_url(  # type: ignore[call-overload]
            url.partition("?")[0], config=config, client_options=client, retry_config=_RETRIES
        )
    except (BaseError, OSError, ValueError) as error:
        raise InvalidRequest("A job's files can't be at this URL.", url=url, reason=_told(error)) from error


def _is_folder(found: ObjectMeta) -> bool:
    """Whether it is what browsers of stores put for a folder, which is listed without the slash at its end."""
    return not found["size"] and "." not in found["path"].rpartition("/")[2]


def _as_told(path: str, found: ObjectMeta) -> SourceFile:
    # Some stores list milliseconds, and tell seconds when asked for one object; and quote its etag only then.
    seconds = int(found["last_modified"].timestamp())
    etag = (found["e_tag"] or "").removeprefix("W/").strip('"')
    return SourceFile(path=path, size=found["size"], tag=f"{seconds} {etag}".rstrip())


def _told(error: Exception) -> str:
    return str(error).partition("\n")[0]

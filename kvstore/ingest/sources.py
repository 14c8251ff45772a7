"""Sources of files: a directory or a pattern, on this machine or in an object store.

* The name of a file is its path below the source's directory; files are sorted by the bytes of these paths.
* Names that begin with ``.`` or ``_`` belong to files that are being written, and are not listed.
* A file that changed since it was listed is not loaded: a local file is compared before and after it is read, an object
  is read by one request, whose answer identifies it.
"""

from __future__ import annotations

import errno
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
from kvstore.ingest.formats import Format, is_of, readable
from logformat.catalog.jobs import SourceFile

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import RetryConfig

_WILD = re.compile(r"[*?\[]")
_WILD_IN_URL = re.compile(r"[*\[]")
"""In a URL a question mark begins the parameters."""
_SECONDS_DIGITS = 10
"""A tag with at most so many digits is a time in seconds."""
_RETRIES: RetryConfig = {"retry_timeout": timedelta(seconds=15)}
"""Short, because waiting for an object store can't be interrupted; a job tries again by itself."""
_LEADS_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
"""What the system says of a name without a file behind it, such as a link to itself."""
_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_")

Opened = tuple[BinaryIO, Callable[[], SourceFile | None]]
"""A file's bytes, and a function that returns the file's current facts, which differ if it has changed."""


class FileTree(Protocol):
    """A directory of a file system, with everything below it."""

    def files(self) -> Iterator[SourceFile]:
        """All files in any order, without those that are being written.

        Raises:
            Unavailable: The directory can't be listed.
        """

    def opened(self, path: str) -> AbstractContextManager[Opened]:
        """Open a file for reading.

        Raises:
            FileNotFoundError: The file no longer exists.
            OSError: The file can't be read.
        """


@dataclass(frozen=True)
class Source:
    """A file tree and the choice of its files; it can be pickled for other processes.

    Attributes:
        pattern: Regular expression of paths; None for all files with a suffix of the format.
    """

    tree: FileTree
    format: Format
    pattern: str | None = None

    def files(self) -> list[SourceFile]:
        """All files of the source now, in order.

        Raises:
            Unavailable: The directory can't be listed, or a name is not valid text.
        """
        files = [file for file in self.tree.files() if self._is_meant(file)]
        try:
            return sorted(files, key=lambda file: order_of(file.path))
        except UnicodeEncodeError as error:
            raise Unavailable("The name of a file is not valid text; rename it.", path=ascii(error.object)) from error

    @contextmanager
    def opened(self, file: SourceFile) -> Iterator[BinaryIO]:
        """Open a file, provided that it is unchanged since it was listed.

        Raises:
            InvalidRequest: The file was removed, was changed before or while it is read, or can't be read.
        """
        with readable(file.path):
            try:
                with self.tree.opened(file.path) as (opened, state):
                    _check(file, state())
                    yield opened
                    _check(file, state())
            except FileNotFoundError:
                _check(file, None)

    def _is_meant(self, file: SourceFile) -> bool:
        if self.pattern is None:
            return is_of(file.path, self.format)
        return re.fullmatch(self.pattern, file.path, re.DOTALL) is not None


def source_of(given: str, format: Format) -> Source:
    """The source of a directory, a pattern such as ``in/*.csv``, or a URL such as ``s3://bucket/in/*.csv``.

    In a pattern ``*`` matches any part of a name, ``**`` any part of a path.

    Raises:
        InvalidRequest: The URL is not valid.
    """
    if "://" in given:
        url_without_credentials("source", given)
        url, mark, parameters = given.partition("?")
        if url.lower().startswith("file:///"):
            base, pattern = _split(unquote(url[len("file://") :]), _WILD_IN_URL)
            return Source(LocalTree(base), format, pattern)
        base, pattern = _split(url, _WILD_IN_URL)
        _store_of(base + mark + parameters)
        return Source(RemoteTree(base + mark + parameters), format, pattern)
    path = os.path.abspath(os.path.expanduser(given))
    # The name of an existing directory is never a pattern.
    base, pattern = (path, None) if os.path.isdir(path) else _split(path, _WILD)
    return Source(LocalTree(base), format, pattern)


def is_same(taken: SourceFile, now: SourceFile) -> bool:
    """Whether a file is unchanged since it was taken, by its size and tag."""
    (then, was), (moment, etag) = (each.tag.partition(" ")[::2] for each in (taken, now))
    if taken.size != now.size:
        return False
    if was and etag:
        return was == etag  # uploading the same bytes again changes nothing
    return then == (moment[: len(then)] if len(then) <= _SECONDS_DIGITS else moment)


def order_of(path: str) -> bytes:
    """Sort key of paths."""
    return path.encode()


def _split(given: str, wild: re.Pattern[str]) -> tuple[str, str | None]:
    """The directory before the first part with a wildcard, and the rest as a regular expression."""
    match = wild.search(given)
    if match is None:
        return given.rstrip("/") or "/", None
    base = given[: given.rindex("/", 0, match.start())]
    return base or "/", _expression(given[len(base) :].lstrip("/"))


def _expression(pattern: str) -> str:
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    return "".join(
        parts.get(token) or (token.replace("[!", "[^") if nth % 2 else re.escape(token))
        for nth, token in enumerate(tokens)
    )


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _check(file: SourceFile, now: SourceFile | None) -> None:
    if now is None:
        raise InvalidRequest(
            "A file of a task no longer exists; restore it, or resume the job to continue without it.",
            path=file.path,
        )
    if not is_same(file, now):
        raise InvalidRequest(
            "A file changed after a task had taken it; resume the job to load it as it is now.",
            path=file.path,
            taken=f"{file.size} bytes, {file.tag}",
            found=f"{now.size} bytes, {now.tag}",
        )


@dataclass(frozen=True)
class LocalTree:
    """A directory of this machine."""

    directory: str

    def files(self) -> Iterator[SourceFile]:
        """See :class:`FileTree`."""
        try:
            yield from self._below("")
        except OSError as error:
            raise Unavailable(
                "The files of a job can't be listed.",
                path=ascii(error.filename) if error.filename else self.directory,
                reason=error.strerror,
            ) from error

    @contextmanager
    def opened(self, path: str) -> Iterator[Opened]:
        """See :class:`FileTree`."""
        if self._state(path) is None:  # only a regular file is opened: a pipe would wait for its other end
            raise FileNotFoundError(path)
        with Path(self.directory, path).open("rb") as file:
            yield file, lambda: self._state(path)

    def _state(self, path: str) -> SourceFile | None:
        try:
            status = os.stat(os.path.join(self.directory, path))
        except OSError as error:
            if error.errno not in _LEADS_NOWHERE:
                raise
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return SourceFile(path=path, size=status.st_size, tag=str(status.st_mtime_ns))

    def _below(self, prefix: str) -> Iterator[SourceFile]:
        try:
            entries = os.scandir(os.path.join(self.directory, prefix))
        except FileNotFoundError:
            if prefix:
                return  # removed meanwhile
            raise
        with entries:
            for entry in entries:
                if _is_hidden(entry.name):
                    continue
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):  # links may form a loop
                    yield from self._below(f"{path}/")
                elif (file := self._state(path)) is not None:  # it may be removed meanwhile
                    yield file


@dataclass(frozen=True)
class RemoteTree:
    """Objects of an object store below a URL, such as ``s3://bucket/in``.

    Credentials and endpoints come from the environment, as obstore documents.
    """

    url: str

    def files(self) -> Iterator[SourceFile]:
        """See :class:`FileTree`."""
        try:
            for page in obstore.list(_store_of(self.url)):
                for object in page:
                    if not _is_hidden(object["path"]) and not _is_folder(object):
                        yield _source_file(object["path"], object)
        except (BaseError, OSError) as error:
            raise Unavailable(
                "The files at a job's URL can't be listed; check the URL and the environment.",
                url=self.url,
                reason=_reason(error),
            ) from error

    @contextmanager
    def opened(self, path: str) -> Iterator[Opened]:
        """See :class:`FileTree`; the whole object is read at once, because each read is a request."""
        try:
            answer = obstore.get(_store_of(self.url), path)
            state, data = _source_file(path, answer.meta), answer.bytes()
        except BaseError as error:
            raise OSError(_reason(error)) from error
        yield BytesIO(data), lambda: state


def _store_of(url: str) -> ObjectStore:
    """The object store of a URL; a process connects once as long as the environment stays the same.

    Raises:
        InvalidRequest: The URL is not valid.
    """
    return _connected(url, tuple(each for each in os.environ.items() if each[0].startswith(_VARIABLES)))


@lru_cache(16)
def _connected(url: str, _environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRequest("A job's files can't be at this URL.", url=url, reason=_reason(error)) from error
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    config = {"region": given["region"]} if "region" in given else {}
    if "endpoint_override" in given:
        config["endpoint"] = f"{given.get('scheme', 'https')}://{given['endpoint_override']}"
    client = {"allow_http": True} if given.get("scheme") == "http" else None
    if parts.scheme == "file":
        raise InvalidRequest("The URL of a directory on this machine has three slashes: file:///directory", url=url)
    try:
        return from_url(  # type: ignore[call-overload]
            url.partition("?")[0], config=config, client_options=client, retry_config=_RETRIES
        )
    except (BaseError, OSError, ValueError) as error:
        raise InvalidRequest("A job's files can't be at this URL.", url=url, reason=_reason(error)) from error


def _is_folder(object: ObjectMeta) -> bool:
    """Whether it is an empty object that stands for a folder; it is listed without the slash at its end."""
    return not object["size"] and "." not in object["path"].rpartition("/")[2]


def _source_file(path: str, object: ObjectMeta) -> SourceFile:
    # Some stores list times in milliseconds, but answer seconds, and a quoted etag, for a single object.
    seconds = int(object["last_modified"].timestamp())
    etag = (object["e_tag"] or "").removeprefix("W/").strip('"')
    return SourceFile(path=path, size=object["size"], tag=f"{seconds} {etag}".rstrip())


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0]

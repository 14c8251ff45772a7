"""``python -m benchmarks.web_workers``: a shortener of links with counters, three uvicorn workers, beside sqlite3.

Each request for a link counts it; one request in ten makes one. The same rows, and a log of them, in both, synced.
Clients are threads of one process, each with a connection of its own that stays.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import socket
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

import kvstore
from kvstore.errors import TableExists

WORKERS, LINKS = 3, 100
SQLITE = """
CREATE TABLE IF NOT EXISTS links (code TEXT PRIMARY KEY, url TEXT, hits INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (at INTEGER PRIMARY KEY, change TEXT, code TEXT, url TEXT, hits INTEGER);
CREATE TRIGGER IF NOT EXISTS inserted AFTER INSERT ON links BEGIN
    INSERT INTO log (change, code, url, hits) VALUES ('insert', new.code, new.url, new.hits); END;
CREATE TRIGGER IF NOT EXISTS updated AFTER UPDATE ON links BEGIN
    INSERT INTO log (change, code, url, hits) VALUES ('before', old.code, old.url, old.hits);
    INSERT INTO log (change, code, url, hits) VALUES ('after', new.code, new.url, new.hits); END;
"""
Links = tuple[Callable[[str, str], object], Callable[[str], str | None], Callable[[], None]]
"""What makes a link, what counts one and returns where it leads, and what closes both."""


def links_of_kvstore(path: Path) -> Links:
    store = kvstore.open(path / "store")
    with suppress(TableExists):
        store.create_table("links", {"code": "string", "url": "string", "hits": "int64"}, primary_key="code")
    links = store.table("links")

    def count(code: str) -> str | None:
        try:
            return str(links.increment(code, {"hits": 1})["url"])
        except KeyError:
            return None

    return lambda code, url: links.put_if({"code": code, "url": url, "hits": 0}, None), count, store.close


def links_of_sqlite(path: Path) -> Links:
    own = threading.local()

    def connection() -> sqlite3.Connection:
        if not hasattr(own, "connection"):
            own.connection = sqlite3.connect(path / "links.db", timeout=60, isolation_level=None)
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=60000"):
                own.connection.execute(f"PRAGMA {pragma}")
        found: sqlite3.Connection = own.connection
        return found

    connection().executescript(SQLITE)

    def count(code: str) -> str | None:
        statement = "UPDATE links SET hits = hits + 1 WHERE code = ? RETURNING url"
        row = connection().execute(statement, (code,)).fetchone()
        return None if row is None else row[0]

    def make(code: str, url: str) -> object:
        return connection().execute("INSERT INTO links VALUES (?, ?, 0)", (code, url))

    return make, count, lambda: None


OPENED = {"kvstore": links_of_kvstore, "sqlite3": links_of_sqlite}


def application(name: str, path: Path) -> Starlette:
    @asynccontextmanager
    async def opened(_: Starlette) -> AsyncIterator[dict[str, Any]]:
        make, count, close = OPENED[name](path)
        yield {"make": make, "count": count}
        close()

    def shorten(request: Request) -> Response:
        request.state.make(code := token_urlsafe(6), request.query_params["url"])
        return PlainTextResponse(code, 201)

    def follow(request: Request) -> Response:
        url = request.state.count(request.path_params["code"])
        return PlainTextResponse("", 404) if url is None else RedirectResponse(url)

    return Starlette(routes=[Route("/", shorten, methods=["POST"]), Route("/{code}", follow)], lifespan=opened)


def serve(name: str, path: Path, listening: socket.socket) -> None:
    uvicorn.Server(uvicorn.Config(application(name, path), log_level="error")).run(sockets=[listening])


def measure(name: str, clients: int, requests: int) -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        workers = [context.Process(target=serve, args=(name, Path(directory), listening)) for _ in range(WORKERS)]
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer with a body waits 40 ms
        for worker in workers:
            worker.start()
        port = listening.getsockname()[1]
        codes = [
            asked(http.client.HTTPConnection("127.0.0.1", port), "POST", "/?url=http://a")[1] for _ in range(LINKS)
        ]
        statuses: Counter[int] = Counter()
        waits: list[float] = []
        barrier = threading.Barrier(clients + 1)

        def client(number: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            asked(connection, "GET", f"/{codes[number % LINKS]}")
            barrier.wait()
            for n in range(requests):
                began = time.monotonic()
                code = codes[(number * 31 + n * 7) % LINKS]
                status, _ = asked(connection, *(("GET", f"/{code}") if n % 10 else ("POST", "/?url=http://b")))
                waits.append(time.monotonic() - began)
                statuses[status] += 1

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for each in threads:
            each.start()
        barrier.wait()
        began = time.monotonic()
        for each in threads:
            each.join()
        seconds = time.monotonic() - began
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
    waits.sort()
    total = clients * requests
    print(
        f"{name}: {total / seconds:,.0f} requests/s, p50 {waits[total // 2] * 1000:.1f} ms, p99"
        f" {waits[total * 99 // 100] * 1000:.1f} ms, {dict(statuses)}",
        flush=True,
    )


def asked(connection: http.client.HTTPConnection, method: str, path: str) -> tuple[int, str]:
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=300, help="Requests of each client.")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    for _ in range(given.rounds):
        for name in OPENED:
            measure(name, given.clients, given.requests)


if __name__ == "__main__":
    main()

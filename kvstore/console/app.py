"""The application: which path shows what, as HTML, as JSON below ``/api``, and errors of the store as pages.

* A page is computed once, as a :class:`kvstore.console.page.Page`; its HTML and its JSON are of the same facts.
* Pages read only. The store is open for reading, and what would change it is shown as a command.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from kvstore import Store
from kvstore.console.commands import command
from kvstore.console.guard import Guard
from kvstore.console.html import Html, tag
from kvstore.console.opened import OpenedStore
from kvstore.console.page import Page, html_of
from kvstore.console.parts import error_box, error_facts
from kvstore.console.prometheus import figures
from kvstore.console.query import Query
from kvstore.console.store.catalog import catalog_page, edit_page
from kvstore.console.store.consumers import consumers_page
from kvstore.console.store.jobs import job_page, jobs_page
from kvstore.console.store.overview import overview
from kvstore.console.store.replicas import replica_page, replicas_page
from kvstore.console.table.batches import batch_page
from kvstore.console.table.changes import changes_page
from kvstore.console.table.definition import Definition, definitions
from kvstore.console.table.download import value_of
from kvstore.console.table.live import Tail
from kvstore.console.table.log import log_page
from kvstore.console.table.rows import rows_page
from kvstore.console.table.tables import matching, summary, table_page
from kvstore.console.table.undo import undo_page
from kvstore.console.table.versions import history_page
from kvstore.console.table.writers import writers_page
from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    NoSuchTable,
    OffsetOutOfRange,
    StoreError,
    Unavailable,
)

ASSETS = Path(__file__).parent / "assets"
OfTable = Callable[[Store, Definition, Query], Page]
OF_FILES = frozenset({catalog_page, edit_page})
"""Pages that need no open store, only its directory."""
LIVE_SECONDS = 0.5
"""Time between two looks for new changes."""
FOLLOWERS_MAX = 16


def application(
    store: Path, token: str, hosts: frozenset[str], cookie: str, stopping: Callable[[], bool] = lambda: False
) -> ASGIApp:
    """The console of a store.

    Args:
        token, hosts, cookie: See :class:`kvstore.console.guard.Guard`.
        stopping: Whether the server ends, so that answers without an end do, too.
    """
    opened = OpenedStore(store)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await opened.close()

    answers = Answers(opened, stopping)
    tables: dict[str, OfTable] = {
        "": table_page,
        "/rows": rows_page,
        "/changes": changes_page,
        "/history": history_page,
        "/log": log_page,
        "/writers": writers_page,
        "/undo": undo_page,
        "/batch": batch_page,
    }
    whole: dict[str, Callable[..., Page]] = {
        "/catalog": catalog_page,
        "/catalog/edit": edit_page,
        "/consumers": consumers_page,
        "/jobs": jobs_page,
        "/jobs/job": job_page,
        "/replicas": replicas_page,
        "/replicas/replica": replica_page,
    }
    routes: list[Route | Mount] = [
        Route("/", answers.html(overview)),
        Route("/api/overview", answers.json(overview)),
        Route("/api/tables", answers.json(all_tables)),
        Route("/metrics", answers.metrics),
        Route("/tables/{id}/cell", answers.cell),
        Route("/tables/{id}/changes/live", answers.live),
        Route("/api/tables/{id}/changes/live", answers.live),
    ]
    for path, page in whole.items():
        routes.append(Route(path, answers.html(page)))
        routes.append(Route(f"/api{path}", answers.json(page)))
    for path, page in tables.items():
        routes.append(Route(f"/tables/{{id}}{path}", answers.html(page)))
        routes.append(Route(f"/api/tables/{{id}}{path}", answers.json(page)))
    routes.append(Mount("/assets", StaticFiles(directory=ASSETS)))
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=answers.handlers)
    return Guard(app, token, hosts, cookie)


def all_tables(store: Store, query: Query) -> Page:
    """Every table, as a list; ``q`` chooses by a part of the name."""
    facts = [summary(each) for each in definitions(store, matching(store, query.text("q")))]
    return Page("Tables", facts, lambda: tag("div"), None, None)


class Answers:
    """Responses to requests.

    Args:
        opened: The store.
        stopping: See :func:`application`.
    """

    def __init__(self, opened: OpenedStore, stopping: Callable[[], bool]) -> None:
        self._opened = opened
        self._stopping = stopping
        self._followers = 0

    def html(self, of: Callable[..., Page]) -> Callable[[Request], Any]:
        """An endpoint that shows a page."""

        async def endpoint(request: Request) -> Response:
            return await self._answer(request, of, as_json=False)

        return endpoint

    def json(self, of: Callable[..., Page]) -> Callable[[Request], Any]:
        """An endpoint that returns the facts of a page."""

        async def endpoint(request: Request) -> Response:
            return await self._answer(request, of, as_json=True)

        return endpoint

    async def metrics(self, _: Request) -> Response:
        """Figures for Prometheus."""
        try:
            text = await run_in_threadpool(figures, await self._opened.get())
        except StoreError as error:
            return PlainTextResponse(f"{error}\n", 500)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def cell(self, request: Request) -> Response:
        """A value as a file."""
        try:
            cell_value = await run_in_threadpool(_of, value_of, await self._opened.get(), request)
        except StoreError as error:
            return self._failed(error, as_json=False)
        disposition = {"Content-Disposition": f'attachment; filename="{cell_value.name}"'}
        return Response(cell_value.data, media_type=cell_value.media_type, headers=disposition)

    async def live(self, request: Request) -> ASGIApp:
        """New changes of a table as server-sent events, until the client goes."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if self._followers >= FOLLOWERS_MAX:
                error = Unavailable("Too many pages follow a changelog; close one.", most=FOLLOWERS_MAX)
                await self._failed(error, as_json=_is_api(request), status=503)(scope, receive, send)
                return
            self._followers += 1  # before anything is awaited: other requests are counted then
            try:
                response = await self._following(request)
                await response(scope, receive, send)
            finally:
                self._followers -= 1

        return answer

    async def _following(self, request: Request) -> Response:
        as_json = _is_api(request)
        last = request.headers.get("last-event-id")  # a browser that connects again goes on there
        first = [] if last is None else [("start", last)]
        try:
            tail = await run_in_threadpool(_of, Tail.of, await self._opened.get(), request, first)
        except StoreError as error:
            return self._failed(error, as_json=as_json, status=503 if isinstance(error, Unavailable) else None)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(self._events(tail, request, as_json=as_json), media_type="text/event-stream")

    async def _events(self, tail: Tail, request: Request, *, as_json: bool) -> AsyncIterator[str]:
        shown = tail.as_json if as_json else tail.as_html

        def step(store: Store) -> str | None:
            step_made = tail.step(store)
            return None if step_made is None else shown(*step_made)

        try:
            yield f"retry: {1000 * LIVE_SECONDS:.0f}\n\n"
            while not (self._stopping() or await request.is_disconnected()):
                data = await run_in_threadpool(step, await self._opened.get())
                if data is not None:
                    yield _event("changes", data, tail.at)
                await anyio.sleep(LIVE_SECONDS)
        except StoreError as error:
            yield _event("failure", msgspec.json.encode(error_facts(error)).decode(), tail.at)

    async def missing(self, request: Request, _: Exception) -> Response:
        """The answer to a path that the console does not have."""
        error = InvalidRequest("There is no such page.", path=repr(request.url.path[:200]))
        return self._failed(error, as_json=_is_api(request), status=404)

    async def defect(self, request: Request, error: Exception) -> Response:
        """The answer to a request at which the console itself failed; the server prints the traceback."""
        what = "The console failed at this page; the terminal of `kvstore ui` has the details, please report them."
        facts = {"error": {"class": type(error).__name__, "message": what}}
        return self._error_page(facts, as_json=_is_api(request), status=500)

    @property
    def handlers(self) -> dict[Any, Any]:
        """Handlers for what no page answers."""
        return {404: self.missing, 500: self.defect}

    async def _answer(self, request: Request, of: Callable[..., Page], *, as_json: bool) -> Response:
        def response(store: Store | Path) -> Response:
            return self._response(_of(of, store, request), as_json=as_json)

        try:
            return await run_in_threadpool(response, self._opened.path if of in OF_FILES else await self._opened.get())
        except StoreError as error:
            return self._failed(error, as_json=as_json)

    def _response(self, page: Page, *, as_json: bool) -> Response:
        if as_json:
            return Response(msgspec.json.encode(page.facts), page.status, media_type="application/json")
        return HTMLResponse(html_of(page, str(self._opened.path)), page.status)

    def _failed(self, error: StoreError, *, as_json: bool, status: int | None = None) -> Response:
        line = command("check", self._opened.path) if isinstance(error, CorruptData) else None
        return self._error_page(error_facts(error), line, as_json=as_json, status=status or _status(error))

    def _error_page(self, facts: dict[str, Any], line: str | None = None, *, as_json: bool, status: int) -> Response:
        def body() -> Html:
            return tag("div", error_box(facts), tag("p", tag("a", "Overview", href="/")))

        title = "There is no such page" if status == 404 else "This can't be shown"
        return self._response(Page(title, facts, body, line, None, status=status), as_json=as_json)


def _of(of: Callable[..., Any], store: Any, request: Request, first: Sequence[tuple[str, str]] = ()) -> Any:
    query = Query([*first, *request.query_params.multi_items()])
    if "id" not in request.path_params:
        return of(store, query)
    id = request.path_params["id"]
    if not (id.isascii() and id.isdigit() and len(id) < 20):
        raise NoSuchTable("The store has no table with this id; it may have been dropped.", id=repr(id[:100]))
    return of(store, Definition.of(store.table_by_id(int(id))), query)


def _event(name: str, data: str, id: int) -> str:
    """A server-sent event; each line of its data has a line of its own."""
    lines = "".join(f"data: {line}\n" for line in re.split(r"\r\n|\r|\n", data))
    return f"id: {id}\nevent: {name}\n{lines}\n"


def _is_api(request: Request) -> bool:
    return request.url.path.startswith("/api/")


def _status(error: StoreError) -> int:
    if isinstance(error, NoSuchTable):
        return 404
    return 400 if isinstance(error, (InvalidRequest, OffsetOutOfRange)) else 500

"""The application: which path shows what, as HTML, as JSON below ``/api``, and errors of the store as pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from kvstore.console.catalog import catalog_page, edit_page
from kvstore.console.changes import changes_page
from kvstore.console.commands import command
from kvstore.console.download import value_of
from kvstore.console.guard import Guard
from kvstore.console.html import Html, tag
from kvstore.console.log import log_page
from kvstore.console.opened import OpenedStore
from kvstore.console.overview import overview
from kvstore.console.page import Page, html_of
from kvstore.console.parts import error_box, error_facts
from kvstore.console.prometheus import figures
from kvstore.console.query import Query
from kvstore.console.rows import rows_page
from kvstore.console.tables import matching, summary, table_page
from kvstore.console.versions import history_page
from kvstore.errors import CorruptData, InvalidRequest, NoSuchTable, OffsetOutOfRange, StoreError
from kvstore.meta.state import TableDefinition
from kvstore.store import Store

ASSETS = Path(__file__).parent / "assets"
OfTable = Callable[[Store, TableDefinition, Query], Page]
OF_FILES = frozenset({catalog_page, edit_page})
"""Pages that need no open store, only its directory."""


def application(store: Path, token: str, hosts: frozenset[str], cookie: str) -> ASGIApp:
    """The console of a store.

    Args:
        token, hosts, cookie: See :class:`kvstore.console.guard.Guard`.
    """
    opened = OpenedStore(store)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await opened.close()

    answers = Answers(opened)
    tables: dict[str, OfTable] = {
        "": table_page,
        "/rows": rows_page,
        "/changes": changes_page,
        "/history": history_page,
        "/log": log_page,
    }
    routes: list[Route | Mount] = [
        Route("/", answers.html(overview)),
        Route("/api/overview", answers.json(overview)),
        Route("/api/tables", answers.json(all_tables)),
        Route("/catalog", answers.html(catalog_page)),
        Route("/api/catalog", answers.json(catalog_page)),
        Route("/catalog/edit", answers.html(edit_page)),
        Route("/api/catalog/edit", answers.json(edit_page)),
        Route("/metrics", answers.metrics),
        Route("/tables/{id:int}/cell", answers.cell),
    ]
    for path, page in tables.items():
        routes.append(Route(f"/tables/{{id:int}}{path}", answers.html(page)))
        routes.append(Route(f"/api/tables/{{id:int}}{path}", answers.json(page)))
    routes.append(Mount("/assets", StaticFiles(directory=ASSETS)))
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: answers.missing})
    return Guard(app, token, hosts, cookie)


def all_tables(store: Store, query: Query) -> Page:
    """Every table, as a list; ``q`` chooses by a part of the name."""
    facts = [summary(store, each) for each in matching(store, query.text("q"))]
    return Page("Tables", facts, lambda: tag("div"), None, None)


class Answers:
    """Responses to requests.

    Args:
        opened: The store.
    """

    def __init__(self, opened: OpenedStore) -> None:
        self._opened = opened

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
            found = await run_in_threadpool(_of, value_of, await self._opened.get(), request)
        except StoreError as error:
            return self._failed(error, as_json=False)
        disposition = {"Content-Disposition": f'attachment; filename="{found.name}"'}
        return Response(found.data, media_type=found.media_type, headers=disposition)

    async def missing(self, request: Request, _: Exception) -> Response:
        """The answer to a path that the console does not have."""
        error = InvalidRequest("There is no such page.", path=repr(request.url.path[:200]))
        return self._failed(error, as_json=request.url.path.startswith("/api/"), status=404)

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
        facts = error_facts(error)

        def body() -> Html:
            return tag("div", error_box(facts), tag("p", tag("a", "Overview", href="/")))

        line = command("check", self._opened.path) if isinstance(error, CorruptData) else None
        title = "There is no such page" if status == 404 else "This can't be shown"
        page = Page(title, facts, body, line, None, status=status or _status(error))
        return self._response(page, as_json=as_json)


def _of(of: Callable[..., Any], store: Any, request: Request) -> Any:
    query = Query(request.query_params.multi_items())
    if "id" not in request.path_params:
        return of(store, query)
    id = request.path_params["id"]
    definition = store.runtime.catalog().tables.get(id)
    if definition is None:
        raise NoSuchTable("The store has no table with this id; it may have been dropped.", id=id)
    return of(store, definition, query)


def _status(error: StoreError) -> int:
    if isinstance(error, NoSuchTable):
        return 404
    return 400 if isinstance(error, (InvalidRequest, OffsetOutOfRange)) else 500

"""Who may ask: the console answers a request only with its token, at its own address, and only reads.

* A page of another origin has no token, and a browser does not send it the cookie's (``SameSite=Strict``).
* A name that an attacker lets resolve to this machine is refused by the header ``Host``.
* There is no request that writes, so none can be forged.

A browser sends the cookie to every server at this address, whatever the port, so another server on this machine that
the same browser visits learns the token.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PARAMETER = "token"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none';"
    " object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware that answers what it refuses, and adds headers of safety to every response.

    Args:
        app: What answers the rest.
        token: The secret of this run.
        hosts: Values of the header ``Host`` that are taken.
        cookie: Name of the cookie; browsers send a cookie to every port of a host, so each port has its own name.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str], cookie: str) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._answer(scope) or self._app
        await answer(scope, receive, send_safely)

    def _answer(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if headers.getlist("host") != [headers.get("host")] or headers["host"].lower() not in self._hosts:
            return PlainTextResponse("This is not the address of the console; use the URL that it printed.\n", 403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("The console only reads.\n", 405, {"Allow": "GET, HEAD"})
        parameters = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in parameters if name == PARAMETER]
        if given and self._is_token(given[0]):
            return self._signed_in(scope["path"], [pair for pair in parameters if pair[0] != PARAMETER])
        if any(map(self._is_token, (self._bearer(headers), self._of_cookie(headers)))):
            return None
        return PlainTextResponse(
            "A token is missing, or is that of another run. Open the URL that `kvstore ui` printed.\n",
            401,
            {"WWW-Authenticate": "Bearer"},
        )

    def _signed_in(self, path: str, parameters: list[tuple[str, str]]) -> Response:
        """The same page without the token in its URL, which would stay in the browser's history."""
        # A path with two slashes at its start would name another host.
        target = "/" + path.lstrip("/\\")
        response = RedirectResponse(f"{target}?{urlencode(parameters)}" if parameters else target, 303)
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return response

    def _is_token(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token.encode())

    @staticmethod
    def _bearer(headers: Headers) -> str | None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return given.strip() if scheme.lower() == "bearer" else None

    def _of_cookie(self, headers: Headers) -> str | None:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return None
        return None if morsel is None else morsel.value

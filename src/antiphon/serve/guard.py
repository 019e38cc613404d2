"""Who may ask, and how much at once: the API key and the size, before anything is read."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = frozenset({"/", "/health", "/version", "/openapi.json"})
"""Paths that need no key; they tell nothing of what others asked."""


def error_object(message: str, kind: str, param: str | None = None, code: str | None = None) -> Any:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Guard:
    """ASGI middleware.

    Args:
        key: that every request but those to `OPEN` must carry as a bearer token; None: none.
        largest_body: bytes.
    """

    def __init__(self, app: ASGIApp, key: str | None, largest_body: int) -> None:
        self.app, self.key, self.largest_body = app, key, largest_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self.key is not None and scope["path"] not in OPEN and not self._known(headers):
            text = "the API key is missing or wrong: send Authorization: Bearer KEY"
            await _refuse(
                send, 401, error_object(text, "authentication_error", None, "invalid_api_key")
            )
            return
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self.largest_body:
            await _refuse(send, 413, self._too_large())
            return
        # A chunked body declares no length: it is read up to the limit, and told from memory.
        body, more = b"", scope["method"] in ("POST", "PUT", "PATCH", "DELETE")
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.largest_body:
                await _refuse(send, 413, self._too_large())
                return
        told = False

        async def replay() -> Message:
            nonlocal told
            if not told:
                told = True
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        await self.app(scope, replay, send)

    def _known(self, headers: Mapping[bytes, bytes]) -> bool:
        assert self.key is not None
        given = headers.get(b"authorization", b"")
        return hmac.compare_digest(given, b"Bearer " + self.key.encode())

    def _too_large(self) -> Any:
        return error_object(
            f"the body is larger than {self.largest_body} bytes: send less",
            "invalid_request_error",
            None,
            "request_too_large",
        )


async def _refuse(send: Send, status: int, body: Any) -> None:
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    if status == 413:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})

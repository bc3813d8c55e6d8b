"""Serve a saved model over HTTP: an ASGI application in plain Python, for any ASGI server.

    pip install uvicorn
    MODEL=model.zarr uvicorn --factory --app-dir examples serve:app --limit-concurrency 64

    curl localhost:8000/health
    curl localhost:8000/predict -H "content-type: application/json" -d '{"rows": [[5.1, 3.5, 1.4, 0.2]]}'
    curl localhost:8000/predict -H "content-type: application/json" -d '{"rows": [{"town": "Oslo", "area": 90}]}'

`"scores": true` adds the outputs, `"probabilities": true` the probabilities of the labels. If a row has a category that
training did not see, which counts as missing, `unseen_categories` has the number of such rows by column.

It takes at most MAX_ROWS rows and MAX_BYTES in a request. It says no in JSON: 400 for what is not JSON, 404 and 405 for
what it does not have, 413 and 415 for bodies it does not take, 422 for rows that the model cannot take.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import streamkern as sk

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Refused(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        detail: what is wrong, for people.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Application:
    """The ASGI application: ``GET /health`` and ``POST /predict``.

    Args:
        predictor: the model, loaded.
        max_bytes: most bytes of a request's body.
    """

    def __init__(self, predictor: sk.Predictor, max_bytes: int = 8 << 20) -> None:
        self.predictor, self.max_bytes = predictor, max_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                status, answer = 200, await self._answer(scope, receive)
            except Refused as error:
                status, answer = error.status, {"error": error.detail}
            body = json.dumps(answer).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def _live(self, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Message, receive: Receive) -> dict[str, Any]:
        method, path = scope["method"], scope["path"]
        methods = {"/health": "GET", "/predict": "POST"}
        if path not in methods:
            raise Refused(404, f"There is nothing at this path; there are {', '.join(methods)}.")
        if method != methods[path]:
            raise Refused(405, f"{path} takes {methods[path]}.")
        if path == "/health":
            predictor = self.predictor
            return {
                "status": "ok",
                "n_features": predictor.n_features,
                "columns": predictor.columns,
                "labels": predictor.labels,
                "weights_sha256": predictor.model.weights_sha256,
            }
        return await self._predict(await self._body(scope, receive))

    async def _predict(self, body: bytes) -> dict[str, Any]:
        # Nothing else runs while JSON is parsed, and a list or object of two bytes takes a microsecond: they
        # are counted before. A row is one; names of columns may have brackets of their own.
        opened, closed = body.count(b"[") + body.count(b"{"), body.count(b"]") + body.count(b"}")
        if opened > (most := self.predictor.max_rows + 4 * self.predictor.n_features + 100):
            if closed <= most:
                raise Refused(400, "The body is not JSON: a list or object does not end.")
            raise Refused(413, f"There are {opened} lists and objects; at most {most} are taken.")
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"The body is not JSON: {error}.") from error
        if not isinstance(asked, dict) or not isinstance(asked.get("rows"), list):
            raise Refused(422, 'The body has the form {"rows": [[...], ...] or [{...}, ...], "scores": false}.')
        if len(asked["rows"]) > self.predictor.max_rows:
            raise Refused(413, f"There are {len(asked['rows'])} rows; at most {self.predictor.max_rows} are taken.")
        columns = asked.get("columns")
        if columns is not None and not isinstance(columns, list):
            raise Refused(422, "columns are a list of names.")
        try:
            # In a thread: the event loop goes on taking requests meanwhile.
            return await asyncio.to_thread(self._answers, asked, columns)
        except (sk.DataError, sk.UsageError) as error:
            raise Refused(422, str(error)) from error

    def _answers(self, asked: dict[str, Any], columns: list[str] | None) -> dict[str, Any]:
        rows, predictor = asked["rows"], self.predictor
        predictions, outputs = predictor(rows, columns)
        answer: dict[str, Any] = {"predictions": predictions.tolist()}
        if asked.get("scores") is True:
            answer |= {"labels": predictor.labels, "scores": outputs.tolist()}
        if asked.get("probabilities") is True:
            found = predictor.predict_proba(rows, columns)
            answer |= {"labels": predictor.labels, "probabilities": found.tolist()}
        if rows and isinstance(rows[0], dict) and (unseen := predictor.unseen_categories(rows)):
            answer["unseen_categories"] = unseen
        return answer

    async def _body(self, scope: Message, receive: Receive) -> bytes:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if headers.get(b"content-type", b"application/json").partition(b";")[0].strip() != b"application/json":
            raise Refused(415, "The body is application/json.")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.max_bytes:
            raise Refused(413, f"The body may have {self.max_bytes} bytes.")
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "The request ended early.")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.max_bytes:  # whatever the header said
                raise Refused(413, f"The body may have {self.max_bytes} bytes.")
        return bytes(body)


def app() -> Application:
    """The application that the environment describes: MODEL, MAX_ROWS and MAX_BYTES."""
    predictor = sk.Predictor(os.environ["MODEL"], max_rows=int(os.environ.get("MAX_ROWS", "10000")))
    return Application(predictor, int(os.environ.get("MAX_BYTES", str(8 << 20))))

"""The HTTP interface of one registered model: predictions in batches, health, a page to type into, OpenAPI.

    GET  /               a page that sends what is typed, or an image, to /predict
    POST /predict        {"rows": [TEXT, ...], "attention": false} -> {"model": ..., "predictions": [...]}
    GET  /model          name, version, variant, classes, size of images, and card
    GET  /health         200 while the model answers
    GET  /openapi.json   the description of all this

A row is a text, or an image as lists of pixels [H, W, C], 0 to 255. A request that cannot be read is answered by 400
with the reason in ``detail``, one that is too long by 413, and one too many by 503.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from reread.storage.errors import InputError
from reread.tracking.batching import Answers, Batcher, Overloaded
from reread.tracking.registry import LoadedModel

PAGE = Path(__file__).with_name("scoring.html")
MOST_ROWS = 1024
MOST_BYTES = 16_000_000
RETRY_SECONDS = 1


class Rows(BaseModel):
    """A request: rows of the kind of data that the model reads."""

    rows: Annotated[list[Any], Field(min_length=1, max_length=MOST_ROWS, description="texts, or images as lists")]
    attention: bool = Field(False, description="whether a model with attention answers with it")


class Model(BaseModel):
    """The model that answers."""

    name: str
    version: str
    variant: str


class Predictions(BaseModel):
    """An answer per row, in order: ``label``, ``probability`` and ``probabilities``, or the number ``prediction``."""

    model: Model
    predictions: list[dict[str, Any]]


class About(Model):
    """The input and output of a model, and its card as Markdown."""

    kind: str
    task: str
    classes: list[str]
    image: Annotated[list[int] | None, Field(description="height, width and channels of an image that it reads")]
    card: str


class Health(BaseModel):
    status: str
    model: Model


class Refusal(BaseModel):
    """Why a request is not answered."""

    detail: str


def make_app(model: LoadedModel, started: Callable[[], None] = lambda: None) -> FastAPI:
    """Return the application that serves ``model``; ``started`` is called when it is about to listen."""
    batcher = Batcher(lambda requests, attention: _predict(model, requests, attention))
    about = Model(name=model.name, version=model.version, variant=model.variant)

    @contextlib.asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        started()
        yield
        batcher.stop()

    refusals: dict[int | str, dict[str, Any]] = {status: {"model": Refusal} for status in (400, 411, 413, 503)}
    # FastAPI's own pages load scripts from another host.
    app = FastAPI(
        title=model.name, version=model.version, description=__doc__, lifespan=running, docs_url=None, redoc_url=None
    )

    @app.middleware("http")
    async def limit(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.method == "POST":
            length = request.headers.get("content-length", "")
            if not length.isdigit():
                return _refuse(411, "the request has no Content-Length: send one")
            if int(length) > MOST_BYTES:
                # A client that is still sending would see the connection end, not the reason. It may leave first.
                with contextlib.suppress(ClientDisconnect):
                    async for _ in request.stream():
                        pass
                sent = f"the request has {int(length):,} bytes"
                return _refuse(413, f"{sent}, and {MOST_BYTES:,} are read: send fewer rows")
        return await answer(request)

    @app.exception_handler(RequestValidationError)
    async def wrong_request(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:] if isinstance(part, str)) or "the request"
        return _refuse(400, f"{where}: {first['msg']}")

    @app.exception_handler(InputError)
    async def wrong_rows(_: Request, error: InputError) -> JSONResponse:
        return _refuse(400, str(error))

    @app.exception_handler(Overloaded)
    async def overloaded(_: Request, error: Overloaded) -> JSONResponse:
        return _refuse(503, str(error), {"Retry-After": str(RETRY_SECONDS)})

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> str:
        return PAGE.read_text(encoding="utf-8")

    @app.get("/health", responses={503: {"model": Refusal}})
    async def health() -> Health:
        if not batcher.alive:
            raise Overloaded("the thread that answers has ended: start the server again")
        return Health(status="ok", model=about)

    @app.get("/model")
    async def describe() -> About:
        description = model.description
        return About(
            **about.model_dump(), kind=model.kind, task=description["task"], classes=description["classes"],
            image=description["arrays"]["images"]["shape"][1:] if model.kind == "image" else None, card=model.card,
        )  # fmt: skip

    @app.post("/predict", responses=refusals)
    async def predict(body: Rows) -> Predictions:
        rows = _decoded(model, body.rows)
        model.check(rows)
        return Predictions(model=about, predictions=await batcher.answers(rows, body.attention))

    described = app.openapi()
    # Such a request is answered by 400.
    described["paths"]["/predict"]["post"]["responses"].pop("422")
    return app


def _refuse(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers)


def _decoded(model: LoadedModel, rows: list[Any]) -> Any:
    """Return rows of JSON as the model takes them: texts as they are, numbers as an array, of uint8 where they fit."""
    if model.reads_text:
        for number, row in enumerate(rows):
            # JSON can name half a character. Others than text are refused by the reader.
            if isinstance(row, str) and any("\ud800" <= letter <= "\udfff" for letter in row):
                raise InputError(f"row {number} has half of a surrogate pair, which is no character: send Unicode")
        return rows
    try:
        array = np.asarray(rows)
    except ValueError:
        raise InputError("rows: they are not of one shape: send lists of equal length") from None
    fits = array.dtype.kind == "i" and array.size and array.min() >= 0 and array.max() <= np.iinfo(np.uint8).max
    return array.astype(np.uint8) if fits else array


def _predict(model: LoadedModel, requests: list[Sequence[Any]], attention: bool) -> Answers:
    rows = list(chain(*requests)) if model.reads_text else np.concatenate(requests)
    answers: Answers = model.predict(rows, attention).to_dict("records")
    return answers

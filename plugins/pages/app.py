"""The application: its routes, its errors, and the headers that every answer has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as AnyHTTPException

from include.pages.tables import UnavailableError
from plugins.pages import audio, benchmarks, movement, objects, quality, queues
from plugins.pages.access import require_read
from plugins.pages.render import render

# No script, style or request but our own; only Airflow may put the pages into a frame.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src"
    " 'self' blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

# Bytes of a form: all dead letters of a page, and their queue.
LARGEST_FORM = 64 << 10

app = FastAPI(title="Storeside", docs_url=None, redoc_url=None, openapi_url=None)
for part in (movement, objects, audio, queues, quality, benchmarks):
    app.include_router(part.router, dependencies=[Depends(require_read)])
# Style and scripts: the same for everybody, and without anybody's data.
app.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")), name="static")


@app.get("/", dependencies=[Depends(require_read)])
def home(request: Request) -> RedirectResponse:
    """Lead to the first page."""
    return RedirectResponse(f"{request.scope['root_path']}/movement")


@app.middleware("http")
async def bounded(request: Request, call_next: Any) -> Response:
    """Turn away bodies that none of our forms has: FastAPI reads a body before it asks who sends it."""
    size = request.headers.get("content-length", "0")
    if "transfer-encoding" in request.headers or len(size) > len(str(LARGEST_FORM)) or int(size) > LARGEST_FORM:
        said = f"The form is larger than {LARGEST_FORM} bytes, or does not say how large it is."
        answer: Response = render(request, "error.html", code=413, title="Not possible", said=said)
        answer.headers["Connection"] = "close"  # its body is not read
        return answer
    answer = await call_next(request)
    return answer


@app.middleware("http")
async def headers(request: Request, call_next: Any) -> Response:
    """Add the headers that an answer does not have of its own."""
    response: Response = await call_next(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if request.url.path.startswith(f"{request.scope['root_path']}/static/"):
        response.headers["Cache-Control"] = "max-age=300"
    return response


@app.exception_handler(AnyHTTPException)
def refused(request: Request, error: HTTPException) -> Response:
    """Show why a request was turned away."""
    said = "Sign in to Airflow first." if error.status_code == 401 else str(error.detail)
    answer = render(request, "error.html", code=error.status_code, title="Not possible", said=said)
    answer.headers.update(error.headers or {})
    return answer


@app.exception_handler(ValueError)
def wrong(request: Request, error: ValueError) -> Response:
    """Show what is wrong with a request."""
    return render(request, "error.html", code=400, title="Not possible", said=str(error))


@app.exception_handler(UnavailableError)
def unanswered(request: Request, error: UnavailableError) -> Response:
    """Say what does not answer, or not in time, or that no connection leads to it."""
    return render(request, "error.html", code=503, title="Not now", said=str(error))

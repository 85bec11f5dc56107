"""The application: its routes, its errors, and the headers of every response."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as AnyHTTPException

from storeside.errors import BadInput
from storeside.pages.tables import UnavailableError
from storeside.plugins.pages import (
    audio,
    benchmarks,
    corpus,
    destinations,
    downloads,
    etls,
    failures,
    movement,
    objects,
    overview,
    quality,
    queues,
    storage,
)
from storeside.plugins.pages.access import require_known_filters, require_names, require_read
from storeside.plugins.pages.limits import page_place, stream_place
from storeside.plugins.pages.render import render

# Only our own scripts, styles and requests; only Airflow may show the pages in a frame.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src"
    " 'self' blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

# Maximum bytes of a form: all dead letters of a page, and their queue.
LARGEST_FORM = 64 << 10

app = FastAPI(title="Storeside", docs_url=None, redoc_url=None, openapi_url=None)
for part in (overview, movement, failures, objects, destinations, queues, quality, corpus, etls, storage, benchmarks):
    # The place is taken first: `require_read` needs a thread, too. It is free again when the page is made.
    required = (
        Depends(page_place, scope="function"), Depends(require_read), Depends(require_names),
        Depends(require_known_filters),
    )  # fmt: skip
    app.include_router(part.router, dependencies=required)
# A download occupies its place until it was sent.
streamed = (Depends(stream_place), Depends(require_read), Depends(require_names), Depends(require_known_filters))
app.include_router(downloads.router, dependencies=streamed)
app.include_router(audio.router, dependencies=[Depends(stream_place), Depends(require_read)])
# Style and scripts: the same for all users, and without any user's data.
app.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")), name="static")


@app.get("/", dependencies=[Depends(require_read)])
def home(request: Request) -> RedirectResponse:
    """Redirect to the first page."""
    return RedirectResponse(f"{request.scope['root_path']}/overview")


@app.middleware("http")
async def bounded(request: Request, call_next: Any) -> Response:
    """Refuse bodies that none of our forms sends: FastAPI reads a body before it checks the sender."""
    size = request.headers.get("content-length", "0")
    if "transfer-encoding" in request.headers or len(size) > len(str(LARGEST_FORM)) or int(size) > LARGEST_FORM:
        said = f"The form is larger than {LARGEST_FORM} bytes, or does not state its size."
        answer: Response = render(request, "error.html", code=413, title="Not possible", said=said)
        answer.headers["Connection"] = "close"  # its body is not read
        return answer
    answer = await call_next(request)
    return answer


@app.middleware("http")
async def headers(request: Request, call_next: Any) -> Response:
    """Add each header that a response does not set itself."""
    response: Response = await call_next(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if request.url.path.startswith(f"{request.scope['root_path']}/static/"):
        response.headers["Cache-Control"] = "max-age=300"
    return response


@app.exception_handler(AnyHTTPException)
def refused(request: Request, error: HTTPException) -> Response:
    """Show why a request was refused."""
    said = "Sign in to Airflow first." if error.status_code == 401 else str(error.detail)
    answer = render(request, "error.html", code=error.status_code, title="Not possible", said=said)
    answer.headers.update(error.headers or {})
    return answer


@app.exception_handler(RequestValidationError)
def incomplete(request: Request, error: RequestValidationError) -> Response:
    """Name the missing or invalid parts of the address or form."""
    names = ", ".join(sorted({str(each["loc"][-1]) for each in error.errors()}))
    said = f"The address or form lacks a valid value for: {names}. Open the page from a link in another page."
    return render(request, "error.html", code=400, title="Not possible", said=said)


@app.exception_handler(Exception)
def broken(request: Request, error: Exception) -> Response:
    """Report a defect of the plugin; Starlette writes the error to the API server's log."""
    said = "This page has a defect. The log of Airflow's API server has the details."
    answer = render(request, "error.html", code=500, title="Not possible", said=said)
    answer.headers.update(HEADERS)  # the middleware that adds them does not see this response
    return answer


@app.exception_handler(BadInput)
def wrong(request: Request, error: BadInput) -> Response:
    """Show the fault of a request."""
    return render(request, "error.html", code=400, title="Not possible", said=str(error))


@app.exception_handler(UnavailableError)
def unanswered(request: Request, error: UnavailableError) -> Response:
    """Name the server that does not answer in time, or has no connection."""
    return render(request, "error.html", code=503, title="Not now", said=str(error))

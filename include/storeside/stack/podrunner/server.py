"""The part of the Kubernetes API that AIStore's ETL uses, over HTTPS with a bearer token."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from storeside.stack.podrunner.cluster import AlreadyExistsError, Cluster
from storeside.stack.podrunner.kube_protobuf import parse_body
from storeside.stack.podrunner.pods import InvalidError, Manifest, now
from storeside.stack.podrunner.settings import Settings

METRICS = "metrics.k8s.io/v1beta1"


def failure(code: int, reason: str, message: str, kind: str = "", name: str = "") -> JSONResponse:
    """Return an error as a Kubernetes Status object."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": {"name": name, "kind": kind},
        "code": code,
    }
    return JSONResponse(status, code)


def _not_found(kind: str, name: str) -> JSONResponse:
    return failure(404, "NotFound", f'{kind} "{name}" not found', kind, name)


def _selected(request: Request) -> str | None:
    match = re.fullmatch(r"metadata\.name=(.+)", request.query_params.get("fieldSelector", ""))
    return match[1] if match else None


class Guard:
    """Refuses requests without the token, except health checks."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._expected = f"Bearer {settings.token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, or answer 401."""
        if scope["type"] == "http" and scope["path"] != "/healthz":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                await failure(401, "Unauthorized", "Unauthorized")(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Watch(Response):
    """An event stream that ends only when its reader disconnects: AIStore polls busily after the stream ends."""

    def __init__(self, cluster: Cluster, name: str | None) -> None:
        super().__init__(media_type="application/json")
        del self.headers["content-length"]
        self._cluster = cluster
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the reader disconnects."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        queue = self._cluster.watch(self._name)
        sender = asyncio.create_task(self._send(queue, send))
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._cluster.unwatch(queue)
            sender.cancel()

    @staticmethod
    async def _send(queue: asyncio.Queue[bytes], send: Callable[[MutableMapping[str, Any]], Awaitable[None]]) -> None:
        while True:
            await send({"type": "http.response.body", "body": await queue.get(), "more_body": True})


class Api:
    """The request handlers."""

    def __init__(self, settings: Settings) -> None:
        self.cluster = Cluster(settings)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        core, metrics = "/api/v1/namespaces/{namespace}", f"/apis/{METRICS}"
        routes: dict[str, dict[str, Callable[[Request], Awaitable[Response]]]] = {
            "GET": {
                "/healthz": self.health,
                f"{core}/pods": self.list_pods,
                f"{core}/pods/{{name}}": self.get_pod,
                f"{core}/pods/{{name}}/log": self.log,
                f"{core}/services": self.list_services,
                f"{core}/services/{{name}}": self.get_service,
                f"{metrics}/pods": self.list_metrics,
                f"{metrics}/namespaces/{{namespace}}/pods/{{name}}": self.metrics,
            },
            "POST": {f"{core}/pods": self.create_pod, f"{core}/services": self.create_service},
            "DELETE": {
                f"{core}/pods/{{name}}": self.delete_pod,
                f"{core}/services/{{name}}": self.delete_service,
            },
        }
        return Starlette(
            routes=[
                Route(path, handler, methods=[method])
                for method, handlers in routes.items()
                for path, handler in handlers.items()
            ],
            middleware=[Middleware(Guard, settings=self.cluster.settings)],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        leftovers = self.cluster.ledger.kill_leftovers()
        if leftovers:
            print(f"killed {leftovers} processes that an earlier run had left behind", flush=True)
        enforcing = asyncio.create_task(self.cluster.enforce_forever())
        try:
            yield
        finally:
            enforcing.cancel()
            await self.cluster.shutdown()

    async def health(self, _request: Request) -> Response:
        """Report that the runner serves requests."""
        return PlainTextResponse("ok")

    # ---- pods

    async def list_pods(self, request: Request) -> Response:
        """List pods, or watch them."""
        name = _selected(request)
        if request.query_params.get("watch") in ("true", "1"):
            return Watch(self.cluster, name)
        return self._list("PodList", self.cluster.manifests(name))

    async def get_pod(self, request: Request) -> Response:
        """Return one pod."""
        name = request.path_params["name"]
        found = self.cluster.manifests(name)
        return JSONResponse(found[0]) if found else _not_found("pods", name)

    async def create_pod(self, request: Request) -> Response:
        """Create a pod and start its process."""
        return await self._create(request, "pods")

    async def delete_pod(self, request: Request) -> Response:
        """End a pod; the pods of AIStore's nodes cannot be deleted."""
        name = request.path_params["name"]
        if name in self.cluster.nodes:
            return failure(403, "Forbidden", f'pod "{name}" is a node of AIStore', "pods", name)
        manifest = await self.cluster.delete_pod(name)
        return JSONResponse(manifest) if manifest else _not_found("pods", name)

    async def log(self, request: Request) -> Response:
        """Return the log of a pod."""
        pod = self.cluster.pods.get(request.path_params["name"])
        if pod is None or not pod.log.exists():
            return _not_found("pods", request.path_params["name"])
        return PlainTextResponse(pod.log.read_bytes())

    # ---- services

    async def list_services(self, request: Request) -> Response:
        """List services."""
        name = _selected(request)
        found = [service for key, service in self.cluster.services.items() if name in (None, key)]
        return self._list("ServiceList", found)

    async def get_service(self, request: Request) -> Response:
        """Return one service."""
        name = request.path_params["name"]
        service = self.cluster.services.get(name)
        return JSONResponse(service) if service else _not_found("services", name)

    async def create_service(self, request: Request) -> Response:
        """Register a service."""
        return await self._create(request, "services")

    async def delete_service(self, request: Request) -> Response:
        """Remove a service."""
        name = request.path_params["name"]
        service = self.cluster.services.pop(name, None)
        return JSONResponse(service) if service else _not_found("services", name)

    # ---- metrics

    async def list_metrics(self, _request: Request) -> Response:
        """Return an empty list, which shows that metrics are available; AIStore reads them pod by pod."""
        return JSONResponse({"kind": "PodMetricsList", "apiVersion": METRICS, "metadata": {}, "items": []})

    async def metrics(self, request: Request) -> Response:
        """Return a pod's current usage."""
        name = request.path_params["name"]
        pod = self.cluster.pods.get(name)
        if pod is None:
            return _not_found("pods", name)
        cores, resident = await pod.measure()
        used = {"cpu": f"{int(cores * 1e9)}n", "memory": f"{resident >> 10}Ki"}
        return JSONResponse(
            {
                "kind": "PodMetrics",
                "apiVersion": METRICS,
                "metadata": {"name": name, "namespace": request.path_params["namespace"]},
                "timestamp": now(),
                "window": "500ms",
                "containers": [{"name": name, "usage": used}],
            }
        )

    # ---- common

    def _list(self, kind: str, items: list[Manifest]) -> Response:
        metadata = {"resourceVersion": str(self.cluster.version)}
        return JSONResponse({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items})

    async def _create(self, request: Request, kind: str) -> Response:
        try:
            manifest = parse_body(await request.body())
        except ValueError as error:
            return failure(400, "BadRequest", str(error), kind)
        if kind == "pods":
            return await self._answer(self.cluster.create_pod(manifest), kind)
        return await self._answer(self._service(manifest), kind)

    async def _service(self, manifest: Manifest) -> Manifest:
        return self.cluster.create_service(manifest)

    @staticmethod
    async def _answer(creation: Awaitable[Manifest], kind: str) -> Response:
        try:
            return JSONResponse(await creation, 201)
        except AlreadyExistsError as error:
            return failure(409, "AlreadyExists", f'{kind} "{error}" already exists', kind, str(error))
        except InvalidError as error:
            return failure(422, "Invalid", str(error), kind)

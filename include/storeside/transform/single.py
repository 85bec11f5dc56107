"""Transforms one object with an ETL, into another object or into a local file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storeside.aistore import etl as etls
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import (
    AIStoreError,
    AIStoreInputError,
    AIStoreTransientError,
    is_passing,
    is_passing_refusal,
    said,
)
from storeside.aistore.existing import described, require_reports
from storeside.aistore.names import require_fit
from storeside.aistore.places import Clusters, place
from storeside.aistore.pods import PodWatch
from storeside.aistore.spec import EtlSpec
from storeside.aistore.stored_objects import find_aistore
from storeside.transform.journal import reasons_failed, reasons_left_out

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

Arguments = str | Mapping[str, Any]
_PIECE = 1 << 20
_ATTEMPTS = 5
_NOT_FOUND = 404


def _through(
    client: Client, spec: EtlSpec | None, arguments: Arguments, keeper: str, pods: PodWatch | None, what: str,
    do: Callable[[Any, list[str]], int],
) -> int:  # fmt: skip
    """Start the ETLs, call `do` with the SDK's configuration for them and their names, and return its result.

    It uses ``hpush``, which reports failures, and stops only ETLs that it started; none if `keeper`, the name of a
    run, keeps them for later tasks. An existing ETL keeps its channel, which must not be ``ws``. Another task may
    stop the ETL meanwhile, because requests for single objects are not jobs; the ETL is then started again, unless it
    is an existing one. Raises AIStoreError with a message that begins with `what`.
    """
    from aistore.sdk.errors import AISError
    from aistore.sdk.etl import ETLConfig

    if spec is None:
        try:
            return do(None, [])
        except AISError as e:
            raise _failure(what, e) from e
    spec = described(client, spec.over("hpush"))
    require_reports(spec, "a request for one object")
    given = arguments if isinstance(arguments, str) else dict(arguments)
    attempt = 0
    is_ours = False
    try:
        while True:
            attempt += 1
            is_ours = is_ours or not etls.are_there(client, spec.own_names)
            names = etls.ensure(client, spec, pods, keeps=bool(keeper), keeper=keeper)
            chain = client.etl(names[0])
            for name in names[1:]:
                chain = chain >> client.etl(name)
            try:
                return do(ETLConfig(chain if len(names) > 1 else names[0], given), names)
            except AISError as e:
                if attempt == _ATTEMPTS or etls.are_there(client, names):
                    raise _failure(what, e) from e
                log.info("%s: another task stopped the ETL, starting it again: %s", what, said(e))
    finally:
        if keeper:
            etls.renew(client, spec.own_names)
        elif is_ours:
            etls.release(client, spec.own_names)


def _failure(what: str, error: Any) -> AIStoreError:
    """Return our error for AIStore's: transient when a target is unavailable or keys are being renewed."""
    text = said(error)
    passes = is_passing(error.status_code) or is_passing_refusal(text)
    return (AIStoreTransientError if passes else AIStoreInputError)(f"{what}: {text}")


def _require_result(client: Client, names: list[str], bucket: Bucket, name: str, what: str, earlier: int = 0) -> None:
    """Raise AIStoreInputError if the ETLs left the object out more than `earlier` times.

    AIStore reports a success then, because no result was to be stored.
    """
    if reasons := reasons_left_out(client, names, bucket.name, name)[earlier:]:
        raise AIStoreInputError(f"{what}: it was left out: {reasons[-1]}")


def transform_object(
    client: Client, source: Bucket, name: str, destination: Bucket, result: str, spec: EtlSpec, *,
    arguments: Arguments = "", latest: bool = False, keeper: str = "", pods: PodWatch | None = None,
) -> int:  # fmt: skip
    """Transform one object into another within AIStore; return the size of the result in bytes.

    `keeper` is the name of a run that keeps the ETL for later tasks; see `storeside.aistore.etl.ensure`.
    Raises AIStoreError with the reason when the transform fails or leaves the object out; an earlier result stays. An
    empty result is deleted and counts as failed.
    Within one bucket, the result must be a new object: if AIStore overwrote an object with an incomplete result, the
    old content would be lost.
    """
    from aistore.sdk.errors import AISError
    from requests import RequestException

    latest = latest or source.scheme != "ais"  # AIStore may hold an older copy of an object in the cloud
    require_fit(result, f"the result of {source}/{name} cannot be named {result!r}")
    found, to = source.object(client, name), destination.object(client, result)
    _require_new(client, source, name, destination, result)
    if not destination.is_remote:
        destination.handle(client).create(exist_ok=True)

    existed = any(find_aistore(client, destination, [result]))
    what = f"{source}/{name} cannot be transformed"

    def copy(config: Any, names: list[str]) -> int:
        earlier = len(reasons_left_out(client, names, source.name, name)) if existed else 0
        try:
            found.copy(to, etl=config, latest=latest)
        except RequestException as e:  # the client's repetitions failed, too; it does not state AIStore's reason
            reasons = reasons_failed(client, names, source.name, name)
            raise AIStoreTransientError(f"{what}: {reasons[-1] if reasons else e}") from e
        try:
            size = int(to.props.size)
        except AISError as e:
            if e.status_code == _NOT_FOUND:
                _require_result(client, names, source, name, what)
            raise
        if existed or not size:
            _require_result(client, names, source, name, what, earlier)
        return size

    size = _through(client, spec.without_files() if latest else spec, arguments, keeper, pods, what, copy)
    if not size:
        to.delete()
        raise AIStoreInputError(f"{what}: its result was empty")
    return size


def _require_new(client: Client, source: Bucket, name: str, destination: Bucket, result: str) -> None:
    """Raise AIStoreInputError when a result in the source's bucket would overwrite an object."""
    clusters = Clusters.of(client)
    if place(client, source, clusters) != place(client, destination, clusters):
        return
    if result == name or any(find_aistore(client, destination, [result])):
        raise AIStoreInputError(
            f"{source}/{name} cannot be transformed: {destination} is the same bucket and has an object {result!r},"
            " which the result would overwrite: name another result or bucket, or use a bucket transform with"
            " in_place=True"
        )


def get_object(
    client: Client, source: Bucket, name: str, path: Path, spec: EtlSpec | None = None, *,
    arguments: Arguments = "", keeper: str = "", pods: PodWatch | None = None,
) -> int:  # fmt: skip
    """Write one object to the file `path`, transformed if there is a `spec`; return its size in bytes.

    `keeper` is the name of a run that keeps the ETL for later tasks; see `storeside.aistore.etl.ensure`.
    The file appears only when it is complete. Raises AIStoreError with the reason when the object cannot be read.
    """
    part = path.with_name(f".{path.name}.part")
    found = source.object(client, name)
    latest = source.scheme != "ais"
    spec = spec.without_files() if spec and latest else spec

    what = f"{source}/{name} cannot be read"

    def read(config: Any, names: list[str]) -> int:
        earlier = len(reasons_failed(client, names, source.name, name))
        reader = found.get_reader(etl=config, chunk_size=_PIECE, latest=latest)
        with part.open("wb") as file:
            size = sum(file.write(piece) for piece in reader)
        # AIStore 5.0 ends the answer as if it were complete when a stream fails within it.
        if reasons := reasons_failed(client, names, source.name, name)[earlier:]:
            raise AIStoreInputError(f"{what}: {reasons[-1]}")
        if not size:
            _require_result(client, names, source, name, what)
        return size

    try:
        size = _through(client, spec, arguments, keeper, pods, what, read)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return size

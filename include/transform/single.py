"""One object through an ETL: into another object, or to whoever asks for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from include.storage.buckets import Bucket, find_aistore
from include.storage.names import unfit
from include.storage.places import Clusters, place

from . import etl as etls
from .errors import TransformError, TransientTransformError, is_passing_refusal, said
from .etl import EtlSpec
from .pods import PodWatch

log = logging.getLogger(__name__)

Arguments = str | Mapping[str, Any]
_PIECE = 1 << 20
_ATTEMPTS = 5


def _through(
    client: Any, spec: EtlSpec | None, arguments: Arguments, keep_etl: bool, pods: PodWatch | None, what: str,
    do: Callable[[Any], int],
) -> int:  # fmt: skip
    """Return what `do` returns for the SDK's configuration of the ETLs, which run meanwhile.

    Over ``hpush``, where failures are told. An ETL that ran already is left to whoever started it, who may end it
    meanwhile, as requests of objects are no jobs: it is started again then. Raises TransformError that begins with
    `what`.
    """
    from aistore.sdk.errors import AISError
    from aistore.sdk.etl import ETLConfig

    if spec is None:
        try:
            return do(None)
        except AISError as e:
            raise _failure(what, e) from e
    spec = spec.over("hpush")
    given = arguments if isinstance(arguments, str) else dict(arguments)
    attempt = 0
    is_ours = False
    try:
        while True:
            attempt += 1
            is_ours = is_ours or not etls.are_there(client, spec.names)
            names = etls.ensure(client, spec, pods)
            chain = client.etl(names[0])
            for name in names[1:]:
                chain = chain >> client.etl(name)
            try:
                return do(ETLConfig(chain if len(names) > 1 else names[0], given))
            except AISError as e:
                if attempt == _ATTEMPTS or etls.are_there(client, names):
                    raise _failure(what, e) from e
                log.info("%s: another task has ended the ETL, starting it again: %s", what, said(e))
    finally:
        if is_ours and not keep_etl:
            etls.release(client, spec.names)


def _failure(what: str, error: Any) -> TransformError:
    """Return the error of ours for AIStore's: one that may pass where a target is away or keys are renewed."""
    text = said(error)
    passes = (error.status_code or 500) >= 500 or is_passing_refusal(text)
    return (TransientTransformError if passes else TransformError)(f"{what}: {text}")


def transform_object(
    client: Any, source: Bucket, name: str, destination: Bucket, result: str, spec: EtlSpec, *,
    arguments: Arguments = "", latest: bool = False, keep_etl: bool = False, pods: PodWatch | None = None,
) -> int:  # fmt: skip
    """Have AIStore transform one object into another; returns the result's bytes.

    Raises TransformError with the reason when it fails; an empty result is removed and counts as failed. Within one
    bucket the result has to be a new object: what AIStore writes over an object is gone when the result is not whole.
    """
    if reason := unfit(result):
        raise TransformError(f"the result of {source}/{name} cannot be named {result!r}: {reason}")
    _require_new(client, source, name, destination, result)
    if not destination.is_remote:
        destination.handle(client).create(exist_ok=True)
    to = destination.handle(client).object(result)

    def copy(config: Any) -> int:
        source.handle(client).object(name).copy(to, etl=config, latest=latest)
        return int(to.props.size)

    what = f"{source}/{name} cannot be transformed"
    size = _through(client, spec.without_files() if latest else spec, arguments, keep_etl, pods, what, copy)
    if not size:
        to.delete()
        raise TransformError(f"{what}: its result was empty")
    return size


def _require_new(client: Any, source: Bucket, name: str, destination: Bucket, result: str) -> None:
    """Raise TransformError when a result in the source's own bucket would overwrite an object."""
    clusters = Clusters.of(client)
    if place(client, source, clusters) != place(client, destination, clusters):
        return
    if result == name or any(find_aistore(client, destination, [result])):
        raise TransformError(
            f"{source}/{name} cannot be transformed: {destination} is its own bucket and has an object {result!r},"
            " which the result would overwrite. Name another result or bucket, or use a bucket transform with"
            " in_place=True"
        )


def get_object(
    client: Any, source: Bucket, name: str, path: Path, spec: EtlSpec | None = None, *,
    arguments: Arguments = "", keep_etl: bool = False, pods: PodWatch | None = None,
) -> int:  # fmt: skip
    """Write one object, through an ETL if there is a `spec`, to the file `path`; returns its bytes.

    The file appears when it is whole. Raises TransformError with the reason when the object cannot be had.
    """
    part = path.with_name(f".{path.name}.part")

    def read(config: Any) -> int:
        reader = source.handle(client).object(name).get_reader(etl=config, chunk_size=_PIECE)
        with part.open("wb") as file:
            return sum(file.write(piece) for piece in reader)

    try:
        size = _through(client, spec, arguments, keep_etl, pods, f"{source}/{name} cannot be had", read)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return size

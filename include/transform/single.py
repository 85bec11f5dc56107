"""One object through an ETL: into another object, or to whoever asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from include.storage.buckets import Bucket
from include.storage.names import unfit

from . import etl as etls
from .errors import TransformError, TransientTransformError, is_passing_refusal, said
from .etl import EtlSpec
from .pods import PodWatch

Arguments = str | Mapping[str, Any]
_PIECE = 1 << 20


@contextmanager
def _started(
    client: Any, spec: EtlSpec | None, arguments: Arguments, keep_etl: bool, pods: PodWatch | None
) -> Iterator[Any]:
    """Give the SDK's configuration of the ETLs while they run; over ``hpush``, where failures are told."""
    from aistore.sdk.etl import ETLConfig

    if spec is None:
        yield None
        return
    names = etls.ensure(client, spec.over("hpush"), pods)
    chain = client.etl(names[0])
    for name in names[1:]:
        chain = chain >> client.etl(name)
    try:
        yield ETLConfig(
            chain if len(names) > 1 else names[0], arguments if isinstance(arguments, str) else dict(arguments)
        )
    finally:
        if not keep_etl:
            etls.release(client, names)


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

    Raises TransformError with the reason when it fails; an empty result is removed and counts as failed.
    """
    from aistore.sdk.errors import AISError

    if reason := unfit(result):
        raise TransformError(f"the result of {source}/{name} cannot be named {result!r}: {reason}")
    if not destination.is_remote:
        destination.handle(client).create(exist_ok=True)
    to = destination.handle(client).object(result)
    with _started(client, spec.without_files() if latest else spec, arguments, keep_etl, pods) as config:
        try:
            source.handle(client).object(name).copy(to, etl=config, latest=latest)
            size = int(to.props.size)
        except AISError as e:
            raise _failure(f"{source}/{name} cannot be transformed", e) from e
    if not size:
        to.delete()
        raise TransformError(f"{source}/{name} cannot be transformed: its result was empty")
    return size


def get_object(
    client: Any, source: Bucket, name: str, path: Path, spec: EtlSpec | None = None, *,
    arguments: Arguments = "", keep_etl: bool = False, pods: PodWatch | None = None,
) -> int:  # fmt: skip
    """Write one object, through an ETL if there is a `spec`, to the file `path`; returns its bytes.

    The file appears when it is whole. Raises TransformError with the reason when the object cannot be had.
    """
    from aistore.sdk.errors import AISError

    part = path.with_name(f".{path.name}.part")
    with _started(client, spec, arguments, keep_etl, pods) as config:
        try:
            reader = source.handle(client).object(name).get_reader(etl=config, chunk_size=_PIECE)
            with part.open("wb") as file:
                size = sum(file.write(piece) for piece in reader)
            part.replace(path)
        except AISError as e:
            raise _failure(f"{source}/{name} cannot be had", e) from e
        finally:
            part.unlink(missing_ok=True)
    return size

"""Finds Iceberg tables in catalogues: REST, Glue and SQL, with the clients of pyiceberg.

A catalogue only states which metadata file of a table is current. The load reads that file and all others with its
own client of S3, within its limits, and gives the catalogue no access to S3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import ENOENT
from typing import TYPE_CHECKING, Any

from pyiceberg import exceptions
from pyiceberg.catalog import load_catalog
from pyiceberg.io import FileIO

from storeside.transfer.base.errors import TransferInputError, TransferTransientError
from storeside.transfer.request.source import table_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as Client

_REFUSED = (exceptions.AuthorizationExpiredError, exceptions.OAuthError, exceptions.UnauthorizedError)
_ABSENT = (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError, exceptions.NoSuchIcebergTableError)
_PASSING = (exceptions.ServerError, exceptions.ServiceUnavailableError)
# Errors of boto3 that another try may cure; the others are about credentials, permissions and arguments.
_PASSING_CODES = ("InternalServiceException", "OperationTimeoutException", "ThrottlingException")
_ELSEWHERE = "the load reads it with its own client"
# Parts of the names of properties whose values are secrets.
_SECRET = ("credential", "key", "password", "secret", "token", "uri", "auth")


@dataclass(frozen=True)
class Catalog:
    """A catalogue by its name, with properties of pyiceberg.

    Without `properties`, pyiceberg's own configuration describes it: variables such as
    ``PYICEBERG_CATALOG__LAKEHOUSE__URI``, or the file ``.pyiceberg.yaml``.
    """

    name: str
    properties: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def metadata_file(self, uri: str) -> str:
        """Return the URI of the current metadata file of a table, such as ``iceberg://lakehouse/sales.orders``.

        Raises TransferInputError if the catalogue has no such table or refuses its credentials, and
        TransferTransientError if it does not answer.
        """
        _, table = table_of(uri)
        with self._errors(uri):
            try:
                found = self._client().load_table(table).metadata_location
            except FileNotFoundError as e:
                if e.strerror != _ELSEWHERE:
                    raise
                found = e.filename
        if not found:
            raise TransferInputError(f"{uri}: the catalogue states no metadata file: commit the table first")
        return str(found)

    def _client(self) -> Client:
        # SQL and Glue pass the metadata file's URI to the class that `py-io-impl` names.
        client = load_catalog(self.name, **{**self.properties, "py-io-impl": f"{__name__}.NoFiles"})
        # A table's own properties, which its writers set, could name any class otherwise.
        client._load_file_io = lambda *_, **__: NoFiles({})  # type: ignore[method-assign]
        return client

    @contextmanager
    def _errors(self, uri: str) -> Iterator[None]:
        """Turn errors of pyiceberg and its clients into TransferErrors without secrets."""
        from botocore.exceptions import BotoCoreError, ClientError
        from requests.exceptions import RequestException

        where = "its connection, or the variables PYICEBERG_CATALOG__…"
        try:
            yield
        except _ABSENT as e:
            raise TransferInputError(
                f"{uri}: the catalogue {self.name!r} has no such Iceberg table: correct its name"
            ) from e
        except (exceptions.NotInstalledError, ImportError) as e:
            raise TransferInputError(
                f"{uri}: a package for this type of catalogue is not installed ({self._told(e)}):"
                " pip install 'storeside[catalog]'"
            ) from e
        except (*_REFUSED, exceptions.ForbiddenError) as e:
            raise TransferInputError(
                f"{uri}: the catalogue {self.name!r} refuses access ({self._told(e)}): correct {where}"
            ) from e
        except (*_PASSING, RequestException, BotoCoreError) as e:
            raise TransferTransientError(f"{uri}: the catalogue does not answer: {self._told(e)}") from None
        except ClientError as e:
            kind = TransferTransientError if _passes(e) else TransferInputError
            raise kind(f"{uri}: Glue: {self._told(e)}") from e
        except Exception as e:  # drivers of databases and pyiceberg raise errors of many types
            if type(e).__name__ in ("OperationalError", "InterfaceError"):  # of SQLAlchemy
                raise TransferTransientError(f"{uri}: the catalogue does not answer: {self._told(e)}") from None
            raise TransferInputError(
                f"{uri}: the catalogue {self.name!r} cannot be used: {self._told(e)}: correct {where}"
            ) from None

    def _told(self, error: BaseException) -> str:
        """Return the first line of an error without the values of secret properties."""
        text = next(iter(str(error).splitlines()), "") or type(error).__name__
        for name, value in sorted(_flat(self.properties), key=lambda pair: -len(pair[1])):
            if value and any(part in name.lower() for part in _SECRET):
                for secret in (value, *value.split(":")) if "credential" in name else (value,):
                    text = text.replace(secret, "***") if secret else text
        return text


class NoFiles(FileIO):
    """Has no file, so pyiceberg stops where it would begin to read a table's metadata."""

    def new_input(self, location: str) -> Any:
        """Raise FileNotFoundError with the URI as its `filename`."""
        raise FileNotFoundError(ENOENT, _ELSEWHERE, location)

    def new_output(self, location: str) -> Any:
        """Raise NotImplementedError: a load writes nothing into its source."""
        raise NotImplementedError

    def delete(self, location: Any) -> None:
        """Raise NotImplementedError: a load deletes nothing in its source."""
        raise NotImplementedError


def _passes(error: Any) -> bool:
    return error.response.get("Error", {}).get("Code", "") in _PASSING_CODES


def _flat(properties: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in properties.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, str):
            yield f"{above}{name}", value

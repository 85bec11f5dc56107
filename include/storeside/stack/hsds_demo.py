"""``make demo-hsds``: stream an array through HSDS, then load it through Parquet on S3 into ClickHouse."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from storeside.hsds.client import Client, Server
from storeside.hsds.export import Export, Exporter
from storeside.hsds.plan import Slab
from storeside.sql.answers import first_row
from storeside.stack.demo import clickhouse_client
from storeside.stack.servers import hsds, s3
from storeside.stack.settings import Stack
from storeside.transfer.request.options import TableOptions
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer

if TYPE_CHECKING:
    import numpy as np

ROWS, COLUMNS = 12_000, 2_200
CHUNKS = (240, COLUMNS)
# The sum weights each element by its position, so a shifted array has another sum.
CHECKSUM = "SELECT sum(arraySum((v, n) -> v * (n - 1), value, arrayEnumerate(value)) * (i0 % 7 + 1))"


def run(stack: Stack) -> list[tuple[str, ...]]:
    """Write, read, export and load an array; return the rows of the result table.

    Raises:
        HsdsError, TransferError: a step failed.
    """
    import numpy as np

    logging.getLogger("clickhouse_connect").setLevel(logging.ERROR)
    login = hsds.login(stack)
    client = Client(Server(login.endpoint, login.username, login.password))
    domain = time.strftime("/home/storeside/demo-%Y%m%d-%H%M%S.h5", time.gmtime())
    values = np.random.default_rng(int(time.time())).integers(0, 1 << 20, (ROWS, COLUMNS), dtype=np.int64)
    wanted = checksum(values)
    body = {
        "type": "H5T_STD_I64LE",
        "shape": values.shape,
        "creationProperties": {"layout": {"class": "H5D_CHUNKED", "dims": CHUNKS}},
    }
    client.create(domain, "/values", body)
    dataset = client.dataset(domain, "/values")
    rows: list[tuple[str, ...]] = [("what", "seconds", "MB/s", "checksums equal")]

    def done(what: str, started: float, equal: bool | None = None) -> None:
        seconds = time.monotonic() - started
        verdict = "" if equal is None else "yes" if equal else "NO"
        rows.append((what, f"{seconds:.1f}", f"{values.nbytes / 1e6 / seconds:.1f}", verdict))

    whole = Slab((range(ROWS), range(COLUMNS)))
    started = time.monotonic()
    client.write(dataset, whole, values.reshape(-1).view(np.uint8).data)
    client.flush(domain)
    done("written to HSDS, one request", started)
    started = time.monotonic()
    content = bytearray(values.nbytes)
    client.read_into(dataset, whole, memoryview(content))
    done("read from HSDS, one request", started, checksum(np.frombuffer(content, np.int64)) == wanted)
    del content
    storage = s3.of_stack("s3", stack)
    export = Export(domain, "/values", s3.ARRAYS, f"hsds{domain}", layout="array")
    started = time.monotonic()
    report = Exporter(client, storage, export, domain).run()
    done(f"exported to {report.parts} Parquet objects on S3", started)
    started = time.monotonic()
    clickhouse = clickhouse_client(stack)
    table = f"data.hsds_demo_{domain.removesuffix('.h5')[-15:].replace('-', '_')}"
    request = Request(
        Source(s3.ARRAYS, export.keys, collection="storeside_s3"),
        table,
        format="parquet",
        table_options=TableOptions(order_by="i0"),
    )
    transfer = Transfer(request, clickhouse, storage, domain)
    transfer.run(transfer.prepare())
    found = first_row(clickhouse.query(f"{CHECKSUM} FROM {table}"))[0]
    done("loaded into ClickHouse", started, int(found) == wanted)
    return [*rows, ("", "", "", ""), ("rows are in", "", "", table)]


def checksum(values: np.ndarray[Any, Any]) -> int:
    """Return a sum that weights each element by its position, as `CHECKSUM` does."""
    import numpy as np

    numbers = values.reshape(ROWS, COLUMNS)
    weights = np.arange(COLUMNS, dtype=np.int64)
    return int((numbers @ weights) @ (np.arange(ROWS, dtype=np.int64) % 7 + 1))

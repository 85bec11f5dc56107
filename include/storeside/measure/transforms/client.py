"""The baseline: a client that downloads each object, transcodes it and uploads the result.

It runs in its own process, with the transcoder and the isolated decoders of the ETL's server. The request, with the
credentials, comes on standard input. The answer on standard output is JSON: the seconds from the first download to
the last upload and the recordings that cannot be transcoded, or what failed first for another reason.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.measure.errors import MeasureCancelled, MeasureTransientError
from storeside.measure.processes import tied

_POLL_SECONDS = 0.2
_TRANSFORM = "audio_transcode"


def transcode(
    cluster: Cluster, source: Bucket, destination: Bucket, names: Mapping[str, str], environment: Mapping[str, str],
    parallel: int, stop: threading.Event,
) -> tuple[float, dict[str, str]]:  # fmt: skip
    """Transcode the objects of `source` in a process on this machine.

    Returns the seconds that it took, and why objects cannot be transcoded, by name.

    `names` maps objects to their results, and `environment` has the transcoder's settings. At most `parallel` objects
    with their results are in memory. Decoders run on as many of this machine's CPUs.

    Raises:
        MeasureTransientError: an object, or the process, failed; the message states the reason.
        MeasureCancelled: `stop` was set.
    """
    request: str | None = json.dumps(
        {
            "cluster": dataclasses.asdict(cluster), "source": str(source), "destination": str(destination),
            "names": dict(names), "parallel": parallel,
        }
    )  # fmt: skip
    with subprocess.Popen(
        tied([sys.executable, "-m", __name__]), env={**os.environ, **environment}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        while True:
            try:
                answer, errors = process.communicate(request, timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                request = None
                if stop.is_set():
                    process.kill()
                    process.communicate()
                    raise MeasureCancelled("the measurement was cancelled") from None
    try:
        found = json.loads(answer.splitlines()[-1])
    except (ValueError, IndexError):
        last = (errors.strip() or "it wrote no output").splitlines()[-1]
        raise MeasureTransientError(f"the client ended with {process.returncode}: {last[:600]}") from None
    if "failed" in found:
        raise MeasureTransientError(str(found["failed"]))
    return float(found["seconds"]), dict(found["broken"])


async def _transcode(given: Mapping[str, Any]) -> dict[str, Any]:
    from storeside.transformers.contract.failures import Failure
    from storeside.transformers.contract.job import Job
    from storeside.transformers.settings import Settings, usable_cpus
    from storeside.transformers.workers.pool import Content, Pool

    parallel = given["parallel"]
    workers = min(parallel, usable_cpus())
    pool = Pool(_TRANSFORM, dataclasses.replace(Settings.from_environment(), workers=workers))
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(parallel))
    running, ready = loop.create_task(pool.run()), loop.create_task(pool.ready())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    cluster, names = Cluster(**given["cluster"]), iter(given["names"].items())

    failed: list[str] = []
    broken: dict[str, str] = {}

    async def work() -> None:
        """Take objects until there are none, or one fails that a retry may help."""
        client = cluster.client()  # one for each: the SDK keeps ten connections per client
        source, to = (Bucket.parse(given[side]) for side in ("source", "destination"))
        for name, result in names:
            if failed:
                return
            content = await asyncio.to_thread(source.object(client, name).get_reader().read_all)
            outcome = await (await pool.submit(Job(name), content))
            if isinstance(outcome, Failure) and outcome.final:
                broken[name] = outcome.reason
                continue
            if not isinstance(outcome, Content):
                failed.append(f"{name}: {outcome.reason if isinstance(outcome, Failure) else outcome}")
                return
            await asyncio.to_thread(to.object(client, result).get_writer().put_content, bytes(outcome.data))

    began = time.monotonic()
    await asyncio.gather(*(work() for _ in range(parallel)))
    seconds = time.monotonic() - began
    running.cancel()
    return {"failed": failed[0]} if failed else {"seconds": seconds, "broken": broken}


def main() -> None:
    """Read the request, do the work, write the answer."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    from storeside.aistore.errors import said
    from storeside.transformers.workers import worker_process

    given = json.load(sys.stdin)
    worker_process.prepare(_TRANSFORM)
    try:
        answer = asyncio.run(_transcode(given))
    except (AISError, RequestException) as e:
        answer = {"failed": f"AIStore: {said(e)}"}
    except worker_process.BrokenTransformError as e:
        answer = {"failed": f"the transcoder does not start on the worker: {e}: install storeside[audio] there"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

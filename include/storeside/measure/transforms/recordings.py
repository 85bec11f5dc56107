"""The recordings of a measurement: the first ones of its source, copied to the cluster's disks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.stored_objects import list_aistore
from storeside.measure.errors import MeasureInputError, MeasureTransientError
from storeside.measure.transforms.jobs import follow
from storeside.measure.transforms.plan import Plan
from storeside.transform import submit
from storeside.transform.naming import Naming
from storeside.transform.state import Options
from storeside.transformers.audio.formats import EXTENSIONS

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)


def chosen(client: Client, plan: Plan) -> dict[str, str]:
    """Return the first recordings of the source by name, with the names of their results.

    Raises MeasureInputError if there are none.
    """
    found = dict[str, str]()
    for listed in list_aistore(client, plan.source, plan.prefix):
        known = listed.name.rpartition(".")[2].lower() in EXTENSIONS
        if listed.size and known and not plan.naming.refusal(listed.name):
            found[listed.name] = plan.naming.destination(listed.name)
        if len(found) == plan.objects:
            break
    if not found:
        below = f" below {plan.prefix!r}" if plan.prefix else ""
        raise MeasureInputError(
            f"{plan.source} has no recordings{below}: choose a bucket with objects such as a.flac; known"
            f" extensions are {', '.join(EXTENSIONS)}"
        )
    return found


def copied(client: Client, plan: Plan, names: Sequence[str], to: Bucket, stop: threading.Event) -> dict[str, int]:
    """Copy objects of the source to the new bucket `to`; return their sizes in bytes by name.

    Raises MeasureTransientError if an object could not be copied, and MeasureCancelled when `stop` is set.
    """
    to.handle(client).create()
    with jobs.submitting(client, plan.source, to):
        job_id = submit.objects(client, plan.source, names, to, None, [], Naming(), Options())
    follow(client, job_id, stop)
    jobs.end_idle(client, plan.source, to)
    sizes = {found.name: found.size for found in list_aistore(client, to)}
    if missing := [name for name in names if name not in sizes]:
        raise MeasureTransientError(
            f"{plan.source}: {len(missing)} of {len(names)} objects could not be copied to the cluster, such as"
            f" {missing[0]!r}: check whether AIStore can read it"
        )
    log.info("%s: %d recordings, %.1f MB", plan.source, len(names), sum(sizes.values()) / 1e6)
    return sizes

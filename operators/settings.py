"""Settings of a DAG from an Airflow Variable: its schedule, and the defaults of its form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Asset, AssetWatcher

from storeside.operators.errors import OperatorInputError
from storeside.operators.shared import variable


def dag_settings(dag_id: str, needs: Mapping[str, Sequence[str]] | None = None, /, **defaults: Any) -> dict[str, Any]:
    """Return a DAG's settings: those in the Airflow Variable ``storeside_<dag_id>`` over `defaults`.

    The Variable is a JSON object; without it the defaults apply. A setting keeps the type of its default, unless that
    is None, and is 1 or more if its default is such a number; ``schedule`` is a cron expression, or empty. Airflow
    shows the error of an invalid Variable as the DAG's import error.

    :param dag_id: the DAG's id
    :param needs: settings that start runs, each with the settings that must not be empty then, because
        such a run has no values from the form
    :param defaults: all settings that the DAG has
    :raises OperatorInputError: the Variable is no JSON object, has another setting, a setting has a wrong type or is
        too small, or a setting that another one needs is empty
    """
    name = f"storeside_{dag_id}"
    text = variable(name)
    try:
        given = json.loads(text) if text else {}
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise OperatorInputError(f"the Airflow Variable {name} is not a JSON object: correct it, or delete it")
    for setting, value in given.items():
        if setting not in defaults:
            raise OperatorInputError(
                f"the Airflow Variable {name} has the setting {setting!r}: its settings are {', '.join(defaults)}"
            )
        _check_value(f"the Airflow Variable {name}: {setting}", value, defaults[setting])
    if given.get("schedule"):
        from airflow.sdk import CronTriggerTimetable
        from airflow.sdk.exceptions import AirflowTimetableInvalid

        try:
            CronTriggerTimetable(given["schedule"], timezone="UTC").validate()
        except AirflowTimetableInvalid as e:
            raise OperatorInputError(f"the Airflow Variable {name}: schedule {given['schedule']!r}: {e}") from e
    settings = {**defaults, **given}
    for setting, others in (needs or {}).items():
        absent = [other for other in others if not settings[other]]
        if settings[setting] and absent:
            raise OperatorInputError(
                f"the Airflow Variable {name} has the setting {setting!r}, which starts runs without the form: add"
                f" {', '.join(absent)}"
            )
    return settings


def _check_value(what: str, value: Any, default: Any) -> None:
    if default is not None and type(value) is not type(default):
        raise OperatorInputError(f"{what} is {json.dumps(value)}, but has the type of {json.dumps(default)}")
    if type(default) is int and value < 1 <= default:
        raise OperatorInputError(f"{what} is {value}, but needs to be 1 or more")


def dag_schedule(settings: Mapping[str, Any]) -> Any:
    """Return the schedule of a DAG with the settings ``schedule`` and ``queue``; None if both are empty.

    The cron expression is in UTC. Messages of the SQS queue start runs through a watcher of the asset
    ``sqs://<queue>``. Each queue has its own asset: if DAG files gave one asset different watchers, Airflow would
    end those of all files but one.

    :param settings: what `dag_settings` returned; ``source``, if it is one of them, is the bucket of the events
    :raises OperatorInputError: there is a queue, and the source is no bucket of S3, which alone sends events
    """
    times = None
    if settings["schedule"]:
        from airflow.sdk import CronTriggerTimetable

        times = CronTriggerTimetable(settings["schedule"], timezone="UTC")
    if not (queue := settings["queue"]):
        return times
    from airflow.sdk.definitions.timetables.assets import AssetOrTimeSchedule

    from storeside.operators.arguments import check_event_source
    from storeside.operators.triggers.s3_events import S3EventsTrigger

    if source := settings.get("source"):
        check_event_source(source)
    watcher = AssetWatcher(name=queue.rpartition("/")[2], trigger=S3EventsTrigger(queue=queue))
    arrivals = [Asset(f"sqs://{queue.rpartition('://')[2]}", watchers=[watcher])]
    return AssetOrTimeSchedule(timetable=times, assets=arrivals) if times else arrivals

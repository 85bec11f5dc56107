"""Watchers of queues in Airflow's metadata database, as its DAG processor writes them when it parses DAG files."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from storeside.operators.settings import dag_schedule

BUCKET = Asset("s3://recordings")


@pytest.fixture
def database() -> Iterator[Any]:
    """Airflow's metadata database, empty except for a bundle of DAG files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import airflow.models
        from airflow.models.base import Base
        from airflow.models.dagbundle import DagBundleModel

        airflow.models.import_all_models()
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(DagBundleModel(name="dags"))
        session.commit()
    yield engine
    engine.dispose()


def file(name: str, schedule: Any, outlets: list[Asset]) -> DAG:
    with DAG(name, schedule=schedule) as dag:
        EmptyOperator(task_id="work", outlets=outlets)
    dag.fileloc = f"/dags/{name}.py"
    return dag


def parse(database: Any, dag: DAG) -> set[str]:
    """Do what the DAG processor does after it has parsed a file; return the queues that are then watched."""
    from airflow.models.asset import AssetModel
    from airflow.models.dag import DagModel
    from airflow.serialization.definitions.dag import SerializedDAG

    with Session(database) as session:
        SerializedDAG.bulk_write_to_db("dags", None, [dag], None, session=session)  # type: ignore[list-item]
        session.commit()
        session.query(DagModel).update({"is_paused": False})
        session.commit()
        return {t.kwargs["queue"] for asset in session.scalars(select(AssetModel)) for t in asset.triggers}


def test_each_file_keeps_the_watchers_of_the_others(database: Any) -> None:
    queues = ["recordings-events", "https://sqs.eu-west-1.amazonaws.com/1/recordings-events"]
    schedules = [dag_schedule({"schedule": "", "queue": queue}) for queue in queues]
    files = [file(f"watches{n}", schedule, []) for n, schedule in enumerate(schedules)]
    files += [file("follows", [BUCKET], []), file("fills", None, [BUCKET])]
    for dag in files:
        parse(database, dag)  # DAGs are unpaused when they are parsed again
    assert [parse(database, dag) for dag in files * 2] == [{queues[0]}] + 7 * [set(queues)]

"""Lists the dead letters of a queue of S3 events, and sends them back after their cause is fixed."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import SqsRedriveDeadLettersOperator, form_choices

with DAG(
    dag_id="sqs_redrive",
    description="Lists the dead letters of a queue of S3 events, and sends them back",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params=ParamsDict(
        {
            "queue": Param(
                type="string",
                minLength=1,
                title="Queue",
                **form_choices("queue", description="Name or URL of the queue that the dead letters come from"),
            ),
            "redrive": Param(
                False, type="boolean", title="Send them back", description="Off: the task only lists them in its log"
            ),
            "message_ids": Param(
                [],
                type=["null", "array"],
                items={"type": "string"},
                title="Only these",
                description="Message ids from the log, one per line; empty means all",
            ),
        }
    ),
    tags=["sqs"],
    default_args={"owner": "storeside", "retries": 1, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Redrive

1. **redrive**: lists the dead letters of a queue with their reasons in its log. With *Send them back* the task sends
   them to the queue that they came from, where the next run processes them like new messages.
""",
) as dag:
    SqsRedriveDeadLettersOperator(
        task_id="redrive",
        sqs_queue="{{ params.queue }}",
        redrive="{{ params.redrive }}",
        message_ids="{{ (params.message_ids or []) | join(' ') }}",
    )

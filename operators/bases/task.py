"""Airflow's own arguments of operators, as a type: an editor completes them, and finds a misspelt one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Required, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, MutableMapping, Sequence
    from datetime import datetime, timedelta

    from airflow.sdk import DAG, Context, TaskGroup
    from airflow.sdk.definitions.asset import BaseAsset
    from airflow.sdk.definitions.retry_policy import RetryPolicy
    from airflow.sdk.types import WeightRuleParam

    Callback = Callable[[Context], None]


class TaskArguments(TypedDict, total=False):
    """Arguments that all operators have from Airflow; `BaseOperator` in Airflow's documentation describes them."""

    task_id: Required[str]
    """name of the task, which is unique in its DAG"""
    owner: str
    """owner of the task, which Airflow shows"""
    email: str | Sequence[str] | None
    """addresses of mails about the task; deprecated in Airflow"""
    email_on_retry: bool
    """whether a retry sends a mail; deprecated in Airflow"""
    email_on_failure: bool
    """whether a failure sends a mail; deprecated in Airflow"""
    retries: int | None
    """maximum number of retries before the task fails"""
    retry_delay: timedelta | float
    """time between two tries; a number is in seconds"""
    retry_exponential_backoff: float
    """factor by which the time between tries grows with each try; 0 keeps it constant"""
    max_retry_delay: timedelta | float | None
    """longest time between two tries; a number is in seconds"""
    retry_policy: RetryPolicy | None
    """decides by its error whether a failed task is retried"""
    start_date: datetime | None
    """earliest logical date of a task instance"""
    end_date: datetime | None
    """latest logical date of a task instance"""
    depends_on_past: bool
    """whether the task waits until it succeeded, or was skipped, in the run before"""
    ignore_first_depends_on_past: bool
    """whether `depends_on_past` does not apply to the first run"""
    wait_for_past_depends_before_skipping: bool
    """with `depends_on_past`, whether the task is skipped only when it ended in the run before"""
    wait_for_downstream: bool
    """whether the task waits until the tasks directly after it ended in the run before"""
    dag: DAG | None
    """DAG of the task; by default that of the `with` block"""
    params: MutableMapping[str, Any] | None
    """parameters of the task, which templates read as `params`"""
    default_args: dict[str, Any] | None
    """values of arguments that the task does not set"""
    priority_weight: int
    """priority of the task among others in its pool"""
    weight_rule: WeightRuleParam
    """how the priorities of tasks before or after it add to its priority"""
    queue: str
    """queue of the executor's workers, such as Celery's; not a queue of SQS"""
    pool: str | None
    """pool in which the task runs"""
    pool_slots: int
    """slots of the pool that the task takes"""
    sla: timedelta | None
    """has no effect in Airflow 3"""
    execution_timeout: timedelta | None
    """longest time of the task; also applies while it is deferred, and starts again with each deferral"""
    on_execute_callback: Callback | Collection[Callback] | None
    """functions that Airflow calls before the task runs"""
    on_failure_callback: Callback | list[Callback] | None
    """functions that Airflow calls when the task fails"""
    on_success_callback: Callback | Collection[Callback] | None
    """functions that Airflow calls when the task succeeds"""
    on_retry_callback: Callback | list[Callback] | None
    """functions that Airflow calls when the task is retried"""
    on_skipped_callback: Callback | Collection[Callback] | None
    """functions that Airflow calls when the task skips itself"""
    pre_execute: Callable[[Context], None] | None
    """function that runs before `execute`, and may raise an exception that ends the task; see `only_when`"""
    post_execute: Callable[[Context, Any], None] | None
    """function that runs after `execute`, with its result"""
    trigger_rule: str
    """states of the tasks before it in which the task starts, such as `all_success` or `all_done`"""
    resources: dict[str, Any] | None
    """resources that the task needs, for executors that reserve them"""
    run_as_user: str | None
    """user of the worker's system as which the task runs"""
    map_index_template: str | None
    """template of the name that Airflow shows for an instance of a mapped task"""
    max_active_tis_per_dag: int | None
    """maximum number of instances of the task that run at the same time, in all runs"""
    max_active_tis_per_dagrun: int | None
    """maximum number of instances of the task that run at the same time, in one run"""
    executor: str | None
    """executor of the task; by default that of the DAG"""
    executor_config: dict[str, Any] | None
    """settings of the executor for the task"""
    do_xcom_push: bool
    """whether Airflow stores the task's result as an XCom"""
    multiple_outputs: bool
    """whether each key of a result that is a dictionary is an XCom, too"""
    inlets: BaseAsset | Sequence[BaseAsset | str] | None
    """assets that the task reads"""
    outlets: BaseAsset | Sequence[BaseAsset] | None
    """assets that the task changes; without them, an operator that moves data reports its destination"""
    task_group: TaskGroup | None
    """group of the task; by default that of the `with` block"""
    doc: str | None
    """text about the task, which Airflow shows"""
    doc_md: str | None
    """markdown about the task, which Airflow shows"""
    doc_json: str | None
    """JSON about the task, which Airflow shows"""
    doc_yaml: str | None
    """YAML about the task, which Airflow shows"""
    doc_rst: str | None
    """reStructuredText about the task, which Airflow shows"""
    task_display_name: str | None
    """name of the task that Airflow shows instead of `task_id`"""
    logger_name: str | None
    """name of the task's logger"""
    allow_nested_operators: bool
    """whether the operator may run within another one, with a warning"""
    render_template_as_native_obj: bool | None
    """whether templates render to Python objects instead of text; by default as in the DAG"""

"""The queue of a bucket's events as code in docs/events.md: valid, and the same as the command makes."""

from __future__ import annotations

import json
import re
from typing import Any

import hcl2
from cfnlint.api import lint_all
from cfnlint.decode.cfn_yaml import loads

from storeside.events.setup import EVENTS, RECEIVES, Setup
from storeside.stack.settings import CHECKOUT

PAGE = (CHECKOUT / "docs" / "events.md").read_text()
QUEUE = "arn:aws:sqs:eu-west-1:123456789012:trips-events"


def block(language: str) -> str:
    section = PAGE.partition("## Make the queue\n")[2].partition("\n## ")[0]
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(found)


def setup() -> Setup:
    return Setup(None, None, "s3://trips/2026/", "trips-events")  # type: ignore[arg-type]


def faults(template: str) -> list[str]:
    """Return the errors and warnings of cfn-lint, which its command reports by default."""
    return [str(found) for found in lint_all(template) if not str(found.rule.id).startswith("I")]


def test_the_policy_is_that_of_the_command() -> None:
    assert json.loads(block("json")) == setup().statement(QUEUE)


def test_cloudformation() -> None:
    template = block("yaml")
    assert faults(template) == []
    found: dict[str, Any] = loads(template)["Resources"]
    policy = found["EventsPolicy"]["Properties"]["PolicyDocument"]["Statement"][0]
    _check(policy, setup().statement(QUEUE))
    assert found["Events"]["Properties"]["RedrivePolicy"]["maxReceiveCount"] == RECEIVES
    assert found["Objects"]["DependsOn"] == "EventsPolicy"
    (notification,) = found["Objects"]["Properties"]["NotificationConfiguration"]["QueueConfigurations"]
    assert notification["Event"] == EVENTS
    assert {queue["Properties"].get("QueueName") for queue in found.values()} - {None} == {
        "trips-events", setup().dead_letters,
    }  # fmt: skip


def _check(policy: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Check a statement whose ARNs and account are functions."""
    names = ("Sid", "Effect", "Principal", "Action")
    assert {name: policy[name] for name in names} == {name: wanted[name] for name in names}
    assert {key: [*value] for key, value in policy["Condition"].items()} == {
        key: [*value] for key, value in wanted["Condition"].items()
    }


def test_a_fault_in_cloudformation_is_found() -> None:
    assert faults(block("yaml").replace("RedrivePolicy:", "RedrivePolicies:"))


def test_terraform() -> None:
    """The parser keeps the quotes of texts."""
    parsed = json.loads(json.dumps(hcl2.loads(block("hcl"))).replace('\\"', ""))
    found: dict[str, dict[str, Any]] = {}
    for resource in (*parsed["resource"], *parsed["data"]):
        for kind, named in resource.items():
            found.setdefault(kind, {}).update(named)
    queues = found["aws_sqs_queue"]
    assert [queue["name"] for queue in queues.values()] == [setup().dead_letters, "trips-events"]
    assert re.search(rf"maxReceiveCount\W+{RECEIVES}\b", str(queues["events"]["redrive_policy"]))
    wanted = setup().statement(QUEUE)
    (statement,) = found["aws_iam_policy_document"]["events"]["statement"]
    assert (statement["sid"], statement["effect"]) == (wanted["Sid"], wanted["Effect"])
    assert statement["actions"] == [wanted["Action"]]
    assert statement["principals"][0]["identifiers"] == [wanted["Principal"]["Service"]]
    conditions = {condition["test"]: condition["variable"] for condition in statement["condition"]}
    assert conditions == {test: next(iter(values)) for test, values in wanted["Condition"].items()}
    notification = found["aws_s3_bucket_notification"]["trips"]
    assert (notification["queue"][0]["events"], notification["queue"][0]["filter_prefix"]) == ([EVENTS], "2026/")
    assert "aws_sqs_queue_policy.events" in notification["depends_on"][0]

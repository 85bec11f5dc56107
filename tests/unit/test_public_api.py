"""The public API: its exports, and that DAGs, README and docs use nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import storeside.operators as public
from storeside.stack.settings import CHECKOUT

FOLDER = CHECKOUT / "operators"
# Classes that operators share; a DAG has no use for them.
BASES = {
    "BucketJobOperator", "CuttingOperator", "DeferringOperator", "EngineTrigger", "FollowingOperator", "FormOperator",
    "LeaseOperator", "LoadOperator", "ChartOperator", "MovementOperator", "QueueOperator", "SelectingOperator",
    "SkippingOperator", "WaitingOperator",
    # Operators create these triggers; DAGs do not use them.
    "AISJobTrigger", "CheckConnectionsTrigger", "S3EventsToClickHouseTrigger", "S3ToClickHouseTrigger",
    "SqsMessagesTrigger",
}  # fmt: skip
PYTHON = re.compile(r"```python.*?\n(.*?)```", re.DOTALL)


def test_the_exports() -> None:
    """A removed name breaks the DAGs that use it: see docs/versions.md before this list changes."""
    assert public.__all__ == [
        "AISCopyBucketOperator",
        "AISCutSegmentsOperator",
        "AISCutUtterancesOperator",
        "AISDeleteEtlOperator",
        "AISGetObjectOperator",
        "AISInitEtlOperator",
        "AISInspectBucketOperator",
        "AISMakeShardsOperator",
        "AISMeasureThroughputOperator",
        "AISMeasureTransformsOperator",
        "AISPrefetchBucketOperator",
        "AISProbeAudioOperator",
        "AISRemoveMeasurementOperator",
        "AISSplitShardsOperator",
        "AISStartEtlOperator",
        "AISStopEtlOperator",
        "AISTranscodeAudioOperator",
        "AISTransformBucketOperator",
        "AISTransformObjectOperator",
        "AISTransformObjectsOperator",
        "AIStoreHook",
        "AfterLoad",
        "CheckConnectionsOperator",
        "ClickHouseExportManifestOperator",
        "ClickHouseLoadManifestOperator",
        "ClickHousePublishManifestOperator",
        "ClickHouseStageManifestOperator",
        "Columns",
        "Csv",
        "DeadLetters",
        "EtlSpec",
        "Expression",
        "FILTER_COLUMNS",
        "FailedObjects",
        "FailedTasks",
        "Freshness",
        "GXValidateManifestOperator",
        "HSDSExportDatasetOperator",
        "HSDSHook",
        "HSDSImportDatasetOperator",
        "KnownFailures",
        "Lag",
        "LoadLimits",
        "MessageSchema",
        "ReadOptions",
        "S3EventsToClickHouseOperator",
        "S3EventsTrigger",
        "S3ToClickHouseOperator",
        "SEGMENT_COLUMNS",
        "SendAlertsOperator",
        "SqsLeaseS3EventsOperator",
        "SqsRedriveDeadLettersOperator",
        "SqsS3EventsSensor",
        "SqsSettleS3EventsOperator",
        "SqsSettleSpeechEventsOperator",
        "StorageBenchmarkOperator",
        "StorageCopyBucketOperator",
        "StorageTuneOperator",
        "TRANSFORMER_IMAGE",
        "TableOptions",
        "Template",
        "UTTERANCE_COLUMNS",
        "Upsert",
        "Volume",
        "alert_callback",
        "chart_url_pattern",
        "check_form",
        "dag_schedule",
        "dag_settings",
        "form_choices",
        "must_match",
        "only_when",
        "params",
        "transformer_command",
    ]


@pytest.mark.parametrize("name", public.__all__)
def test_each_name_is_imported_when_it_is_used(name: str) -> None:
    assert getattr(public, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        public.Nothing  # noqa: B018
    with pytest.raises(ImportError):
        from storeside.operators import Nothing  # noqa: F401


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((FOLDER / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(filter(None, seen)) == public.__all__


def test_every_operator_hook_and_trigger_is_exported() -> None:
    found = {
        node.name
        for path in FOLDER.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and re.search(r"^[A-Z]\w*(Operator|Hook|Trigger|Sensor)$", node.name)
    }
    assert found - set(public.__all__) == BASES


def test_importing_the_package_loads_no_operator() -> None:
    code = "import sys, storeside.operators; print([m for m in sys.modules if m.startswith('storeside.operators.')])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def sources() -> Iterator[tuple[str, str]]:
    """Yield each DAG, and each Python block of the documents, with its name."""
    for path in sorted((CHECKOUT / "dags").glob("*.py")):
        yield path.name, path.read_text()
    for path in (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))):
        yield from ((path.name, block) for block in PYTHON.findall(path.read_text()))


def imported(source: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def test_dags_and_documents_use_the_public_api_alone() -> None:
    """Transformers run in images without Airflow, and the engine works without it: both are documented, too."""
    assert len(list(sources())) > 20
    wrong = [
        f"{name}: {module}.{symbol}"
        for name, source in sources()
        for module, symbol in imported(source)
        if module.startswith("storeside.operators.")
        or (module == "storeside.operators" and symbol not in public.__all__)
        or (name.endswith(".py") and module.startswith("storeside.") and module != "storeside.operators")
    ]
    assert wrong == []


def test_the_test_of_the_test() -> None:
    assert list(imported("from storeside.operators.operators.aistore import X")) == [
        ("storeside.operators.operators.aistore", "X")
    ]
    assert Path(public.__file__ or "").parent.resolve() == FOLDER

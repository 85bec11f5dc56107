"""Great Expectations' Data Docs: its own HTML pages of validation results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storeside.quality.by_gx import great_expectations
from storeside.quality.errors import QualityError


def build(results: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write pages of results, see `storeside.quality.results`, into a folder, and return the path of their index.

    Raises QualityError if the folder is not empty, because pages of other results would stay in it, or if a page
    cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise QualityError(f"{folder} is not empty: name a new folder")
    except OSError as e:
        raise QualityError(f"{folder}: {e.strerror}: name a folder that you may write") from e
    gx = great_expectations()
    from great_expectations.core.batch import LegacyBatchDefinition
    from great_expectations.core.expectation_suite import ExpectationSuite
    from great_expectations.core.expectation_validation_result import expectationSuiteValidationResultSchema
    from great_expectations.core.id_dict import IDDict
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    context = gx.get_context(mode="ephemeral")
    for site in list(context.get_site_names()):
        context.delete_data_docs_site(site)
    context.add_data_docs_site(
        "storeside",
        {
            "class_name": "SiteBuilder",
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "store_backend": {
                "class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve()),
            },
        },
    )  # fmt: skip
    suites = set()
    for number, result in enumerate(results):
        name = _plain(str(result["suite_name"]))
        if name not in suites:
            suites.add(name)
            made = [one["expectation_config"] for one in result["results"]]
            context.suites.add(ExpectationSuite(name=name, expectations=made))
        loaded = expectationSuiteValidationResultSchema.load({**result, "id": None, "suite_name": name})
        run, batch = result["meta"]["run_id"], result["meta"]["active_batch_definition"]
        definition = LegacyBatchDefinition(
            batch["datasource_name"], batch["data_connector_name"], batch["data_asset_name"],
            IDDict(batch["batch_identifiers"]),
        )  # fmt: skip
        key = ValidationResultIdentifier(
            ExpectationSuiteIdentifier(name), RunIdentifier(_plain(f"{run['run_name']} {number}"), run["run_time"]),
            definition.id,
        )  # fmt: skip
        context.validation_results_store.set(key, loaded)
    context.build_data_docs(["storeside"])
    pages = sum(1 for _ in folder.glob("validations/**/*.html"))
    if pages < len(results):  # Great Expectations only logs the reason
        raise QualityError(f"Great Expectations has written {pages} of {len(results)} pages: its log has the reason")
    return folder / "index.html"


def _plain(name: str) -> str:
    """Return a name that can be that of a file: names of runs and suites may have slashes and dots."""
    return re.sub(r"[^\w :+-]", "_", name)

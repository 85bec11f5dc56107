"""The outcome of a run that loads many tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from storeside.transfer.run.engine import Report

# Tables that a report names, and characters of each reason.
MOST_TABLES = 20
LONGEST_REASON = 500


@dataclass(frozen=True)
class TableOutcome:
    """The outcome of one table.

    :param name: its name in the keys
    :param table: ``database.table``; empty for a name that no table can have
    :param source: URI of its objects
    :param listed: its objects in the listing
    :param report: the report of its load; None if the load ended with an error, or nothing was to be done
    :param error: why nothing was loaded, or the load did not end
    :param again: whether the next try may cure the error
    """

    name: str
    table: str
    source: str
    listed: int
    report: Report | None = None
    error: str = ""
    again: bool = False

    @property
    def is_unchanged(self) -> bool:
        """Whether all its objects are loaded, so that no load began."""
        return self.report is None and not self.error

    @property
    def reason(self) -> str:
        """Why objects are missing in the table; empty if none is."""
        if self.error or self.report is None:
            return self.error
        for count, first, what in (
            (self.report.failed, self.report.failures, "failed"),
            (self.report.known_bad, self.report.known_failures, "failed before"),
            (self.report.left, self.report.left_objects, "left in the source"),
        ):
            if count:
                key, reason = first[0] if first else ("?", "another run has recorded it meanwhile")
                return f"{count} of {self.report.listed} objects {what}, such as {key!r}: {reason}"
        return ""


@dataclass
class TablesReport:
    """The totals of a run over all tables; the fields of objects and rows are sums of those of `Report`.

    :param tables: tables that keys name
    :param changed: tables into which objects were loaded
    :param unchanged: tables whose objects are all loaded
    :param failed_tables: tables, and names that no table can have, of which objects are missing
    :param listed: objects listed; markers are not
    :param skipped: listed objects that were not to be loaded
    :param loaded: objects loaded
    :param failed: objects that failed in this run, or whose key names no table; those of a load that ended with an
        error are not counted
    :param rows: rows loaded
    :param rejected: rows that could not be parsed, and rows in the quarantine
    :param filtered: rows that the condition of `Columns` excluded
    :param bytes: bytes of the loaded objects
    :param known_bad: objects that failed for good in earlier runs
    :param handled: source objects that were deleted, moved or tagged
    :param left: source objects that S3 refused to change
    :param removed: loads whose rows were removed
    :param seconds: duration of the run
    :param failures: the first twenty failed tables, as (table, reason); a name that no table can have is itself
    :param again: whether a table failed for a reason that the next try may cure
    """

    tables: int = 0
    changed: int = 0
    unchanged: int = 0
    failed_tables: int = 0
    listed: int = 0
    skipped: int = 0
    loaded: int = 0
    failed: int = 0
    rows: int = 0
    rejected: int = 0
    filtered: int = 0
    bytes: int = 0
    known_bad: int = 0
    handled: int = 0
    left: int = 0
    removed: int = 0
    seconds: float = 0.0
    failures: list[tuple[str, str]] = field(default_factory=list)
    again: bool = False

    def add(self, outcome: TableOutcome) -> None:
        """Add the outcome of a table."""
        self.tables += 1
        self.listed += outcome.listed
        if reason := outcome.reason:
            self.failed_tables += 1
            self.again = self.again or outcome.again
            if len(self.failures) < MOST_TABLES:
                self.failures.append((outcome.table or outcome.name, reason[:LONGEST_REASON]))
        if not outcome.table:
            self.failed += outcome.listed
        if outcome.is_unchanged:
            self.unchanged += 1
            self.skipped += outcome.listed
        if (report := outcome.report) is not None:
            self.changed += report.loaded > 0
            for name in (
                "skipped", "loaded", "failed", "rows", "rejected", "filtered", "bytes", "known_bad", "handled",
                "left", "removed",
            ):  # fmt: skip
                setattr(self, name, getattr(self, name) + getattr(report, name))

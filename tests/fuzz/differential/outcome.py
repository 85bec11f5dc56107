"""How two readers of the same generated files agree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

# Examples of each kind of difference that are kept for the report.
MOST_EXAMPLES = 5


@dataclass
class Outcome:
    """The results of a family of files.

    `equal` counts files that both readers accept with the same values, `refused` those that the product refuses with
    a reason, whatever the other reader does. `intended` counts files that differ in a way that docs/differences.md
    explains, by the title of its section. A file that the product accepts with other values than the other reader, or
    accepts where the other refuses, without such a section, is a silent difference: `silent` has its number, the
    reason and how to make the file again.
    """

    family: str
    files: int = 0
    equal: int = 0
    refused: int = 0
    intended: Counter[str] = field(default_factory=Counter)
    silent: list[str] = field(default_factory=list)
    # Files that the product refuses and the other reader accepts, by the product's reason: for people to judge.
    stricter: Counter[str] = field(default_factory=Counter)
    # Files whose columns or outcome depend on the order of their rows.
    order_dependent: list[str] = field(default_factory=list)
    # Files that a load must take and refuses; None for families that do not count them.
    refused_though_valid: int | None = None

    def add(self, other: Outcome) -> None:
        """Add what other files of the family have shown."""
        self.files += other.files
        self.equal += other.equal
        self.refused += other.refused
        self.intended += other.intended
        self.silent += other.silent
        self.stricter += other.stricter

    def lines(self) -> list[str]:
        """Return the report, a line each."""
        found = [f"{self.family}: {self.files} files, {self.equal} equal, {self.refused} refused"]
        found += [f"  {count:6} intended: {title}" for title, count in self.intended.most_common()]
        found += [f"  {count:6} refused by us alone: {why}" for why, count in self.stricter.most_common(20)]
        found += [f"  SILENT {difference}" for difference in self.silent[: MOST_EXAMPLES * 4]]
        found += [f"  ORDER {difference}" for difference in self.order_dependent[: MOST_EXAMPLES * 4]]
        return found

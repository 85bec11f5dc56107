"""The result of a check, and its form as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import quote

State = Literal["ok", "failed", "skipped"]
_LONGEST = 400


@dataclass(frozen=True)
class Finding:
    """One check of one system: the result, and the remedy if it failed."""

    system: str
    check: str
    state: State
    found: str
    remedy: str = ""

    def lines(self) -> Iterator[str]:
        """Yield the finding as text, with the remedy on a separate line."""
        yield f"{self.system:<11} {self.check:<22} {self.state:<8} {self.found}"
        if self.remedy:
            yield f"{'':<43} -> {self.remedy}"


@dataclass(frozen=True)
class System:
    """Makes the findings of one system."""

    name: str

    def ok(self, check: str, found: str) -> Finding:
        """Return the finding of a check that passed."""
        return Finding(self.name, check, "ok", found)

    def failed(self, check: str, found: object, remedy: str) -> Finding:
        """Return the finding of a check that failed; `found` may be the error."""
        return Finding(self.name, check, "failed", str(found).strip() or repr(found), remedy)

    def skipped(self, check: str, why: str) -> Finding:
        """Return the finding of a check that did not run."""
        return Finding(self.name, check, "skipped", why)


def without_secrets(findings: Iterable[Finding], secrets: Iterable[str]) -> Iterator[Finding]:
    """Replace every secret in the findings by ``***``: errors of servers and clients quote their input.

    Then shorten the errors: a part of a secret would not be recognized.
    """
    forms = sorted({form for secret in secrets if secret for form in (secret, quote(secret, safe=""))}, key=len)
    for finding in findings:
        text = finding.found
        for form in reversed(forms):  # a longer form may contain a shorter one
            text = text.replace(form, "***")
        yield replace(finding, found=" ".join(text.split())[:_LONGEST] if finding.state == "failed" else text)

"""The type of a text that Airflow renders when a task runs, and that is a choice only then."""

from __future__ import annotations

from typing import NewType

# Where an option has choices, type checkers accept one of them, and a template in this type: any other text is an
# error for them. It is the text itself when the program runs.
Template = NewType("Template", str)

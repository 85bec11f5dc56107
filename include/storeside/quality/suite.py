"""A Great Expectations suite, and the frames to which it applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from storeside.errors import BadInput, StoresideError

if TYPE_CHECKING:
    import pandas as pd

TEXT = "text"
NUMBER = "number"


class QualityError(StoresideError, BadInput):
    """A frame or a suite cannot be checked, so there is no verdict on the data; the message states the reason."""


@dataclass(frozen=True)
class Suite:
    """An ExpectationSuite with the requirements of its frames.

    :param expectations: the ExpectationSuite
    :param columns: required columns with their kinds, `TEXT` or `NUMBER`
    :param derived: columns that are computed from a frame before it is checked
    :param rows: the number of rows that all frames together must have; None allows any number
    """

    expectations: Any
    columns: Mapping[str, str] = field(default_factory=dict)
    derived: Mapping[str, Callable[[pd.DataFrame], pd.Series[Any]]] = field(default_factory=dict)
    rows: int | None = None

    @classmethod
    def of(cls, name: str, expectations: Sequence[Any], **requirements: Any) -> Suite:
        """Return the suite with these expectations; `requirements` are further fields."""
        from great_expectations.core.expectation_suite import ExpectationSuite

        return cls(ExpectationSuite(name=name, expectations=list(expectations)), **requirements)

    @property
    def name(self) -> str:
        """The name of the ExpectationSuite."""
        return str(self.expectations.name)

    def prepare(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the frame with checked columns, derived columns, and rows counted from 0.

        The original frame is not changed. Raises QualityError when a column is missing or has the wrong kind of
        value; the expectations decide about missing values.
        """
        missing = [name for name in self.columns if name not in frame.columns]
        if missing:
            present = ", ".join(map(str, frame.columns))
            raise QualityError(f"{self.name} needs the columns {', '.join(missing)}; the frame has {present}")
        prepared = frame.reset_index(drop=True)
        for name, kind in self.columns.items():
            prepared[name] = _as_number(prepared[name]) if kind == NUMBER else _as_text(prepared[name])
        for name, derive in self.derived.items():
            prepared[name] = derive(prepared)
        return prepared


def _as_number(column: pd.Series[Any]) -> pd.Series[Any]:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return column
    kind = pd.api.types.infer_dtype(column, skipna=True)
    if column.dtype == object and kind in ("integer", "floating", "mixed-integer-float", "empty"):
        return column.astype("Float64")
    raise QualityError(f"column {column.name} must hold numbers; it holds {kind} ({column.dtype})")


def _as_text(column: pd.Series[Any]) -> pd.Series[Any]:
    import pandas as pd

    values = column.astype(object) if isinstance(column.dtype, pd.CategoricalDtype) else column
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind not in ("string", "empty") and not values.isna().all():
        raise QualityError(f"column {column.name} must hold text; it holds {kind} ({column.dtype})")
    return values

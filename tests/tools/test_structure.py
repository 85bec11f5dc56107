"""The checks of structure find sleeps without a reason and circles of imports, and nothing else."""

from __future__ import annotations

import ast

import pytest

from tests.structure import circle, sleeps, undocumented


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(1)",
        "    sleep(0.1)",
        "await asyncio.sleep(seconds)",
        "time.sleep(1)  # noqa: S311",
        "time.sleep(1)  # type: ignore[arg-type]",
        "late = lambda: time.sleep(0.1) or {}",
    ],
)
def test_a_sleep_needs_a_reason(line: str) -> None:
    source = f"async def test():\n    x = '# text'\n    {line.strip()}\n"
    assert list(sleeps(source)) == [3]


@pytest.mark.parametrize(
    "lines",
    [
        "time.sleep(1)  # S3's times are whole seconds",
        "time.sleep(random())  # noqa: S311 - at random times",
        "# as long as the lock's age\n    time.sleep(1)",
        "await asyncio.sleep(0)",
        "code = 'import time; time.sleep(60)'",
        "patch('time.sleep', slept.append)",
    ],
)
def test_other_lines_are_left_alone(lines: str) -> None:
    assert list(sleeps(f"async def test():\n    {lines}\n")) == []


@pytest.mark.parametrize(
    ("imported", "found"),
    [
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"a"}}, {"a", "b"}),
        ({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}, {"b", "c", "d"}),
    ],
)
def test_a_circle_of_imports_is_found(imported: dict[str, set[str]], found: set[str]) -> None:
    assert set(circle(imported)) == found


FIELDS = "\n".join(f"    f{n}: int = {n}" for n in range(10))
MEANINGS = "\n".join(f"    :param f{n}: number {n}" for n in range(10))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (f'@dataclass\nclass A:\n    """Ten."""\n{FIELDS}', ["A: " + ", ".join(f"f{n}" for n in range(10))]),
        (f'@dataclass\nclass A:\n    """Ten.\n\n{MEANINGS}\n    """\n{FIELDS}', []),
        (f'class A(NamedTuple):\n    """Ten.\n\n{MEANINGS}\n    """\n{FIELDS}\n    more: int = 3', ["A: more"]),
        ('@dataclass\nclass A:\n    """Few."""\n    a: int', []),
        (f'@dataclass\nclass A:\n    """Ten.\n\n{MEANINGS}\n    """\n{FIELDS}\n    ALL: ClassVar[int] = 3', []),
        (f'class A(TypedDict):\n    """Ten."""\n{FIELDS}', []),
    ],
)
def test_a_large_class_documents_its_fields(source: str, found: list[str]) -> None:
    assert list(undocumented(ast.parse(source))) == found

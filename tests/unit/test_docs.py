"""The documentation is correct as far as static checks can tell: links, commands, messages, names of tests."""

from __future__ import annotations

import ast
import importlib.util
import io
import itertools
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest
from airflow.sdk import DAG

import storeside.operators as public
from storeside import __main__ as command_line
from storeside.stack.settings import CHECKOUT
from storeside.transfer.request.named_options import named_options

PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
IDS = [str(path.relative_to(CHECKOUT)) for path in PAGES]
FENCE = re.compile(r"^ *```(\w*)(?: \w+)?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([\w-]+))?\)")


def blocks(path: Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(path.read_text()) if kind == language]


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """Return GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def shell_lines(path: Path) -> Iterator[str]:
    """Yield the commands of a page's shell blocks, without comments."""
    for block in blocks(path, "sh"):
        for line in block.splitlines():
            command = re.sub(r"(^|\s)#.*", "", line).strip()
            if command:
                yield command


def test_the_readme_is_short() -> None:
    """It is read before anything else; details belong into pages."""
    assert (CHECKOUT / "README.md").stat().st_size <= 8192


@pytest.mark.guarantee("docs-true")
@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(prose(path)):
        file = (path.parent / target).resolve() if target else path
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_python_blocks_compile_and_import_what_exists(path: Path) -> None:
    for block in blocks(path, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "storeside":
                names = {alias.name for alias in node.names}
                source = importlib.util.find_spec(node.module)
                assert source is not None, node.module
                assert source.origin is not None
                text = Path(source.origin).read_text()
                assert all(re.search(rf"\b{name}\b", text) for name in names), (node.module, names)


# commands

COMMANDS = [name for group in command_line.COMMANDS.values() for name in group]


@cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([.\w-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))


@cache
def help_of(module: str, *command: str) -> str:
    # In this process: dozens of new ones would each import Airflow or pyarrow.
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setattr(sys, "argv", [module, *command, "--help"])
        # runpy warns if it loads a module a second time. A package stays: a new one would know none of its modules.
        found = importlib.util.find_spec(module)
        is_package = found is not None and found.submodule_search_locations is not None
        patch.delitem(sys.modules, f"{module}.__main__" if is_package else module, raising=False)
        with pytest.raises(SystemExit, match=r"^0$"):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    return out.getvalue()


@cache
def services() -> frozenset[str]:
    text = (CHECKOUT / "docker-compose.yaml").read_text()
    return frozenset(re.findall(r"^  ([a-z][\w-]*):$", text, re.MULTILINE))


def check(command: str) -> str:
    """Return the fault of a command; empty if all its targets, modules and files exist."""
    return "; ".join(filter(None, map(check_one, command.split(" && "))))


def check_one(command: str) -> str:
    words = shlex.split(re.sub(r'^eval "\$\((.*)\)"$', r"\1", command))
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    if words[:3] == ["airflow", "backfill", "create"]:  # test_backfill.py runs it
        words = ["make", "airflow", f"ARGS=dags test {words[words.index('--dag-id') + 1]}"]
    if words[:1] in ([], ["make"]):
        missing = [w for w in words[1:] if "=" not in w and w not in make_targets()]
        if words[1:2] == ["airflow"] and words[2:]:
            return check_airflow(shlex.split(words[2].removeprefix("ARGS=")))
        return f"no target {missing}" if missing else ""
    if words[0] == "storeside":
        words = ["python", "-m", *words]
    if words[0].endswith("python"):
        return check_module(words[2], words[3:]) if words[1] == "-m" else check_code(words[2])
    if words[0] == "docker":
        return check_compose(words[2:]) if words[1] == "compose" else check_build(words)
    if words[0] == "kubectl":
        suffix = "/kustomization.yaml" if "-k" in words else ""
        faults = (check_file(word + suffix, "kind:") for word in words if word.startswith("docs/"))
        return "; ".join(filter(None, faults))
    return "" if words[0] in ("mkdir", "echo", "export") else "a command that this test does not know"


def check_airflow(words: list[str]) -> str:
    if words[:2] == ["connections", "add"]:
        wrong = {word for word in words if word.startswith("--") and not word.startswith("--conn-")}
        return f"no options: {sorted(wrong)}" if wrong else ""
    if words[:1] != ["dags"] or words[1] not in ("test", "trigger", "unpause"):
        return "a command of Airflow that this test does not know"
    defined = any(f'DAG("{words[2]}"' in page.read_text() for page in PAGES)  # by the reader
    return "" if defined else check_file(f"dags/{words[2]}.py", "DAG(")


def check_build(words: list[str]) -> str:
    if "--file" in words:
        return check_file(words[words.index("--file") + 1], "FROM ")
    if "--target" not in words:
        return "" if any("```dockerfile" in page.read_text() for page in PAGES) else "no page has a Dockerfile"
    return check_file("Dockerfile", f" AS {words[words.index('--target') + 1]}\n")


def check_file(name: str, text: str) -> str:
    path = CHECKOUT / name
    return "" if path.exists() and text in path.read_text() else f"{name} has no {text!r}"


def check_module(module: str, words: list[str]) -> str:
    if importlib.util.find_spec(module) is None:
        return f"no module {module}"
    options = [w for w in words if w.startswith("-")]
    command = [w for w in words[:1] if module in ("storeside", "storeside.stack") and not w.startswith("-")]
    if module == "storeside" and set(command) - {*COMMANDS}:
        return f"no command {command}"
    known = help_of(module, *command) if options or command else ""
    unknown = [option for option in options if option not in known]
    unknown += [
        name
        for flag, word in itertools.pairwise(words)
        if flag == "--set" and (name := word.partition("=")[0]) not in named_options()
    ]
    return f"no options {unknown}" if unknown else ""


def check_code(text: str) -> str:
    try:
        ast.parse(text)
    except SyntaxError as e:
        return str(e)
    return ""


def check_compose(words: list[str]) -> str:
    options = {
        "build": set(), "config": set(), "down": {"--volumes"}, "logs": set(), "restart": set(), "run": {"--rm"},
        "up": {"--build", "--wait", "--detach"},
    }  # fmt: skip
    if words[0] == "--profile":
        _, profile, *words = words
        if why := check_file("docker-compose.yaml", f"profiles: [{profile}]"):
            return why
    verb, *rest = words
    if verb == "cp":
        service, _, path = rest[0].partition(":")
        if service not in services():
            return f"no service {service}"
        return check_file("docker-compose.yaml", f":{path.rpartition('/')[0]}:ro")
    if verb == "exec":
        return "" if rest[0] in services() else f"no service {rest[0]}"
    if verb not in options:
        return f"docker compose {verb} is not one of {sorted(options)}"
    wrong = [w for w in rest if w not in options[verb] and w not in services()]
    return f"neither an option nor a service: {wrong}" if wrong else ""


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_commands_name_what_exists(path: Path) -> None:
    wrong = {command: reason for command in shell_lines(path) if (reason := check(command))}
    assert wrong == {}


def test_commands_in_sentences_name_what_exists() -> None:
    wrong = {}
    for path in PAGES:
        for command in re.findall(r"`((?:make|docker compose|python -m|storeside) [^`…]+)`", prose(path)):
            if " --resolve-image-digests" not in command and (reason := check(command)):
                wrong[f"{path.name}: {command}"] = reason
    assert wrong == {}


@pytest.mark.parametrize(
    "command",
    ["make nonsense", "storeside nonsense", "storeside load --nonsense",
     "python -m storeside.nothing", "python -m storeside.doctor --nonsense",
     "docker compose run nobody", "docker build --target nobody .", "airflow dags trigger nobody",
     "python -m storeside.stack up --nonsense", "kubectl apply -f docs/kubernetes/nothing.yaml"],
)  # fmt: skip
def test_the_check_sees_a_wrong_command(command: str) -> None:
    assert check(command)


# the reference, the guarantees, the messages


def test_the_reference_is_current() -> None:
    made = runpy.run_path(str(CHECKOUT / "docs" / "make_reference.py"))
    assert (CHECKOUT / "docs" / "reference.md").read_text() == made["page"](), "run `make docs`"


def test_the_reference_has_every_public_class() -> None:
    text = (CHECKOUT / "docs" / "reference.md").read_text()
    classes = [name for name in public.__all__ if isinstance(getattr(public, name), type)]
    assert len(classes) > 15
    assert [name for name in classes if f"### {name}\n" not in text] == []


def test_each_operator_has_an_example_that_airflow_accepts() -> None:
    """The DAGs are built here, so each operator checks its arguments; the reference is made of the same source."""
    built = runpy.run_path(str(CHECKOUT / "docs" / "reference_examples.py"))
    dags = [found for found in built.values() if isinstance(found, DAG)]
    shown = {type(task).__name__ for dag in dags for task in dag.tasks}
    all_of_them = {name for name in public.__all__ if name.endswith(("Operator", "Sensor"))}
    assert shown == {name for name in all_of_them if not getattr(public, name).__doc__.startswith("Deprecated")}
    text = (CHECKOUT / "docs" / "reference.md").read_text()
    assert [name for name in shown if f"```python\n{name}(" not in text] == []


def test_every_proof_exists() -> None:
    text = (CHECKOUT / "docs" / "guarantees.md").read_text()
    files = set(re.findall(r"`((?:unit|integration|e2e)/test_\w+\.py)`", text))
    assert len(files) > 15
    assert [file for file in sorted(files) if not (CHECKOUT / "tests" / file).exists()] == []
    for file, names in re.findall(r"`((?:unit|integration|e2e)/test_\w+\.py)`: ((?:`test_\w+`(?:, )?)+)", text):
        source = (CHECKOUT / "tests" / file).read_text()
        for name in re.findall(r"test_\w+", names):
            assert f"def {name}(" in source, name


@cache
def said() -> tuple[str, ...]:
    """Return every string of the code and of its SQL, with … for inserted values, and the Makefile."""
    found = [(CHECKOUT / "Makefile").read_text()]
    for path in (CHECKOUT / "include").rglob("*.sql"):
        found.append("…".join(re.findall(r"'([^'\n]*)'", path.read_text())))
    for folder in ("operators", "include"):
        for path in (CHECKOUT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(re.sub(r"%[-.\w]*?[sdrgf]", "…", node.value))
    return tuple(found)


FOREIGN = (
    "the operation requires Kubernetes", "required variable … is missing a value", "Range of CPUs is from",
    "No such image: ", "Bind for ", "listen tcp4 ", "Access to file denied", "used capacity … exceeded",
    "password authentication", "token required", "invalid token ", "Invalid input for param ",
)  # fmt: skip


def test_troubleshooting_quotes_messages_that_exist() -> None:
    text = (CHECKOUT / "docs" / "troubleshooting.md").read_text()
    cells = re.findall(r"^\| (`.*?`(?:, `.*?`)*) \|", text, re.MULTILINE)
    quoted = [message for cell in cells for message in re.findall(r"`(.*?)`", cell)]
    assert len(quoted) > 30
    unknown = []
    for message in quoted:
        pattern = re.compile(".*?".join(re.escape(part) for part in message.split("…")))
        if not message.startswith(FOREIGN) and not any(pattern.search(text) for text in said()):
            unknown.append(message)
    assert unknown == []

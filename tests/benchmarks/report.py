"""Runs all benchmarks, writes ``docs/benchmarks.md`` from their output, and updates other documents: ``make bench``.

A benchmark that does not run keeps its section in the page. Arguments after ``--`` go to the benchmark.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import groupby

from storeside.stack.settings import CHECKOUT
from tests.benchmarks import measure
from tests.figures import main as write_figures

PAGE = CHECKOUT / "docs/benchmarks.md"
# In the order of the page.
BENCHMARKS = (
    "transform",
    "transform_matrix",
    "streams",
    "pipelines",
    "scaling",
    "authn",
    "transfer",
    "small",
    "tables",
    "starts",
    "quality",
    "upsert",
    "events",
    "speech_run",
    "manifest",
    "storage",
    "throughput",
    "line",
    "hsds",
    "listing",
    "reconcile",
    "pages",
    "scale",
    "airflow_runs",
)
TARGETS = {"transform_matrix": "matrix", "speech_run": "run", "airflow_runs": "airflow"}
VERSIONS = ("apache-airflow", "aistore", "clickhouse-connect", "pyarrow", "h5pyd")
# Published results, their sources, and the figures of these benchmarks for comparison.
PUBLISHED = (
    ("149,000 FLAC files of 12 s to WAV on 3 nodes, one stage in the cluster", "8,106 s by a client, 219 s in the"
     " cluster: 37 times", "AIStore's article on its ETL", "transform.vs_client"),
    ("3,174,394 rows of Parquet into ClickHouse", "Airbyte 932 s, DoubleCloud 129 s: 7.2 times", "DoubleCloud",
     "transfer.vs_airbyte"),
    ("60 million rows of Parquet into ClickHouse", "Airbyte 12,990 s, DoubleCloud 2,219 s: 5.9 times", "DoubleCloud",
     "transfer.large_file_seconds"),
    ("PUT of 64 MB, many parts against one", "2 times", "AIStore's article on OCI", "storage.multipart_put_gain"),
    ("random reads of 10 MiB", "175 of 186 GiB/s on 16 nodes with 100 Gbit/s each", "AIStore, “The Perfect Line”",
     "throughput.read_10MiB.targets4"),
    ("the same as a share of the links", "0.94", "AIStore, “The Perfect Line”", "line.share_at_8_targets"),
    ("12000 x 2200 int64 written through HSDS", "100.9 MB/s on 8 cores", "The HDF Group", "hsds.article_write"),
    ("the same, read", "97.6 MB/s", "The HDF Group", "hsds.article_read"),
)  # fmt: skip
BENCH = re.compile(r"^BENCH (?P<name>\S+) (?P<value>\S+) ?(?P<unit>.*)$", re.MULTILINE)

Sections = dict[str, str]


def sections(page: str) -> Sections:
    """Return the sections of benchmarks that a page has, by the benchmark's name."""
    found = re.split(r"^<!-- (\w+) -->\n", page, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def section(name: str, command: str, printed: str, seconds: float, ended: int = 0) -> str:
    """Return the section of a benchmark that has printed this and ended with this exit status."""
    doc = importlib.import_module(f"tests.benchmarks.{name}").__doc__ or ""
    title, _, method = doc.partition("\n")
    title = title.split(": ``make")[0]
    date = time.strftime("%Y-%m-%d")
    missed = f" It missed an aim (exit status {ended})." if ended else ""
    ran = f"`{command}`, {date}, commit {_commit()}, {seconds / 60:.0f} minutes.{missed}"
    parts = [f"## {title}", ran, method.strip().replace("``", "`")]
    figures = [f"| `{m['name']}` | {m['value']} | {m['unit']} |" for m in BENCH.finditer(printed)]
    if figures:
        parts.append("\n".join(["| figure | value | unit |", "|---|---|---|", *figures]))
    return "\n\n".join([*parts, *_blocks(BENCH.sub("", printed))]) + "\n"


def _commit() -> str:
    """Return the checkout's commit, with a mark if files of it are changed."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        check=False, cwd=CHECKOUT, capture_output=True, text=True,
    )  # fmt: skip
    return described.stdout.strip() or "unknown"


def _blocks(printed: str) -> Iterator[str]:
    """Yield tables as they are and other lines as they were printed."""
    for is_table, lines in groupby(printed.strip().splitlines(), lambda line: line.startswith("|")):
        if text := "\n".join(lines).strip("\n"):
            yield text if is_table else f"```text\n{text}\n```"


def page(found: Sections) -> str:
    """Return the whole page."""
    values = {m["name"]: f"{m['value']} {m['unit']}" for text in found.values() for m in _figures(text)}
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    rows = [
        f"| {what} | {figure} | {source} | {f'{values[name]} (`{name}`)' if name in values else 'not measured'} |"
        for what, figure, source, name in PUBLISHED
    ]
    head = f"""\
# Benchmarks

`make bench` runs all benchmarks and writes this page; `make bench ARGS="transfer events"` runs only these two, and
`make bench-transfer` runs one without writing the page. Figures are medians of interleaved rounds, with minimum and
maximum in parentheses. A ratio compares a case with the stated peer or limit. All processes, including the embedded
stack, run on one machine: {measure.machine()}. Its cores also do other work, so ratios are more
reliable than seconds.

Versions: {versions}, Python {sys.version.split()[0]}. `make bench-transfer` installs its peers into separate
environments, at the versions in `tests/benchmarks/transfer_peers.py`, and runs them without a network.

## Comparison with published results

| case | published | source | these benchmarks, two cores |
|---|---|---|---|
{chr(10).join(rows)}

The published measurements were not repeated; machines, data and versions differ.

"""
    return head + "\n".join(f"<!-- {name} -->\n{found[name].strip()}\n" for name in BENCHMARKS if name in found)


def _figures(text: str) -> Iterator[re.Match[str]]:
    return re.finditer(
        r"^\| `(?P<name>[a-z_0-9]+\.[\w.]+)` \| (?P<value>\S+) \| (?P<unit>.*) \|$", text, re.MULTILINE
    )


def run(name: str, arguments: Sequence[str]) -> tuple[str, int]:
    """Run one benchmark and show its output; return its section, empty without figures, and its exit status."""
    began = time.monotonic()
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments]
    lines = []
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            lines.append(line)
            print(line, end="", flush=True)
    printed, ended = "".join(lines), process.returncode
    if ended and not BENCH.search(printed):
        return "", ended
    target = f"make bench-{TARGETS.get(name, name)}"
    shown = f'{target} ARGS="{" ".join(arguments)}"' if arguments else target
    return section(name, shown, printed, time.monotonic() - began, ended), ended


def main() -> None:
    """Run benchmarks and write the page after each."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.report", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="benchmark", help=f"of {', '.join(BENCHMARKS)} (default: all)")
    own, _, more = " ".join(sys.argv[1:]).partition(" -- ")
    given = parser.parse_args(own.split())
    if unknown := set(given.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}: use {', '.join(BENCHMARKS)}")
    failed = []
    for name in given.names or BENCHMARKS:
        text, ended = run(name, more.split())
        if ended:
            failed.append(f"{name} (exit status {ended})")
        if text:
            found = sections(PAGE.read_text()) if PAGE.exists() else {}
            PAGE.write_text(page({**found, name: text}))
            write_figures()
    if failed:
        sys.exit(f"error: these benchmarks failed or missed an aim: {', '.join(failed)}")


if __name__ == "__main__":
    main()

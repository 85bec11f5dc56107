#!/usr/bin/env bash
# ClickHouse: a local time that clocks skip is moved back, and a day without a midnight becomes the day before.
#
# On 29 March 2026, clocks in Berlin go from 2:00 to 3:00, so that no clock shows 2:30. One would expect an error, or what
# Python does: it counts with the offset before the change, and shows 3:30. ClickHouse counts with the offset after the
# change and shows 1:30, an earlier time that the text did not mean. In Cairo clocks skip the hour after midnight: there
# the text of a day alone, 2026-04-24, becomes 2026-04-23 23:00:00, and as a date the day before.
#
# Seen with chdb-core 26.9.0 (ClickHouse 26.9.2.1) on Python 3.11 and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check chdb-core==26.9.0 tzdata==2025.2
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import platform
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import chdb

print("Python", platform.python_version(), "chdb", chdb.__version__, "engine", chdb.engine_version)
TEXTS = [("2026-03-29 02:30:00", "Europe/Berlin"), ("2026-04-24", "Africa/Cairo")]
found = []
for text, zone in TEXTS:
    with open("times.csv", "w") as file:
        file.write(text + "\n")
    kind = f"DateTime(\\'{zone}\\')"
    query = f"SELECT toString(t), toString(toDate(t)) FROM file('times.csv', CSV, 't {kind}')"
    settings = " SETTINGS date_time_input_format = 'best_effort'"
    ours = chdb.query(query + settings, "TSV").data().split("\t")[0]
    there = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
    python = there.astimezone(UTC).astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S")
    found.append((ours, python))
    print(f"{text} in {zone}: ClickHouse has {ours}, Python {python}")
expected = [("2026-03-29 01:30:00", "2026-03-29 03:30:00"), ("2026-04-23 23:00:00", "2026-04-24 01:00:00")]
sys.exit(0 if found == expected else "the behaviour has changed")
PYTHON

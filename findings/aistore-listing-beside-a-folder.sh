#!/usr/bin/env bash
# AIStore: a listing leaves out objects whose names begin like a folder.
#
# In object storage a name is only a text: a listing with the prefix `part` has `part/1`, `part-1` and `part2`, page
# after page, in the order of names. AIStore stores the objects of its own buckets as files, and walks folders, so two
# listings of a cluster at rest come back without an error and too short:
# - With the prefix `part`, as soon as there was an object `part/1`, the listing has only what is below the folder
#   `part/`. Also after the last object below it was deleted: then the listing is empty.
# - Without any prefix, in pages: a folder is walked before its siblings, so `part/1` comes before `part-1` on the
#   disk, but a page ends at a name, and the next page has only greater names. If a page ends within the folder, no page
#   has `part-1`. A listing in one page has all objects.
#
# Seen with AIStore 5.0 (the module's v1.5.0) and its SDK 2.0.0, one proxy and one target, on Linux x86-64. The script
# also needs Go 1.26, which builds the server in some minutes.
set -euo pipefail
folder="$(mktemp -d)"
processes=()
end() {
    for process in "${processes[@]}"; do
        kill -INT "$process" 2>/dev/null || true
        wait "$process" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap end EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check aistore==2.0.0
cd "$folder"
source="$(go mod download -json github.com/NVIDIA/aistore@v1.5.0 \
    | "$folder/venv/bin/python" -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')"
(cd "$source" && CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags mono \
    -ldflags "-w -s -X main.build=v1.5.0 -X main.buildtime=2026-08-21T00:00:00+0000" \
    -o "$folder/aisnode" ./cmd/aisnode)

"$folder/venv/bin/python" - <<'PYTHON'
import json
import pathlib
import socket

sockets = [socket.socket() for _ in range(6)]
for one in sockets:
    one.bind(("127.0.0.1", 0))
ports = [one.getsockname()[1] for one in sockets]
for one in sockets:
    one.close()
primary = f"http://127.0.0.1:{ports[1]}"
cluster = {
    "backend": {}, "auth": {}, "proxy": {"primary_url": primary, "original_url": primary},
    "log": {"level": "3", "max_size": "2mb", "max_total": "8mb"},
    "timeout": {
        "cplane_operation": "1s", "max_keepalive": "2s", "cold_get_conflict": "5s", "max_host_busy": "20s",
        "startup_time": "30s", "join_startup_time": "1m", "send_file_time": "5m", "ec_streams_time": "10m",
        "object_md": "2h",
    },
    "space": {
        "cleanupwm": 97, "lowwm": 97, "highwm": 98, "out_of_space": 99, "batch_size": 32768,
        "dont_cleanup_time": "15m",
    },
    "resilver": {"enabled": True}, "versioning": {"enabled": True},
    "distributed_sort": {
        "duplicated_records": "ignore", "missing_shards": "ignore", "ekm_malformed_line": "abort",
        "ekm_missing_key": "abort", "default_max_mem_usage": "80%", "call_timeout": "10m",
        "dsorter_mem_threshold": "100GB", "compression": "never", "bundle_multiplier": 4,
    },
    "memsys": {"min_free": "256mb", "default_buf": "32kb", "to_gc": "256mb", "hk_time": "3m"},
    "net": {"l4": {"proto": "tcp"}, "http": {"idle_conn_time": "6s", "idle_conns_per_host": 32, "idle_conns": 256}},
}  # fmt: skip
for number, (node, instance) in enumerate((("proxy", 0), ("target", 1))):
    home = pathlib.Path(node)
    home.mkdir()
    public, control, data = map(str, ports[3 * number : 3 * number + 3])
    local = {
        "confdir": str(home.resolve()), "log_dir": str(home.resolve() / "log"),
        "host_net": {
            "hostname": "127.0.0.1", "hostname_intra_control": "127.0.0.1", "hostname_intra_data": "127.0.0.1",
            "port": public, "port_intra_control": control, "port_intra_data": data,
        },
        "fspaths": {},
        "test_fspaths": {"root": str(pathlib.Path("data").resolve()), "count": instance, "instance": instance},
    }  # fmt: skip
    (home / "ais.json").write_text(json.dumps(cluster))
    (home / "ais_local.json").write_text(json.dumps(local))
pathlib.Path("data").mkdir()
pathlib.Path("url").write_text(f"http://127.0.0.1:{ports[0]}")
PYTHON

for node in proxy target; do
    AIS_DAEMON_ID="ais$node" ./aisnode -config="$folder/$node/ais.json" -local_config="$folder/$node/ais_local.json" \
        -role="$node" -ntargets=1 -skip_startup=true >"$folder/$node.out" 2>&1 &
    processes+=("$!")
done

"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import pathlib
import platform
import sys
import time
import urllib.error
import urllib.request

from aistore.sdk import Client

url = pathlib.Path("url").read_text()
for attempt in range(120):
    try:
        urllib.request.urlopen(f"{url}/v1/health?prr=true").close()
        if len(Client(url).cluster().get_info().tmap) == 1:
            break
    except Exception as error:  # the nodes start
        if attempt == 119:
            raise SystemExit(f"the cluster did not start: {error}")
    time.sleep(0.5)
print("Python", platform.python_version(), "AIStore SDK", importlib.metadata.version("aistore"), "AIStore v1.5.0")
bucket = Client(url).bucket("names").create()
names = [f"part{between}{number}" for between in "/-" for number in range(10)] + ["part2"]
for name in names:
    bucket.object(name).get_writer().put_content(b"x")


def listed(**how):
    return sorted(entry.name for entry in bucket.list_all_objects(**how))


whole, prefix = listed(), listed(prefix="part")
pages = listed(page_size=5)
print(f"{len(names)} objects are stored; one page without a prefix has {len(whole)}")
print(f"with the prefix `part`: {len(prefix)}, all below part/: {all(name.startswith('part/') for name in prefix)}")
print(f"in pages of 5: {len(pages)}, without {sorted(set(names) - set(pages))}")
for name in names:
    if name.startswith("part/"):
        bucket.object(name).delete()
emptied = listed(prefix="part")
print(f"after all objects below part/ were deleted, with the prefix `part`: {emptied} of {listed()}")
seen = len(whole) == len(names) and len(prefix) == 10 and set(names) - set(pages) and not emptied
sys.exit(0 if seen else "the behaviour has changed")
PYTHON

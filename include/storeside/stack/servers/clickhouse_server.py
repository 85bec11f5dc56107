"""Runs the ClickHouse server that is part of the chdb-core wheel.

The wheel's engine is clickhouse-local, which opens ClickHouse's HTTP and TCP handlers on ``SYSTEM START LISTEN``.
It serves until its list of statements ends. The last statement reads from a named pipe; closing the pipe ends the
server cleanly.

Usage: ``python -m storeside.stack.servers.clickhouse_server --config FILE`` with the fields of `Config` as JSON.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from storeside.stack.servers.clickhouse_users import DATA, DATABASE, USER, users_xml
from storeside.stack.settings import HOST, SOURCES, StackError
from storeside.stack.supervision.probes import answers
from storeside.stack.supervision.processes import listener
from storeside.transformers.isolation.landlock import confine, drop_capabilities

PINNED = "26.9.0"
CLUSTER = "storeside"  # contains only this server; lets users try statements with ON CLUSTER
BEARER = "bearer"
SHARDS = "shards"  # the cluster of `Config.shards`

NOT_CONFINED = (
    "this kernel has no Landlock: SQL can read all files of this user through file(), including secrets; use"
    " Linux 6.2 or newer with landlock in its list of security modules (lsm=), or ClickHouse in a container"
)
LOGS = ("query_log", "part_log")

CONFIG_XML = """\
<clickhouse>
  <listen_host>{host}</listen_host>
  <http_port>{http_port}</http_port>
  <tcp_port>{tcp_port}</tcp_port>
  <path>{data}/</path>
  <tmp_path>{folder}/tmp/</tmp_path>
  <user_files_path>{folder}/user_files/</user_files_path>
  <user_scripts_path>{folder}/user_scripts/</user_scripts_path>
  <format_schema_path>{folder}/format_schemas/</format_schema_path>
  <users_config>{folder}/users.xml</users_config>
  <access_control_improvements>
    <table_engines_require_grant>true</table_engines_require_grant>
  </access_control_improvements>
  <logger>
    <level>warning</level><console>0</console>
    <log>{folder}/server.log</log><errorlog>{folder}/server.err.log</errorlog>
    <size>10M</size><count>2</count>
  </logger>
  <max_server_memory_usage_to_ram_ratio>{memory_ratio}</max_server_memory_usage_to_ram_ratio>
  <mark_cache_size>268435456</mark_cache_size>
  <uncompressed_cache_size>0</uncompressed_cache_size>
  <page_cache_min_size>33554432</page_cache_min_size><page_cache_max_size>268435456</page_cache_max_size>
  {trust}
  {logs}
  <named_collections>{collections}</named_collections>
  <remote_servers><{cluster}><shard><replica>
    <host>{host}</host><port>{tcp_port}</port><user>{user}</user>{password}
  </replica></shard></{cluster}>{shards}</remote_servers>
</clickhouse>
"""
SHARD_XML = "<shard><replica><host>{host}</host><port>{port}</port><user>{user}</user>{password}</replica></shard>"
# For the server's requests to S3 and AIStore.
TRUST_XML = """\
<openSSL><client>
    <caConfig>{}</caConfig><loadDefaultCAFile>false</loadDefaultCAFile>
    <verificationMode>strict</verificationMode>
    <invalidCertificateHandler><name>RejectCertificateHandler</name></invalidCertificateHandler>
  </client></openSSL>"""
LOG_XML = (
    "<{0}><database>system</database><table>{0}</table><ttl>event_date + INTERVAL 7 DAY</ttl>"
    "<flush_interval_milliseconds>1000</flush_interval_milliseconds></{0}>"
)
SYSTEM_PATHS = (
    *(
        "/dev",
        "/proc",
        "/sys",
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/share/zoneinfo",
        "/usr/share/ca-certificates",
    ),
    *("/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/gai.conf"),
    *("/etc/localtime", "/etc/ssl", "/etc/pki", "/etc/ld.so.cache"),
)


@dataclass(frozen=True)
class Config:
    """The server's folder, ports, users and limits.

    :param folder: folder of its data and configuration
    :param http_port: port of HTTP
    :param tcp_port: port of the native protocol
    :param password: password of the user for queries by hand
    :param memory_ratio: the server's limit, as a share of the machine's memory
    :param users: passwords of the other users, by name
    :param collections: ClickHouse's named collections, such as S3 keys; the token `BEARER` becomes a header
    :param shards: native ports of the servers of the cluster `SHARDS`, which includes this server; all of them have
        the same password
    :param authority: file of the certificate authority that the server trusts when it reads from S3 and AIStore;
        without it, it trusts the system's
    :param urls: regular expression of the URLs that users of collections may read with ``url()``
    """

    folder: str
    http_port: int
    tcp_port: int
    password: str = field(repr=False)
    memory_ratio: float = 0.6
    users: dict[str, str] = field(default_factory=dict, repr=False)
    collections: dict[str, dict[str, str]] = field(default_factory=dict, repr=False)
    shards: tuple[int, ...] = ()
    authority: str = ""
    urls: str = ""


def serve(config: Config) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status.

    Raises:
        StackError: another server uses the folder, a port is taken, or the wheel has another version.
    """
    folder = Path(config.folder).resolve()
    os.umask(0o077)
    for name in ("data", "tmp", "user_files", "user_scripts", "format_schemas", ".clickhouse-local"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    for port in (config.http_port, config.tcp_port):
        owner = listener(port)
        if owner:  # the engine only prints a warning, and another server could answer /ping
            raise StackError(f"port {port} of clickhouse is taken by {owner}")
    _write_configuration(config, folder)
    pipe = folder / "stop.fifo"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    hold = os.open(pipe, os.O_RDWR)
    os.environ["HOME"] = str(folder)
    trusted = [config.authority] if config.authority else []
    readable = [Path(path) for path in (*SYSTEM_PATHS, sys.prefix, sys.base_prefix, *trusted)] + [SOURCES]
    if not (confine([folder, Path("/dev/null")], readable) and drop_capabilities()):
        print(f"WARNING: {NOT_CONFINED}", flush=True)
    engine = _Engine(load_engine(), _statements(pipe), folder / "data")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: engine.ended.set())
    # The engine stores the schemas of statements in its working folder, and not in `format_schema_path`.
    os.chdir(folder / "format_schemas")
    engine.start()
    while not engine.ended.wait(0.1) and not answers(f"http://{HOST}:{config.http_port}/ping"):
        pass
    if not engine.ended.is_set():
        print(f"ready on http://{HOST}:{config.http_port}, pid {os.getpid()}", flush=True)
    engine.ended.wait()
    os.close(hold)
    engine.join(30)
    lock.close()
    if engine.error:
        print(f"clickhouse stopped: {engine.error}", file=sys.stderr, flush=True)
    return 1 if engine.error or engine.is_alive() else 0


def load_engine() -> Any:
    """Import the engine and check for the private entry point that this launcher needs.

    Raises:
        StackError: chdb-core is absent, has another version, or lacks the entry point.
    """
    try:
        version = importlib.metadata.version("chdb-core")
        from chdb import _chdb
    except ImportError as error:
        raise StackError(f"chdb-core=={PINNED} cannot be imported: {error}; install requirements.lock") from error
    if version != PINNED or not callable(getattr(_chdb, "query", None)):
        found = f"chdb-core {version}" + ("" if hasattr(_chdb, "query") else " without chdb._chdb.query")
        raise StackError(
            f"the ClickHouse launcher needs chdb-core=={PINNED}, found {found}; install requirements.lock"
        )
    return _chdb


class _Engine(threading.Thread):
    """The thread that runs the engine's statements."""

    def __init__(self, module: Any, statements: str, data: Path) -> None:
        super().__init__(name="clickhouse", daemon=True)
        self.ended = threading.Event()
        self.error: Exception | None = None
        self._module, self._statements, self._data = module, statements, data
        module.set_signal_handlers_enabled(False)

    def run(self) -> None:
        """Run the statements until the pipe is closed."""
        try:
            # This format also becomes the server's default output format.
            self._module.query(self._statements, "TabSeparated", path=str(self._data))
            if not self.ended.is_set():
                self.error = RuntimeError("its statements ended early")
        except Exception as error:
            self.error = error
        self.ended.set()


def _statements(pipe: Path) -> str:
    path = str(pipe).replace("\\", "\\\\").replace("'", "\\'")
    wait = f"file('{path}', 'LineAsString', 'l String') SETTINGS storage_file_read_method='read'"
    databases = " ".join(f"CREATE DATABASE IF NOT EXISTS {name};" for name in (DATABASE, DATA))
    return f"{databases} SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP; SELECT * FROM {wait};"


def _hidden(element: str, value: str) -> str:
    """Return a configuration element whose value is in this process's memory and in no file.

    SQL can read the server's folder and /proc/self/environ, but the latter has only the environment at the start.
    """
    name = f"STORESIDE_{hashlib.sha256(value.encode()).hexdigest()[:16]}"
    os.environ[name] = value
    return f'<{element} from_env="{name}" hide_in_preprocessed="true"/>'


def _lock(folder: Path) -> Any:
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise StackError(f"another ClickHouse server runs in {folder}: stop it first") from error
    return lock


def _element(key: str, value: str) -> str:
    """Return an element of a named collection; the token `bearer` becomes a header of requests."""
    if key == BEARER:
        header = f"<name>Authorization</name>{_hidden('value', f'Bearer {value}')}"
        return f"<headers><header>{header}</header></headers>"
    return _hidden(key, value)


def _write_configuration(config: Config, folder: Path) -> None:
    collections = "".join(
        f"<{name}>{''.join(_element(key, value) for key, value in values.items())}</{name}>"
        for name, values in config.collections.items()
    )
    password = _hidden("password", config.password)
    shards = "".join(SHARD_XML.format(host=HOST, port=port, user=USER, password=password) for port in config.shards)
    text = CONFIG_XML.format(
        host=HOST,
        http_port=config.http_port,
        tcp_port=config.tcp_port,
        trust=TRUST_XML.format(escape(config.authority)) if config.authority else "",
        folder=escape(str(folder)),
        data=escape(str(folder / "data")),
        memory_ratio=config.memory_ratio,
        logs="".join(LOG_XML.format(name) for name in LOGS),
        collections=collections,
        cluster=CLUSTER,
        user=USER,
        password=password,
        shards=f"<{SHARDS}>{shards}</{SHARDS}>" if shards else "",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    users = users_xml(
        {USER: config.password, **config.users},
        tuple(config.collections),
        int(memory * config.memory_ratio),
        sharded=bool(config.shards),
        urls=config.urls,
    )
    for path, content in ((folder / ".clickhouse-local" / "config.xml", text), (folder / "users.xml", users)):
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(content)
    shutil.rmtree(folder / "tmp")
    (folder / "tmp").mkdir()


def main() -> int:
    """Serve with the configuration file of the command line."""
    parser = argparse.ArgumentParser(description="Run the ClickHouse server of the chdb-core wheel.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file with the fields of Config")
    try:
        return serve(Config(**json.loads(parser.parse_args().config.read_text())))
    except StackError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # the engine's threads do not survive a normal interpreter shutdown

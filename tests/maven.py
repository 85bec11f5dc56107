"""Programs in Java that tests run: Maven downloads their jars once, and they stay in the cache of the benchmarks."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from storeside.stack.settings import StackError


def missing() -> str:
    """Return the name of a required program that this machine lacks; empty if there is none."""
    return next((name for name in ("java", "mvn") if shutil.which(name) is None), "")


def download(cache: Path, name: str, packages: Iterable[str]) -> Path:
    """Return the folder `name` below `cache` with the jars of packages, such as ``org.elasticmq:elasticmq:1.7.1``.

    Maven downloads them and their dependencies if the folder is absent, and compares the checksums.
    """
    jars = cache / name
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if jars.exists():
            return jars
        work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache))
        try:
            (work / "pom.xml").write_text(_pom(name, packages))
            command = ["mvn", "-q", "-B", "-C", "dependency:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
            if done.returncode:
                raise StackError(f"Maven did not fetch {name}: {done.stdout[-500:]}{done.stderr[-500:]}")
            (work / "jars").rename(jars)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return jars


def _pom(name: str, packages: Iterable[str]) -> str:
    wanted = "\n".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *package.split(":")
        )
        for package in packages
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies>{wanted}</dependencies></project>
"""

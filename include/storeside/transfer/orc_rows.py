"""Reads the rows of ORC objects in a separate process.

pyarrow 26.0.1 ends its process with a segmentation fault while it reads some damaged stripes, although not while it
reads a footer.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from storeside.transfer.content import Content
from storeside.transfer.errors import LoadObjectError

# Characters of a message that are kept.
_MOST = 300
# Writes the rows of a file as an Arrow stream to standard output. It imports nothing else, so that it starts fast.
_PROGRAM = """
import sys
import pyarrow
from pyarrow import orc

file = orc.ORCFile(sys.argv[1])
with pyarrow.ipc.new_stream(sys.stdout.buffer, file.schema) as writer:
    for n in range(file.nstripes):
        batch = file.read_stripe(n)
        batch.validate(full=True)
        writer.write_batch(batch)
"""


def stripes(content: Content) -> Iterator[Any]:
    """Yield the stripes of an ORC object as Arrow batches. Raises LoadObjectError.

    The object is first copied into a temporary file.
    """
    import pyarrow as pa

    with tempfile.NamedTemporaryFile(suffix=".orc") as file, tempfile.TemporaryFile() as errors:
        for piece in content.stream():
            file.write(piece)
        file.flush()
        command = [sys.executable, "-I", "-c", _PROGRAM, file.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
            failed = ""
            try:
                yield from pa.ipc.open_stream(process.stdout)
            except (pa.ArrowException, OSError) as e:
                failed = str(e)
            finally:
                process.stdout.close()  # type: ignore[union-attr]
                process.kill() if failed else None
        if process.returncode or failed:
            errors.seek(0)
            *_, why = (errors.read().decode("utf-8", "replace").strip() or failed or "no message").splitlines()
            raise LoadObjectError(f"its ORC content is corrupt: {why[:_MOST]} (status {process.returncode})")

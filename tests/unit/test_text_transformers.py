"""Facts about texts."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storeside.stack.settings import CHECKOUT
from storeside.transformers.registry import build, locate
from storeside.transformers.text_transformers import text_facts, text_json
from storeside.transformers.transformer import ObjectError

TEXTS = sorted((CHECKOUT / "tests" / "data" / "texts").glob("*.txt"))


def facts(content: bytes) -> dict[str, Any]:
    return dict(json.loads(text_facts(content, "a.txt", "")))


def test_a_chapter_of_a_novel() -> None:
    content = TEXTS[0].read_bytes()
    assert facts(content) == {
        "object": "a.txt",
        "encoding": "utf-8",
        "bytes": 8935,
        "characters": 8935,
        "lines": int(subprocess.run(["wc", "-l", TEXTS[0]], capture_output=True, check=True).stdout.split()[0]),
        "paragraphs": 15,
        "words": 1554,
        "distinct_words": 538,
        "longest_line": 71,
        "title": "CHAPTER 1",
        "sha256": hashlib.sha256(content).hexdigest(),
    }


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_a_file_and_its_content_have_the_same_facts(path: Path) -> None:
    by_path = text_facts(str(path), path.name, "")
    assert by_path == text_facts(path.read_bytes(), path.name, "")
    assert by_path.count(b"\n") == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_encodings_with_and_without_marks(encoding: str) -> None:
    found = facts("Größe: 5 Übersee-Häfen, l\u2019été\r\n\r\n größe\n".encode(encoding))
    assert found["encoding"] == encoding.removesuffix("-sig")
    assert (found["characters"], found["lines"], found["paragraphs"]) == (40, 3, 2)
    assert (found["words"], found["distinct_words"], found["title"]) == (5, 4, "Größe: 5 Übersee-Häfen, l\u2019été")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the object is empty"),
        (b"caf\xe9", "not text in utf-8: byte 3: unexpected end of data"),
        (b"\x89PNG\r\n", "not text in utf-8: byte 0: invalid start byte"),
        (b"\xff\xfea", "not text in utf-16: byte 2: truncated data"),
        (b"RIFF\x00\x00", "not text: character 4 is NUL"),
    ],
)
def test_what_is_no_text_fails_with_a_reason(content: bytes, reason: str) -> None:
    with pytest.raises(ObjectError) as caught:
        text_facts(content, "a.txt", "")
    assert reason in str(caught.value)


def test_white_space_is_a_text_without_words() -> None:
    assert facts(b" \n\n")["words"] == facts(b" \n\n")["paragraphs"] == 0


def test_it_is_built_in() -> None:
    assert locate("text_facts")[0].endswith(".text_transformers")
    assert locate("audio_probe")[0].endswith(".audio_transformers")
    assert build("text_facts").mime_type == "application/json"


def test_json_is_one_line_with_the_same_content() -> None:
    made = text_json(b'{"a": "\xc3\xa9",\n "b": [1, null]}\n', "a.json", "")
    assert made == '{"a": "é",  "b": [1, null]}\n'.encode()
    exact = b'{"a": 12345678901234567.891, "b": 0.10000000000000000555, "c": "\\u2028", "a": 1}'
    assert text_json(exact, "a.json", "") == exact + b"\n"
    assert text_json('{"é":\r\n1}'.encode("utf-16"), "a.json", "") == '{"é":  1}\n'.encode()


def test_names_that_are_not_unicode_are_escaped() -> None:
    made = text_facts(b"x", b"caf\xe9.txt".decode("utf-8", "surrogateescape"), "")
    assert json.loads(made)["object"] == r"caf\udce9.txt"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "not JSON"), (b"[1]", "not one JSON object"), (b"{} {}", "not JSON"), (b'{"a": NaN}', "not JSON"),
     (b"\xff\xfe{", "not JSON"), (b"[" * 100_000, "not JSON")],
)  # fmt: skip
def test_what_is_not_one_json_object_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(ObjectError, match=reason):
        text_json(content, "a.json", "")


def test_it_runs_isolated(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "storeside.transformers.local", "text_facts", *map(str, TEXTS)]
    command += ["-o", str(tmp_path), "--extension", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.name: json.loads(path.read_bytes())["words"] for path in tmp_path.iterdir()}
    assert made == {f"sense-and-sensibility-0{n + 1}.json": w for n, w in enumerate([1554, 1962, 1534, 1945, 1021])}

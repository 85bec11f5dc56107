"""Lists the objects of an S3 bucket: page by page, or several ranges of keys at the same time."""

from __future__ import annotations

import contextvars
import itertools
import operator
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from storeside.aistore.buckets import common_prefix
from storeside.aistore.names import is_folder_marker
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.source import Listed

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

# The key of a page in botocore's response, and the id of the handler that adds it.
_TAKEN = "StoresidePage"
_THREADS = 8
# Requests with which two ranges are compared again.
_CHECKS = 4
# The ends of digits, capital and small letters: most keys differ in characters of one of these kinds.
_ENDS = (ord("9") + 1, ord("Z") + 1, ord("z") + 1)
_AFTER_ASCII = 0x7F
_SURROGATES = range(0xD800, 0xE000)  # no key contains one
# Directory buckets of S3 do not list keys in their order.
_DIRECTORY_BUCKET = "--x-s3"


class OutOfOrderError(TransferInputError):
    """The server does not list keys in their order, or ignores `StartAfter`: list its objects page by page."""


class Page(NamedTuple):
    """The objects of a page, without folder markers, and all of its keys; `token` continues the listing."""

    objects: list[Listed]
    keys: list[str]
    token: str = ""

    @property
    def first(self) -> str:
        """The first key; empty if there is none."""
        return self.keys[0] if self.keys else ""

    @property
    def last(self) -> str:
        """The last key; empty if there is none."""
        return self.keys[-1] if self.keys else ""


def list_objects(client: S3Client, bucket: str, prefix: str, start_after: str = "") -> Iterator[list[Listed]]:
    """Yield a bucket's objects after a key, page by page; folder markers are left out.

    Several threads may list with one client.
    """
    page = _page(client, bucket, prefix, start_after)
    yield page.objects
    yield from _rest(client, bucket, prefix, page)


def list_in_ranges(client: S3Client, bucket: str, prefix: str, start_after: str = "") -> Iterator[list[Listed]]:
    """Yield the same objects in any order, up to eight pages at a time.

    A cloud's answer takes longer than its contents need on a link: ten million objects are ten thousand pages. Each
    thread lists one range of keys. When a thread has ended, another one gives it the second half of its range.
    Raises OutOfOrderError if the server's order does not allow ranges.
    """
    page = _page(client, bucket, prefix, start_after)
    yield page.objects
    if _follows(page, start_after) and not bucket.endswith(_DIRECTORY_BUCKET):
        if page.token:
            yield from _Listing(client, bucket, prefix, page.last).pages()
    else:
        yield from _rest(client, bucket, prefix, page)


def _follows(page: Page, after: str) -> bool:
    """Return whether a page has its keys in order, and after this key."""
    in_order = all(map(operator.lt, page.keys, page.keys[1:]))
    return in_order and (page.first > after if page.keys else not page.token)


def _rest(client: S3Client, bucket: str, prefix: str, page: Page) -> Iterator[list[Listed]]:
    while page.token:
        page = _page(client, bucket, prefix, token=page.token)
        yield page.objects


def _page(client: S3Client, bucket: str, prefix: str, start_after: str = "", token: str = "") -> Page:
    """Return a page of the objects after a key, or of the listing that a token continues.

    A handler extracts the objects from the answer before botocore parses it, which would take ten times as long.
    """
    # `unique_id` registers one handler, although threads share the client: a second one would find no objects. As the
    # first handler, it leaves little for botocore's own, which parses each answer as well.
    client.meta.events.register_first("before-parse.s3.ListObjectsV2", _take_objects, unique_id=_TAKEN)
    arguments: dict[str, Any] = {"ContinuationToken": token} if token else {}
    if start_after:
        arguments["StartAfter"] = start_after
    _asking.here = True
    try:
        answer: Any = client.list_objects_v2(Bucket=bucket, Prefix=prefix, **arguments)
    finally:
        _asking.here = False
    page: Page = answer[_TAKEN]
    return page._replace(token=answer.get("NextContinuationToken", "") if answer.get("IsTruncated") else "")


class _Asking(threading.local):
    """Whether this thread waits for a page; other callers of the client get whole responses."""

    here = False


_asking = _Asking()


def _take_objects(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Extract the objects from a response of ListObjectsV2, for botocore's event ``before-parse``."""
    if not _asking.here or response_dict["status_code"] != HTTPStatus.OK:
        return
    root = ElementTree.fromstring(response_dict["body"] or b"<empty/>")  # noqa: S314 - as botocore does
    if not root.tag.endswith("ListBucketResult"):  # such as a proxy's page, which shows no bucket without objects
        # botocore does the same with incomplete answers, and then sends the request again.
        response_dict |= {"status_code": HTTPStatus.INTERNAL_SERVER_ERROR, "body": b""}
        return
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    decode = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
    taken, keys = [], []
    for entry in root.findall(f"{space}Contents"):
        root.remove(entry)
        text = {part.tag.removeprefix(space): part.text or "" for part in entry}
        key, size = decode(text["Key"]), int(text.get("Size", 0))
        keys.append(key)
        if not is_folder_marker(key, size):
            taken.append(Listed(key, text.get("ETag", "").strip('"'), size, text.get("LastModified", "")))
    customized_response_dict[_TAKEN] = Page(taken, keys)
    response_dict["body"] = ElementTree.tostring(root)


@dataclass
class _Range:
    """The keys after `after` up to `end`, or all of them if `end` is empty; `follower` is the next range.

    `first` is the first key that the server listed, and `beyond` the first one behind `end`, in the page after
    `before`.
    """

    after: str
    end: str = ""
    follower: _Range | None = None
    first: str = ""
    before: str = ""
    beyond: str = ""


class _Listing:
    """A listing by several threads of the keys after `after`."""

    def __init__(self, client: S3Client, bucket: str, prefix: str, after: str) -> None:
        self.client = client
        self.bucket = bucket
        self.prefix = prefix
        self._first = _Range(after)
        self._waiting = [self._first]
        self._working = 0
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._results: queue.Queue[list[Listed] | BaseException | None] = queue.Queue(2 * _THREADS)

    def pages(self) -> Iterator[list[Listed]]:
        """Yield the pages of all threads. Raises OutOfOrderError."""
        for _ in range(_THREADS):
            here = contextvars.copy_context()
            threading.Thread(target=here.run, args=(self._work,), daemon=True, name="list").start()
        ended = 0
        try:
            while ended < _THREADS:
                found = self._results.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    ended += 1
                else:
                    yield found
        finally:
            self._stop.set()
            with self._changed:
                self._changed.notify_all()
        self._check()

    def _work(self) -> None:
        """List ranges until no thread has one."""
        try:
            while (some := self._next()) is not None:
                try:
                    self._list(some)
                finally:
                    with self._changed:
                        self._working -= 1
                        self._changed.notify_all()
        except BaseException as e:
            self._give(e)
        else:
            self._give(None)

    def _next(self) -> _Range | None:
        """Return the next range, when there is one; None when the listing is complete or stopped."""
        with self._changed:
            while not self._waiting:
                if self._stop.is_set() or not self._working:
                    return None
                self._changed.wait()
            self._working += 1
            return self._waiting.pop()

    def _list(self, some: _Range) -> None:
        """List a range; give parts of it to threads that have none."""
        some.before = some.after
        while not self._stop.is_set():
            page = self._page(some.before)
            some.first = some.first or page.first
            inside = [o for o in page.objects if not some.end or o.key <= some.end]
            self._give(inside)
            some.beyond = _beyond(page, some.end)
            if some.beyond or not page.token:
                return
            some.before = page.last
            self._divide(some)

    def _page(self, after: str) -> Page:
        page = _page(self.client, self.bucket, self.prefix, after)
        if not _follows(page, after):
            raise OutOfOrderError(f"{self.bucket} lists other keys than those after {after!r}, in their order")
        return page

    def _divide(self, some: _Range) -> None:
        """Give the second half of a range to a thread that has none."""
        with self._changed:
            is_needed = self._working + len(self._waiting) < _THREADS
            if is_needed and (middle := between(some.before, some.end, self.prefix)):
                some.follower = _Range(middle, some.end, some.follower)
                some.end = middle
                self._waiting.append(some.follower)
                self._changed.notify()

    def _give(self, result: list[Listed] | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                return self._results.put(result, timeout=1)
            except queue.Full:
                continue

    def _check(self) -> None:
        """Check that no range ended before the key with which the next one began.

        A server with another order of keys may have more keys between them. Raises OutOfOrderError.
        """
        some = self._first
        while (follower := some.follower) is not None:
            first, beyond = follower.first, some.beyond
            for _ in range(_CHECKS):
                if first == beyond:
                    break
                # Objects may have been written or deleted between the requests.
                beyond = _beyond(self._page(some.before), some.end)
                first = self._page(follower.after).first
            else:
                raise OutOfOrderError(
                    f"{self.bucket} lists {beyond!r} after {some.before!r}, but not after {some.end!r}"
                )
            some = follower


def _beyond(page: Page, end: str) -> str:
    """Return the first key of a page behind `end`; empty if there is none."""
    return next((key for key in page.keys if key > end), "") if end else ""


def between(after: str, end: str, prefix: str) -> str:
    """Return a text between the key `after` and `end`, or the end of the prefix; empty if there is none.

    It differs from `after` in the first possible character, halfway to the end of this character's kind, because
    most keys have only digits or letters of one kind in one place.
    """
    same = len(common_prefix([after, end])) if end else len(prefix)
    for at in range(same, len(after)):
        low = ord(after[at])
        high = ord(end[at]) if end and at == same else _AFTER_ASCII
        for limit in itertools.chain((e for e in _ENDS if low < e < high), (high,)):
            middle = (low + limit) // 2
            if low < middle < limit and middle not in _SURROGATES:
                return after[:at] + chr(middle)
    return ""

"""Complete listings of AIStore's buckets: the only module that requests a listing from AIStore.

A target of AIStore 5.0 lists the objects on its disks folder by folder, and so returns less than the bucket has:

- If a prefix is also a folder (`part` beside ``part/1``), the target walks this folder only (`_join` in fs/walk.go),
  even when its last object was deleted. `entries` therefore lists longer prefixes: ``part/``, ``part-``, ``part2``,
  and the object `part`, which another disk may have.
- A folder comes before its siblings on the disk, so ``part/1`` comes before ``part-2``. But a page ends at a name,
  and the next page has only greater ones (`findToken` in xact/xs/lso.go): if a page ends within the folder ``part/``,
  no page has ``part-2``. `entries` lists such a folder and its siblings separately.

A bucket in another storage system is listed by that system, which has neither fault.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from aistore.sdk import Client
    from aistore.sdk.list_object_flag import ListObjectFlag

    from storeside.aistore.buckets import Bucket

# Objects per page of a listing, which bounds the memory of a listing of any length. AIStore allows up to 10,000.
PAGE = 1000
# The greatest character, which no name has.
_LAST = "\U0010ffff"
# The end of a name that begins with a folder's: greater than the names of its siblings, and less than those in it.
_BEFORE_FOLDER = f".{_LAST}"


class Entry(NamedTuple):
    """An object in a listing; `size` is in bytes. `custom` has its metadata by name, if the listing asks for it."""

    name: str
    size: int
    version: str
    checksum: str
    custom: str


def entries(
    client: Client,
    bucket: Bucket,
    prefix: str = "",
    props: str = "name,size",
    *,
    page: int = PAGE,
    flags: Collection[ListObjectFlag] = (),
) -> Iterator[Entry]:
    """Yield each object of a bucket whose name begins with `prefix` once, in no particular order. Raises AISError."""
    return _Listing(client, bucket, props, page, flags).below(prefix)


def archived(client: Client, bucket: Bucket, archive: str) -> Iterator[Entry]:
    """Yield the members of an archive, named ``archive/member``. Raises AISError.

    The target that has the archive has no folder of the same name on its disk, so the prefix hides nothing here.
    """
    from aistore.sdk.list_object_flag import ListObjectFlag

    listing = _Listing(client, bucket, "name,size", 0, [ListObjectFlag.ARCH_DIR])
    return (found for page in listing.pages(archive) for found in page.entries)


class _Page(NamedTuple):
    """A page of a listing, and the name after which the next one begins; empty for the last page."""

    entries: list[Entry]
    token: str


class _Listing:
    """Requests the pages of listings of one bucket."""

    def __init__(
        self, client: Client, bucket: Bucket, props: str, page: int, flags: Collection[ListObjectFlag]
    ) -> None:
        self._handle = bucket.handle(client)
        self._props = props
        self._page = page
        self._flags = list(flags)
        self._is_cloud = bucket.scheme != "ais"
        self._walks: bool | None = None

    def below(self, prefix: str) -> Iterator[Entry]:
        """Yield each object whose name begins with `prefix` once."""
        if not prefix or prefix.endswith("/") or not self.walks() or not self._is_on_disk(prefix):
            yield from self._plain(prefix)
            return
        # another disk may have an object with the name of the folder
        yield from (found for found in next(self.pages(prefix, page=1)).entries if found.name == prefix)
        for start in self._starts(prefix):
            begin = prefix + start
            yield from self._plain(begin) if start == "/" else self.below(begin)

    def _plain(self, prefix: str) -> Iterator[Entry]:
        """Yield each object whose name begins with `prefix` once; the prefix alone is no folder."""
        after: str | None = ""
        while after is not None:
            after = yield from self._until_torn(prefix, after)

    def _until_torn(self, prefix: str, after: str) -> Generator[Entry, None, str | None]:
        """Yield objects with names greater than `after`, up to the name that it returns; None if those are all.

        It ends with the first page that ends within a folder with siblings, or within its siblings, and yields all of
        them: the targets' next pages would be wrong.
        """
        # names at the end of the last page that are no folder with siblings, or whose siblings `_mend` has yielded
        safe = {after.removesuffix(_BEFORE_FOLDER)}
        for page in self.pages(prefix, after):
            yield from page.entries
            if not page.token or not self.walks():
                continue
            ends = list(_folders_at(page.token, prefix))
            torn = [name for name in ends if name not in safe and self._has_siblings(name, page.token)]
            safe = set(ends)
            if torn:
                return (yield from self._mend(torn, page))
        return None

    def _mend(self, folders: list[str], page: _Page) -> Generator[Entry, None, str]:
        """Yield the rest of these folders and their siblings after a page, and return the last name that this covers.

        The folders are possible parts of the last name of the page, from the outermost.
        """
        listed = {found.name for found in page.entries}
        inside, after = [], page.token
        for folder in folders:
            for start in self._starts(folder, "/"):
                yield from (found for found in self.below(folder + start) if found.name not in listed)
            if not page.token.startswith(f"{folder}/"):
                after = folder + _BEFORE_FOLDER  # the page ended within the siblings, which come before the folder
                break
            inside.append(f"{folder}/")
        for below in reversed(inside):
            rest: str | None = after
            while rest is not None:
                rest = yield from self._until_torn(below, rest)
            after = below + _LAST
        return after

    def pages(
        self, prefix: str, after: str = "", flags: Collection[ListObjectFlag] = (), page: int | None = None
    ) -> Iterator[_Page]:
        """Yield AIStore's own pages of the names below `prefix` and after the name `after`."""
        uuid, token = "", after
        while True:
            answer = self._request(prefix, uuid, token, flags, self._page if page is None else page)
            uuid, token = answer.UUID, answer.ContinuationToken
            yield _Page([Entry(e.n, e.s, e.v, e.cs, e.m) for e in answer.Entries or ()], token)
            if not token:
                return

    def walks(self) -> bool:
        """Return whether targets list the objects on their disks; otherwise another storage system lists them."""
        if self._walks is None:
            self._walks = _is_of_disks(self._flags) or not (self._is_cloud or self._has_backend())
        return self._walks

    def _has_backend(self) -> bool:
        from aistore.sdk.const import HEADER_BUCKET_PROPS
        from aistore.sdk.errors import AISError

        try:
            properties = json.loads(self._handle.head().get(HEADER_BUCKET_PROPS) or "{}")
        except AISError as e:
            if e.status_code != HTTPStatus.NOT_FOUND:
                raise
            return False  # the listing has an error that states the bucket
        return bool((properties.get("backend_bck") or {}).get("name"))

    def _has_siblings(self, name: str, token: str) -> bool:
        """Return whether there are objects below ``name/`` and others before them whose names begin with `name`."""
        below = f"{name}/"
        if not token.startswith(below) and not next(self.pages(below, page=1)).entries:
            return False
        return next(self._starts(name, "/"), None) is not None

    def _is_on_disk(self, name: str) -> bool:
        """Return whether a target has the folder `name`, which may be empty."""
        return any(found.name == f"{name}/" for found in self._level(name, name + _BEFORE_FOLDER).entries)

    def _starts(self, name: str, until: str = "") -> Iterator[str]:
        """Yield the characters less than `until` that follow `name` in names of objects and folders, in their order.

        The least name of a page is right: only folders come before it that begin it, and a page has room for more.
        """
        after = name
        while found := [e.name for e in self._level(name, after).entries if e.name.startswith(name)]:
            start = min(found)[len(name)]
            if until and start >= until:
                return
            yield start
            after = f"{name}{start}{_LAST}"

    def _level(self, name: str, after: str) -> _Page:
        """Return a page of the objects and folders beside `name` whose names are greater than `after`."""
        from aistore.sdk.list_object_flag import ListObjectFlag

        parent = name[: name.rfind("/") + 1]
        return next(self.pages(parent, after, [ListObjectFlag.NO_RECURSION], page=PAGE))

    def _request(self, prefix: str, uuid: str, token: str, flags: Collection[ListObjectFlag], page: int) -> Any:
        from aistore.sdk.const import ACT_LIST, HEADER_ACCEPT, MSGPACK_CONTENT_TYPE, URL_PATH_BUCKETS
        from aistore.sdk.types import ActionMsg, ListObjectsMsg

        value = ListObjectsMsg(
            prefix=prefix, page_size=page, uuid=uuid, props=self._props, continuation_token=token,
            flags=[*self._flags, *flags], target="",
        ).as_dict()  # fmt: skip
        return self._handle.client.request_deserialize(
            "get",
            path=f"{URL_PATH_BUCKETS}/{self._handle.name}",
            headers={HEADER_ACCEPT: MSGPACK_CONTENT_TYPE},
            res_model=_answer(),
            json=ActionMsg(action=ACT_LIST, value=value).model_dump(),
            params=self._handle.qparam,
        )


def _is_of_disks(flags: Collection[ListObjectFlag]) -> bool:
    return any(flag.name == "CACHED" for flag in flags)


def _folders_at(token: str, prefix: str) -> Iterator[str]:
    """Yield the names that may be folders whose siblings a listing of `prefix` leaves out after a page.

    `token` is the last name of the page.
    """
    least = max(len(prefix), 1) + prefix.endswith("/")
    return (token[:at] for at in range(least, len(token)) if token[at] <= "/" and token[at - 1] != "/")


@cache
def _answer() -> Any:
    """Return the type of AIStore's answer. The SDK's own has no custom metadata, and makes an object of each."""
    import msgspec

    found = msgspec.defstruct("Found", [("n", str), ("cs", str, ""), ("v", str, ""), ("m", str, ""), ("s", int, 0)])
    fields: list[Any] = [("UUID", str), ("ContinuationToken", str), ("Entries", list[found] | None, None)]  # type: ignore[valid-type]
    return msgspec.defstruct("Answer", fields)

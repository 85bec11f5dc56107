"""Deletes, moves or tags single S3 objects, each only while it still has the version that was loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from storeside.copying.s3 import head_object
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.source import Source

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import CopySourceTypeDef, TagTypeDef

# S3 copies up to 5 GiB in one request; larger objects are copied in parts.
LARGEST_COPY, PART = 5 << 30, 512 << 20
_GONE = "it was no longer in the bucket"
_CHANGED = "another version replaced it after the load: it was left as it is"
_ROWLESS = (
    "its rows are no longer in the table: to load it again, delete its row from storeside.loads first; otherwise,"
    " delete the object yourself"
)
# S3's answers if another client changes the object or takes the name of its copy meanwhile.
_OVERTAKEN = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED)
_RIGHTS = {
    "HeadObject": "s3:GetObject",
    "CopyObject": "s3:GetObject on the source and s3:PutObject on the target",
    "GetObjectTagging": "s3:GetObjectTagging",
    "PutObjectTagging": "s3:PutObjectTagging",
    "DeleteObject": "s3:DeleteObject",
}


@dataclass(frozen=True)
class Due:
    """A loaded object that is to be changed. After an interrupted move, `place` is the URI of its complete copy.

    `load_id` is its load by an earlier run or try; 0 if this try has loaded it, or if it has no rows.
    """

    key: str
    version: str
    state: str = ""
    place: str = ""
    reason: str = ""
    load_id: int = 0

    def now(self, state: str, reason: str = "") -> Due:
        """Return the object in another state: ``copied``, ``done``, ``changed`` or ``failed``."""
        return replace(self, state=state, reason=reason)


class SourceChanges:
    """Changes objects of one source. The methods raise ClientError and BotoCoreError.

    Several threads may use it. Each method first compares the object's ETag with the loaded version, and then sends
    the same condition with the request. If a server ignores the condition, a version that another client writes
    between these two requests is lost.
    """

    def __init__(self, s3: S3Client, source: Source, action: AfterLoad) -> None:
        self.s3 = s3
        self.source = source
        self.action = action
        self._bucket, self._prefix = action.place if action.action == "move" else ("", "")

    def keep(self, o: Due) -> Due:
        """Leave an object whose rows are no longer in the table, if it is still there in the loaded version."""
        head = self._loaded(o)
        return head if isinstance(head, Due) else o.now("failed", _ROWLESS)

    def copy(self, o: Due) -> Due:
        """Copy an object that is to be moved, and verify the copy; the object itself stays."""
        if self.action.selects(self.source, o.key):
            return o.now("failed", f"{self.action.move_to} is among the keys of the source: choose another place")
        head = self._loaded(o)
        if isinstance(head, Due):
            return head
        # An earlier run has verified its copy, which may have another ETag and may have been replaced since.
        if o.place and _size(self._head(*self._parts(o.place))) == _size(head):
            return o.now("copied")
        try:
            return replace(o, state="copied", place=self._copied(o, head), reason="")
        except self.s3.exceptions.ClientError as e:
            return self._overtaken(o, e)

    def delete(self, o: Due) -> Due:
        """Delete an object. In a bucket with versions S3 keeps it behind a delete marker."""
        head = self._loaded(o)
        if not isinstance(head, Due):
            try:
                condition = {"IfMatch": head["ETag"]}
                self._conditional(self.s3.delete_object, condition, Bucket=self.source.bucket, Key=o.key)
                return o.now("done")
            except self.s3.exceptions.ClientError as e:
                head = self._overtaken(o, e)
        return head

    def tag(self, o: Due) -> Due:
        """Add the tags to an object; its other tags stay. S3 has no condition for tags, but takes a version id."""
        head = self._loaded(o)
        if isinstance(head, Due):
            return head
        place: dict[str, Any] = {"Bucket": self.source.bucket, "Key": o.key}
        if head.get("VersionId"):
            place["VersionId"] = head["VersionId"]
        now = {tag["Key"]: tag["Value"] for tag in self.s3.get_object_tagging(**place)["TagSet"]}
        wanted = now | dict(self.action.tags)
        if wanted != now:
            tags: list[TagTypeDef] = [{"Key": name, "Value": value} for name, value in wanted.items()]
            self.s3.put_object_tagging(**place, Tagging={"TagSet": tags})
        return o.now("done")

    def _loaded(self, o: Due) -> dict[str, Any] | Due:
        """Return the answer to a HEAD for the loaded version, or the object's state if it is gone or changed."""
        head = self._head(self.source.bucket, o.key)
        if head is None:
            return o.now("done", "" if o.state == "copied" else _GONE)
        if head["ETag"].strip('"') != o.version:
            return o.now("changed", _CHANGED)
        return head

    def _overtaken(self, o: Due, error: ClientError) -> Due:
        """Return the state of an object that another client has changed meanwhile, or raise the error."""
        if status(error) in _OVERTAKEN and isinstance(now := self._loaded(o), Due):
            return now
        raise error

    def _head(self, bucket: str, key: str) -> dict[str, Any] | None:
        try:
            return dict(head_object(self.s3, bucket, key))
        except self.s3.exceptions.ClientError as e:
            if status(e) == HTTPStatus.NOT_FOUND:
                return None
            raise

    def _copied(self, o: Due, head: Mapping[str, Any]) -> str:
        """Copy an object and return the copy's URI.

        The whole key follows the prefix. If another object has that name, such as an earlier version that was moved,
        the version is added to the name, so that no copy replaces another one. Both names are written only if no
        object has them; S3 checks this again, except for a copy in parts. Raises FileExistsError if other objects
        have both.
        """
        whole = self._prefix + o.key
        for name in (whole, f"{whole}.{o.version}"):
            there = self._head(self._bucket, name)
            if there is None:
                try:
                    return self._verified_copy(o, head, name, {"IfNoneMatch": "*"})
                except self.s3.exceptions.ClientError as e:
                    if status(e) not in _OVERTAKEN or (there := self._head(self._bucket, name)) is None:
                        raise
            if _is_copy(there, head):  # an earlier attempt or another run copied it
                return self._uri(name)
        if there is not None and _size(there) == _size(head) and "-" in there["ETag"]:
            return self._uri(name)  # of this version, in parts of another size, whose ETag cannot be compared
        raise FileExistsError(f"{self._uri(name)} is another object: rename it, or choose another place")

    def _verified_copy(self, o: Due, head: Mapping[str, Any], name: str, condition: Mapping[str, str]) -> str:
        """Copy an object to this name and return the copy's URI. Raises OSError if the copy has another size."""
        self._copy(o, head, name, condition)
        there = self._head(self._bucket, name)
        if _size(there) != _size(head):
            raise OSError(f"{self._uri(name)} is no complete copy")
        return self._uri(name)

    def _copy(self, o: Due, head: Mapping[str, Any], name: str, condition: Mapping[str, str]) -> None:
        origin: CopySourceTypeDef = {"Bucket": self.source.bucket, "Key": o.key}
        if head.get("VersionId"):
            origin["VersionId"] = head["VersionId"]
        if head["ContentLength"] <= LARGEST_COPY:
            self._conditional(
                self.s3.copy_object, condition, Bucket=self._bucket, Key=name, CopySource=origin,
                CopySourceIfMatch=head["ETag"],
            )  # fmt: skip
            return
        from boto3.s3.transfer import TransferConfig

        self.s3.copy(
            origin, self._bucket, name, ExtraArgs={"CopySourceIfMatch": head["ETag"], "TaggingDirective": "COPY"},
            Config=TransferConfig(multipart_threshold=LARGEST_COPY, multipart_chunksize=PART),
        )  # fmt: skip

    def _conditional(self, send: Callable[..., Any], condition: Mapping[str, str], **request: Any) -> None:
        """Send a request with a condition, or without it to a server that does not implement the condition."""
        try:
            send(**request, **condition)
        except self.s3.exceptions.ClientError as e:
            if not condition or status(e) != HTTPStatus.NOT_IMPLEMENTED:
                raise
            send(**request)

    def _uri(self, name: str) -> str:
        return f"s3://{self._bucket}/{name}"

    def _parts(self, uri: str) -> tuple[str, str]:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        return bucket, key


def status(error: Any) -> int:
    """Return the HTTP status of botocore's ClientError."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def reason_of(error: Any) -> str:
    """Return the reason why S3 did not change an object, with the remedy."""
    if not hasattr(error, "response"):
        return f"{error}: the next run tries again"
    code = error.response.get("Error", {}).get("Code", "")
    if status(error) == HTTPStatus.FORBIDDEN:
        right = _RIGHTS.get(error.operation_name, f"s3:{error.operation_name}")
        return f"S3 denied {error.operation_name}: allow {right} to the user of the worker's connection"
    return f"{error.operation_name}: {code or status(error)}: the next run tries again"


def _is_copy(there: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    return bool(_size(there) == _size(head) and there["ETag"] == head["ETag"])


def _size(head: Mapping[str, Any] | None) -> int | None:
    """Return an object's bytes from the answer to a HEAD; None without an object."""
    return None if head is None else int(head["ContentLength"])

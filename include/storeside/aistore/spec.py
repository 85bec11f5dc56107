"""The specification of an ETL. Equal specifications are one ETL, because its name contains their hash."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from storeside import __version__
from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.spec_file import read
from storeside.transformers.contract.names import unfit_extensions

Communication = Literal["ws", "hpush", "hpull"]
TRANSFORMER_IMAGE = f"storeside/transformer-audio:{__version__}"
COMMUNICATION_TYPES: tuple[Communication, ...] = get_args(Communication)
# Objects in flight per target, more than AIStore ever starts: its limit is the target's CPUs plus four (xact,
# TuneNumWorkers).
ALL_WORKERS = 1024
# The image of the SDK's `Etl.init_class`; the tag is the Python version.
CLASS_IMAGE = f"aistorage/runtime_python:{sys.version_info.major}.{sys.version_info.minor}"
# Environment variable that identifies the specification of a running ETL, because names can be chosen.
MARK = "STORESIDE_SPEC"
# Environment variable with the name of the run that keeps a running ETL for later tasks.
KEEPER = "STORESIDE_KEPT_BY"
# Names of ETLs: 6 to 32 characters of lower-case letters, digits and hyphens (AIStore, k8s.ValidateEtlName).
_PREFIX_LENGTH = 20
# Fields that do not define an ETL of Storeside: a chain's other stages, what `environment` already identifies, the
# name, and whether it is an existing ETL.
_UNMARKED = ("then", "payload", "etl_name", "is_existing")
# AIStore's time-out for an object includes the time in the queue for a worker. The transformer's time-out must end
# first, because its error states the reason.
_QUEUE_SECONDS = 60
# The same for a shard, of which each member has its own time-out in the transformer.
_SHARD_SECONDS = 24 * 3600
# Variables with which Storeside's server transforms members; `storeside.transformers.contract.members` reads them.
_MEMBERS, _EXTENSIONS, _RESULTS, _OBJECTS = "SHARD_MEMBERS", "SHARD_EXTENSIONS", "SHARD_RESULTS", "objects"
# The variable with which it makes shards of objects; `storeside.transformers.shards.gathering` reads it.
_SOURCE_URL = "SHARD_SOURCE_URL"
# The variable with the URL that the name of a result follows; `storeside.transformers.contract.results` reads it.
_RESULTS_URL = "RESULTS_URL"
# The variable with the URL of what a job is given beside its objects; servers of `storeside.transformers` read it.
_GIVEN_URL = "GIVEN_URL"
# The variable that tells the transforms with several results of each object from others.
_SEVERAL = "SEVERAL_RESULTS"


def check_communication(kind: str) -> None:
    """Raise AIStoreInputError for an unknown communication type."""
    if kind not in COMMUNICATION_TYPES:
        raise AIStoreInputError(f"communication {kind!r} is not one of {', '.join(COMMUNICATION_TYPES)}")


def check_direct_put(communication: str, direct_put: bool) -> None:
    """Raise AIStoreInputError for a communication type that AIStore does not have without direct put."""
    if communication == "ws" and not direct_put:
        raise AIStoreInputError("AIStore 5.0 has no WebSocket transform without direct put: use hpush, or direct_put")


def transformer_command(transform: str) -> tuple[str, ...]:
    """Return the command that serves the transformer `transform` in Storeside's image."""
    serve = ("python", "-m", "storeside.transformers.serve", "--transform", transform)
    return (*serve, "--host", "0.0.0.0", "--port", "8000")  # noqa: S104 - a pod's own network


@dataclass(frozen=True)
class EtlSpec:
    """One ETL: an image, its command and environment, and how AIStore sends objects to it.

    ``a >> b >> c`` is a chain: each object passes all stages in one request, and AIStore stores no intermediate
    result. Two transforms that differ only in `environment` are two ETLs, because bucket transforms have no
    arguments. Raises AIStoreInputError for a combination that AIStore 5.0 refuses or handles wrongly.
    :param label: readable part of the ETL's name
    :param image: container image of the transformer
    :param command: command of its container
    :param environment: variables that affect the results
    :param tuning: further variables, which affect the speed but not the results
    :param communication: ``ws``, ``hpush`` or ``hpull``
    :param direct_put: the transformer sends each result directly to the target that stores it
    :param file_access: the transformer reads objects from the target's disk; for ``hpush`` and ``ws``
    :param init_timeout: seconds within which the transformer must be ready
    :param object_timeout: seconds that the transformer may spend on one object
    :param resources: Kubernetes requests and limits of the container
    :param etl_name: name of the ETL in AIStore; a running ETL of this name with another specification is replaced
    :param then: further stages of a chain; ``>>`` sets it
    :param payload: code that the transformer's image does not contain; `of_class` sets it
    :param is_existing: the ETL is used as it runs, and tasks do not start it; `existing` sets it
    """

    label: str
    image: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    tuning: Mapping[str, str] = field(default_factory=dict)
    communication: str = "ws"
    direct_put: bool = True
    file_access: bool = True
    init_timeout: int = 60
    object_timeout: int = 300
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    etl_name: str = ""
    then: tuple[EtlSpec, ...] = ()
    payload: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    is_existing: bool = False

    def __post_init__(self) -> None:
        if self.communication or not self.is_existing:
            check_communication(self.communication)
        check_direct_put(self.communication, self.direct_put)
        if self.then and not all(stage.direct_put for stage in self.stages):
            raise AIStoreInputError("the stages of a chain pass objects on by direct put: set it for all of them")
        if self.etl_name:
            from aistore.sdk.etl.etl import Etl

            try:
                Etl.validate_etl_name(self.etl_name)
            except ValueError as e:
                raise AIStoreInputError(str(e)) from e
        elif self.is_existing:
            raise AIStoreInputError("EtlSpec.existing needs the name of the ETL")

    @classmethod
    def existing(cls, name: str, communication: str = "") -> EtlSpec:
        """Return an ETL that runs already. Tasks use it as it runs, and never start, stop or replace it.

        Its image, command, environment, channel and time-out are those that AIStore reports when a job begins.
        :param name: the ETL's name in AIStore
        :param communication: the type that the ETL must have, ``ws``, ``hpush`` or ``hpull``; empty accepts any
        :raises AIStoreInputError: no ETL can have this name, or there is no such type
        """
        return cls(name, "", communication=communication, etl_name=name, is_existing=True)

    @classmethod
    def from_yaml(cls, path: str | Path, etl_name: str = "") -> EtlSpec:
        """Return the ETL of AIStore's own specification file, as ``ais etl init -f`` takes it.

        The ETL has the name in the file. If an ETL of that name runs that Storeside did not start, tasks fail.
        :param path: the file, with one or several ETLs
        :param etl_name: the ETL to take from a file with several
        :raises AIStoreInputError: the file cannot be read, or has a field that an `EtlSpec` cannot express
        """
        fields = read(Path(path), etl_name)
        try:
            return cls(**fields)
        except AIStoreInputError as e:
            raise AIStoreInputError(f"{path}: {e}") from e

    @classmethod
    def of_class(
        cls, server: type, *, label: str = "", dependencies: Sequence[str] = (), os_packages: Sequence[str] = (),
        **options: Any,
    ) -> EtlSpec:  # fmt: skip
        """Return the ETL of a Python class that extends a server class of the SDK, sent as a pickle (``init_class``).

        The pod installs `dependencies` and `os_packages` before it starts. The pickle contains the module of the
        class, which may be a DAG file. Raises TypeError when the class is not a server class.
        """
        import cloudpickle
        from aistore.sdk.etl.webserver import serialize_class

        module = sys.modules[server.__module__]
        by_value = module.__name__ not in ("__main__", "builtins") and not module.__name__.startswith("aistore.")
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        try:
            sent = serialize_class(server)
        finally:
            if by_value:
                cloudpickle.unregister_pickle_by_value(module)
        packages = {"PACKAGES": ",".join(dependencies), "OS_PACKAGES": ",".join(os_packages)}
        # the module may decide what the class does
        source = hashlib.sha256(inspect.getsource(module if by_value else server).encode()).hexdigest()
        return cls(
            label or server.__name__,
            CLASS_IMAGE,
            # pickles of one class differ between processes, but its source does not
            environment={"STORESIDE_SOURCE": source, **{n: v for n, v in packages.items() if v}},
            payload={"ETL_CLASS_PAYLOAD": sent},
            **options,
        )

    def __rshift__(self, other: EtlSpec) -> EtlSpec:
        return replace(self, then=(*self.then, *other.stages))

    @property
    def stages(self) -> tuple[EtlSpec, ...]:
        """The ETLs of the chain in order, each without its successors."""
        return (replace(self, then=()), *self.then)

    @property
    def name(self) -> str:
        """The ETL's name: `etl_name`, or the label with a hash of the specification."""
        if self.etl_name:
            return self.etl_name
        label = "".join(c if c.isascii() and c.isalnum() else "-" for c in self.label.lower()).strip("-")
        if not label[:1].isalpha():  # a service name of Kubernetes begins with a letter
            label = f"etl-{label}"
        return f"{label[:_PREFIX_LENGTH].strip('-')}-{self.mark[:10]}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the chain's ETLs in order."""
        return tuple(stage.name for stage in self.stages)

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all ETLs that a job of this chain may start: no existing ones.

        A retry uses ``hpush``, and jobs with ``latest`` or ``sync`` send contents instead of paths.
        """
        specs = (self, self.over("hpush"), self.without_files(), self.without_files().over("hpush"))
        return tuple(dict.fromkeys(name for spec in specs for name in spec.own_names))

    @property
    def own_names(self) -> tuple[str, ...]:
        """The names of the chain's ETLs that a task starts and ends: all but the existing ones."""
        return tuple(stage.name for stage in self.stages if not stage.is_existing)

    @property
    def request_timeout(self) -> str:
        """AIStore's time-out for one object, in AIStore's notation for durations."""
        if self.is_existing:
            return f"{self.object_timeout}s"
        if self.in_shards or any(_SOURCE_URL in stage.tuning for stage in self.stages):
            return f"{_SHARD_SECONDS}s"
        return f"{self.object_timeout + _QUEUE_SECONDS}s"

    @property
    def mark(self) -> str:
        """A hash of everything that defines this ETL, except its successors in a chain."""
        fields = {n: getattr(self, n) for n in self.__dataclass_fields__ if n not in _UNMARKED}
        return hashlib.sha256(json.dumps(fields, sort_keys=True, default=dict).encode()).hexdigest()

    @property
    def effect(self) -> str:
        """A hash that identifies the *result*; unlike `name`, it does not depend on how AIStore sends the bytes.

        Raises AIStoreInputError for an existing ETL that AIStore has not described yet.
        """
        for stage in self.stages:
            if stage.is_existing and not stage.image:
                raise AIStoreInputError(f"ETL {stage.name}: read its image from its cluster first")
        effects = [[s.image, s.command, sorted(s.environment.items())] for s in self.stages]
        text = json.dumps(effects if self.then else effects[0])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def limits(self) -> list[tuple[int, dict[str, dict[str, str]]]]:
        """The time-out and the resources of each stage: with other limits, an object that failed may succeed."""
        return [(s.object_timeout, {name: dict(of) for name, of in sorted(s.resources.items())}) for s in self.stages]

    def of_members(self, members: str, extensions: Mapping[str, str] | None = None) -> EtlSpec:
        """Return the same ETL for tar shards: it transforms members instead of whole objects.

        The result of a shard is a tar archive with the members in the same order. The transformer must be served by
        `storeside.transformers.serve`.
        :param members: patterns of members' names, such as ``*.flac``, separated by commas; others are kept unchanged
        :param extensions: maps the extension of a member to that of its result. If it maps ``tar`` itself, such as
            ``{"tar": "jsonl"}``, a shard becomes an object of JSON Lines: one line per result, with the field
            ``object``
        :raises AIStoreInputError: there is no pattern, an extension could lead a result out of its folder, or the
            spec is a chain or an existing ETL
        """
        patterns = [text.strip() for text in members.split(",") if text.strip()]
        if not patterns:
            raise AIStoreInputError(f"members {members!r}: name members of shards, such as *.flac")
        if self.then or self.is_existing:
            raise AIStoreInputError("members apply to one ETL of ours: call of_members for each stage of a chain")
        if reason := unfit_extensions(extensions or {}):
            raise AIStoreInputError(reason)
        inside = {name: to for name, to in (extensions or {}).items() if name != "tar"}
        variables = {_MEMBERS: ",".join(patterns)}
        if inside:
            variables[_EXTENSIONS] = json.dumps(inside, sort_keys=True)
        if "tar" in (extensions or {}):
            variables[_RESULTS] = "jsonl"
        return replace(self, environment={**self.environment, **variables})

    def splitting(self, members: str, url: str) -> EtlSpec:
        """Return the same ETL for tar shards, whose members it stores unchanged as objects below a URL.

        The result of a shard is a list of these objects in JSON Lines.
        :param members: patterns of members' names, as in `of_members`; no others are stored
        :param url: URL for PUT requests, such as ``http://proxy:51080/v1/objects/<bucket>/``
        :raises AIStoreInputError: as `of_members`
        """
        spec = self.of_members(members)
        environment = {**spec.environment, _RESULTS: _OBJECTS}
        return replace(spec, environment=environment, tuning={**spec.tuning, "SIDECAR_URL": url})

    def gathering(self, url: str) -> EtlSpec:
        """Return the same ETL for plans of shards: the result of a plan is a tar archive of the objects in it.

        The transformer must be served by `storeside.transformers.serve`, which reads the objects itself.
        :param url: URL of the objects for GET requests, such as ``http://proxy:51080/v1/objects/<bucket>/``
        """
        return replace(self, tuning={**self.tuning, _SOURCE_URL: url})

    def given(self, url: str) -> EtlSpec:
        """Return the same ETL, or chain, whose first transformer gets what the job is given beside each object.

        The ledger records what that is for each object, so the URL is no part of the ETL's effect.
        :param url: URL of the index; see `storeside.transform.given`
        :raises AIStoreInputError: the ETL runs already, so it cannot get the URL
        """
        if self.is_existing:
            raise AIStoreInputError(
                f"ETL {self.name} runs already and cannot get what this task is given: use an EtlSpec of an image"
            )
        return replace(self, tuning={**self.tuning, _GIVEN_URL: url})

    def storing_results(self, url: str) -> EtlSpec:
        """Return the same ETL, or chain, whose last transformer yields several results of each object.

        The object's own result is a list of them in JSON Lines; see `storeside.transformers.contract.results`.
        :param url: URL of the destination for PUT requests, such as ``http://proxy:51080/v1/objects/<bucket>/``
        :raises AIStoreInputError: the ETL transforms members of shards, or is an existing one
        """
        *others, last = self.stages
        if self.in_shards:
            raise AIStoreInputError("a member of a shard has one result: leave out members, or several_results")
        if last.is_existing:
            raise AIStoreInputError(
                f"ETL {last.name} runs already and does not know where to store several results: use an EtlSpec of an"
                " image"
            )
        environment, tuning = {**last.environment, _SEVERAL: "true"}, {**last.tuning, _RESULTS_URL: url}
        first, *then = (*others, replace(last, environment=environment, tuning=tuning))
        return replace(first, then=tuple(then))

    @property
    def has_several_results(self) -> bool:
        """Whether the last ETL of the chain yields several results of each object."""
        return _SEVERAL in self.stages[-1].environment

    @property
    def in_shards(self) -> bool:
        """Whether an ETL of the chain transforms the members of shards."""
        return any(stage.environment.get(_MEMBERS) for stage in self.stages)

    @property
    def splits(self) -> bool:
        """Whether an ETL of the chain stores the members of shards as objects."""
        return any(stage.environment.get(_RESULTS) == _OBJECTS for stage in self.stages)

    def over(self, communication: str) -> EtlSpec:
        """Return the same chain with another communication type; existing ETLs keep theirs."""
        return self._each(communication=communication)

    def without_files(self) -> EtlSpec:
        """Return the same chain, for which AIStore sends contents instead of file paths."""
        return self._each(file_access=False)

    def _each(self, **changes: Any) -> EtlSpec:
        first, *others = (stage if stage.is_existing else replace(stage, **changes) for stage in self.stages)
        return replace(first, then=tuple(others))

    def message(self) -> dict[str, Any]:
        """Return AIStore's message that starts this ETL (``ETLSpecMsg``, ext/etl/api.go).

        The SDK cannot build it, because SDK 2.0.0 omits the resources.
        """
        environment = {**self.environment, **self.tuning, **self.payload, MARK: self.mark}
        environment["OBJECT_TIMEOUT"] = str(self.object_timeout)
        if self.file_access:
            environment["ETL_DIRECT_FQN"] = "true"
        runtime: dict[str, Any] = {
            "image": self.image,
            "env": [{"name": n, "value": v} for n, v in environment.items()],
        }
        if self.command:
            runtime["command"] = list(self.command)
        message = {
            "name": self.name,
            "communication": f"{self.communication}://",
            "init_timeout": f"{self.init_timeout}s",
            "obj_timeout": self.request_timeout,
            "support_direct_put": self.direct_put,
            "runtime": runtime,
        }
        return (
            {**message, "resources": {k: dict(v) for k, v in self.resources.items()}} if self.resources else message
        )

"""Parses the protobuf bodies of Kubernetes' typed clients into the JSON form that the API documents.

client-go sends pods and services only as protobuf, although it accepts answers in JSON. The tables below list the
fields that a pod runner needs, with the field numbers of ``k8s.io/api/core/v1/generated.proto``; the parser skips
all other fields. This is our own code because the `kubernetes` package has no protobuf messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

MAGIC = b"k8s\x00"
_PACKAGE = "storeside"

# "name=number" is a string; ":type" is another scalar type or a message; "*" means repeated, "{}" a map from strings.
_MESSAGES = {
    "Unknown": "typeMeta=1:TypeMeta raw=2:bytes",
    "TypeMeta": "apiVersion=1 kind=2",
    "Pod": "metadata=1:ObjectMeta spec=2:PodSpec",
    "Service": "metadata=1:ObjectMeta spec=2:ServiceSpec",
    "ObjectMeta": "name=1 generateName=2 namespace=3 uid=5 labels=11{} annotations=12{}",
    "PodSpec": "containers=2:Container* restartPolicy=3 initContainers=20:Container*",
    "Container": (
        "name=1 image=2 command=3* args=4* workingDir=5 ports=6:ContainerPort* env=7:EnvVar*"
        " resources=8:ResourceRequirements volumeMounts=9:VolumeMount* readinessProbe=11:Probe"
        " imagePullPolicy=14 terminationMessagePolicy=20"
    ),
    "ContainerPort": "name=1 hostPort=2:int32 containerPort=3:int32 protocol=4",
    "EnvVar": "name=1 value=2",
    "ResourceRequirements": "limits=1:Quantity{} requests=2:Quantity{}",
    "Quantity": "string=1",
    "VolumeMount": "name=1 readOnly=2:bool mountPath=3",
    "Probe": (
        "handler=1:ProbeHandler initialDelaySeconds=2:int32 timeoutSeconds=3:int32 periodSeconds=4:int32"
        " successThreshold=5:int32 failureThreshold=6:int32"
    ),
    "ProbeHandler": "httpGet=2:HTTPGetAction tcpSocket=3:TCPSocketAction",
    "HTTPGetAction": "path=1 port=2:IntOrString host=3 scheme=4",
    "TCPSocketAction": "port=1:IntOrString host=2",
    "IntOrString": "type=1:int32 intVal=2:int32 strVal=3",
    "ServiceSpec": "ports=1:ServicePort* selector=2{} clusterIP=3 type=4",
    "ServicePort": "name=1 protocol=2 port=3:int32 targetPort=4:IntOrString nodePort=5:int32",
}
_SCALARS = {
    "": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
}


def _add_field(message: DescriptorProto, name: str, number: int, kind: str, suffix: str = "") -> None:
    field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if suffix:
        field.label = FieldDescriptorProto.LABEL_REPEATED
    if suffix == "{}":
        entry = message.nested_type.add(name=name[0].upper() + name[1:] + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "")
        _add_field(entry, "value", 2, kind)
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, entry.name
    elif kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"


def _message_classes() -> Mapping[str, type[Message]]:
    file = FileDescriptorProto(name="storeside/kube.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split():
            suffix = "{}" if text.endswith("{}") else "*" if text.endswith("*") else ""
            field_name, _, rest = text.removesuffix(suffix).partition("=")
            number, _, kind = rest.partition(":")
            _add_field(message, field_name, int(number), kind, suffix)
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


MESSAGES = _message_classes()


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the Kubernetes object in a request's body, protobuf or JSON. Raises ValueError for anything else."""
    if not body.startswith(MAGIC):
        parsed = json.loads(body)
        if not isinstance(parsed, dict):
            raise ValueError("the body is not a Kubernetes object")
        return parsed
    envelope = _decode("Unknown", body[len(MAGIC) :])
    kind = str(envelope.get("typeMeta", {}).get("kind"))
    if kind not in ("Pod", "Service"):
        raise ValueError(f"cannot read objects of kind {kind}")
    return {**envelope["typeMeta"], **_decode(kind, envelope.get("raw", b""))}


def _decode(kind: str, data: bytes) -> dict[str, Any]:
    message = MESSAGES[kind]()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"malformed protobuf for {kind}: {error}") from error
    plain: dict[str, Any] = _plain(message)
    return plain


def _plain(value: Any) -> Any:
    """Convert a message to the shape that Kubernetes gives it in JSON."""
    if not isinstance(value, Message):
        return value
    name = value.DESCRIPTOR.name
    fields = {field.name: _plain_field(field, content) for field, content in value.ListFields()}
    if name == "Quantity":
        return fields.get("string", "0")
    if name == "IntOrString":
        return fields.get("strVal", "") if fields.get("type") else fields.get("intVal", 0)
    if name == "Probe":
        fields.update(fields.pop("handler", {}))
    return fields


def _plain_field(field: FieldDescriptor, content: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {key: _plain(content[key]) for key in content}
    if isinstance(content, (str, bytes, bool, int, Message)):
        return _plain(content)
    return [_plain(item) for item in content]

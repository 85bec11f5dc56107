"""A run's data path as a diagram: places, and the data that moved between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from storeside.pages.movement import Movement

NODE_WIDTH, NODE_HEIGHT, GAP, LEFT, TOP = 140, 56, 132, 8, 60
# How each kind of task that moves bytes from storage to storage is labelled.
MANIFEST = "clickhouse://speech.manifest"
STORAGE_SIDE = {
    "copy": "AIStore copies",
    "transform": "AIStore's ETL transforms",
    "prefetch": "AIStore prefetches",
    "load": "ClickHouse pulls",
    "events": "ClickHouse pulls",
}


@dataclass(frozen=True)
class Node:
    """A place that holds data, and its position in the diagram."""

    uri: str
    x: int
    y: int = TOP

    @property
    def right(self) -> int:
        """The x coordinate of its right edge."""
        return self.x + NODE_WIDTH

    @property
    def middle(self) -> float:
        """The x coordinate of its centre."""
        return self.x + NODE_WIDTH / 2

    @property
    def system(self) -> str:
        """The system's name."""
        scheme = self.uri.partition("://")[0]
        return {"ais": "AIStore", "clickhouse": "ClickHouse"}.get(scheme, scheme.upper())

    @property
    def name(self) -> str:
        """The name within the system, shortened in the middle."""
        text = self.uri.partition("://")[2].rstrip("/")
        return text if len(text) <= 18 else f"{text[:8]}…{text[-9:]}"


@dataclass(frozen=True)
class Edge:
    """The data that moved from one place to another."""

    source: Node
    destination: Node
    how: str
    bytes_in: int = 0
    bytes_out: int = 0
    objects: int = 0
    rows: int = 0
    through_worker: bool = False

    @property
    def is_straight(self) -> bool:
        """Whether its ends are neighbours."""
        return self.destination.x - self.source.x == NODE_WIDTH + GAP


@dataclass(frozen=True)
class DataPath:
    """The diagram. `spared` bytes moved from storage to storage, `carried` bytes through Airflow."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    spared: int
    carried: int
    width: int
    height: ClassVar[int] = TOP + NODE_HEIGHT + 74


def data_path(stages: Sequence[Movement], published: Sequence[dict[str, Any]] = ()) -> DataPath:
    """Draw the stages of a run, and the manifest rows that it published without a load, as earlier versions did."""
    moving = _joined([stage for stage in stages if stage.destination])
    # The rows are made from facts, which are in the bucket into which a stage measured the objects.
    facts = {stage.source: stage.destination for stage in moving if not stage.is_load}
    moving = [replace(s, source=facts.get(s.source, s.source)) if s.destination == MANIFEST else s for s in moving]
    is_loaded = any(stage.destination == MANIFEST for stage in moving)
    rows = [(facts.get(row["bucket"], row["bucket"]), row["rows"]) for row in published if not is_loaded]
    uris = [uri for stage in moving for uri in (stage.source, stage.destination)]
    uris += [uri for bucket, _ in rows for uri in (bucket, MANIFEST)]
    nodes = {uri: Node(uri, LEFT + n * (NODE_WIDTH + GAP)) for n, uri in enumerate(dict.fromkeys(uris))}
    edges = _summed(_edge(stage, nodes) for stage in moving)
    edges += [Edge(nodes[bucket], nodes[MANIFEST], "ClickHouse pulls", rows=count) for bucket, count in rows]
    carried = sum(e.bytes_in for e in edges if e.through_worker)
    spared = sum(e.bytes_in + e.bytes_out for e in edges if not e.through_worker)
    width = LEFT * 2 + len(nodes) * NODE_WIDTH + max(len(nodes) - 1, 0) * GAP
    return DataPath(tuple(nodes.values()), tuple(edges), spared, carried, width)


def _summed(edges: Iterable[Edge]) -> list[Edge]:
    """Add up edges of the same kind between the same places, such as those of the instances of a mapped task."""
    found: dict[tuple[str, str, str, bool], Edge] = {}
    for edge in edges:
        key = (edge.source.uri, edge.destination.uri, edge.how, edge.through_worker)
        one = found.get(key)
        found[key] = edge if one is None else replace(
            edge, bytes_in=one.bytes_in + edge.bytes_in, bytes_out=one.bytes_out + edge.bytes_out,
            objects=one.objects + edge.objects, rows=one.rows + edge.rows,
        )  # fmt: skip
    return list(found.values())


def _joined(stages: Sequence[Movement]) -> list[Movement]:
    """Replace the source of a load, which may end with a prefix, by the bucket that another stage has filled."""
    filled = {stage.destination for stage in stages}

    def bucket(uri: str) -> str:
        return next((one for one in filled if uri.startswith(f"{one}/")), uri)

    return [replace(stage, source=bucket(stage.source)) if stage.is_load else stage for stage in stages]


def _edge(stage: Movement, nodes: dict[str, Node]) -> Edge:
    source, destination = nodes[stage.source], nodes[stage.destination]
    if stage.is_load:
        push = stage.detail.get("loader") == "push"
        how = "the worker pushes" if push else STORAGE_SIDE["load"]
        rows = int(stage.detail.get("rows", 0))
        return Edge(source, destination, how, stage.bytes_in, 0, stage.done, rows, push)
    if stage.kind == "transform" and stage.done and not stage.job_seconds:  # no job ran: nothing was read
        return Edge(source, destination, "made in passing", 0, stage.bytes_out, stage.done)
    # A copy without a job of AIStore, and any kind that is not in STORAGE_SIDE, goes through the task itself.
    worker = stage.kind not in STORAGE_SIDE or (stage.kind == "copy" and stage.done > 0 and not stage.job_seconds)
    how = f"the worker: {stage.kind}" if worker else STORAGE_SIDE[stage.kind]
    return Edge(source, destination, how, stage.bytes_in, stage.bytes_out, stage.done, 0, worker)

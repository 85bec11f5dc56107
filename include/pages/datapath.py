"""The way of the data in one run as a picture: places, and what went from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from include.pages.movement import Movement

NODE_WIDTH, NODE_HEIGHT, GAP, LEFT, TOP = 168, 56, 150, 8, 60
# Those who move bytes from storage to storage by themselves.
STORAGE_SIDE = {"copy": "AIStore copies", "transform": "AIStore's ETL transforms", "load": "ClickHouse pulls"}


@dataclass(frozen=True)
class Node:
    """A place that data is in, and where it is drawn."""

    uri: str
    x: int
    y: int = TOP

    @property
    def system(self) -> str:
        """The system's name."""
        scheme = self.uri.partition("://")[0]
        return {"ais": "AIStore", "clickhouse": "ClickHouse"}.get(scheme, scheme.upper())

    @property
    def name(self) -> str:
        """The name within the system, shortened in the middle."""
        text = self.uri.partition("://")[2]
        return text if len(text) <= 22 else f"{text[:10]}…{text[-11:]}"


@dataclass(frozen=True)
class Edge:
    """What went from one place to another."""

    source: Node
    destination: Node
    how: str
    bytes_in: int = 0
    bytes_out: int = 0
    objects: int = 0
    rows: int = 0
    through_worker: bool = False


@dataclass(frozen=True)
class DataPath:
    """The picture. `spared` bytes went from storage to storage, `carried` ones through Airflow."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    spared: int
    carried: int
    width: int = field(default=0)
    height: int = TOP + NODE_HEIGHT + 74


def data_path(stages: Sequence[Movement], published: Sequence[dict[str, Any]] = ()) -> DataPath:
    """Draw the stages of a run, and the manifest rows that it published."""
    moving = [stage for stage in stages if stage.destination and stage.kind in STORAGE_SIDE]
    uris = [uri for stage in moving for uri in (stage.source, stage.destination)]
    uris += [uri for row in published for uri in (row["bucket"], "clickhouse://storeside.speech")]
    nodes = {uri: Node(uri, LEFT + n * (NODE_WIDTH + GAP)) for n, uri in enumerate(dict.fromkeys(uris))}
    edges = [_edge(stage, nodes) for stage in moving]
    edges += [
        Edge(nodes[row["bucket"]], nodes["clickhouse://storeside.speech"], "facts", rows=row["rows"])
        for row in published
    ]
    carried = sum(e.bytes_in for e in edges if e.through_worker)
    spared = sum(e.bytes_in + e.bytes_out for e in edges if not e.through_worker)
    width = LEFT * 2 + len(nodes) * NODE_WIDTH + max(len(nodes) - 1, 0) * GAP
    return DataPath(tuple(nodes.values()), tuple(edges), spared, carried, width)


def _edge(stage: Movement, nodes: dict[str, Node]) -> Edge:
    push = stage.kind == "load" and stage.detail.get("loader") == "push"
    return Edge(
        nodes[stage.source],
        nodes[stage.destination],
        "the worker pushes" if push else STORAGE_SIDE[stage.kind],
        stage.bytes_in,
        stage.bytes_out if stage.kind != "load" else 0,
        stage.done,
        int(stage.detail.get("rows", 0)),
        push,
    )

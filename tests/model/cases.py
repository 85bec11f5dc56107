"""The cases that TLC examines: the protocol with several bounds, and the protocol without one of its guards."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Case:
    """One examination: the constants of Publishing.tla, and the guard that is left out.

    With the guard `removed` left out, TLC must find a violation, otherwise none. `why` describes guard or case.
    `ends` checks that each run ends.
    """

    name: str
    why: str
    removed: str = ""
    objects: int = 1
    blocks: int = 1
    faults: int = 0
    kills: int = 0
    failures: int = 0
    tables: int = 2
    sharded: bool = False
    ends: bool = False

    def config(self) -> str:
        """Return TLC's configuration."""
        runs = ("r1", "r2")
        objects = [f"o{n}" for n in range(1, self.objects + 1)]
        removed = f'"{self.removed}"' if self.removed else ""
        lines = [
            f"SPECIFICATION {'FairSpec' if self.ends else 'Spec'}",
            "CONSTANTS",
            *(f"    {run} = {run}" for run in runs),
            *(f"    {one} = {one}" for one in objects),
            f"    Runs = {{{', '.join(runs)}}}",
            f"    Objects = {{{', '.join(objects)}}}",
            f"    Blocks = {self.blocks}",
            f"    Faults = {self.faults}",
            f"    Kills = {self.kills}",
            f"    Failures = {self.failures}",
            f"    Tables = {self.tables}",
            f"    Sharded = {str(self.sharded).upper()}",
            f"    Removed = {{{removed}}}",
            "INVARIANTS Once LoadedIsThere Recorded Complete",
        ]
        # TLC's check of liveness is not sound with symmetry.
        lines.append("PROPERTY Ends" if self.ends else "SYMMETRY Alike")
        return "\n".join(lines) + "\n"


PROTOCOL = (
    Case("pauses", "two runs that pause anywhere"),
    Case("kill", "a process ends at any step", kills=1),
    Case("fault", "an answer is lost, a statement fails, or the server restarts, at any step", faults=1),
    Case("blocks", "rows become visible block by block, with a fault", blocks=2, faults=1, tables=1),
    Case("failure", "an object that one run cannot read", failures=1),
    Case("batch", "two objects in one batch", objects=2),
    Case("shards", "a Distributed table over two shards, with two runs that pause anywhere", blocks=2, sharded=True),
    Case("shards kill", "the same, and a process ends at any step", blocks=2, kills=1, sharded=True),
    Case("shards fault", "the same with a fault instead", blocks=2, faults=1, tables=1, sharded=True),
    Case("ends", "each run ends", tables=1, ends=True),
)

_ATTACH = Case("", "", faults=1, kills=1, tables=3)
_INSERT = replace(_ATTACH, blocks=2)
_SHARDS = replace(_INSERT, sharded=True)
MUTANTS = tuple(
    replace(bounds, name=f"no {guard}", removed=guard, why=why)
    for guard, why, bounds in (
        ("lock", "one run publishes at a time", _ATTACH),
        ("own", "a run releases only its own lock", _ATTACH),
        ("mark", "an old lock keeps its UUID as a name when it is released", _ATTACH),
        ("takeover", "a run breaks only the lock that it found stale", _ATTACH),
        ("hour", "names of broken locks stay until no run can try to break them", _ATTACH),
        ("fence", "the staging table of a broken lock's holder is dropped", _ATTACH),
        ("sync", "the drop of a staging table waits for statements that read it", _INSERT),
        ("keep", "the lock stays after a lost answer", _INSERT),
        ("wait", "a retry waits for its lost statement", _INSERT),
        ("staging", "rows come from a staging table, not from the objects", _ATTACH),
        ("check", "a publication leaves out objects that the ledger records as loaded", _ATTACH),
        ("fresh", "the ledger is read without lag", _ATTACH),
        ("decided", "a publication does not read the ledger again after it has counted rows", _ATTACH),
        ("begin", "the ledger records that a publication begins", _ATTACH),
        ("order", "'loaded' is recorded after the rows are visible", _ATTACH),
        ("settle", "rows of interrupted publications are counted", _ATTACH),
        ("partial", "rows of an incomplete publication are removed", _INSERT),
        ("held", "rows are removed only while the lock is held", _INSERT),
        ("shard", "rows of another shard are removed only while the mark there is the run's", _SHARDS),
        ("early", "each holder of the lock puts its marks before it counts rows", _SHARDS),
        ("parts", "the staging tables of a broken lock's holder are dropped on all shards", _SHARDS),
        ("still", "a run settles only while it holds its lock", _ATTACH),
        ("seen", "only rows of the ledger are deleted that the run has read", _ATTACH),
        ("doubt", "a publication that failed stays doubtful until it is settled", _ATTACH),
        ("recount", "rows of objects that are recorded as failed are counted", replace(_ATTACH, failures=1)),
        ("prompt", "statements start before later statements of the same run (an assumption)", _ATTACH),
    )
)

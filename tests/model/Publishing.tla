----------------------------- MODULE Publishing -----------------------------
(* How runs publish the rows of object versions into one table, exactly once.

   Runs load the same objects at the same time. Each run reads the objects into a staging table of its own, takes the
   lock of the destination, reads the ledger, records "publishing", moves the rows, records "loaded", and releases
   the lock. Every step below is one statement of ClickHouse, or several of which only one has an effect. Between two
   steps a run may pause for any time, end, or lose its lock to another run. A comment in square brackets names the
   functions that a step models; tests/unit/test_model.py checks that they exist.

   Rows become visible in `Blocks` steps: one for ATTACH PARTITION, more for INSERT ... SELECT, and for ATTACH of
   several partitions when the server ends meanwhile.

   With `Sharded`, the table is a Distributed table: each block is on a shard of its own, and each step that concerns
   the rows or the staging tables is one statement per shard. The lock and the ledger are on the first shard.

   The guards in `Removed` are left out of the protocol: TLC must find a violation for each of them. *)

EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Runs,       \* runs that load the same objects
    Objects,    \* object versions
    Blocks,     \* number of steps in which the rows of an object become visible
    Faults,     \* lost answers, failed statements, restarts of the server
    Kills,      \* ends of a run's process, each followed by a retry
    Failures,   \* objects that one run cannot read at the moment, each followed by another run
    Tables,     \* staging tables of one run
    Sharded,    \* whether block n of all objects is on shard n
    Removed     \* guards that are left out

VARIABLES
    ledger,     \* storeside.loads: the rows of each object in the order of recorded_at; FINAL shows the last
    before,     \* the ledger before the last write: what a lagging replica shows
    rows,       \* the destination: how often each block of each object is visible
    lock,       \* the lock table of the destination
    marks,      \* locks that were renamed to broken_<uuid>
    holders,    \* the lock whose holder has put its mark on each shard but the first
    table,      \* number of the staging table of each run, 0 if it has none
    staged,     \* objects in the staging table
    parts,      \* shards that have a staging table of each run
    jobs,       \* statements that move rows and still run in the server
    faults, kills, failures,    \* number so far
    pc,         \* next step of each run
    me          \* local variables of each run

vars == <<ledger, before, rows, lock, marks, holders, table, staged, parts, jobs, faults, kills, failures, pc, me>>

Shards == IF Sharded THEN 1..Blocks ELSE {}
Others == Shards \ {1}

Has(guard) == guard \notin Removed
None == [uuid |-> <<>>, by |-> "", table |-> 0, old |-> FALSE]
Last(o) == IF ledger[o] = <<>> THEN "none" ELSE ledger[o][Len(ledger[o])].state
StateIn(some, o) == IF some[o] = <<>> THEN "none" ELSE some[o][Len(some[o])].state
RECURSIVE Sum(_, _)
Sum(f, some) == IF some = {} THEN 0 ELSE LET x == CHOOSE x \in some : TRUE IN f[x] + Sum(f, some \ {x})
Count(o) == Sum(rows[o], 1..Blocks)
Without(entries, Unwanted(_)) == SelectSeq(entries, LAMBDA e : ~Unwanted(e))

(* Writes to the ledger. Each publication has an identity, in ClickHouse the recorded_at of its row. *)
Lag == before' = IF Has("fresh") THEN before ELSE ledger
Write(r, some, state) ==
    /\ ledger' = [o \in Objects |->
                    IF o \notin some THEN ledger[o]
                    ELSE Append(ledger[o], [state |-> state,
                                            id |-> IF state = "publishing" THEN <<r, me[r].writes>> ELSE <<>>])]
    /\ Lag
Go(r, step) == pc' = [pc EXCEPT ![r] = step]

Server == <<ledger, before, rows, jobs>>
Locks == <<lock, marks, holders>>
Staging == <<table, staged, parts>>
Bounds == <<faults, kills, failures>>

NoRows == [o \in Objects |-> 0]
\* The shard of the next statement of a run that sends one to each shard.
NextShard(r) == IF Sharded /\ me[r].at < Blocks THEN me[r].at + 1 ELSE 1
IsLast(r) == ~Sharded \/ me[r].at = Blocks
Here(r) == IF Sharded THEN {me[r].at} ELSE 1..Blocks

Init ==
    /\ ledger = [o \in Objects |-> <<>>]
    /\ before = ledger
    /\ rows = [o \in Objects |-> [b \in 1..Blocks |-> 0]]
    /\ lock = None
    /\ marks = {}
    /\ holders = [s \in Others |-> <<>>]
    /\ table = [r \in Runs |-> 0]
    /\ staged = [r \in Runs |-> {}]
    /\ parts = [r \in Runs |-> {}]
    /\ jobs = {}
    /\ faults = 0 /\ kills = 0 /\ failures = 0
    /\ pc = [r \in Runs |-> "sweep"]
    /\ me = [r \in Runs |-> [goal |-> "", hold |-> <<>>, locks |-> 0, tables |-> 0, writes |-> 0, target |-> None,
                             all |-> {}, new |-> {}, done |-> {}, doubt |-> {}, seen |-> {}, whole |-> {}, part |-> {},
                             at |-> 1, sum |-> NoRows]]

(* ------------------------------------------------------------------ prepare *)

(* A try kills the statements of earlier tries and drops their staging tables.
   [leftovers.sweep, queries.kill, staging_tables.drop_left, staging_tables.sweep] *)
Sweep(r) ==
    /\ pc[r] = "sweep"
    /\ jobs' = {j \in jobs : j.run # r \/ ~j.started}
    /\ table' = [table EXCEPT ![r] = 0]
    /\ staged' = [staged EXCEPT ![r] = {}]
    /\ parts' = [parts EXCEPT ![r] = {}]
    /\ Go(r, "doubt")
    /\ UNCHANGED <<ledger, before, rows, Locks, faults, kills, failures, me>>

(* Loads whose publication began and did not end are settled first. [leftovers.settle_doubtful, Loads.doubtful] *)
Doubt(r) ==
    /\ pc[r] = "doubt"
    /\ IF \E o \in Objects : Last(o) = "publishing"
       THEN Go(r, "lock") /\ me' = [me EXCEPT ![r].goal = "settle"]
       ELSE Go(r, "plan") /\ UNCHANGED me
    /\ UNCHANGED <<Server, Locks, Staging, Bounds>>

(* Objects that are not loaded are read into a new staging table, and its rows divided between tables on the shards.
   [Plan.make, Plan.objects, Staging.stage, Destination.spread] *)
PlanAndStage(r) ==
    /\ pc[r] = "plan"
    /\ LET wanted == {o \in Objects : Last(o) # "loaded"} IN
       IF wanted = {}
       THEN /\ Go(r, "done")
            /\ table' = [table EXCEPT ![r] = 0]
            /\ staged' = [staged EXCEPT ![r] = {}]
            /\ parts' = [parts EXCEPT ![r] = {}]
            /\ UNCHANGED me
       ELSE IF me[r].tables = Tables
       THEN Go(r, "failed") /\ UNCHANGED <<Staging, me>>
       ELSE /\ table' = [table EXCEPT ![r] = me[r].tables + 1]
            /\ staged' = [staged EXCEPT ![r] = wanted]
            /\ parts' = [parts EXCEPT ![r] = Shards]
            /\ me' = [me EXCEPT ![r].tables = @ + 1, ![r].goal = "publish", ![r].all = wanted]
            /\ Go(r, "lock")
    /\ UNCHANGED <<Server, Locks, Bounds>>

(* An object cannot be read at the moment: the run reads its state, then records "failed" unless another run has
   loaded it or publishes it. A later run tries again. [Loads.record_failed, Loads.states] *)
FailRead(r) ==
    /\ pc[r] = "plan"
    /\ failures < Failures
    /\ failures' = failures + 1
    /\ me' = [me EXCEPT ![r].new = {o \in Objects : Last(o) \in {"none", "failed"}}]
    /\ Go(r, "fail")
    /\ UNCHANGED <<Server, Locks, Staging, faults, kills>>

FailRecord(r) ==
    /\ pc[r] = "fail"
    /\ Write(r, me[r].new, "failed")
    /\ me' = [me EXCEPT ![r].new = {}]
    /\ Go(r, "sweep")
    /\ UNCHANGED <<rows, jobs, Locks, Staging, Bounds>>

(* --------------------------------------------------------------------- lock *)

Mine(r) == lock.by = r /\ me[r].goal = "publish" /\ lock.table = me[r].tables
AfterMark(r) == IF me[r].goal = "settle" THEN "read" ELSE "wait"
AfterLock(r) == IF Sharded /\ Has("early") THEN "mark" ELSE AfterMark(r)

(* CREATE TABLE succeeds for one of many callers. A run that retries gets its own lock back. [lock._take] *)
TakeLock(r) ==
    /\ pc[r] = "lock"
    /\ IF ~Has("lock")
       THEN UNCHANGED <<lock, me>>
       ELSE IF lock = None
       THEN /\ lock' = [uuid |-> <<r, me[r].locks>>, by |-> r, old |-> FALSE,
                        table |-> IF me[r].goal = "settle" THEN 0 ELSE me[r].tables]
            /\ me' = [me EXCEPT ![r].locks = @ + 1, ![r].hold = <<r, me[r].locks>>]
       ELSE /\ Mine(r)
            /\ UNCHANGED lock
            /\ me' = [me EXCEPT ![r].hold = lock.uuid]
    /\ Go(r, AfterLock(r))
    /\ UNCHANGED <<Server, marks, holders, Staging, Bounds>>

(* The holder puts its mark on each other shard, whatever mark is there. Without the guard "early", it does that only
   before it removes rows. [lock.locked] *)
Mark(r) == holders' = [s \in Others |-> me[r].hold]
PutMarks(r) ==
    /\ pc[r] = "mark"
    /\ Mark(r)
    /\ Go(r, AfterMark(r))
    /\ UNCHANGED <<Server, lock, marks, Staging, Bounds, me>>

(* Every lock may become stale, for example because its holder pauses. *)
Age ==
    /\ lock # None /\ ~lock.old
    /\ lock' = [lock EXCEPT !.old = TRUE]
    /\ UNCHANGED <<Server, marks, holders, Staging, Bounds, pc, me>>

(* A run finds a stale lock. It first drops the staging table of its holder: DROP TABLE ... SYNC returns after the
   statements that read the table. [lock._break] *)
BreakDrop(r) ==
    /\ pc[r] = "lock" /\ Has("lock") /\ ~Sharded
    /\ lock # None /\ lock.old /\ ~Mine(r)
    /\ Has("sync") => ~\E j \in jobs : j.started /\ j.run = lock.by /\ j.table = lock.table
    /\ IF Has("fence") /\ lock.table # 0 /\ table[lock.by] = lock.table
       THEN table' = [table EXCEPT ![lock.by] = 0] /\ staged' = [staged EXCEPT ![lock.by] = {}] /\ UNCHANGED parts
       ELSE UNCHANGED Staging
    /\ me' = [me EXCEPT ![r].target = lock]
    /\ Go(r, "rename")
    /\ UNCHANGED <<Server, Locks, Bounds>>

(* Of a Distributed table, the tables on the shards are dropped, one after the other. Without the guard "parts", only
   the one on the first shard is. [lock._break, staging_tables.drop_parts] *)
BreakFound(r) ==
    /\ pc[r] = "lock" /\ Has("lock") /\ Sharded
    /\ lock # None /\ lock.old /\ ~Mine(r)
    /\ me' = [me EXCEPT ![r].target = lock, ![r].at = 1]
    /\ Go(r, IF lock.table = 0 THEN "rename" ELSE "parts")
    /\ UNCHANGED <<Server, Locks, Staging, Bounds>>

BreakParts(r) ==
    /\ pc[r] = "parts"
    /\ LET target == me[r].target
           dropped == IF me[r].at = 1 \/ Has("parts") THEN {me[r].at} ELSE {}
           left == parts[target.by] \ dropped IN
       /\ ~\E j \in jobs : j.started /\ j.run = target.by /\ j.table = target.table /\ j.shards \cap dropped # {}
       /\ IF table[target.by] # target.table
          THEN UNCHANGED Staging
          ELSE /\ parts' = [parts EXCEPT ![target.by] = left]
               /\ table' = IF left = {} THEN [table EXCEPT ![target.by] = 0] ELSE table
               /\ staged' = IF left = {} THEN [staged EXCEPT ![target.by] = {}] ELSE staged
    /\ me' = [me EXCEPT ![r].at = NextShard(r)]
    /\ Go(r, IF IsLast(r) THEN "rename" ELSE "parts")
    /\ UNCHANGED <<Server, Locks, Bounds>>

(* Then it renames the lock to a name with the lock's UUID, which succeeds for one of many callers, and only if the
   lock is still the same one: locks that others broke, or released when they were old, have that name already.
   [lock._break] *)
BreakRename(r) ==
    /\ pc[r] = "rename"
    /\ IF lock # None /\ (Has("takeover") => me[r].target.uuid \notin marks)
       THEN lock' = None /\ marks' = marks \cup {me[r].target.uuid} /\ UNCHANGED holders
       ELSE UNCHANGED Locks
    /\ me' = [me EXCEPT ![r].target = None]
    /\ Go(r, "lock")
    /\ UNCHANGED <<Server, Staging, Bounds>>

(* A young lock is dropped, because no other run can have decided to break it. An old lock is renamed, like a broken
   one. [lock._release] *)
Release(r) ==
    IF ~Has("lock") \/ me[r].hold = <<>> THEN UNCHANGED Locks
    ELSE IF lock.uuid # me[r].hold /\ Has("own") THEN UNCHANGED Locks
    ELSE /\ lock' = None
         /\ marks' = IF lock.old /\ Has("mark") THEN marks \cup {me[r].hold} ELSE marks
         /\ UNCHANGED holders

Unlock(r) ==
    /\ pc[r] \in {"unlock", "stale"}
    /\ Release(r)
    /\ me' = [me EXCEPT ![r].goal = "", ![r].hold = <<>>, ![r].doubt = {}, ![r].seen = {}, ![r].whole = {},
                        ![r].part = {}, ![r].new = {}, ![r].all = {}, ![r].done = {}, ![r].at = 1]
    /\ Go(r, "plan")
    /\ UNCHANGED <<Server, Staging, Bounds>>

(* ------------------------------------------------------------------- settle *)

(* A retry waits for the statement whose connection was lost. [queries.running] *)
Wait(r) ==
    /\ pc[r] = "wait"
    /\ Has("wait") => ~\E j \in jobs : j.started /\ j.run = r /\ j.table = me[r].tables
    /\ Go(r, "read")
    /\ UNCHANGED <<Server, Locks, Staging, Bounds, me>>

(* [Loads.states, Loads.doubtful] *)
Read(r) ==
    /\ pc[r] = "read"
    /\ \E shown \in (IF Has("fresh") THEN {ledger} ELSE {ledger, before}) :
       LET some == IF me[r].goal = "settle" THEN Objects ELSE me[r].all
           doubtful == IF Has("settle") THEN {o \in some : StateIn(shown, o) = "publishing"} ELSE {}
           failed == IF Has("recount") /\ me[r].goal = "publish" THEN {o \in some : StateIn(shown, o) = "failed"} ELSE {}
           doubt == doubtful \cup failed
       IN
       /\ me' = [me EXCEPT ![r].doubt = doubt, ![r].whole = {}, ![r].part = {},
                           ![r].seen = {e.id : e \in UNION {{shown[o][n] : n \in 1..Len(shown[o])} : o \in doubt}},
                           ![r].at = 1, ![r].sum = NoRows,
                           ![r].done = IF Has("check") THEN {o \in some : StateIn(shown, o) = "loaded"} ELSE {}]
       /\ Go(r, IF doubt # {} THEN "count" ELSE IF me[r].goal = "settle" THEN "unlock" ELSE "leave")
    /\ UNCHANGED <<Server, Locks, Staging, Bounds>>

(* Rows are counted on one shard after the other. [publishing.settle, Destination.count] *)
CountRows(r) ==
    /\ pc[r] = "count"
    /\ LET sum == [o \in Objects |-> IF o \in me[r].doubt THEN me[r].sum[o] + Sum(rows[o], Here(r)) ELSE 0] IN
       me' = IF ~IsLast(r) THEN [me EXCEPT ![r].sum = sum, ![r].at = NextShard(r)]
             ELSE [me EXCEPT ![r].whole = {o \in me[r].doubt : sum[o] = Blocks},
                             ![r].part = {o \in me[r].doubt : sum[o] \notin {0, Blocks}},
                             ![r].sum = NoRows, ![r].at = 1]
    /\ Go(r, IF IsLast(r) THEN "check" ELSE "count")
    /\ UNCHANGED <<Server, Locks, Staging, Bounds>>

(* What the run has read may belong to another run if it has lost its lock meanwhile. [publishing.settle, Hold.check] *)
Check(r) ==
    /\ pc[r] = "check"
    /\ Go(r, IF Has("still") /\ Has("lock") /\ lock.uuid # me[r].hold THEN "stale" ELSE "remove")
    /\ IF Sharded /\ ~Has("early") /\ me[r].part # {} THEN Mark(r) ELSE UNCHANGED holders
    /\ UNCHANGED <<Server, lock, marks, Staging, Bounds, me>>

(* The rows of an incomplete publication are removed, if the run still holds its lock: the statement itself checks it.
   [publishing.settle, Destination._delete] *)
RemovePartial(r) ==
    /\ pc[r] = "remove" /\ ~(Sharded /\ me[r].part # {})
    /\ IF me[r].part = {} \/ ~Has("partial")
       THEN UNCHANGED rows /\ Go(r, "confirm")
       ELSE IF Has("held") /\ lock.uuid # me[r].hold
       THEN UNCHANGED rows /\ Go(r, "stale")
       ELSE /\ rows' = [o \in Objects |-> IF o \in me[r].part THEN [b \in 1..Blocks |-> 0] ELSE rows[o]]
            /\ Go(r, "confirm")
    /\ UNCHANGED <<ledger, before, jobs, Locks, Staging, Bounds, me>>

(* On the first shard, the statement checks the lock, on another one the mark there. Afterwards the run checks all of
   them. [Destination.remove, Destination._delete, Hold.on, Hold.check] *)
RemoveHere(r) ==
    /\ pc[r] = "remove" /\ Sharded /\ me[r].part # {}
    /\ LET s == me[r].at
           isMine == IF s = 1 THEN Has("held") => lock.uuid = me[r].hold
                              ELSE Has("shard") => holders[s] = me[r].hold IN
       rows' = IF ~isMine THEN rows
               ELSE [o \in Objects |-> IF o \in me[r].part THEN [rows[o] EXCEPT ![s] = 0] ELSE rows[o]]
    /\ me' = [me EXCEPT ![r].at = NextShard(r)]
    /\ Go(r, IF IsLast(r) THEN "removed" ELSE "remove")
    /\ UNCHANGED <<ledger, before, jobs, Locks, Staging, Bounds>>

CheckRemoved(r) ==
    /\ pc[r] = "removed"
    /\ Go(r, IF lock.uuid # me[r].hold \/ \E s \in Others : holders[s] # me[r].hold THEN "stale" ELSE "confirm")
    /\ UNCHANGED <<Server, Locks, Staging, Bounds, me>>

(* [publishing.settle, Loads.record] *)
Confirm(r) ==
    /\ pc[r] = "confirm"
    /\ Write(r, me[r].whole, "loaded")
    /\ Go(r, "forget")
    /\ UNCHANGED <<rows, jobs, Locks, Staging, Bounds, me>>

(* Only rows of the ledger that this run has read are deleted, not those of a later publication.
   [Loads.forget_doubtful] *)
Forget(r) ==
    /\ pc[r] = "forget"
    /\ ledger' = [o \in Objects |->
                    IF o \notin me[r].doubt \ me[r].whole THEN ledger[o]
                    ELSE Without(ledger[o], LAMBDA e : e.state = "publishing" /\ (Has("seen") => e.id \in me[r].seen))]
    /\ Lag
    /\ Go(r, IF me[r].goal = "settle" THEN "unlock" ELSE "leave")
    /\ UNCHANGED <<rows, jobs, Locks, Staging, Bounds, me>>

(* ------------------------------------------------------------------ publish *)

(* Rows of objects that another run has loaded are removed from the staging table. The ledger is not read again,
   because a run that has lost its lock may write "publishing" late. [Destination.leave_out] *)
LeaveOut(r) ==
    /\ pc[r] = "leave"
    /\ LET done == IF Has("decided") THEN me[r].all \cap (me[r].done \cup me[r].whole)
                   ELSE {o \in me[r].all : Last(o) = "loaded"}
           new == me[r].all \ done
       IN IF done # {} /\ (table[r] # me[r].tables \/ parts[r] # Shards)
          THEN Go(r, "stale") /\ UNCHANGED <<staged, me>>
          ELSE /\ staged' = [staged EXCEPT ![r] = @ \ done]
               /\ me' = [me EXCEPT ![r].new = new]
               /\ Go(r, IF new = {} THEN "unlock" ELSE "record")
    /\ UNCHANGED <<Server, Locks, table, parts, Bounds>>

(* [publishing.publish, Loads.record] *)
Record(r) ==
    /\ pc[r] = "record"
    /\ me' = [me EXCEPT ![r].writes = @ + 1, ![r].at = 1]
    /\ IF Has("begin")
       THEN Write(r, me[r].new, IF Has("order") THEN "publishing" ELSE "loaded")
       ELSE UNCHANGED <<ledger, before>>
    /\ Go(r, "take")
    /\ UNCHANGED <<rows, jobs, Locks, Staging, Bounds>>

(* ATTACH PARTITION or INSERT ... SELECT starts, unless another run has dropped the staging table. The record stays
   doubtful then: the next publication settles it. Without a staging table, the statement reads the objects. For a
   Distributed table, there is one such statement for each shard, after the one for the shard before it.
   [Destination.take, Destination.copy, publishing.publish] *)
Take(r) ==
    /\ pc[r] = "take"
    /\ IF Has("staging") /\ (IF Sharded THEN me[r].at \notin parts[r] ELSE table[r] # me[r].tables)
       THEN /\ Go(r, "stale")
            /\ IF Has("doubt") THEN UNCHANGED <<ledger, before>>
               ELSE /\ ledger' = [o \in Objects |-> IF o \notin me[r].new THEN ledger[o]
                                    ELSE Without(ledger[o], LAMBDA e : e.state = "publishing")]
                    /\ Lag
            /\ UNCHANGED jobs
       ELSE /\ \E started \in (IF Has("prompt") THEN {TRUE} ELSE {TRUE, FALSE}) :
                 jobs' = jobs \cup {[run |-> r, table |-> me[r].tables, started |-> started, number |-> me[r].writes,
                                     shards |-> IF Sharded THEN Here(r) ELSE {},
                                     todo |-> (IF Has("staging") THEN staged[r] ELSE me[r].new) \X Here(r)]}
            /\ Go(r, "taking")
            /\ UNCHANGED <<ledger, before>>
    /\ UNCHANGED <<rows, Locks, Staging, Bounds, me>>

Waits(j) == pc[j.run] = "taking" /\ j.number = me[j.run].writes

(* A statement that arrives late starts, or fails because its staging table does not exist. Only without the guard
   "prompt", which is an assumption about the network. *)
Start(j) ==
    /\ ~j.started
    /\ IF table[j.run] = j.table
       THEN jobs' = (jobs \ {j}) \cup {[j EXCEPT !.started = TRUE]} /\ UNCHANGED <<pc>>
       ELSE jobs' = jobs \ {j} /\ pc' = IF Waits(j) THEN [pc EXCEPT ![j.run] = "stale"] ELSE pc
    /\ UNCHANGED <<ledger, before, rows, Locks, Staging, Bounds, me>>

(* One block becomes visible. After the last one, the run gets its answer, and goes on with the next shard. *)
Move(j) ==
    /\ j.started
    /\ \E place \in j.todo :
       LET left == j.todo \ {place} IN
       /\ rows' = [rows EXCEPT ![place[1]][place[2]] = @ + 1]
       /\ jobs' = (jobs \ {j}) \cup (IF left = {} THEN {} ELSE {[j EXCEPT !.todo = left]})
       /\ IF left = {} /\ Waits(j)
          THEN /\ pc' = [pc EXCEPT ![j.run] = IF IsLast(j.run) THEN "finish" ELSE "take"]
               /\ me' = [me EXCEPT ![j.run].at = NextShard(j.run)]
          ELSE UNCHANGED <<pc, me>>
    /\ UNCHANGED <<ledger, before, Locks, Staging, Bounds>>

(* [publishing._finish, Loads.record] *)
Finish(r) ==
    /\ pc[r] = "finish"
    /\ Write(r, me[r].new, "loaded")
    /\ Go(r, "unlock")
    /\ UNCHANGED <<rows, jobs, Locks, Staging, Bounds, me>>

(* ------------------------------------------------------------------- faults *)

Fault == faults < Faults /\ faults' = faults + 1 /\ UNCHANGED <<kills, failures>>

(* The answer of a statement is lost. The statement continues, and the lock stays until its owner tries again.
   [lock.locked, BatchLoad.publish] *)
Lose(r) ==
    /\ Fault
    /\ pc[r] = "taking"
    /\ IF Has("keep") THEN UNCHANGED Locks ELSE Release(r)
    /\ Go(r, "lock")
    /\ UNCHANGED <<Server, Staging, me>>

(* The answer of a write to the ledger is lost; the write may have happened. [lock.locked, BatchLoad.publish] *)
LoseRecord(r) ==
    /\ Fault
    /\ pc[r] \in {"record", "finish", "confirm"}
    /\ \/ UNCHANGED <<ledger, before, me>>
       \/ /\ pc[r] = "record" => Has("begin")
          /\ Write(r, IF pc[r] = "confirm" THEN me[r].whole ELSE me[r].new,
                   IF pc[r] = "record" /\ Has("order") THEN "publishing" ELSE "loaded")
          /\ me' = [me EXCEPT ![r].writes = @ + 1]
    /\ Go(r, IF me[r].goal = "settle" THEN "sweep" ELSE "lock")
    /\ UNCHANGED <<rows, jobs, Locks, Staging>>

(* A statement fails with an error of ClickHouse, such as a full disk, after a part of its rows: the lock is released.
   [lock.locked] *)
Fail(j) ==
    /\ Fault
    /\ j.started /\ Waits(j)
    /\ jobs' = jobs \ {j}
    /\ Release(j.run)
    /\ Go(j.run, "lock")
    /\ UNCHANGED <<ledger, before, rows, Staging, me>>

(* The server ends and starts again: its statements are gone, their visible rows stay. *)
Restart ==
    /\ Fault
    /\ jobs # {}
    /\ jobs' = {}
    /\ pc' = [r \in Runs |-> IF pc[r] = "taking" THEN "lock" ELSE pc[r]]
    /\ UNCHANGED <<ledger, before, rows, Locks, Staging, me>>

(* The sweep of another run, or an administrator, drops a staging table that is in use. [staging_tables.sweep] *)
DropLive(r) ==
    /\ Fault
    /\ table[r] # 0
    /\ table' = [table EXCEPT ![r] = 0]
    /\ staged' = [staged EXCEPT ![r] = {}]
    /\ parts' = [parts EXCEPT ![r] = {}]
    /\ UNCHANGED <<Server, Locks, pc, me>>

(* The sweep drops the names of broken locks an hour later, when no run tries to break them any more. Without the guard
   "hour", it drops them at any time. [staging_tables.sweep] *)
DropMarks ==
    /\ ~Has("hour") /\ marks # {}
    /\ marks' = {}
    /\ UNCHANGED <<Server, lock, holders, Staging, Bounds, pc, me>>

(* The process of a run ends between any two steps. Its statements continue. Another try follows. *)
Kill(r) ==
    /\ kills < Kills
    /\ kills' = kills + 1
    /\ pc[r] \notin {"done", "failed"}
    /\ Go(r, "sweep")
    /\ me' = [me EXCEPT ![r].goal = "", ![r].hold = <<>>, ![r].target = None, ![r].doubt = {}, ![r].seen = {},
                        ![r].whole = {}, ![r].part = {}, ![r].new = {}, ![r].all = {}, ![r].done = {},
                        ![r].at = 1, ![r].sum = NoRows]
    /\ UNCHANGED <<Server, Locks, Staging, faults, failures>>

(* ReplacingMergeTree drops a row for which it has a later one, at any time. *)
Merge(o) ==
    /\ Len(ledger[o]) > 1
    /\ \E n \in 1..(Len(ledger[o]) - 1) :
       ledger' = [ledger EXCEPT ![o] = SubSeq(@, 1, n - 1) \o SubSeq(@, n + 1, Len(@))]
    /\ UNCHANGED <<before, rows, jobs, Locks, Staging, Bounds, pc, me>>

(* --------------------------------------------------------------------- spec *)

Step(r) ==
    \/ Sweep(r) \/ Doubt(r) \/ PlanAndStage(r) \/ FailRead(r) \/ FailRecord(r)
    \/ TakeLock(r) \/ PutMarks(r) \/ BreakDrop(r) \/ BreakFound(r) \/ BreakParts(r) \/ BreakRename(r) \/ Unlock(r)
    \/ Wait(r) \/ Read(r) \/ CountRows(r) \/ Check(r) \/ RemovePartial(r) \/ RemoveHere(r) \/ CheckRemoved(r)
    \/ Confirm(r) \/ Forget(r)
    \/ LeaveOut(r) \/ Record(r) \/ Take(r) \/ Finish(r)
JobStep == \E j \in jobs : Start(j) \/ Move(j)
Trouble ==
    \/ Restart \/ DropMarks
    \/ \E r \in Runs : Lose(r) \/ DropLive(r) \/ LoseRecord(r) \/ Kill(r)
    \/ \E j \in jobs : Fail(j)
Ended == \A r \in Runs : pc[r] \in {"done", "failed"}
Stop == Ended /\ UNCHANGED vars

Next == (\E r \in Runs : Step(r)) \/ JobStep \/ Age \/ Trouble \/ (\E o \in Objects : Merge(o)) \/ Stop

Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ (\A r \in Runs : WF_vars(Step(r))) /\ WF_vars(JobStep) /\ WF_vars(Age)

(* --------------------------------------------------------------- invariants *)

(* No row is visible twice. *)
Once == \A o \in Objects : \A b \in 1..Blocks : rows[o][b] <= 1

(* Nothing is recorded as loaded without its rows. *)
LoadedIsThere == \A o \in Objects : Last(o) = "loaded" => \A b \in 1..Blocks : rows[o][b] = 1

(* No rows are visible without a record that leads to their count. *)
Recorded == \A o \in Objects : Count(o) > 0 => Last(o) # "none"

(* After all runs have ended well, every object is loaded once, and no staging table is left. *)
Complete ==
    (\A r \in Runs : pc[r] = "done") =>
        /\ \A o \in Objects : Last(o) = "loaded" /\ \A b \in 1..Blocks : rows[o][b] = 1
        /\ \A r \in Runs : table[r] = 0

(* Every run ends. *)
Ends == <>Ended

Alike == Permutations(Runs)
=============================================================================

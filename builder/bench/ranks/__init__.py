"""Processes of the benchmark, and the protocol between them.

**Processes.** All work is done by *ranks*: forked child processes, one per GPU, or a single one.
One process, the *launcher*, starts ranks, receives their events, ends those that hang and writes
the report. In a job of builder or under torchrun one process per rank exists already, called a
*unit*. Unit 0 is the launcher. Every other unit is a *relay*: it starts its own rank and passes
lines of JSON between it and the launcher.

        unit 0                                     unit 1
    +--------------+  sockets   +--------+     +---------+   socket   +--------+
    |   launcher   |<==========>| rank 0 |     |  relay  |<==========>| rank 1 |
    +--------------+            +--------+     +---------+            +--------+
           ^               TCP (lines of JSON)      ^
           +----------------------------------------+

**States.** The launcher knows each rank in one of five states (``rank.State``):

                hello              ready              go
    STARTING ----------> WORKING ----------> READY ----------> TOGETHER
                            ^  ^   turn        |                   |
                            |  +---------------+                   |
                            +--------------------------------------+
                                       begin, alone

    STARTING   nothing has been received from its unit yet
    WORKING    runs probes and measurements without the other ranks
    READY      waits for the other ranks
    TOGETHER   runs collectives: it waits for ranks, and they wait for it
    DONE       sent "end", or died, or was ended by the launcher

A single rank waits for no other: it moves from WORKING to TOGETHER by itself.

**Turns.** Two GPUs may share a link to the host, so the ranks of a node measure transfers one after
the other. When all ranks of a node are READY, the launcher gives one of them its turn. This rank is
WORKING until it is READY again; then the next one has its turn. All ranks begin together once each
had its turn. No process group is needed, and a rank that hangs or dies in its turn passes it on,
because it is DONE then.

**Messages.** Rank to launcher: the events of ``examine.py``. A relay sends two more:

    {"hello": 1, "host": HOST}      the process of rank 1 has started
    {"gone": [SEEN, ADVICE]}        the rank's process has ended

Launcher to rank; a relay passes them on, except for the last two, which it applies itself:

    {"turn": true}                  measure alone on this node, and be ready again
    {"go": true, "hosts": [...]}    all ranks are ready: begin; or {"go": false, "why": ...}
    {"stop": true}                  kill this rank
    {"verdict": "pass"}             the end: every unit exits with the code for this verdict

After "end" a rank does not exit: it waits until its process is killed. A rank that exits early
would close connections that the others still use.

**Invariant.** Every rank reaches DONE, and the launcher ends, within ``--timeout`` after the last
rank has imported its framework. A rank that is STARTING, WORKING or TOGETHER must send an event at
least every ``--stall`` seconds (``--start-stall`` while it starts and imports); if it does not, it
is killed, and named in the report unless it waited in a collective for a rank that died. Only READY
has no such limit, because another rank then has. For example, rank 1 hangs in ``matmul.fp32`` while
rank 0 is READY:

    time       rank 0     rank 1
    0 s        READY      WORKING (matmul.fp32)
    --stall    READY      DONE: killed, "rank 1 (node2): matmul.fp32 did not end within 150 s"
    + 0.5 s    TOGETHER   the order is {"go": false, "why": "rank 1 cannot take part"}
    + 1 s      WORKING, and soon DONE
"""

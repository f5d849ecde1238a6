"""The pure scheduler: a snapshot and a queue go in, a plan with reasons comes out.

May import the standard library, NumPy and the contracts; never a session, a clock, a client or another package of the
service, so that the same code runs in the worker, in a dry run, in a simulation and in a property test.

In reading order: `states` (what may follow what), `nodes`, `requests` and `plans` (values in and out), `snapshot`
(nodes as arrays, with undo), `verdicts` and `policy` (every filter and rank, in order), `candidates` (remembered
scores), `admission` (limits), `cycle` (one batch), `explain` and `capacity` (answers to people).
"""

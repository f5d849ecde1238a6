"""The local stack: a real PostgreSQL, a real Valkey and a list of processes under one supervisor.

Nothing here knows a Millpond service. `paths` says where a stack lies, `postgres` and `valkey` are the two
engines behind the `Engine` protocol, `ephemeral` starts both for a test, `supervisor` keeps a list of processes
running, `forkserver` makes Python processes cheap. Imports only the standard library; the wheels with the
engines' binaries are an optional extra and are looked up when a stack is started.
"""

"""The local stack: a real PostgreSQL, a real Valkey and the processes of Millpond under one supervisor.

`assembly` alone knows which processes there are and how they start; it imports none of their code.
`paths` says where a stack lies, `postgres` and `valkey` are the two engines behind the `Engine` protocol, `ephemeral`
starts both for a test, `supervisor` keeps processes running, `forkserver` makes Python processes cheap, `backups` and
`examining` are for whoever operates it. May import the contracts and the client; the wheels with the engines' binaries
are an optional extra and are looked up when a stack is started.
"""

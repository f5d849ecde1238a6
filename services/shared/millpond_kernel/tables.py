"""The tables that every service schema has: outbox, cursors, dead letters, leases, idempotency, audit, keys, workers.

`kernel_tables` defines them for queries and the drift check; `create_kernel_tables` is the migration helper, used by
one revision per schema. A change here after a release needs a revision of its own for every schema.
"""

from typing import Protocol

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

NOW = text("clock_timestamp()")
INSTANT = DateTime(timezone=True)

# Tables whose rows belong to a tenant, and what the tenant role may do with them.
_TENANT_GRANTS = {
    "outbox": "SELECT, INSERT",
    "audit": "SELECT, INSERT",
    "idempotency": "SELECT, INSERT, UPDATE",
}


class Operations(Protocol):
    """What the helpers need of Alembic's `op`."""

    def execute(self, sqltext: str) -> object: ...


def kernel_tables(metadata: MetaData) -> None:
    """Adds the kernel's tables to the metadata of one service (its `schema` is the service's name)."""
    _outbox_tables(metadata)
    _consumer_tables(metadata)
    _request_tables(metadata)
    _process_tables(metadata)


def _outbox_tables(metadata: MetaData) -> None:
    outbox = Table(
        "outbox",
        metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        Column("seq", BigInteger, nullable=True),
        Column("event_id", Uuid, nullable=False),
        Column("type", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("tenant_id", Uuid, nullable=True),
        Column("generation", BigInteger, nullable=False),
        Column("body", JSONB, nullable=False),
        Column("happened_at", INSTANT, nullable=False),
        Column("recorded_at", INSTANT, nullable=False, server_default=NOW),
        Column("traceparent", Text, nullable=True),
    )
    Index("outbox_seq", outbox.c.seq, unique=True)
    Index("outbox_unnumbered", outbox.c.id, postgresql_where=text("seq IS NULL"))
    Table(
        "outbox_counter",
        metadata,
        Column("name", Text, primary_key=True),
        Column("last", BigInteger, nullable=False),
    )


def _consumer_tables(metadata: MetaData) -> None:
    Table(
        "cursor",
        metadata,
        Column("consumer", Text, primary_key=True),
        Column("publisher", Text, primary_key=True),
        Column("seq", BigInteger, nullable=False),
        Column("moved_at", INSTANT, nullable=False, server_default=NOW),
    )
    Table(
        "dead_letter",
        metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        Column("consumer", Text, nullable=False),
        Column("publisher", Text, nullable=False),
        Column("seq", BigInteger, nullable=False),
        Column("envelope", JSONB, nullable=False),
        Column("error", Text, nullable=False),
        Column("parked_at", INSTANT, nullable=False, server_default=NOW),
        Column("replayed_at", INSTANT, nullable=True),
        UniqueConstraint("consumer", "publisher", "seq", name="dead_letter_once"),
    )


def _request_tables(metadata: MetaData) -> None:
    idempotency = Table(
        "idempotency",
        metadata,
        Column("tenant_id", Uuid, primary_key=True),
        Column("key", Text, primary_key=True),
        Column("fingerprint", LargeBinary, nullable=False),
        Column("status", SmallInteger, nullable=True),
        Column("body", Text, nullable=True),
        Column("headers", JSONB, nullable=True),
        Column("created_at", INSTANT, nullable=False, server_default=NOW),
    )
    Index("idempotency_created", idempotency.c.created_at)
    audit = Table(
        "audit",
        metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        Column("seq", BigInteger, nullable=True),
        Column("at", INSTANT, nullable=False, server_default=NOW),
        Column("actor", Text, nullable=False),
        Column("role", Text, nullable=False),
        Column("tenant_id", Uuid, nullable=True),
        Column("action", Text, nullable=False),
        Column("object", Text, nullable=False),
        Column("before", JSONB, nullable=True),
        Column("after", JSONB, nullable=True),
        Column("request_id", Text, nullable=True),
        Column("hash", LargeBinary, nullable=True),
    )
    Index("audit_seq", audit.c.seq, unique=True)
    Index("audit_unchained", audit.c.id, postgresql_where=text("seq IS NULL"))
    Index("audit_at", audit.c.at)
    Index("audit_actor", audit.c.actor, audit.c.id)
    Index("audit_object", audit.c.object, audit.c.id)


def _process_tables(metadata: MetaData) -> None:
    Table(
        "lease",
        metadata,
        Column("name", Text, primary_key=True),
        Column("holder", Uuid, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("expires_at", INSTANT, nullable=False),
    )
    Table(
        "signing_key",
        metadata,
        Column("kid", Text, primary_key=True),
        Column("issuer", Text, nullable=False),
        Column("public_key", LargeBinary, nullable=False),
        Column("private_key", LargeBinary, nullable=True),
        Column("created_at", INSTANT, nullable=False, server_default=NOW),
    )
    Table(
        "worker_state",
        metadata,
        Column("worker", Uuid, primary_key=True),
        Column("started_at", INSTANT, nullable=False),
        Column("updated_at", INSTANT, nullable=False),
        Column("ready", Boolean, nullable=False),
        Column("state", JSONB, nullable=False),
        Column("pid", Integer, nullable=False),
    )


def run_script(op: Operations, script: str) -> None:
    """Runs a script of SQL statements one by one: each ends with `;` at a line's end, outside `$$` quotes."""
    statement: list[str] = []
    quoted = False
    for line in script.splitlines():
        statement.append(line)
        quoted ^= line.count("$$") % 2 == 1
        if line.rstrip().endswith(";") and not quoted:
            op.execute("\n".join(statement))
            statement = []
    if "".join(statement).strip():
        raise ValueError(f"the script ends inside a statement: {statement[-1]!r}")


def create_kernel_tables(op: Operations, schema: str) -> None:
    """Creates the kernel's tables, rights and policies in `schema`. Every name below is a constant of the caller."""
    run_script(op, _KERNEL_DDL.format(s=schema))
    for table, rights in _TENANT_GRANTS.items():
        tenant_table(op, schema, table, rights)


def tenant_table(op: Operations, schema: str, table: str, rights: str) -> None:
    """Puts `table` behind row-level security on `tenant_id` and gives the tenant role `rights` on its own rows."""
    run_script(
        op,
        f"""
        ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY;
        ALTER TABLE {schema}.{table} FORCE ROW LEVEL SECURITY;
        CREATE POLICY tenant ON {schema}.{table} TO millpond_{schema}_tenant
            USING (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
            WITH CHECK (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
        CREATE POLICY system ON {schema}.{table} TO millpond_{schema}_system USING (true) WITH CHECK (true);
        GRANT {rights} ON {schema}.{table} TO millpond_{schema}_tenant;
        """,
    )


def index_audit(op: Operations, schema: str) -> None:
    """Adds the indexes by which people look through the audit trail; a schema made by this version has them."""
    run_script(op, _AUDIT_INDEXES.format(s=schema))


def readable_by_tenants(op: Operations, schema: str, table: str) -> None:
    """Lets the tenant role read a table whose rows belong to nobody in particular (pools, flavors, views)."""
    op.execute(f"GRANT SELECT ON {schema}.{table} TO millpond_{schema}_tenant")


_AUDIT_INDEXES = """
CREATE INDEX IF NOT EXISTS audit_at ON {s}.audit (at);
CREATE INDEX IF NOT EXISTS audit_actor ON {s}.audit (actor, id);
CREATE INDEX IF NOT EXISTS audit_object ON {s}.audit (object, id);
"""

_KERNEL_DDL = """
CREATE SCHEMA IF NOT EXISTS {s};
GRANT USAGE ON SCHEMA {s} TO millpond_{s}_tenant, millpond_{s}_system;
ALTER DEFAULT PRIVILEGES IN SCHEMA {s} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO millpond_{s}_system;
ALTER DEFAULT PRIVILEGES IN SCHEMA {s} GRANT USAGE ON SEQUENCES TO millpond_{s}_system, millpond_{s}_tenant;

CREATE TABLE {s}.outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq bigint,
    event_id uuid NOT NULL,
    type text NOT NULL,
    subject text NOT NULL,
    tenant_id uuid,
    generation bigint NOT NULL,
    body jsonb NOT NULL,
    happened_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    traceparent text
);
CREATE UNIQUE INDEX outbox_seq ON {s}.outbox (seq);
CREATE INDEX outbox_unnumbered ON {s}.outbox (id) WHERE seq IS NULL;

CREATE TABLE {s}.outbox_counter (name text PRIMARY KEY, last bigint NOT NULL);
INSERT INTO {s}.outbox_counter VALUES ('outbox', 0), ('audit', 0);

CREATE TABLE {s}.cursor (
    consumer text NOT NULL,
    publisher text NOT NULL,
    seq bigint NOT NULL,
    moved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, publisher)
);

CREATE TABLE {s}.dead_letter (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer text NOT NULL,
    publisher text NOT NULL,
    seq bigint NOT NULL,
    envelope jsonb NOT NULL,
    error text NOT NULL,
    parked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    replayed_at timestamptz,
    CONSTRAINT dead_letter_once UNIQUE (consumer, publisher, seq)
);

CREATE TABLE {s}.lease (
    name text PRIMARY KEY,
    holder uuid NOT NULL,
    epoch bigint NOT NULL,
    expires_at timestamptz NOT NULL
);

CREATE TABLE {s}.idempotency (
    tenant_id uuid NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    status smallint,
    body text,
    headers jsonb,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_created ON {s}.idempotency (created_at);

CREATE TABLE {s}.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq bigint,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL,
    role text NOT NULL,
    tenant_id uuid,
    action text NOT NULL,
    object text NOT NULL,
    before jsonb,
    after jsonb,
    request_id text,
    hash bytea
);
CREATE UNIQUE INDEX audit_seq ON {s}.audit (seq);
CREATE INDEX audit_unchained ON {s}.audit (id) WHERE seq IS NULL;
CREATE INDEX audit_at ON {s}.audit (at);
CREATE INDEX audit_actor ON {s}.audit (actor, id);
CREATE INDEX audit_object ON {s}.audit (object, id);

CREATE TABLE {s}.signing_key (
    kid text PRIMARY KEY,
    issuer text NOT NULL,
    public_key bytea NOT NULL,
    private_key bytea,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE {s}.worker_state (
    worker uuid PRIMARY KEY,
    started_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    ready boolean NOT NULL,
    state jsonb NOT NULL,
    pid integer NOT NULL
);

REVOKE DELETE ON {s}.audit FROM millpond_{s}_system;
REVOKE UPDATE ON {s}.audit FROM millpond_{s}_system;
GRANT UPDATE (seq, hash) ON {s}.audit TO millpond_{s}_system;
"""

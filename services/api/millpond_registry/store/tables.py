"""The tables that registry owns, as the migrations made them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from millpond_kernel.tables import NOW, kernel_tables

INSTANT = DateTime(timezone=True)

metadata = MetaData(schema="registry")
kernel_tables(metadata)

# Visible to a tenant when shared or dedicated to it (`tenant_id`); `spec` is the operator's PoolSpec.
pool = Table(
    "pool",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("tenant_id", Uuid, nullable=True),
    Column("spec", JSONB, nullable=False),
    Column("unreachable_after_seconds", Integer, nullable=False),
    Column("shard", Integer, nullable=False, server_default=text("0")),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
    UniqueConstraint("name", name="pool_name"),
)

flavor = Table(
    "flavor",
    metadata,
    Column("name", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("selector", JSONB, nullable=False),
    Column("profiles", ARRAY(Text), nullable=False),
    Column("builtin", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),
)

join_token = Table(
    "join_token",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("pool_id", Uuid, nullable=True),
    Column("expires_at", INSTANT, nullable=False),
    Column("max_uses", Integer, nullable=True),
    Column("uses", Integer, nullable=False, server_default=text("0")),
    Column("market", Text, nullable=False, server_default=text("'on_demand'")),
    Column("labels", JSONB, nullable=False),
    Column("revoked", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
    UniqueConstraint("secret_hash", name="join_token_secret"),
)

# `inventory` is the newest complete report without its devices (rows of their own); `labels` come from the join.
node = Table(
    "node",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("pool_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("public_key", LargeBinary, nullable=False),
    Column("state", Text, nullable=False),
    Column("state_since", INSTANT, nullable=False),
    Column("cordon_reasons", ARRAY(Text), nullable=False),
    Column("drain", JSONB, nullable=True),
    Column("move_to", Uuid, nullable=True),
    Column("market", Text, nullable=False, server_default=text("'on_demand'")),
    Column("incarnation", BigInteger, nullable=False, server_default=text("0")),
    Column("boot_id", Text, nullable=True),
    Column("agent_version", Text, nullable=True),
    Column("labels", JSONB, nullable=False),
    Column("inventory", JSONB, nullable=False),
    Column("inventory_sequence", BigInteger, nullable=True),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
)
_NOT_REMOVED = text("state <> 'removed'")
Index("node_key", node.c.public_key, unique=True, postgresql_where=_NOT_REMOVED)
Index("node_name", node.c.pool_id, node.c.name, unique=True, postgresql_where=_NOT_REMOVED)

# Apart from the node's row: a heartbeat neither waits for a change of the node nor rewrites its inventory.
heartbeat = Table(
    "heartbeat",
    metadata,
    Column("node_id", Uuid, ForeignKey("registry.node.id", ondelete="CASCADE"), primary_key=True),
    Column("at", INSTANT, nullable=False),
)

device = Table(
    "device",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("node_id", Uuid, ForeignKey("registry.node.id", ondelete="CASCADE"), nullable=False),
    Column("identity", Text, nullable=False),
    Column("flavor", Text, nullable=False),
    Column("health", Text, nullable=False),
    Column("health_reason", Text, nullable=True),
    Column("reported", Boolean, nullable=False),
    Column("report", JSONB, nullable=False),
    Column("last_seen_at", INSTANT, nullable=False),
    UniqueConstraint("node_id", "identity", name="device_identity"),
)

challenge = Table(
    "challenge",
    metadata,
    Column("nonce", Text, primary_key=True),
    Column("node_id", Uuid, ForeignKey("registry.node.id", ondelete="CASCADE"), nullable=False),
    Column("expires_at", INSTANT, nullable=False),
)
Index("challenge_node", challenge.c.node_id)

condition = Table(
    "condition",
    metadata,
    Column("node_id", Uuid, ForeignKey("registry.node.id", ondelete="CASCADE"), primary_key=True),
    Column("target", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("evidence", Text, nullable=False),
    Column("opened_at", INSTANT, nullable=False),
    Column("closed_at", INSTANT, nullable=True),
)

# View of the scheduler's allocations: what each holds of its node. Released rows stay a while: nothing revives them.
allocation = Table(
    "allocation",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("node_id", Uuid, nullable=False),
    Column("cpu_milli", BigInteger, nullable=False),
    Column("memory_mib", BigInteger, nullable=False),
    Column("devices", JSONB, nullable=False),
    Column("released", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("updated_at", INSTANT, nullable=False, server_default=NOW),
)
Index("allocation_live", allocation.c.node_id, postgresql_where=text("NOT released"))
Index("allocation_released", allocation.c.updated_at, postgresql_where=text("released"))

# Capacity: a mark says that a node must be counted again; a tally is what its pool's figures contain of it.
tally_mark = Table(
    "tally_mark",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("node_id", Uuid, nullable=False),
)
node_tally = Table(
    "node_tally",
    metadata,
    Column("node_id", Uuid, primary_key=True),
    Column("pool_id", Uuid, nullable=False),
    Column("tally", JSONB, nullable=False),
)
Index("node_tally_pool", node_tally.c.pool_id)
capacity = Table(
    "capacity",
    metadata,
    Column("pool_id", Uuid, ForeignKey("registry.pool.id", ondelete="CASCADE"), primary_key=True),
    Column("tally", JSONB, nullable=False),
    Column("as_of", INSTANT, nullable=False, server_default=NOW),
    Column("recounted_at", INSTANT, nullable=True),
    Column("generation", BigInteger, nullable=False),
)

# Nodes that pools lend one another, and what pools are short of; `threshold` is `device/<flavor>`, `cpu` or `memory`.
loan = Table(
    "loan",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("node_id", Uuid, nullable=False),
    Column("from_pool_id", Uuid, nullable=False),
    Column("to_pool_id", Uuid, nullable=False),
    Column("threshold", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("state_since", INSTANT, nullable=False),
    Column("reason", Text, nullable=False),
    Column("asked_at", INSTANT, nullable=False),
    Column("arrived_at", INSTANT, nullable=True),
    Column("due_at", INSTANT, nullable=True),
    Column("ended_at", INSTANT, nullable=True),
    Column("generation", BigInteger, nullable=False),
)
_OPEN_LOAN = text("state IN ('moving', 'lent', 'returning')")
Index("loan_open", loan.c.node_id, unique=True, postgresql_where=_OPEN_LOAN)
Index("loan_from", loan.c.from_pool_id)
Index("loan_to", loan.c.to_pool_id)
shortage = Table(
    "shortage",
    metadata,
    Column("pool_id", Uuid, ForeignKey("registry.pool.id", ondelete="CASCADE"), primary_key=True),
    Column("threshold", Text, primary_key=True),
    Column("low", BigInteger, nullable=False),
    Column("available", BigInteger, nullable=False),
    Column("since", INSTANT, nullable=False),
)

"""The tables that the autoscaler owns, as the migrations made them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
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

metadata = MetaData(schema="autoscaler")
kernel_tables(metadata)

scaling_policy = Table(
    "scaling_policy",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("pool_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("flavor", Text, nullable=False),
    Column("template", JSONB, nullable=False),
    Column("rules", JSONB, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("deleted", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
)
_NOT_DELETED = text("NOT deleted")
Index(
    "scaling_policy_flavor",
    scaling_policy.c.pool_id,
    scaling_policy.c.flavor,
    unique=True,
    postgresql_where=_NOT_DELETED,
)
Index("scaling_policy_name", scaling_policy.c.name, unique=True, postgresql_where=_NOT_DELETED)

# What a decision needs of the past, so that a restart changes nothing. `watched_at` = the last look at the load;
# `orders` numbers the orders; `told` = rule and code of the last decision that was kept.
policy_state = Table(
    "policy_state",
    metadata,
    Column("policy_id", Uuid, ForeignKey("autoscaler.scaling_policy.id"), primary_key=True),
    Column("low_since", INSTANT, nullable=True),
    Column("watched_at", INSTANT, nullable=True),
    Column("last_out_at", INSTANT, nullable=True),
    Column("last_in_at", INSTANT, nullable=True),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("retry_at", INSTANT, nullable=True),
    Column("stock_out_until", INSTANT, nullable=True),
    Column("orders", Integer, nullable=False, server_default=text("0")),
    Column("told", Text, nullable=False, server_default=text("''")),
    CheckConstraint("failures >= 0 AND orders >= 0", name="policy_state_counts"),
)

# Never changed after it was written: with `rules`, `template` and `inputs` it can be decided again.
scaling_decision = Table(
    "scaling_decision",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("policy_id", Uuid, nullable=False),
    Column("policy", Text, nullable=False),
    Column("pool_id", Uuid, nullable=False),
    Column("flavor", Text, nullable=False),
    Column("decided_at", INSTANT, nullable=False),
    Column("rule", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("code", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("load_ratio", Double, nullable=True),
    Column("rules", JSONB, nullable=False),
    Column("template", JSONB, nullable=False),
    Column("inputs", JSONB, nullable=False),
)
Index("scaling_decision_policy", scaling_decision.c.policy_id, scaling_decision.c.id)

# One node asked of a provider; the row is durable before the provider is asked, its id is the node's tag.
node_order = Table(
    "node_order",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("policy_id", Uuid, ForeignKey("autoscaler.scaling_policy.id"), nullable=False),
    Column("decision_id", Uuid, nullable=False),
    Column("pool_id", Uuid, nullable=False),
    Column("flavor", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("template", JSONB, nullable=False),
    Column("state", Text, nullable=False),
    Column("state_since", INSTANT, nullable=False),
    Column("node_id", Uuid, nullable=True),
    Column("register_by", INSTANT, nullable=False),
    Column("joined_at", INSTANT, nullable=True),
    Column("drain_seconds", Integer, nullable=True),
    Column("drain_generation", BigInteger, nullable=True),
    Column("drain_deadline", INSTANT, nullable=True),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("retry_at", INSTANT, nullable=True),
    Column("waits_for", Text, nullable=True),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
    CheckConstraint(
        "state IN ('requested', 'provisioning', 'joined', 'releasing', 'released', 'failed')", name="node_order_state"
    ),
    UniqueConstraint("policy_id", "number", name="node_order_number"),
    UniqueConstraint("node_id", name="node_order_node"),
)
Index(
    "node_order_live",
    node_order.c.policy_id,
    node_order.c.id,
    postgresql_where=text("state NOT IN ('released', 'failed')"),
)

# Views of the registry's and the scheduler's data.
pool_view = Table(
    "pool_view",
    metadata,
    Column("pool_id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),
)
capacity_view = Table(
    "capacity_view",
    metadata,
    Column("pool_id", Uuid, primary_key=True),
    Column("body", JSONB, nullable=False),
    Column("generation", BigInteger, nullable=False),
)
# `flavors` = device identity -> flavor; `order_id` = what the node's label says, if it has one.
node_view = Table(
    "node_view",
    metadata,
    Column("node_id", Uuid, primary_key=True),
    Column("pool_id", Uuid, nullable=False),
    Column("order_id", Text, nullable=True),
    Column("state", Text, nullable=False),
    Column("schedulable", Boolean, nullable=False),
    Column("cordon_reasons", ARRAY(Text), nullable=False),
    Column("drain", JSONB, nullable=True),
    Column("flavors", JSONB, nullable=False),
    Column("generation", BigInteger, nullable=False),
)
Index("node_view_pool", node_view.c.pool_id, postgresql_where=text("state <> 'removed'"))
Index("node_view_order", node_view.c.order_id, postgresql_where=text("order_id IS NOT NULL"))
demand_view = Table(
    "demand_view",
    metadata,
    Column("pool_id", Uuid, primary_key=True),
    Column("body", JSONB, nullable=False),
    Column("generation", BigInteger, nullable=False),
)

signal_window = Table(
    "signal_window",
    metadata,
    Column("window_at", INSTANT, primary_key=True),
    Column("pool_id", Uuid, primary_key=True),
    Column("flavor", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("targets", Integer, nullable=False),
    Column("samples", Integer, nullable=False),
    Column("unknown", Integer, nullable=False),
    Column("mean", Double, nullable=True),
    Column("maximum", Double, nullable=True),
)
Index("signal_window_at", signal_window.c.window_at)

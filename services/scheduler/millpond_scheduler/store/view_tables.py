"""The tables in which the scheduler keeps what other services told: copies that a rebuild loads anew.

`tables` adds those that it owns to the same `metadata`.
"""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB

from millpond_kernel.tables import INSTANT

metadata = MetaData(schema="scheduler")

node_view = Table(
    "node_view",
    metadata,
    Column("node_id", Uuid, primary_key=True),
    Column("pool_id", Uuid, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("drain_generation", BigInteger, nullable=True),
    Column("drain_deadline", INSTANT, nullable=True),
    Column("removed", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),
)

Index("node_view_draining", node_view.c.drain_deadline, postgresql_where=text("drain_generation IS NOT NULL"))

pool_view = Table(
    "pool_view",
    metadata,
    Column("pool_id", Uuid, primary_key=True),
    Column("body", JSONB, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),
)

virtual_pool_view = Table(
    "virtual_pool_view",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("pool_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("limits", JSONB, nullable=False),
    Column("policy", Text, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("reclaim_at", INSTANT, nullable=True),
    Column("preemption", Text, nullable=False, server_default=text("'never'")),
    Column("minimum_runtime_seconds", Integer, nullable=False, server_default=text("0")),
)

reservation_view = Table(
    "reservation_view",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("virtual_pool_id", Uuid, nullable=False),
    Column("flavor", Text, nullable=False),
    Column("device_milli", BigInteger, nullable=False),
    Column("starts_at", INSTANT, nullable=False),
    Column("ends_at", INSTANT, nullable=True),
    Column("cancelled", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),
)

project_view = Table(
    "project_view",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),
)

scaling_policy_view = Table(
    "scaling_policy_view",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("pool_id", Uuid, nullable=False),
    Column("flavor", Text, nullable=False),
    Column("max_nodes", Integer, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),
)

price_view = Table(
    "price_view",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=True),
    Column("valid_from", INSTANT, nullable=False),
    Column("valid_to", INSTANT, nullable=True),
    Column("generation", BigInteger, nullable=False),
    Column("currency", Text, nullable=True),
    Column("minimum_seconds", Integer, nullable=True),
    Column("lines", JSONB, nullable=True),
)

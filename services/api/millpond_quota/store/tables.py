"""The tables that quota owns, as the migrations made them."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, MetaData, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB

from millpond_kernel.tables import INSTANT, NOW, kernel_tables

metadata = MetaData(schema="quota")
kernel_tables(metadata)

tenant = Table(
    "tenant",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("timezone", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("labels", JSONB, nullable=False),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
)
Index("tenant_name", tenant.c.name, unique=True, postgresql_where=text("state <> 'deleted'"))

project = Table(
    "project",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("labels", JSONB, nullable=False),
    Column("deleted", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
)
Index("project_name", project.c.tenant_id, project.c.name, unique=True, postgresql_where=text("NOT deleted"))

api_key = Table(
    "api_key",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=True),
    Column("project_id", Uuid, nullable=True),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("expires_at", INSTANT, nullable=True),
    Column("revoked_at", INSTANT, nullable=True),
    Column("last_used_at", INSTANT, nullable=True),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
)
Index("api_key_tenant", api_key.c.tenant_id, api_key.c.id)

virtual_pool = Table(
    "virtual_pool",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("pool_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("limits", JSONB, nullable=False),
    Column("policy", Text, nullable=False),
    Column("labels", JSONB, nullable=False),
    Column("deleted", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
    Column("reclaim_at", INSTANT, nullable=True),
    Column("preemption", Text, nullable=False, server_default=text("'never'")),
    Column("minimum_runtime_seconds", Integer, nullable=False, server_default=text("0")),
)
Index(
    "virtual_pool_name",
    virtual_pool.c.tenant_id,
    virtual_pool.c.name,
    unique=True,
    postgresql_where=text("NOT deleted"),
)
Index("virtual_pool_pool", virtual_pool.c.pool_id)

reservation = Table(
    "reservation",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("virtual_pool_id", Uuid, nullable=False),
    Column("pool_id", Uuid, nullable=False),
    Column("flavor", Text, nullable=False),
    Column("device_milli", BigInteger, nullable=False),
    Column("starts_at", INSTANT, nullable=False),
    Column("ends_at", INSTANT, nullable=True),
    Column("labels", JSONB, nullable=False),
    Column("cancelled_at", INSTANT, nullable=True),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
)
Index(
    "reservation_pool",
    reservation.c.pool_id,
    reservation.c.flavor,
    postgresql_where=text("cancelled_at IS NULL"),
)
Index("reservation_virtual_pool", reservation.c.virtual_pool_id, reservation.c.id)

limit_alert = Table(
    "limit_alert",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("virtual_pool_id", Uuid, nullable=False),
    Column("resource", Text, nullable=False),
    Column("flavor", Text, nullable=True),
    Column("used", BigInteger, nullable=False),
    Column("hard", BigInteger, nullable=False),
    Column("missing", BigInteger, nullable=False),
    Column("opened_at", INSTANT, nullable=False),
    Column("closed_at", INSTANT, nullable=True),
)
Index(
    "limit_alert_open",
    limit_alert.c.virtual_pool_id,
    limit_alert.c.resource,
    text("coalesce(flavor, '')"),
    unique=True,
    postgresql_where=text("closed_at IS NULL"),
)

pool_view = Table(
    "pool_view",
    metadata,
    Column("pool_id", Uuid, primary_key=True),
    Column("body", JSONB, nullable=False),
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

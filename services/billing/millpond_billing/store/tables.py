"""The tables that billing owns, as the migrations made them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, ExcludeConstraint

from millpond_kernel.tables import INSTANT, NOW, kernel_tables

metadata = MetaData(schema="billing")
kernel_tables(metadata)

price_version = Table(
    "price_version",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("price_book_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=True),
    Column("currency", Text, nullable=False),
    Column("valid_from", INSTANT, nullable=False),
    Column("valid_to", INSTANT, nullable=True),
    Column("minimum_seconds", Integer, nullable=False),
    Column("lines", JSONB, nullable=False),
    Column("note", Text, nullable=False),
    Column("example", Boolean, nullable=False),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
    CheckConstraint("valid_to IS NULL OR valid_to > valid_from", name="price_version_ends_after_start"),
    ExcludeConstraint(
        (text("coalesce(tenant_id, '00000000-0000-0000-0000-000000000000'::uuid)"), "="),
        (func.tstzrange(text("valid_from"), text("valid_to")), "&&"),
        name="price_version_no_overlap",
        using="gist",
    ),
)

tenant_view = Table(
    "tenant_view",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("body", JSONB, nullable=False),
    Column("generation", BigInteger, nullable=False),
)

allocation_view = Table(
    "allocation_view",
    metadata,
    Column("allocation_id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("bound_at", INSTANT, nullable=False),
    Column("active_at", INSTANT, nullable=True),
    Column("released_at", INSTANT, nullable=True),
    Column("generation", BigInteger, nullable=False),
)
Index(
    "allocation_view_open",
    allocation_view.c.tenant_id,
    allocation_view.c.allocation_id,
    postgresql_where=text("released_at IS NULL"),
)

segment = Table(
    "segment",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("allocation_id", Uuid, nullable=False),
    Column("kind", Text, nullable=False),
    Column("sku", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("start_at", INSTANT, nullable=False),
    Column("end_at", INSTANT, nullable=False),
    Column("seconds", BigInteger, nullable=False),
    Column("list_version_id", Uuid, nullable=False),
    Column("list_unit_price", Numeric(38, 18), nullable=False),
    Column("price_version_id", Uuid, nullable=False),
    Column("unit_price", Numeric(38, 18), nullable=False),
    Column("per_hour", Numeric(38, 9), nullable=False),
    Column("currency", Text, nullable=False),
    Column("rated_at", INSTANT, nullable=False, server_default=NOW),
    CheckConstraint("kind = 'minimum' OR end_at > start_at", name="segment_has_length"),
    CheckConstraint("amount > 0 AND seconds >= 0", name="segment_amounts"),
    UniqueConstraint("allocation_id", "sku", "kind", "start_at", name="segment_once"),
    ExcludeConstraint(
        (text("allocation_id"), "="),
        (text("sku"), "="),
        (func.tstzrange(text("start_at"), text("end_at")), "&&"),
        name="segment_no_overlap",
        using="gist",
        where=text("kind <> 'minimum'"),
    ),
)
Index("segment_tenant_start", segment.c.tenant_id, segment.c.start_at, segment.c.id)

charge = Table(
    "charge",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("segment_id", Uuid, nullable=False),
    Column("allocation_id", Uuid, nullable=False),
    Column("job_id", Uuid, nullable=False),
    Column("project_id", Uuid, nullable=True),
    Column("pool_id", Uuid, nullable=False),
    Column("node_id", Uuid, nullable=False),
    Column("kind", Text, nullable=False),
    Column("seconds", BigInteger, nullable=False),
    Column("amount", Numeric(48, 24), nullable=False),
    Column("start_at", INSTANT, nullable=False),
    UniqueConstraint("segment_id", "kind", name="charge_once"),
)
Index("charge_tenant_start", charge.c.tenant_id, charge.c.start_at, charge.c.id)

statement = Table(
    "statement",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("state", Text, nullable=False),
    Column("number", BigInteger, nullable=True),
    Column("period_number", Integer, nullable=False),
    Column("period_start", INSTANT, nullable=False),
    Column("period_end", INSTANT, nullable=False),
    Column("timezone", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("body", JSONB, nullable=True),
    Column("digest", Text, nullable=True),
    Column("queued_at", INSTANT, nullable=False, server_default=NOW),
    Column("closed_at", INSTANT, nullable=True),
    UniqueConstraint("tenant_id", "period_start", name="statement_once"),
    UniqueConstraint("number", name="statement_number"),
)

statement_counter = Table(
    "statement_counter",
    metadata,
    Column("series", Text, primary_key=True),
    Column("last", BigInteger, nullable=False),
)

export = Table(
    "export",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("format", Text, nullable=False),
    Column("period_start", INSTANT, nullable=False),
    Column("period_end", INSTANT, nullable=False),
    Column("state", Text, nullable=False),
    Column("rows", BigInteger, nullable=True),
    Column("bytes", BigInteger, nullable=True),
    Column("digest", Text, nullable=True),
    Column("error", Text, nullable=True),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("touched_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
)
Index("export_tenant", export.c.tenant_id, export.c.id)

capacity_span = Table(
    "capacity_span",
    metadata,
    Column("node_id", Uuid, primary_key=True),
    Column("item", Text, primary_key=True),
    Column("start_at", INSTANT, primary_key=True),
    Column("end_at", INSTANT, nullable=True),
    Column("sku", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("available", Boolean, nullable=False),
    CheckConstraint("end_at IS NULL OR end_at > start_at", name="capacity_span_has_length"),
)

node_view = Table(
    "node_view",
    metadata,
    Column("node_id", Uuid, primary_key=True),
    Column("pool_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
)

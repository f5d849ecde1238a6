"""The tables that billing owns, as the migrations made them."""

from sqlalchemy import (
    ARRAY,
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
    Column("node_id", Uuid, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("bound_at", INSTANT, nullable=False),
    Column("active_at", INSTANT, nullable=True),
    Column("released_at", INSTANT, nullable=True),
    # Why a released allocation is not rated yet; null = it is.
    Column("unrated", Text, nullable=True),
    Column("generation", BigInteger, nullable=False),
)
Index(
    "allocation_view_open",
    allocation_view.c.tenant_id,
    allocation_view.c.allocation_id,
    postgresql_where=text("released_at IS NULL"),
)
Index("allocation_view_unrated", allocation_view.c.tenant_id, postgresql_where=text("unrated IS NOT NULL"))
Index("allocation_view_node", allocation_view.c.node_id, allocation_view.c.bound_at)

# A segment with its exact charges by cause; null = no such charge.
segment = Table(
    "segment",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("project_id", Uuid, nullable=True),
    Column("job_id", Uuid, nullable=False),
    Column("task_id", Uuid, nullable=False),
    Column("allocation_id", Uuid, nullable=False),
    Column("virtual_pool_id", Uuid, nullable=False),
    Column("pool_id", Uuid, nullable=False),
    Column("node_id", Uuid, nullable=False),
    Column("kind", Text, nullable=False),
    Column("sku", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("start_at", INSTANT, nullable=False),
    Column("end_at", INSTANT, nullable=False),
    Column("seconds", BigInteger, nullable=False),
    Column("list_version_id", Uuid, nullable=False),
    Column("list_unit_price", Numeric(38, 18), nullable=False),
    Column("list_per_hour", Numeric(38, 9), nullable=False),
    Column("price_version_id", Uuid, nullable=False),
    Column("unit_price", Numeric(38, 18), nullable=False),
    Column("per_hour", Numeric(38, 9), nullable=False),
    Column("currency", Text, nullable=False),
    Column("usage", Numeric(48, 24), nullable=True),
    Column("round_up", Numeric(48, 24), nullable=True),
    Column("minimum", Numeric(48, 24), nullable=True),
    Column("price_difference", Numeric(48, 24), nullable=True),
    Column("waiver", Numeric(48, 24), nullable=True),
    Column("rated_at", INSTANT, nullable=False, server_default=NOW),
    CheckConstraint(
        "CASE kind WHEN 'minimum' THEN end_at = start_at ELSE end_at > start_at END", name="segment_has_length"
    ),
    CheckConstraint("amount > 0 AND seconds >= 0", name="segment_amounts"),
    CheckConstraint(
        "coalesce(usage, 0) + coalesce(round_up, 0) + coalesce(minimum, 0) + coalesce(price_difference, 0)"
        " + coalesce(waiver, 0) = CASE kind WHEN 'waived' THEN 0 ELSE unit_price * amount * seconds END",
        name="segment_charges_add_up",
    ),
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
Index("segment_job_start", segment.c.job_id, segment.c.start_at, segment.c.id)

# What a later fact changes of a period that is closed or rated: carried by the statement of `period_start`.
adjustment = Table(
    "adjustment",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("allocation_id", Uuid, nullable=False),
    Column("sku", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("original_number", Integer, nullable=False),
    Column("original_start", INSTANT, nullable=False),
    Column("original_end", INSTANT, nullable=False),
    Column("period_start", INSTANT, nullable=False),
    Column("seconds", BigInteger, nullable=False),
    Column("amount", Numeric(48, 24), nullable=False),
    Column("currency", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("posted_at", INSTANT, nullable=False, server_default=NOW),
)
Index("adjustment_tenant_period", adjustment.c.tenant_id, adjustment.c.period_start, adjustment.c.id)
Index("adjustment_allocation", adjustment.c.allocation_id)

anomaly = Table(
    "anomaly",
    metadata,
    Column("allocation_id", Uuid, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("detail", Text, primary_key=True),
    Column("found_at", INSTANT, nullable=False, server_default=NOW),
)

# A tenant's periods without gap or overlap, each with its statement: open, queued to be closed, closed.
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
    Column("body", JSONB, nullable=True),
    Column("digest", Text, nullable=True),
    Column("queued_at", INSTANT, nullable=True),
    Column("closed_at", INSTANT, nullable=True),
    CheckConstraint("state IN ('open', 'queued', 'closed')", name="statement_state"),
    CheckConstraint(
        "(state = 'closed') = (number IS NOT NULL AND body IS NOT NULL AND digest IS NOT NULL"
        " AND closed_at IS NOT NULL)",
        name="statement_closed_whole",
    ),
    UniqueConstraint("tenant_id", "period_start", name="statement_once"),
    UniqueConstraint("tenant_id", "period_number", name="statement_period_number"),
    UniqueConstraint("number", name="statement_number"),
    ExcludeConstraint(
        (text("tenant_id"), "="),
        (func.tstzrange(text("period_start"), text("period_end")), "&&"),
        name="statement_no_overlap",
        using="gist",
    ),
)
Index("statement_unclosed", statement.c.period_end, postgresql_where=text("state <> 'closed'"))

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
    # What was known when its building began, and where it goes on: a worker may be killed at any moment.
    Column("as_of", INSTANT, nullable=True),
    Column("running", ARRAY(Uuid), nullable=True),
    Column("place", Text, nullable=True),
    # Beginnings since it last got on.
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("expires_at", INSTANT, nullable=True),
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
    # Null = from before they were kept; the node's present pool, and on demand.
    Column("pool_id", Uuid, nullable=True),
    Column("market", Text, nullable=True),
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

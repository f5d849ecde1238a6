"""The tables that scheduler owns, as the migrations made them; CHECKs and triggers stand in the migration alone."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from millpond_kernel.tables import INSTANT, NOW, kernel_tables
from millpond_scheduler.store.view_tables import metadata

kernel_tables(metadata)
# The trail of one allocation or job, which people follow from a bill's line.
_outbox = metadata.tables["scheduler.outbox"]
Index("outbox_subject", _outbox.c.subject, _outbox.c.seq)

job = Table(
    "job",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("project_id", Uuid, nullable=True),
    Column("virtual_pool_id", Uuid, nullable=False),
    Column("pool_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("labels", JSONB, nullable=False),
    Column("spec", JSONB, nullable=False),
    Column("state", Text, nullable=False),
    Column("state_since", INSTANT, nullable=False, server_default=NOW),
    Column("reason", Text, nullable=True),
    Column("message", Text, nullable=True),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("started_at", INSTANT, nullable=True),
    Column("ended_at", INSTANT, nullable=True),
    Column("generation", BigInteger, nullable=False),
)

Index("job_tenant", job.c.tenant_id, job.c.id)

Index("job_unfinished", job.c.tenant_id, job.c.id, postgresql_where=text("state IN ('pending', 'running')"))

Index("job_pending", job.c.virtual_pool_id, job.c.priority.desc(), job.c.id, postgresql_where=text("state = 'pending'"))

task = Table(
    "task",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("job_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("virtual_pool_id", Uuid, nullable=False),
    Column("group_name", Text, nullable=False),
    Column("index", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("queued_at", INSTANT, nullable=False, server_default=NOW),
    Column("state", Text, nullable=False),
    Column("state_since", INSTANT, nullable=False, server_default=NOW),
    Column("allocation_id", Uuid, nullable=True),
    Column("reason", Text, nullable=True),
    Column("message", Text, nullable=True),
    Column("exit_code", Integer, nullable=True),
    UniqueConstraint("job_id", "group_name", "index", name="task_place"),
    Column("failed_on", Uuid, nullable=True),
    Column("work", BigInteger, nullable=True),
)

Index(
    "task_pending",
    task.c.virtual_pool_id,
    task.c.priority.desc(),
    task.c.queued_at,
    task.c.id,
    postgresql_where=text("state = 'pending'"),
)

allocation = Table(
    "allocation",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("project_id", Uuid, nullable=True),
    Column("virtual_pool_id", Uuid, nullable=False),
    Column("pool_id", Uuid, nullable=False),
    Column("node_id", Uuid, nullable=False),
    Column("job_id", Uuid, nullable=False),
    Column("job_name", Text, nullable=False),
    Column("labels", JSONB, nullable=False),
    Column("task_id", Uuid, nullable=False),
    Column("group_name", Text, nullable=False),
    Column("index", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("cpu_milli", BigInteger, nullable=False),
    Column("memory_mib", BigInteger, nullable=False),
    Column("flavor", Text, nullable=True),
    Column("devices", JSONB, nullable=False),
    Column("term", Text, nullable=False, server_default=text("'on_demand'")),
    Column("price_version_id", Uuid, nullable=True),
    Column("stop_grace_seconds", Integer, nullable=False),
    Column("time_limit_seconds", Integer, nullable=True),
    Column("state", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("bound_at", INSTANT, nullable=False),
    Column("active_at", INSTANT, nullable=True),
    Column("stop_requested_at", INSTANT, nullable=True),
    Column("stop_reason", Text, nullable=True),
    Column("waived_from", INSTANT, nullable=True),
    Column("released_at", INSTANT, nullable=True),
    Column("reason", Text, nullable=True),
    Column("exit_code", Integer, nullable=True),
    Column("last_sequence", BigInteger, nullable=False, server_default=text("0")),
    Column("order_sent_at", INSTANT, nullable=True),
    Column("missing_since", INSTANT, nullable=True),
    Column("generation", BigInteger, nullable=False),
    Column("priority", Integer, nullable=False, server_default=text("50")),
    Column("gang", Boolean, nullable=False, server_default=text("false")),
    Column("gang_end", Text, nullable=True),
    Column("claimed_by", Uuid, nullable=True),
)

Index("allocation_one_per_task", allocation.c.task_id, unique=True, postgresql_where=text("state <> 'released'"))

Index("allocation_live", allocation.c.node_id, postgresql_where=text("state <> 'released'"))

Index("allocation_ordered", allocation.c.node_id, postgresql_where=text("state IN ('bound', 'releasing')"))

Index(
    "allocation_limited",
    allocation.c.active_at,
    postgresql_where=text("state = 'active' AND time_limit_seconds IS NOT NULL"),
)

Index("allocation_job", allocation.c.job_id, allocation.c.id)

Index("allocation_tenant", allocation.c.tenant_id, allocation.c.id)

verdict = Table(
    "verdict",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("dominant", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("as_of", INSTANT, nullable=False),
    Column("position", Integer, nullable=True),
)

log = Table(
    "log",
    metadata,
    Column("allocation_id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("task_id", Uuid, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("next_offset", BigInteger, nullable=False, server_default=text("0")),
    Column("ended", Boolean, nullable=False, server_default=text("false")),
    Column("cut", Boolean, nullable=False, server_default=text("false")),
    Column("updated_at", INSTANT, nullable=False, server_default=NOW),
    UniqueConstraint("task_id", "attempt", name="log_attempt"),
)

Index("log_age", log.c.updated_at)

change = Table(
    "change",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("object_id", Uuid, nullable=False),
)

shard_state = Table(
    "shard_state",
    metadata,
    Column("shard", Integer, primary_key=True),
    Column("decided_at", INSTANT, nullable=False),
)

# What waits in each pool and only capacity holds back, as it was told last.
demand = Table(
    "demand",
    metadata,
    Column("pool_id", Uuid, primary_key=True),
    Column("shapes", JSONB, nullable=False),
    Column("as_of", INSTANT, nullable=False),
    Column("generation", BigInteger, nullable=False),
)

# Pools of which so many nodes are silent together that their work is not given up.
evacuation_freeze = Table(
    "evacuation_freeze",
    metadata,
    Column("pool_id", Uuid, primary_key=True),
    Column("silent", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("since", INSTANT, nullable=False),
)

node_guard = Table(
    "node_guard",
    metadata,
    Column("node_id", Uuid, primary_key=True),
    Column("pool_id", Uuid, nullable=False),
    Column("open", Boolean, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("layout", BigInteger, nullable=False),
    Column("shrunk", Boolean, nullable=False, server_default=text("false")),
    Column("total_cpu_milli", BigInteger, nullable=False),
    Column("total_memory_mib", BigInteger, nullable=False),
    Column("device_count", Integer, nullable=False),
    Column("device_ids", ARRAY(Text), nullable=False),
    Column("total_mib", ARRAY(Integer), nullable=False),
    Column("free_cpu_milli", BigInteger, nullable=False),
    Column("free_memory_mib", BigInteger, nullable=False),
    Column("free_milli", ARRAY(Integer), nullable=False),
    Column("free_mib", ARRAY(Integer), nullable=False),
    Column("slot_counts", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("free_slots", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    Column("emptied_generation", BigInteger, nullable=True),
    Column("quarantined_at", INSTANT, nullable=True),
)

# Jobs that failed on a node as soon as they had started; `forgiven` once the node has worked since.
fast_failure = Table(
    "fast_failure",
    metadata,
    Column("node_id", Uuid, primary_key=True),
    Column("job_id", Uuid, primary_key=True),
    Column("at", INSTANT, nullable=False),
    Column("forgiven", Boolean, nullable=False, server_default=text("false")),
)
Index("fast_failure_job", fast_failure.c.job_id)

# What was stopped for other work within the hour.
eviction = Table(
    "eviction",
    metadata,
    Column("allocation_id", Uuid, primary_key=True),
    Column("task_id", Uuid, nullable=False),
    Column("claimant_id", Uuid, nullable=False),
    Column("at", INSTANT, nullable=False),
)
Index("eviction_age", eviction.c.at)

# Moves ordered so that a waiting job starts; and each of them, open until its task stands somewhere again.
move_order = Table(
    "move_order",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("job_id", Uuid, nullable=False),
    Column("pool_id", Uuid, nullable=False),
    Column("plan", Text, nullable=False),
    Column("max_moves", Integer, nullable=False),
    Column("cool_down_seconds", Integer, nullable=False),
    Column("ordered_by", Text, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'requested'")),
    Column("message", Text, nullable=True),
    Column("requested_at", INSTANT, nullable=False, server_default=NOW),
    Column("settled_at", INSTANT, nullable=True),
)
Index("move_order_open", move_order.c.job_id, unique=True, postgresql_where=text("settled_at IS NULL"))
Index("move_order_job", move_order.c.job_id, move_order.c.id)

move = Table(
    "move",
    metadata,
    Column("allocation_id", Uuid, primary_key=True),
    Column("order_id", Uuid, nullable=False),
    Column("task_id", Uuid, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("job_id", Uuid, nullable=False),
    Column("from_node_id", Uuid, nullable=False),
    Column("to_node_id", Uuid, nullable=False),
    Column("lost_seconds", BigInteger, nullable=False),
    Column("ordered_at", INSTANT, nullable=False),
    Column("result", Text, nullable=True),
    Column("ended_at", INSTANT, nullable=True),
)
Index("move_open", move.c.task_id, unique=True, postgresql_where=text("result IS NULL"))
Index("move_of_order", move.c.order_id)
Index("move_of_job", move.c.job_id)

usage = Table(
    "usage",
    metadata,
    Column("virtual_pool_id", Uuid, primary_key=True),
    Column("resource", Text, primary_key=True),
    Column("flavor", Text, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("used", BigInteger, nullable=False, server_default=text("0")),
    Column("guaranteed", BigInteger, nullable=False),
    Column("hard", BigInteger, nullable=False),
    Column("limit_generation", BigInteger, nullable=False),
)

node_lease = Table(
    "node_lease",
    metadata,
    Column("node_id", Uuid, primary_key=True),
    Column("incarnation", BigInteger, nullable=False),
    Column("renewed_at", INSTANT, nullable=False),
    Column("leased_until", INSTANT, nullable=False),
    Column("silent", Boolean, nullable=False, server_default=text("false")),
    Column("boot_id", Text, nullable=False),
    Column("exchange_at", INSTANT, nullable=False),
    Column("exchange_monotonic_ms", BigInteger, nullable=False),
    Column("previous_boot_id", Text, nullable=True),
    Column("previous_exchange_at", INSTANT, nullable=True),
    Column("previous_exchange_monotonic_ms", BigInteger, nullable=True),
)

admission = Table(
    "admission",
    metadata,
    Column("virtual_pool_id", Uuid, primary_key=True),
    Column("resource", Text, primary_key=True),
    Column("flavor", Text, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("blocked", Boolean, nullable=False),
    Column("used", BigInteger, nullable=False),
    Column("hard", BigInteger, nullable=False),
    Column("missing", BigInteger, nullable=False),
    Column("changed_at", INSTANT, nullable=False, server_default=NOW),
    Column("generation", BigInteger, nullable=False),
)

packing = Table(
    "packing",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("pool_id", Uuid, nullable=False),
    Column("state", Text, nullable=False),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("result", JSONB, nullable=True),
    Column("demand", JSONB, nullable=True),
    Column("error", Text, nullable=True),
    Column("created_at", INSTANT, nullable=False, server_default=NOW),
    Column("handed_at", INSTANT, nullable=False, server_default=NOW),
    Column("begun_at", INSTANT, nullable=True),
    Column("ready_at", INSTANT, nullable=True),
    Column("accepted_at", INSTANT, nullable=True),
    Column("accepted_by", Text, nullable=True),
    Column("generation", BigInteger, nullable=False),
)

Index("packing_under_way", packing.c.pool_id, unique=True, postgresql_where=text("state IN ('queued', 'running')"))

Index("packing_in_force", packing.c.pool_id, unique=True, postgresql_where=text("state = 'accepted'"))

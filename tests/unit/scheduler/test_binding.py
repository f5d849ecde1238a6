"""The event of a bind is put together as text: it must be what its model says."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_contracts.bodies.allocations import AllocationState, AllocationView, DeviceShare
from millpond_contracts.events.scheduler import AllocationBound
from millpond_contracts.ids import (
    AllocationId,
    DeviceId,
    JobId,
    NodeId,
    PoolId,
    PriceVersionId,
    ProjectId,
    TaskId,
    TenantId,
    VirtualPoolId,
)
from millpond_scheduler.domain.plans import DevicePick
from millpond_scheduler.store.allocations import NewAllocation
from millpond_scheduler.usecases.binding import write_bound, write_share
from millpond_scheduler.usecases.shard import DeviceName

pytestmark = pytest.mark.unit

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INSTANTS = st.datetimes(timezones=st.just(UTC))


def make_new(name: str, labels: dict[str, str], devices: str, *, bare: bool) -> NewAllocation:
    return NewAllocation(
        id=AllocationId.new(),
        tenant=TenantId.new(),
        project=None if bare else ProjectId.new(),
        virtual_pool=VirtualPoolId.new(),
        pool=PoolId.new(),
        node=NodeId.new(),
        job=JobId.new(),
        job_name=name,
        labels=json.dumps(labels),
        task=TaskId.new(),
        group=f"group of {name}",
        place=3,
        attempt=2,
        cpu_milli=1500,
        memory_mib=2048,
        flavor=None if bare else "t4",
        devices=devices,
        price_version=None if bare else PriceVersionId.new(),
        stop_grace_seconds=30,
        time_limit_seconds=None,
        priority=50,
        gang=False,
    )


@given(TEXT, st.dictionaries(TEXT, TEXT, max_size=3), INSTANTS, st.booleans())
def test_bound_event_when_written_as_text_then_what_its_model_says(
    name: str, labels: dict[str, str], bound_at: datetime, bare: bool
) -> None:
    new = make_new(name, labels, "[]", bare=bare)
    written = write_bound(new, 7, bound_at)
    view = AllocationView.model_construct(
        allocation_id=new.id,
        job_id=new.job,
        job_name=name,
        task_id=new.task,
        group=new.group,
        index=3,
        attempt=2,
        tenant_id=new.tenant,
        project_id=new.project,
        virtual_pool_id=new.virtual_pool,
        pool_id=new.pool,
        node_id=new.node,
        cpu_milli=1500,
        memory_mib=2048,
        devices=(),
        price_version_id=new.price_version,
        labels=labels,
        state=AllocationState.BOUND,
        epoch=7,
        bound_at=bound_at,
        generation=1,
    )
    event = AllocationBound.model_construct(allocation=view)
    assert json.loads(written.body) == json.loads(event.model_dump_json(warnings=False))
    assert written[:4] == (event.type, event.subject(), event.tenant(), event.generation_of())
    assert written.happened_at == bound_at


@given(TEXT, st.none() | TEXT, st.sampled_from([0, 4096]))
def test_share_when_written_as_text_then_what_its_model_says(identity: str, uuid: str | None, memory_mib: int) -> None:
    device, key = DeviceName(identity, vendor=identity, place=3, uuid=uuid, flavor="t4"), DeviceId.new()
    share = DeviceShare(
        device_id=key,
        identity=identity,
        vendor=identity,
        index=3,
        uuid=uuid,
        flavor="t4",
        milli=250,
        memory_mib=memory_mib or None,
    )
    written = write_share(str(key), DevicePick(key, 250, memory_mib), {key: device})
    assert json.loads(written) == json.loads(share.model_dump_json())

"""Routes of single tasks."""

from fastapi import APIRouter, Request

from millpond_contracts.bodies.jobs import TaskView
from millpond_contracts.ids import TaskId
from millpond_kernel.app import Kernel
from millpond_kernel.auth import ReaderCaller
from millpond_scheduler.store import tasks

router = APIRouter(prefix="/v1/tasks", tags=["tasks"])


@router.get("/{task_id}")
async def get_task(request: Request, caller: ReaderCaller, task_id: TaskId) -> TaskView:
    """A task with its latest attempt and that attempt's allocation."""
    kernel: Kernel = request.app.state.kernel
    async with kernel.database.begin(caller.scope) as unit:
        return await tasks.get_task(unit, task_id)

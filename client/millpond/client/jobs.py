"""Jobs: submitting, following, and asking why they wait."""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from millpond.client.calls import act, create, get, get_page
from millpond.client.errors import NotFound, WaitTimeout
from millpond.client.naming import find_id
from millpond.client.nouns import Noun
from millpond_contracts.bodies.jobs import (
    JobBatch,
    JobBatchView,
    JobDetail,
    JobSpec,
    JobState,
    JobView,
    LogPage,
    TaskState,
    TaskView,
)
from millpond_contracts.bodies.moves import MoveOrderSpec, MoveOrderView, MovePlanView
from millpond_contracts.bodies.plans import PlanView
from millpond_contracts.bodies.verdicts import Explanation
from millpond_contracts.ids import JobId, ProjectId, TaskId, TenantId, VirtualPoolId

FINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
JobRef = str | JobId | JobView


class Jobs(Noun):
    """`/v1/jobs`. A job is named by its id, by a view of it, or by its name: the newest of that name is meant."""

    def submit(self, spec: JobSpec) -> JobView:
        """Submits a job; it is queued even when nothing could start it now."""
        return self._send(create("/v1/jobs", spec, JobView))

    def plan(self, spec: JobSpec) -> PlanView:
        """Where the job would start now and what it would cost; nothing is changed or held."""
        return self._send(act("/v1/plans", PlanView, spec))

    def submit_batch(self, specs: Sequence[JobSpec]) -> tuple[JobView, ...]:
        """Submits several jobs, all or none; their views come in the same order."""
        return tuple(self._send(create("/v1/jobs/batch", JobBatch(jobs=tuple(specs)), JobBatchView)).jobs)

    def list(
        self,
        *,
        state: JobState | Sequence[JobState] = (),
        virtual_pool: VirtualPoolId | None = None,
        project: ProjectId | None = None,
        label: str | Sequence[str] = (),
        tenant_id: TenantId | None = None,
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = False,
    ) -> Iterator[JobView]:
        """Jobs, oldest first unless told otherwise.

        Args:
            state: Any of these states.
            virtual_pool: Where they queue.
            project: What they count for.
            label: `key` or `key=value`; of several, all must hold.
            tenant_id: Whose.
            name: Exactly this one.
            since: Submitted from then on.
            until: Submitted before then.
            newest_first: In the other order.
        """
        filters = {
            "state": state,
            "virtual_pool": virtual_pool,
            "project": project,
            "label": label,
            "tenant_id": tenant_id,
            "name": name,
            "since": since,
            "until": until,
            "newest_first": newest_first or None,
        }
        return self._pages(get_page("/v1/jobs", JobView, **filters))

    def get(self, job: JobRef) -> JobDetail:
        """One job with its specification and its tasks."""
        return self._send(get(f"/v1/jobs/{self.id_of(job)}", JobDetail))

    def tasks(
        self, job: JobRef, *, state: TaskState | Sequence[TaskState] = (), group: str | None = None
    ) -> Iterator[TaskView]:
        """Tasks of a job: all, those in any of these states, or those of one group."""
        return self._pages(get_page(f"/v1/jobs/{self.id_of(job)}/tasks", TaskView, state=state, group=group))

    def cancel(self, job: JobRef) -> JobView:
        """Ends a job: what waits ends at once, what runs is stopped with its grace."""
        return self._send(act(f"/v1/jobs/{self.id_of(job)}/cancel", JobView))

    def explain(self, job: JobRef) -> Explanation:
        """Why a job waits, how many nodes are unfit for which reason, and what would help."""
        return self._send(get(f"/v1/jobs/{self.id_of(job)}/explain", Explanation))

    def plan_moves(self, job: JobRef, *, max_moves: int = 8, cool_down_seconds: int = 600) -> MovePlanView:
        """For operators: which running tasks would have to move so that a waiting job starts; nothing is changed."""
        asked = {"max_moves": max_moves, "cool_down_seconds": cool_down_seconds}
        return self._send(get(f"/v1/jobs/{self.id_of(job)}/moves", MovePlanView, **asked))

    def order_moves(self, job: JobRef, spec: MoveOrderSpec) -> MoveOrderView:
        """For operators: carries out the moves of a plan that was seen, as long as they are still the same."""
        return self._send(create(f"/v1/jobs/{self.id_of(job)}/moves", spec, MoveOrderView))

    def list_move_orders(self, job: JobRef) -> Iterator[MoveOrderView]:
        """For operators: what was ordered to move for a job, newest first, and what has become of each move."""
        return self._pages(get_page(f"/v1/jobs/{self.id_of(job)}/move-orders", MoveOrderView))

    def wait(
        self,
        job: JobRef,
        *,
        timeout_seconds: float | None = None,
        poll_seconds: float = 0.5,
        on_look: Callable[[JobDetail], None] = lambda _: None,
    ) -> JobDetail:
        """The job once it has ended.

        Args:
            job: Which one.
            timeout_seconds: How long to wait at most; None = without end.
            poll_seconds: Time between two looks.
            on_look: Called with the job at each look.

        Raises:
            WaitTimeout: it has not ended in time; it goes on.
        """
        job_id = self.id_of(job)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            detail = self.get(job_id)
            on_look(detail)
            if detail.state in FINAL:
                return detail
            if deadline is not None and time.monotonic() + poll_seconds > deadline:
                raise WaitTimeout(
                    f"job {detail.name} ({job_id}) is still {detail.state} after {timeout_seconds:g} s; it goes on",
                    code="client.wait.timeout",
                )
            self._sender.sleep(poll_seconds)

    def log_page(self, job: JobRef, *, task_id: TaskId | None = None, offset: int = 0) -> LogPage:
        """A part of the log of a task's latest attempt, from a byte `offset`; without a task, of the first one."""
        return self._send(get(f"/v1/jobs/{self.id_of(job)}/logs", LogPage, task=task_id, offset=offset))

    def logs(self, job: JobRef, *, task_id: TaskId | None = None) -> str:
        """What a task has printed so far."""
        return "".join(self.read_log(job, task_id=task_id))

    def read_log(self, job: JobRef, *, task_id: TaskId | None = None, follow: bool = False) -> Iterator[str]:
        """The log in pieces; with `follow`, until the task has ended and everything was read."""
        job_id, offset = self.id_of(job), 0
        while True:
            page = self._find_log_page(job_id, task_id, offset)
            if page is not None and page.text:
                yield page.text
            is_forward = page is not None and page.next_offset > offset
            if page is not None:
                offset = page.next_offset
            if is_forward:
                continue
            is_over = page is not None and page.ended
            if is_over or not follow or (page is None and self.get(job_id).state in FINAL):
                return
            self._sender.sleep(0.3)

    def id_of(self, job: JobRef) -> JobId:
        """The id of a job; a name stands for the newest job of that name.

        Raises:
            NotFound: no job has this name.
        """
        if isinstance(job, JobView):
            return job.job_id
        job_id = find_id(JobId, job)
        if job_id is not None:
            return job_id
        # Looked at again, since a service that knows no such filter would answer with any job.
        newest = next((each for each in self.list(name=str(job), newest_first=True) if each.name == job), None)
        if newest is None:
            raise NotFound(f"there is no job {job!r} that these credentials may see", code="client.name.unknown")
        return newest.job_id

    def _find_log_page(self, job_id: JobId, task_id: TaskId | None, offset: int) -> LogPage | None:
        """None while the task has not started anywhere, so that there is no log."""
        try:
            return self.log_page(job_id, task_id=task_id, offset=offset)
        except NotFound as error:
            if error.code == "scheduler.job.not_found":
                raise
            return None

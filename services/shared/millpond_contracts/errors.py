"""Every error code of the API: `<service>.<noun>.<what>`, with its HTTP status and meaning. Never changed or reused.

`kernel.*` codes are shared by all services. The error-code page of the documentation is made from this file.
"""

from enum import StrEnum


class ErrorCode(StrEnum):
    """A stable code; `status` is the HTTP status it is sent with, `meaning` what it says in a few words."""

    status: int
    meaning: str

    def __new__(cls, code: str, status: int, meaning: str) -> "ErrorCode":
        member = str.__new__(cls, code)
        member._value_ = code
        member.status = status
        member.meaning = meaning
        return member

    # kernel: every service
    BODY_INVALID = "kernel.body.invalid", 422, "The request does not match the schema"
    BODY_TOO_LARGE = "kernel.body.too_large", 413, "The request body is too large"
    HEAD_TOO_LARGE = "kernel.head.too_large", 431, "The request line and the headers are too large"
    BODY_NOT_JSON = "kernel.body.not_json", 422, "The request body is not JSON"
    ROUTE_NOT_FOUND = "kernel.route.not_found", 404, "No such route"
    METHOD_NOT_ALLOWED = "kernel.route.method_not_allowed", 405, "The route does not take this method"
    CREDENTIALS_MISSING = "kernel.credentials.missing", 401, "Credentials are missing"
    CREDENTIALS_INVALID = "kernel.credentials.invalid", 401, "Credentials are not valid"
    CREDENTIALS_REVOKED = "kernel.credentials.revoked", 401, "Credentials were revoked or have expired"
    ROLE_FORBIDDEN = "kernel.role.forbidden", 403, "The role of these credentials may not do this"
    IDEMPOTENCY_KEY_MISSING = "kernel.idempotency_key.missing", 400, "Idempotency-Key is missing"
    IDEMPOTENCY_KEY_INVALID = "kernel.idempotency_key.invalid", 400, "Idempotency-Key is not valid"
    IDEMPOTENCY_KEY_IN_FLIGHT = "kernel.idempotency_key.in_flight", 409, "The first request with this key is running"
    IDEMPOTENCY_KEY_REUSED = "kernel.idempotency_key.reused", 422, "The key was used with another request"
    IF_MATCH_MISSING = "kernel.if_match.missing", 428, "If-Match is missing"
    IF_MATCH_STALE = "kernel.if_match.stale", 412, "The object changed since it was read"
    CURSOR_INVALID = "kernel.cursor.invalid", 400, "The cursor is not valid"
    FEED_GONE = "kernel.feed.gone", 410, "The feed no longer reaches back that far"
    DEPENDENCY_AWAY = "kernel.dependency.away", 503, "A part this request needs does not answer"
    RATE_LIMITED = "kernel.rate.limited", 429, "Too many requests"
    INTERNAL = "kernel.internal.error", 500, "An unexpected error"
    OBJECT_NOT_FOUND = "kernel.object.not_found", 404, "No such object"
    NAME_TAKEN = "kernel.name.taken", 409, "The name is in use"
    GENERATION_STALE = "kernel.generation.stale", 409, "The generation is not the current one"

    # registry
    POOL_NOT_FOUND = "registry.pool.not_found", 404, "No such pool"
    POOL_NOT_EMPTY = "registry.pool.not_empty", 409, "The pool still holds nodes"
    POOL_NONE_MATCHES = "registry.pool.none_matches", 409, "No pool takes this node"
    LOAN_NOT_FOUND = "registry.loan.not_found", 404, "No such loan"
    LOAN_STATE = "registry.loan.state", 409, "The loan's state does not allow this"
    NODE_NOT_FOUND = "registry.node.not_found", 404, "No such node"
    NODE_SUPERSEDED = "registry.node.superseded", 409, "A newer session of this node exists"
    NODE_STATE = "registry.node.state", 409, "The node's state does not allow this"
    FLAVOR_NOT_FOUND = "registry.flavor.not_found", 404, "No such flavor"
    FLAVOR_BUILTIN = "registry.flavor.builtin", 409, "The flavor comes with the catalogue"
    DEVICE_NOT_FOUND = "registry.device.not_found", 404, "No such device"
    JOIN_TOKEN_INVALID = "registry.join_token.invalid", 401, "The join token is not valid"
    JOIN_TOKEN_NOT_FOUND = "registry.join_token.not_found", 404, "No such join token"
    SIGNATURE_INVALID = "registry.signature.invalid", 401, "The signature does not fit the node's key"

    # quota
    TENANT_NOT_FOUND = "quota.tenant.not_found", 404, "No such tenant"
    TENANT_NOT_EMPTY = "quota.tenant.not_empty", 409, "The tenant still has virtual pools"
    TIMEZONE_UNKNOWN = "quota.tenant.timezone_unknown", 422, "The time zone is not in the IANA database"
    PROJECT_NOT_FOUND = "quota.project.not_found", 404, "No such project"
    API_KEY_NOT_FOUND = "quota.api_key.not_found", 404, "No such API key"
    API_KEY_ROLE = "quota.api_key.role", 422, "The role does not fit the key's tenant"
    POOL_UNKNOWN = "quota.pool.unknown", 404, "No such pool"
    VIRTUAL_POOL_NOT_FOUND = "quota.virtual_pool.not_found", 404, "No such virtual pool"
    POOL_OVERSUBSCRIBED = "quota.pool.oversubscribed", 409, "The guarantees would exceed the pool's capacity"
    RESERVATION_NOT_FOUND = "quota.reservation.not_found", 404, "No such reservation"
    RESERVATION_WINDOW = "quota.reservation.window", 422, "The window of the reservation has passed"
    RESERVATION_OVER_LIMIT = "quota.reservation.over_limit", 409, "The virtual pool's limit leaves no room for this"
    VIRTUAL_POOL_INVALID = "quota.virtual_pool.invalid", 422, "The settings of the virtual pool contradict one another"
    LIMITS_INVALID = "quota.limits.invalid", 422, "The limits contradict one another"

    # scheduler
    JOB_NOT_FOUND = "scheduler.job.not_found", 404, "No such job"
    JOB_ENDED = "scheduler.job.ended", 409, "The job has ended"
    JOB_NOT_WAITING = "scheduler.job.not_waiting", 409, "No task of the job waits"
    MOVES_NONE = "scheduler.moves.none", 409, "There are no moves to be carried out"
    MOVES_STALE = "scheduler.moves.stale", 409, "The plan of moves is another one by now"
    MOVES_UNDER_WAY = "scheduler.moves.under_way", 409, "Moves for this job are under way"
    JOB_UNPLACEABLE = "scheduler.job.unplaceable", 422, "No node could ever run this"
    TASK_NOT_FOUND = "scheduler.task.not_found", 404, "No such task"
    ALLOCATION_NOT_FOUND = "scheduler.allocation.not_found", 404, "No such allocation"
    ALLOCATION_EPOCH_STALE = "scheduler.allocation.epoch_stale", 409, "The allocation belongs to another epoch"
    VIRTUAL_POOL_UNKNOWN = "scheduler.virtual_pool.unknown", 404, "No such virtual pool"
    PACKING_NOT_FOUND = "scheduler.packing.not_found", 404, "No such proposal"
    PACKING_NOT_READY = "scheduler.packing.not_ready", 409, "There is nothing to accept yet"
    PACKING_NOT_ACCEPTED = "scheduler.packing.not_accepted", 409, "The proposal is not in force"
    PACKING_UNDER_WAY = "scheduler.packing.under_way", 409, "Another proposal for the pool is computed"
    SCHEDULER_POOL_UNKNOWN = "scheduler.pool.unknown", 404, "No such pool"
    LOG_OFFSET_GAP = "scheduler.log.offset_gap", 409, "The log chunk does not continue the log"

    # autoscaler
    SCALING_POLICY_NOT_FOUND = "autoscaler.scaling_policy.not_found", 404, "No such scaling policy"
    SCALING_POLICY_INVALID = "autoscaler.scaling_policy.invalid", 422, "The scaling policy contradicts itself"
    SCALING_POLICY_EXISTS = "autoscaler.scaling_policy.exists", 409, "The pool has a policy for this flavor"
    SCALING_POLICY_IN_USE = "autoscaler.scaling_policy.in_use", 409, "The policy still has nodes"
    SCALING_POOL_UNKNOWN = "autoscaler.pool.unknown", 404, "No such pool"
    SCALING_DECISION_NOT_FOUND = "autoscaler.scaling_decision.not_found", 404, "No such scaling decision"
    NODE_ORDER_NOT_FOUND = "autoscaler.node_order.not_found", 404, "No such node order"

    # billing
    PRICE_BOOK_NOT_FOUND = "billing.price_book.not_found", 404, "No such price book"
    PRICE_IN_THE_PAST = "billing.price.in_the_past", 422, "A price cannot become valid in the past"
    PRICE_OVERLAP = "billing.price.overlap", 409, "Another price is valid at that time"
    STATEMENT_NOT_FOUND = "billing.statement.not_found", 404, "No such statement"
    STATEMENT_PERIOD = "billing.statement.period", 422, "The period is not one of the tenant's"
    EXPORT_NOT_FOUND = "billing.export.not_found", 404, "No such export"
    EXPORT_NOT_READY = "billing.export.not_ready", 409, "The export is not built yet"
    EXPORT_EXPIRED = "billing.export.expired", 410, "The file of the export was deleted"
    EXPORT_RANGE = "billing.export.range", 416, "The file ends before the range that was asked for"

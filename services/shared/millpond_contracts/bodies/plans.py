"""A dry run of a job: where it would start now, how near that hardware is to its needs, and what it would cost."""

from pydantic import Field

from millpond_contracts.bodies.distances import DistanceView
from millpond_contracts.bodies.shapes import Outgoing
from millpond_contracts.bodies.verdicts import Verdict
from millpond_contracts.ids import PoolId, PriceVersionId, VirtualPoolId
from millpond_contracts.quantities import ExactDecimal, Instant, Money
from millpond_contracts.resources import Topology


class RankView(Outgoing):
    """One comparison of the policy, in the order in which it decides; the smaller value went first."""

    name: str
    value: int


class OfferPart(Outgoing):
    """Tasks of one group on devices of one flavor. Amounts are per task; `nodes` counts different nodes.

    `node_names` are shown to operators alone. `topology` tells what all of the nodes have in common.
    `ranks` says why the first of the nodes was the best one.
    A part that waits for the groups `after` it names does not start now: it is looked at as if they had ended.
    """

    group: str
    tasks: int
    flavor: str | None
    nodes: int
    node_names: list[str] = Field(default_factory=list)
    topology: Topology = Topology()
    cpu_milli: int
    memory_mib: int
    device_milli: int
    distance: DistanceView | None
    ranks: list[RankView] = Field(default_factory=list)
    after: list[str] = Field(default_factory=list)


class OfferPrice(Outgoing):
    """One line of a price: `quantity` of `unit` (`device`, `core`, `GiB`) over all tasks that start.

    `unit_per_hour` is for one unit, `per_hour` for the quantity.
    """

    sku: str
    unit: str
    quantity: ExactDecimal
    unit_per_hour: Money
    per_hour: Money
    price_version_id: PriceVersionId


class OfferQuote(Outgoing):
    """What all tasks cost that start now or, by the order of their groups, later: exact, at the tenant's prices.

    `per_hour` is as if all of them ran at the same time.

    `total` = everything at the job's time limit, when each task uses all of it, later prices that are published already
    included; null without a time limit. Each task costs at least `minimum_seconds`. `price_version_id` is what an
    allocation would record if it were bound now.
    """

    per_hour: Money
    total: Money | None
    minimum_seconds: int
    price_version_id: PriceVersionId
    lines: list[OfferPrice]


class Offer(Outgoing):
    """One way in which the job would start now. Nothing is held for it: another job may be faster.

    Of `tasks` tasks `starts_now` would start; figures are of these, and of those that come after them.
    `distance_permille` is that of the furthest part.
    `quote` is null where no price is known. Prices are as shown until `expires_at`, then ask again.
    """

    pool_id: PoolId
    pool: str
    flavors: list[str]
    tasks: int
    starts_now: int
    nodes: int
    distance_permille: int
    parts: list[OfferPart]
    quote: OfferQuote | None
    expires_at: Instant


class PlanView(Outgoing):
    """What would become of a job that is submitted now; the first offer is what the scheduler would do.

    `explanation` says why tasks would wait; null when the first offer starts all of them. `as_of` = when the nodes were
    looked at.
    """

    as_of: Instant
    virtual_pool_id: VirtualPoolId
    pool_id: PoolId
    offers: list[Offer]
    explanation: Verdict | None

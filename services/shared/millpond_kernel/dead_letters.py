"""`python -m millpond_kernel.dead_letters SERVICE [--replay ID]`: shows parked events and applies one of them again."""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.messages import Message
from millpond_kernel.serve import load_worker
from millpond_kernel.streams import Consumer
from millpond_kernel.worker import connected_kernel


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a consumer could not apply, and why."""

    id: int
    consumer: str
    publisher: str
    seq: int
    type: str
    error: str
    parked_at: datetime


class ReplayRefused(Exception):
    """There is no such parked event, or nothing here applies it."""


async def list_dead_letters(database: Database, limit: int = 200) -> list[DeadLetter]:
    """Events that are parked and not yet replayed, oldest first."""
    async with database.begin(SYSTEM) as unit:
        rows = await unit.fetch(
            "SELECT id, consumer, publisher, seq, envelope->>'type' AS type, error, parked_at FROM dead_letter"
            " WHERE replayed_at IS NULL ORDER BY id LIMIT $1",
            limit,
        )
    return [DeadLetter(**dict(row)) for row in rows]


async def replay_dead_letter(database: Database, consumers: Sequence[Consumer], letter_id: int) -> None:
    """Applies a parked event once more, in one transaction with the mark that it was.

    Raises:
        ReplayRefused: it is not parked (any more), or its consumer or handler is gone.
    """
    by_name = {(consumer.name, consumer.publisher): consumer for consumer in consumers}
    async with database.begin(SYSTEM) as unit:
        row = await unit.fetchrow(
            "SELECT consumer, publisher, envelope FROM dead_letter WHERE id = $1 AND replayed_at IS NULL FOR UPDATE",
            letter_id,
        )
        if row is None:
            raise ReplayRefused(f"no event is parked under {letter_id}")
        consumer = by_name.get((row["consumer"], row["publisher"]))
        message = Message.of(row["envelope"])
        if consumer is None or not await consumer.dispatch(unit, message):
            raise ReplayRefused(f"{row['consumer']} of this version does not handle {message.type}")
        await unit.execute("UPDATE dead_letter SET replayed_at = clock_timestamp() WHERE id = $1", letter_id)


def _shown(letter: DeadLetter) -> str:
    return json.dumps(
        {
            "id": letter.id,
            "consumer": letter.consumer,
            "publisher": letter.publisher,
            "seq": letter.seq,
            "type": letter.type,
            "parked_at": letter.parked_at.isoformat(),
            "error": letter.error,
        }
    )


async def _run(service: str, replay: int | None) -> None:
    worker = load_worker(service)
    async with connected_kernel(worker) as kernel:
        if replay is not None:
            consumers, _ = worker.parts(kernel)
            await replay_dead_letter(kernel.database, consumers, replay)
            sys.stdout.write(f"replayed {replay}\n")
            return
        letters = await list_dead_letters(kernel.database)
        for letter in letters:
            sys.stdout.write(_shown(letter) + "\n")
        if not letters:
            # Beside the objects, for the person who asked: a program that reads them still finds none.
            sys.stderr.write(f"no event is parked in {service}\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Prints one JSON object per parked event, or replays one."""
    parser = argparse.ArgumentParser(prog="millpond_kernel.dead_letters", description=__doc__)
    parser.add_argument("service")
    parser.add_argument("--replay", type=int, metavar="ID")
    arguments = parser.parse_args(argv)
    try:
        asyncio.run(_run(arguments.service, arguments.replay))
    except ReplayRefused as error:
        sys.exit(f"not replayed: {error}")


if __name__ == "__main__":
    main()

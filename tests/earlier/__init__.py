"""What an earlier version wrote and promised, and what the present one owes it: `COMMIT` names that version.

`data/` holds its descriptions of the API and of events, without the words for people, and one outbox row of each event
type that its own tests made it write. `python -m tests.earlier.recording` takes them anew from a checkout.
"""

from pathlib import Path

COMMIT = "100f428"
"""The earlier version: what `make upgrade` starts beside the present code, unless FROM names another."""

REVISION = "0019_scheduler_prices"
"""The head of its migrations."""

DATA = Path(__file__).with_name("data")
DOCUMENTS = ("registry", "quota", "scheduler", "autoscaler", "billing", "events")

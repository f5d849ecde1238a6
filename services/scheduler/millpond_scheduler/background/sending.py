"""What the scheduler's background work is called, and through which queue it comes."""

PACKING_TASK = "scheduler.packing"
QUEUE = "scheduler"

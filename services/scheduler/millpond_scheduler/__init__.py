"""Decides where: jobs, queues, allocations; the only writer of who holds which device."""

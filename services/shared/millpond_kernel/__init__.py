"""Plumbing that every service shares: database door, unit of work, outbox, streams, leases, loops, HTTP conventions.

Holds no business noun. May import millpond_contracts and libraries, never a service.
"""

"""Finite work that Celery runs: replays that propose how a pool is packed."""

"""Finite work that Celery runs: closing statements, building exports."""

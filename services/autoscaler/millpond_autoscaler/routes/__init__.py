"""HTTP routes of the autoscaler; no rule lives here. May import usecases and store."""

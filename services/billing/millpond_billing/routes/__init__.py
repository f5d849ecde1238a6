"""HTTP routes of billing; no rule lives here. May import usecases and store."""

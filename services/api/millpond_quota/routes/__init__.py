"""HTTP routes of quota; no rule lives here. May import usecases."""

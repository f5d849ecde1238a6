"""The Python client: calls as values, one sender, one class per noun. Imports the contracts, httpx and nothing else."""

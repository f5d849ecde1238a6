"""SQL of the scheduler: rows in, rows out. May import the domain, the kernel and the contracts."""

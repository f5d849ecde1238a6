"""SQL of the registry service. May import domain, the kernel and the contracts."""

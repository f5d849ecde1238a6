"""SQL of the billing service. May import domain, the kernel and the contracts."""

"""SQL of the quota service. May import domain, the kernel and the contracts."""

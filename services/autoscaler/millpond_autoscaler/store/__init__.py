"""SQL of the autoscaler. May import domain, the kernel and the contracts."""

"""Pure rules of quota. May import the standard library and the contracts."""

"""The control loops of the registry: silent nodes and capacity."""

"""What the registry does with the events of other services."""

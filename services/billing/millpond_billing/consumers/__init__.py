"""What billing does with the events of other services. May import usecases and store."""

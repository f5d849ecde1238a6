"""What the autoscaler keeps of the events of registry and scheduler. May import usecases and store."""

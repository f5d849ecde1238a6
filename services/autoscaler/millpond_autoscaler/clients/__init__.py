"""What the autoscaler asks of registry and scheduler over HTTP."""

"""What the registry tells others without promise: the telemetry stream."""

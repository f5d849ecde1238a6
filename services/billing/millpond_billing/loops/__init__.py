"""Control loops of billing: what is due, and whether metering agrees with what is held."""

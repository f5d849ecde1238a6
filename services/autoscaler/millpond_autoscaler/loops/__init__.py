"""The control loops of the autoscaler: deciding with all that follows from it, and signals."""

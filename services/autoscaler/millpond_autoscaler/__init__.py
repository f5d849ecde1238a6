"""The autoscaler service: decides how much there should be. Policies, decisions with reasons, node orders, signals."""

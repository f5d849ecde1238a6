"""What nodes, devices, flavors, pools and capacity are and how they change: values in, values out.

No I/O, no clock, no session. May import the contracts only.
"""

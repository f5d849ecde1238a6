"""The truth about one machine: processors, memory, accelerators and their state, read without being held up by them.

A vendor's library can hang for ever, so only the probe (`hardware.probe`), a child process with a deadline, loads one.
What is plugged in is told by PCI sysfs; the vendor's library or tool only says more about it. This package may import
the contracts and the standard library; `hardware.nvidia` alone imports a vendor's binding, and only the probe does.
"""

"""(Manifest, Allocation) -> Plan: placement, start and stop lanes, and the reason for each place.

Pure; finds everything that does not fit before it refuses. Never starts, asks or reads anything.
"""

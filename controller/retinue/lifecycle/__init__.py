"""The pure core: what happens next to a replica, when it may start, when it is given up.

Frozen values in, frozen values out. Never does I/O, never reads a clock, has no
randomness: the same event at the same time always gives the same decision.
"""

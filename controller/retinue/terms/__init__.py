"""The vocabulary: ids, phases, events, actions, launch records.

Pure values; never does I/O, never reads a clock. The only door to msgspec.
"""

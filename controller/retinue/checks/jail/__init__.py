"""How warm parent and children confine themselves: namespaces, view of files, limits, system call filter.

Every step raises OSError with the kernel's errno; nothing here decides what to do about it.
Single-threaded callers only: namespaces and privileges are the calling thread's.
"""

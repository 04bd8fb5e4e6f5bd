"""A throwaway real Slurm on one machine: every host is a set of namespaces below one process.

Started and stopped by root (`make cluster`, `make cluster-down`). Standard library only. It changes nothing
outside its state directory: no user, no configuration, no namespace name; its end is the end of one process.
"""

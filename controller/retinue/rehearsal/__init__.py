"""A scripted engine that stands in for any service: real processes, scripted faults, made-up answers.

For trying a manifest before GPUs are spent, and for tests of what a run does when an engine loads for
long, dies, hangs, answers 500, ignores TERM or keeps its memory. What it answers is never worth a score.
"""

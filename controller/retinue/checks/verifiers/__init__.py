"""The verifiers that come with retinue, one module each, all of them plugins as any other.

They run in a single-use process that is killed from outside, so none of them
has a timer, a thread or a signal handler of its own: what hangs is ended and
scores 0. They guard only against what a library gets *wrong*, not against what
it does slowly. The one door to math-verify, sympy and jsonschema.
"""

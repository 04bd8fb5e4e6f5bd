"""The services of a reinforcement-learning run, inside its own allocation.

This module stays empty but for the version: the stub and the keeper import
the package, and what they import is what they weigh.
"""

__version__ = "0.1.0"

"""What was granted: nodes, devices, deadline.

From `SLURM_*`, from a description, or from the machine itself (`machine` alone looks at it).
Never asks Slurm, never decides who gets what.
"""

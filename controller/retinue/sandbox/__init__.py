"""Sandboxes: isolated machines on the job's own nodes, milliseconds each, nothing of the host within reach.

`runtime/` is the program in C that confines and serves each sandbox (static, no dependency); `build` compiles it.
`wire` and `link` talk to it; `space`, `zygote` and `box` are a node, an image and a sandbox as the host sees them.
Never runs anything of a sandbox in the host's own process.
"""

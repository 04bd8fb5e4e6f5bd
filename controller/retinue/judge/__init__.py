"""A judge on the CPU: llama.cpp's own server behind an OpenAI-compatible API, from a package index alone.

For laptops, CI and rehearsals. With the small model that can be fetched it shows that everything around a judge
works; what it judges is chance.
"""

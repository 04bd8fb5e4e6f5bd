"""A user simulator: plays a person with a hidden goal, over a model that speaks the OpenAI API.

It keeps nothing between two requests: the conversation is in each of them. What goes wrong with the person it plays is
its own error, `infra_failed`, and never the policy's. A goal is in no error, no log line and no field of an answer.
"""

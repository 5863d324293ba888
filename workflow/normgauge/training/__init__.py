"""The small models that the pipeline trains itself.

This file imports nothing: planning the workflow reads `recipes` and must not load torch.
"""

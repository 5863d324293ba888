"""Exact recovery: which stored weights the activations of a model determine, bit for bit
(docs/exact_recovery.md).
"""

"""Continuous redundancy: how many directions of a model's parameters leave its function alone,
counted and measured.
"""

"""Signed permutations: the study of what changes of coordinates a transformer does not notice
(docs/signed_permutation.md).
"""

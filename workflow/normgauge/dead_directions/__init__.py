"""Experiments around the fingerprint: what its numbers hang on, and what the dead directions are
good for. See docs/design/dead-directions.md.
"""

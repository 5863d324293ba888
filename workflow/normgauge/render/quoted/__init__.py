"""Figures quoted in prose: declared once in docs/quoted.yaml, read from the tables, compared with
the text or written into it.
"""

"""Every parquet schema, declared once: a module for each study, each with its `tables`.
docs/data.md is printed from here (`make docs`).
"""

"""The ledger of published numbers, typeset."""

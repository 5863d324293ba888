"""capture: see docs/design/main-line.md."""

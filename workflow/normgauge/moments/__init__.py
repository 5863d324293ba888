"""moments: see docs/design/main-line.md."""

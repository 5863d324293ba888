"""anatomy: see docs/design/main-line.md."""

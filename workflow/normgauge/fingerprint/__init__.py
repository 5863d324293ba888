"""fingerprint: see docs/design/main-line.md."""

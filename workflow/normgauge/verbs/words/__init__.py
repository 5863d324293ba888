"""Every sentence that a verb prints as its summary, so that they can be read together."""

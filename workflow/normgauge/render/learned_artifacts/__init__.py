"""Tables and figures of what is learned on a model and carried by recovered gauges."""

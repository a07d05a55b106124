"""The lake: jobs on streams and on their archive. Each is a function for programs of one's own, and a verb of `busway lake`."""

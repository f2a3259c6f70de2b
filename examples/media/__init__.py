"""Media assets that pend per publisher: a nightly and on-demand reconciler, and publishers with limits."""

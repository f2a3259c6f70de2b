"""The topics: one declaration each, the bytes on them, and the difference between declared and real."""

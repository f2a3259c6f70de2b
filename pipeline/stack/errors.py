"""What can go wrong with the embedded stack, said in one line."""


class StackError(Exception):
    """The stack cannot start, stop or be found; the message names the thing and the mend."""

"""Errors that are the user's to mend: one clear message, no traceback, exit status 2."""


class InputError(ValueError):
    """Wrong input. The message says what was seen, what was wanted and the way out."""

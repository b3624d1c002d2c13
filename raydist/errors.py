"""Errors whose message says all that a user needs: no traceback is shown with them."""


class InputError(ValueError):
    """Wrong input, the user's to mend: exit status 2. The message says what was seen, what was wanted and the way out."""


class Failure(RuntimeError):
    """Something outside the user's input went wrong: exit status 1. The message says what, and how to go on."""


class TrainingFailed(Failure):
    """Training stopped for a reason that trying again would not mend."""

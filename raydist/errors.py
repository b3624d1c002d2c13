"""Errors whose message says all that a user needs: no traceback is shown with them."""


class InputError(ValueError):
    """Wrong input, the user's to mend: exit status 2. The message says what was seen, what was wanted and the way out.

    >>> import raydist
    >>> try:
    ...     raydist.load_config("quickstart", {"optim.lr": -1})
    ... except raydist.InputError as error:
    ...     print(str(error).splitlines()[1])
      optim.lr: should be greater than 0, got -1
    """


class Failure(RuntimeError):
    """Something outside the user's input went wrong: exit status 1. The message says what, and how to go on."""


class TrainingFailed(Failure):
    """Training stopped for a reason that trying again would not mend."""

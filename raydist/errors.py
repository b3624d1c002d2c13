"""Errors whose message suffices for the user: they are shown without a traceback."""


class InputError(ValueError):
    """Wrong input that the user can fix: exit status 2. The message names the actual value, the expected one, and a fix.

    >>> import raydist
    >>> try:
    ...     raydist.load_config("quickstart", {"optim.lr": -1})
    ... except raydist.InputError as error:
    ...     print(str(error).splitlines()[1])
      optim.lr: should be greater than 0, got -1
    """


class Failure(RuntimeError):
    """A failure outside the user's input: exit status 1. The message names it and how to continue."""


class TrainingFailed(Failure):
    """Training stopped for a reason that a retry would not fix."""

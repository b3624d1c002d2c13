"""Errors that are the user's to mend: one clear message, no traceback, exit status 2."""


class InputError(ValueError):
    """Wrong input. The message says what was seen, what was wanted and the way out.

    >>> import raydist
    >>> try:
    ...     raydist.load_config("quickstart", {"optim.lr": -1})
    ... except raydist.InputError as error:
    ...     print(str(error).splitlines()[1])
      optim.lr: should be greater than 0, got -1
    """

from helpers.submission import dashboard, working_dir  # noqa: F401

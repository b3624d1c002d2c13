"""`python -m raydist` is `raydist`."""

from raydist.cli import main

if __name__ == "__main__":
    main()

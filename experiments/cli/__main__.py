"""``python -m experiments.cli``: the command line where no script is on the path."""

from experiments.cli.main import main

if __name__ == "__main__":
    main()

"""``python -m twofold``: the command line."""

from twofold import main

if __name__ == "__main__":
    main()

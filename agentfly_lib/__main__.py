"""`python -m agentfly_lib` is the `agentfly` command."""

from agentfly_lib.cli import main

if __name__ == "__main__":
    main()

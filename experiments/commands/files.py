"""What files hold, and files made of them."""

from experiments.commands.options import Output, OutputOption, Step, Trace
from experiments.commands.show import show


def inspect(trace: Trace, step: Step = "median", output: OutputOption = Output.TABLE) -> None:
    """Say what is in a trace, what could be used of it, what is missing and why."""
    from experiments.inspection import inspect as ask

    show(ask(trace, step=step), output)

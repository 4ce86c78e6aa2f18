"""Operators of a framework as a profiler recorded them, each with the kernels that it launched."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordedOperator:
    """One call of an operator.

    Parameters
    ----------
    name
        As the framework has it: ``aten::mm``; "" where no operator is known that launched the
        kernels.
    sizes, types, values
        Of its inputs, in order: the sizes of a tensor, () of anything else; ``c10::BFloat16``,
        ``Scalar``; what a scalar was, "" of a tensor. Empty where they were not recorded.
    kernels
        Name and seconds of each kernel it launched.
    """

    name: str
    sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    values: tuple[str, ...]
    kernels: tuple[tuple[str, float], ...]

    @property
    def seconds(self) -> float:
        """Time of its kernels, one after the other."""
        return sum(seconds for _, seconds in self.kernels)

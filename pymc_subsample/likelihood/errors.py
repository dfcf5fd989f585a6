"""What the model boundary refuses."""


class TallModelError(ValueError):
    """The model's rows cannot be subsampled; the message says why and what to do."""


class CoupledRows(Exception):
    """An Op mixes rows (internal: turned into a `TallModelError` that names the variable)."""

    def __init__(self, node):
        self.node = node
        super().__init__(op_name(node.op))


def op_name(op) -> str:
    """Return the short name of an Op, as PyTensor prints it where that is telling."""
    scalar_op = getattr(op, "scalar_op", None)
    if scalar_op is not None and type(op).__name__ == "Elemwise":
        return type(scalar_op).__name__
    core_op = getattr(op, "core_op", None)
    if core_op is not None:
        return type(core_op).__name__
    return type(op).__name__

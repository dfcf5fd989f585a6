"""Rows of several folders, each of its own length, as the data of one model."""

from collections.abc import Iterator, Sequence

from pymc_subsample.data.columns import Column
from pymc_subsample.data.rows import Rows


class Several:
    """Columns of several `Rows` by name."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        self.rows = tuple(rows)

    @property
    def checked(self) -> bool:
        """Whether a model was compared with all of them, and they with the model."""
        return all(rows.checked for rows in self.rows)

    def as_checked(self) -> "Several":
        """Return the same rows for a model that was compared with all of them."""
        return Several([rows.as_checked() for rows in self.rows])

    @property
    def names(self) -> tuple[str, ...]:
        """All columns."""
        return tuple(dict.fromkeys(name for rows in self.rows for name in rows.names))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return any(name in rows for rows in self.rows)

    def __len__(self) -> int:
        return sum(map(len, self.rows))

    def column(self, name: str) -> Column:
        """Return the column of a name; raises `ValueError` where several have it."""
        holding = [rows for rows in self.rows if name in rows]
        if len(holding) != 1:
            folders = ", ".join(str(rows.path) for rows in holding)
            raise ValueError(
                f"data has {len(holding)} columns of the name {name!r}, in {folders or 'none'}. "
                "Give them names of their own, as in the model: rows.select(...)."
            )
        return holding[0].column(name)

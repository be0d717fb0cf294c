"""Names for what is made here. A long history needs hundreds of them; the standard UUID costs more than the rest."""

from os import urandom


class NewId:
    """A name that nobody has used."""

    __slots__ = ("hex",)

    def __init__(self) -> None:
        self.hex = urandom(16).hex()


# What callers know: something that has the randomness and the ``hex`` of a standard UUID.
uuid4 = NewId

"""The errors that rince raises on purpose.

Each message echoes what was passed and says what to do about it. The command line prints the message
alone and exits with code 2; anything that is not a `RinceError` is a bug of ours and keeps its traceback.
"""


class RinceError(Exception):
    """Base of every error that rince raises on purpose."""


class ConfigError(RinceError, ValueError):
    """A setting that makes no sense: a temperature of zero, an unknown variant, an unknown key."""


class ShapeError(RinceError, ValueError):
    """Tensors whose shape, dtype or device do not fit each other."""


class WriteError(RinceError):
    """A file that cannot be written: no space, no permission. What stood there before is still there, whole."""


class DataError(RinceError, ValueError):
    """Values that make no sense: NaN, a rank without a term, a label outside the table."""


class LostProcessError(RinceError, RuntimeError):
    """Another process of the run is gone."""


def shown(value: object, longest: int = 60) -> str:
    """A value in a message, cut where it is long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a very long integer"
    return text if len(text) <= longest else f"{text[: longest - 1]}…"

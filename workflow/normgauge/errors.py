"""The one exception for input that cannot be used."""


class InputError(Exception):
    """Bad input: one line that names the file, key or tensor, what was expected, and what to do.

    Anything else that is raised is a defect of the program and keeps its traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

"""What a request is refused with."""

from paddlevideo_fast.errors import PaddleVideoFastError


class RequestError(PaddleVideoFastError):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        text: what is wrong, for whoever has sent it.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

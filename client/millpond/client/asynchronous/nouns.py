"""What every noun of the asynchronous client is made of: a sender, and nothing else."""

from millpond.client.asynchronous.sending import Sender


class Noun:
    """A set of calls about one noun. Methods build calls and hand them to the sender; they do no I/O themselves."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._send = sender.send
        self._pages = sender.pages

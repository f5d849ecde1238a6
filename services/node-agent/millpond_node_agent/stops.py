"""Why each run was told to stop, remembered over restarts of the agent: the report of its end repeats it."""

from pathlib import Path

from millpond_contracts.bodies.allocations import EndReason
from millpond_node_agent.runtimes import runfolder


class StopReasons:
    """One small file per run that was told to stop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def note(self, allocation_id: str, reason: EndReason) -> None:
        """Remember the reason; the first one stays."""
        if self.find(allocation_id) is None:
            runfolder.write_document(str(self._path(allocation_id)), {"reason": reason.value})

    def find(self, allocation_id: str) -> EndReason | None:
        """The reason, None when nobody told the run to stop."""
        document = runfolder.read_document(str(self._path(allocation_id)))
        return None if document is None else EndReason(document["reason"])

    def forget(self, allocation_id: str) -> None:
        """The run is gone."""
        self._path(allocation_id).unlink(missing_ok=True)

    def _path(self, allocation_id: str) -> Path:
        return self._folder / f"{allocation_id}.json"

"""Display of run directories in the terminal and, with Bokeh, as a page; nothing here trains."""

from streamkern.report.run_directory import RunDirectory, read_run
from streamkern.report.run_status import status, status_text

__all__ = ["RunDirectory", "read_run", "status", "status_text"]

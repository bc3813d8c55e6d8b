"""Display of run directories in the terminal and as a page. Only reads files; imports nothing that trains.

The page is in ``streamkern.report.page``, which needs Bokeh (the extra ``report``).
"""

from streamkern.report.run_directory import RunDirectory, read_run
from streamkern.report.run_status import status, status_text

__all__ = ["RunDirectory", "read_run", "status", "status_text"]

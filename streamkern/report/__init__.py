"""From a run directory to the terminal and to a page. Knows the directory's files, and nothing of how they came.

The page needs Bokeh (the extra ``report``) and is imported from ``streamkern.report.page``.
"""

from streamkern.report.run_directory import RunDirectory, read_run
from streamkern.report.status import status, status_text

__all__ = ["RunDirectory", "read_run", "status", "status_text"]

"""Evidence as people have it: a folder of logs, py-spy dumps, Flight Recorder files and copies of /proc, made
into records.

`files` says what each file is, `still` how long the evidence shows that nothing moved, `folder` puts all in
order.
"""

from diag.engine.importers.folder import folder_records, holds_evidence

__all__ = ["folder_records", "holds_evidence"]

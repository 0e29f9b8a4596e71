"""Evidence as people have it (plain logs; a folder of logs, py-spy dumps, Flight Recorder files and copies of /proc)
made into records, and how each kind is judged.

`files` says what each file is, `stall_duration` how long the evidence shows that nothing moved, `folder` puts all in
order, `log_import` reads logs to their outcome, `policy` chooses the judgements.
"""

"""Records in, changes out; and what feeds it from disk: journals, captures, logs of any kind."""

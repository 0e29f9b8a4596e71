"""`diag top`: a run in the terminal. What is shown is made by plain functions; Textual is imported by `panes`
and `app` alone."""

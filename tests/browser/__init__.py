"""The page at `/` in a real Chromium: over real jobs under `diag run`, and over recorded evidence."""

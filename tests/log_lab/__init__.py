"""Programs that provoke real failures and keep what they print, for the rules on logs."""

#!/bin/sh
# Starts diag. As another user than root it gets SYS_PTRACE where the container was given it (--cap-add, capabilities.add).
if [ "$(id -u)" != 0 ] && diag-ptrace --inh-caps +sys_ptrace --ambient-caps +sys_ptrace true 2>/dev/null; then
  exec diag-ptrace --inh-caps +sys_ptrace --ambient-caps +sys_ptrace diag "$@"
fi
exec diag "$@"

#!/bin/sh
# The `diag` command, a shell script and a Python script in one. Sh finds the interpreter that diag was installed for and starts
# it isolated (-I): PYTHONHOME, PYTHONPATH, PYTHONINSPECT and all other variables of the job act on the job alone. A script
# with Python in its first line would have read them before its own first line.
''':'
self=$0
while [ -L "$self" ]; do  # pipx and uv link to it
  to=$(readlink "$self")
  case $to in /*) self=$to ;; *) self=${self%/*}/$to ;; esac
done
case $self in */*) here=${self%/*} ;; *) here=. ;; esac
for lib in "$here"/../lib/python3*/site-packages "$here"/../lib/python3*/dist-packages; do
  for installed in "$lib"/diag-*.dist-info; do
    [ -d "$installed" ] || continue
    version=${lib%/*}; version=${version##*/}
    python=$here/$version
    [ -x "$python" ] || python=$(command -v "$version") || continue
    exec "$python" -I "$self" "$@"
  done
done
for python in "$here/python3" "$here/python" "$(command -v python3)"; do
  [ -x "$python" ] && exec "$python" -I "$self" "$@"
done
echo "error: diag finds no Python beside $self" >&2
exit 1
':'''
import sys

try:
    from diag.cli.main import main
except ModuleNotFoundError:  # pip install --user: -I leaves that place out
    import os
    import site

    prefix = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    site.addsitedir(f"{prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
    from diag.cli.main import main

sys.exit(main())

# Sourced by the other scripts. `ensure_environment NAME EXTRAS` makes the virtual environment NAME in the checkout and
# installs vlrl with the extras into it; `ensure_packages NAME PACKAGE...` makes one of these packages alone. One that is
# complete and fits what is asked (and pyproject.toml) is used again. $PYTHON chooses the interpreter (3.11 or 3.12).

ensure_environment() {
  ensure_packages "$1" --editable ".$2"
}

ensure_packages() {
  local directory=$1 python=${PYTHON:-python3} wanted
  shift
  "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || {
    echo "$python is $("$python" -V 2>&1); vlrl needs Python 3.11 or 3.12: set PYTHON=/path/to/python3.12" >&2
    return 1
  }
  wanted=$(printf '%s\n' "$@" "$PWD" "$("$python" -V)" | cat - pyproject.toml | cksum)
  if [ "$(cat "$directory/complete" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$directory"
    "$python" -m venv "$directory"
    "$directory/bin/python" -m pip install --quiet --upgrade pip  # older ones resolve slowly
    "$directory/bin/python" -m pip install --quiet "$@"
    echo "$wanted" > "$directory/complete"  # last: an install cut short is not reused
  fi
}

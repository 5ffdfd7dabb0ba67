#!/usr/bin/env bash
# tools/workspace_status in a checkout, a changed one, a part of another one, and outside.
set -euo pipefail

command -v git >/dev/null || { echo 'SKIPPED: there is no git' && exit 0; }

status=$PWD/tools/workspace_status
cd "$(mktemp -d "$TEST_TMPDIR/status.XXXXXX")"
export HOME=$PWD GIT_CEILING_DIRECTORIES=$PWD

expect() { # what it says here
  local said
  said=$("$status")
  if [[ $said != "STABLE_GIT_COMMIT $1" ]]; then
    echo "FAILED: in $PWD it says '$said', not '$1'" >&2
    exit 1
  fi
}

mkdir outside checkout
(cd outside && expect unknown)
cd checkout
git init -q .
expect unknown # nothing is committed
echo one >file
git add file
git -c user.name=test -c user.email=test@test commit -q -m one
head=$(git rev-parse HEAD)
expect "${head:0:12}"
touch untracked file
expect "${head:0:12}"
mkdir vendored
(cd vendored && expect unknown)
echo two >file
expect "${head:0:12}-modified"
(PATH=/nowhere && expect() { [[ $(/usr/bin/env PATH=/nowhere /bin/bash "$status") == "STABLE_GIT_COMMIT unknown" ]]; } && expect)
echo PASSED

#!/usr/bin/env bash
# The steps of action.yml: run a command that judges, and add what it says to the summary of the job.
set -uo pipefail

command -v stoker >/dev/null || python -m pip install --quiet "$ACTION/packages/stoker" || exit 2
summary=${GITHUB_STEP_SUMMARY:-/dev/stdout}
read -r -a words <<<"$SCRIPT"

case $COMMAND in
  compare)
    git cat-file -e "$BASE^{commit}" 2>/dev/null || git fetch --quiet --depth 1 origin "$BASE" || exit 2
    arguments=(--quiet --markdown --budget "$SECONDS_OF_ROUNDS" --git "$BASE" WORK)
    [ -z "$REQUIRE" ] || arguments+=(--require "$REQUIRE")
    stoker compare "${arguments[@]}" "${words[@]}" >>"$summary"
    status=$?
    # Most pull requests change no speed: "undecided" fails only where a requirement could not be decided.
    [ "$status" = 3 ] && [ -z "$REQUIRE" ] && status=0
    exit $status
    ;;
  gate)
    printed=$(stoker gate --quiet --budget "$BUDGET" "${words[@]}")
    status=$?
    printf '### stoker gate\n\n```text\n%s\n```\n' "$printed" >>"$summary"
    exit $status
    ;;
  *)
    echo "command is $COMMAND; expected compare or gate." >&2
    exit 2
    ;;
esac
